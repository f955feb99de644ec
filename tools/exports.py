#!/usr/bin/env python3
"""The functions of the public header: for the linker, and to check a built library against them.

usage: tools/exports.py HEADER                 the names, one a line
       tools/exports.py HEADER --map           a version script that exports exactly these
       tools/exports.py HEADER --check FILE    FILE (a shared library) must define just these
       tools/exports.py --self-test
"""
import re
import subprocess
import sys

COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*$", re.M)


def functions(text):
    """Names of all functions that the header declares, sorted; both parts of it."""
    text = DIRECTIVE.sub("", COMMENT.sub(" ", text))
    text = text.replace('extern "C" {', "")
    while True:  # members of structs and enums, innermost first
        shorter = re.sub(r"\{[^{}]*\}", " ", text)
        if shorter == text:
            break
        text = shorter
    names = set()
    for statement in text.split(";"):
        head = re.match(r"(?!typedef\b)[\w\s*]*?\b(\w+)\s*\(", statement.strip())
        if head:
            names.add(head[1])
    return sorted(names)


def version_script(names, abi):
    lines = "".join(f"        {name};\n" for name in names)
    return f"SLUICE_{abi} {{\n    global:\n{lines}    local:\n        *;\n}};\n"


def defined(library):
    """Names of the functions and objects that a shared library exports."""
    out = subprocess.run(["nm", "-D", "--defined-only", library], check=True, text=True,
                         stdout=subprocess.PIPE).stdout
    rows = [line.split() for line in out.splitlines()]
    return sorted(r[-1].split("@")[0] for r in rows if r[-2] != "A")  # A: the version itself


def self_test():
    text = """#define f(x) x
    #ifdef __cplusplus
    extern "C" {
    #endif
    typedef struct a { int (*member)(int); struct { int x; } y; } a;  /* int hidden(void); */
    typedef int (*callback)(void *context);
    enum { SIZE = (1) };
    int one(void); // int no(void);
    const char *two(a *x, int (*fn)(int, int)); unsigned long
    three (int a[4]);
    #if LATER
    a four(callback fn);
    #endif
    }
    """
    found = functions(text)
    print("self-test:", " ".join(found))
    return found != ["four", "one", "three", "two"]


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    text = open(sys.argv[1], encoding="utf-8").read()
    names = functions(text)
    if sys.argv[2:] == ["--map"]:
        print(version_script(names, re.search(r"#define SL_ABI_VERSION +(\d+)", text)[1]), end="")
    elif sys.argv[2:3] == ["--check"]:
        have = defined(sys.argv[3])
        for name in sorted(set(names) - set(have)):
            print(f"{sys.argv[3]}: {name} is declared but not exported")
        for name in sorted(set(have) - set(names)):
            print(f"{sys.argv[3]}: {name} is exported but not declared")
        print(f"{len(names)} functions declared, {len(have)} exported")
        return names != have
    else:
        print("\n".join(names))
    return False


if __name__ == "__main__":
    sys.exit(main())
