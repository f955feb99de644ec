#!/usr/bin/env python3
"""Checks who includes whom, and that src/ stays clear of what a library must not call.

usage: tools/check_layers.py [--self-test]
Prints FILE:LINE: REASON for every departure and exits with status 1 if there is any.
"""
import re
import sys
import tempfile
from pathlib import Path

# A file belongs to the longest folder that is a prefix of its path, and may include what lies in
# that folder or under one of the paths listed. `<own>` stands for src/backend/NAME/.
ARROWS = {
    "src/base/": ["include/sluice.h"],
    "src/format/": ["src/base/"],
    "src/text/": ["src/base/"],
    "src/grammar/": ["include/sluice.h", "src/base/"],
    "src/plan/": ["src/base/", "src/format/"],
    "src/model/": ["src/base/", "src/format/", "src/plan/"],
    # Backends take weights apart when they load them.
    "src/backend/": ["src/base/", "src/format/dtype.h", "src/format/codes.h", "src/plan/",
                     "src/backend/backend.h", "<own>"],
    "src/backend/cpu/kernels/": ["src/base/", "src/format/dtype.h", "src/plan/dims.h"],
    # One definition of the elementary functions for all devices.
    "src/backend/cuda/kernels/": ["src/base/", "src/format/dtype.h", "src/plan/dims.h",
                                  "src/backend/cpu/kernels/math.h"],
    # The engine constructs backends.
    "src/engine/": ["include/sluice.h", "src/base/", "src/format/", "src/text/", "src/grammar/",
                    "src/model/",
                    "src/plan/", "src/backend/backend.h", "src/backend/cpu/cpu.h",
                    "src/backend/cuda/cuda.h"],
    "server/": ["include/sluice.h", "src/base/"],
    "cli/": ["include/sluice.h", "src/base/", "server/"],
}

# Calls of these names; a member of a struct (x->free(...)) may be called what it likes.
ENDS_OR_PRINTS = (r"exit|_exit|_Exit|quick_exit|abort|printf|vprintf|puts|putchar|perror|getenv|"
                  r"secure_getenv|strcpy|strcat|sprintf|vsprintf|strtok|gets|atoi|atol|atof")
ALLOCATES = (r"malloc|calloc|realloc|reallocarray|free|aligned_alloc|posix_memalign|strdup|strndup|"
             r"asprintf|vasprintf")
BANNED = re.compile(r"(?<![\w.>])(%s)\s*\(|\b(f(?:printf|puts|write)\s*\([^;]*\b(?:stdout|stderr))\b"
                    % ENDS_OR_PRINTS)
BANNED_MEMORY = re.compile(r"(?<![\w.>])(%s)\s*\(" % ALLOCATES)
ALLOCATOR = "src/base/mem.c"
# What libm and GPU libraries do not round correctly, so that versions and devices differ; each also
# with the suffixes f and l, and with the prefixes of built-in and of approximate device functions.
INEXACT = (r"exp|exp2|exp10|expm1|log|log2|log10|log1p|pow|powi|cbrt|hypot|rsqrt|rcbrt|"
           r"sin|cos|tan|sincos|sinpi|cospi|sincospi|asin|acos|atan|atan2|sinh|cosh|tanh|asinh|acosh|"
           r"atanh|erf|erfc|lgamma|tgamma|fdivide")
BANNED_MATH = re.compile(r"(?<![\w.>])((?:__|__builtin_)?(?:%s)[fl]?)\s*\(" % INEXACT)

TOKEN = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.S)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.M)


def without(text, kinds):
    """The text with the tokens that start with one of `kinds` blanked, lines kept."""
    return TOKEN.sub(lambda m: re.sub(r"[^\n]", " ", m[0]) if m[0][0] in kinds else m[0], text)


def allowed(path, target):
    layer = max((k for k in ARROWS if path.startswith(k)), key=len, default=None)
    if layer is None:
        return False
    own = "/".join(path.split("/")[:3]) + "/"
    reach = [layer] + ARROWS[layer] if layer != "src/backend/" else ARROWS[layer]
    return any(target.startswith(own if r == "<own>" else r) for r in reach)


def check(root):
    problems = []
    for file in sorted(p for top in ("src", "server", "cli") for p in (root / top).rglob("*.*")):
        if file.suffix not in (".c", ".h", ".cu", ".cuh", ".S"):
            continue
        path = file.relative_to(root).as_posix()
        text = file.read_text(encoding="utf-8")

        def report(offset, reason):
            problems.append((path, text.count("\n", 0, offset) + 1, reason))

        for m in INCLUDE.finditer(without(text, "/")):
            places = (file.parent / m[1], root / "src" / m[1], root / "include" / m[1],
                      root / "server" / m[1])
            found = next((p for p in places if p.is_file()), None)
            if found is None:
                report(m.start(1), f'"{m[1]}" is in none of the include folders')
                continue
            target = found.resolve().relative_to(root.resolve()).as_posix()
            if not allowed(path, target):
                report(m.start(1), f"may not include {target}")
        if path.startswith("src/"):
            code = without(text, "/\"'")
            for m in BANNED.finditer(code):
                report(m.start(), f"calls {(m[1] or m[2].split('(')[0] + '(std...)').strip()}")
            for m in BANNED_MATH.finditer(code):
                report(m.start(), f"calls {m[1]}; elementary functions come from base/dmath.h and "
                                  "the kernels' math.h")
            if path != ALLOCATOR:
                for m in BANNED_MEMORY.finditer(code):
                    report(m.start(), f"calls {m[1]}; memory comes from base/mem.h")
    return problems


def self_test():
    """A small tree with planted departures: exactly those must be found."""
    headers = ["base/mem.h", "format/dtype.h", "format/gguf.h", "text/chat.h", "plan/op.h",
               "model/graph.h", "engine/engine.h", "backend/backend.h", "backend/cpu/cpu.h",
               "backend/cpu/cpu_internal.h", "backend/cuda/cuda.h", "backend/cpu/kernels/kernels.h"]
    good = {
        "src/base/a.c": '#include "base/mem.h"\n#include "sluice.h"\n/* free(x) */ // exit(1)\n'
                        'const char *s = "abort() \\" malloc(";\nint c = \'"\'; /* " */\n',
        "src/base/mem.c": "void f(void *p) { free(p); p = malloc(1); aligned_alloc(64, 64); }\n",
        "src/format/a.c": '#include "format/gguf.h"\n#include "base/mem.h"\n',
        "src/model/a.c": '#include "plan/op.h"\n#include "format/gguf.h"\n',
        "src/backend/cpu/a.c": '#include "cpu_internal.h"\n#include "backend/backend.h"\n'
                               '#include "backend/cpu/kernels/kernels.h"\n#include "plan/op.h"\n',
        "src/backend/cpu/kernels/a.c": '#include "format/dtype.h"\n',
        "src/engine/a.c": '#include "backend/cpu/cpu.h"\n#include "model/graph.h"\n'
                          "void g(void) { b->free(x); b.abort(); sl_free(x); json_free (x);\n"
                          "snprintf(s, 1, f); sl_exit(); fprintf(file, f); freed(1);\n"
                          "x = sl_expf(fmaf(sqrtf(y), floor(z), w->exp(b.log(1)))); /* pow(2, 3) */\n"
                          "x = sl_exp_f64(logits(1)) + exponent(cost(2)); }\n",
        "cli/a.c": '#include "sluice.h"\n#include "base/mem.h"\n'
                   'void h(void) { printf("x"); exit(1); }\n',
    }
    bad = {
        "src/base/b.c": [('#include "format/gguf.h"', "may not include"), ("abort();", "calls abort")],
        "src/format/b.c": [('#include "plan/op.h"', "may not include"), ("free(x);", "calls free"),
                           ('#include "text/chat.h"', "may not include")],
        "src/text/b.c": [('#include "format/gguf.h"', "may not include"),
                         ('# include "model/graph.h"', "may not include")],
        "src/plan/b.h": [('#include "model/graph.h"', "may not include"),
                         ('#include "backend/backend.h"', "may not include")],
        "src/model/b.c": [('#include "backend/backend.h"', "may not include"),
                          ('#include "engine/engine.h"', "may not include"),
                          ('#include "nowhere.h"', "none of the include folders")],
        "src/backend/cpu/kernels/b.c": [('#include "plan/op.h"', "may not include"),
                                        ('#include "format/gguf.h"', "may not include"),
                                        ('#include "../cpu.h"', "may not include")],
        "src/backend/cpu/b.c": [('#include "backend/cuda/cuda.h"', "may not include"),
                                ('#include "format/gguf.h"', "may not include"),
                                ('#include "model/graph.h"', "may not include")],
        "src/backend/cuda/b.cu": [('#include "backend/cpu/kernels/kernels.h"', "may not include")],
        "src/engine/b.c": [('#include "backend/cpu/cpu_internal.h"', "may not include"),
                           ('#include "backend/cpu/kernels/kernels.h"', "may not include")]
                          + [(f"x = {n} (y);", f"calls {n}")
                             for n in (ENDS_OR_PRINTS + "|" + ALLOCATES).split("|")]
                          + [(f"x = {n} (y);", f"calls {n};") for base in INEXACT.split("|")
                             for n in (base, base + "f", base + "l", "__" + base + "f",
                                       "__builtin_" + base)]
                          + [('fprintf(stderr, "x");', "calls fprintf"),
                             ("fputs(s,\n stdout);", "calls fputs"),
                             ('/* " */ free(x); /* " */', "calls free")],
        "src/stray.c": [('#include "base/mem.h"', "may not include")],
        "cli/b.c": [(f'#include "{h}"', "may not include") for h in headers
                    if not h.startswith("base/")],
    }
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        texts = {**{f"src/{h}": "" for h in headers}, "include/sluice.h": "", **good}
        expected = []
        for path, plants in bad.items():
            texts[path] = ""
            for line, reason in plants:
                expected.append((path, texts[path].count("\n") + 1, reason))
                texts[path] += line + "\n"
        for path, text in texts.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        found = check(root)
    missed = [e for e in expected
              if not any(f[:2] == e[:2] and e[2] in f[2] for f in found)]
    wrong = [f for f in found if not any(f[:2] == e[:2] and e[2] in f[2] for e in expected)]
    for what, problems in (("missed", missed), ("wrongly reported", wrong)):
        for path, line, reason in problems:
            print(f"self-test: {what}: {path}:{line}: {reason}")
    print(f"self-test: {len(expected) - len(missed)} of {len(expected)} planted departures found")
    return bool(missed or wrong)


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    problems = check(Path(__file__).resolve().parent.parent)
    for path, line, reason in problems:
        print(f"{path}:{line}: {reason}")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
