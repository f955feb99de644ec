#!/usr/bin/env python3
"""Lists the longest functions and files: a report, never a failure.

usage: tools/check_length.py [--most N] [PATH ...]
PATHs are files or folders, by default all source folders. Medians take care of themselves; whoever
leaves a function above about 100 lines (a kernel 250) or a file above about 1,000 says why in it.
A function of C is what lies between a `{` and the next `}` in the first column, as clang-format
leaves them, its head and braces not counted; one of Python is a `def` with its body.
"""
import argparse
import ast
import re
from pathlib import Path

C_SUFFIXES = (".c", ".h", ".cu", ".cuh")
C_HEAD = re.compile(r"\b(\w+)\s*\(")  # the first name before a parenthesis
# Tables written by tools/gen_unicode.py.
GENERATED = ("src/text/unicode_tables.c", "src/text/template_case_table.h")


def c_functions(lines):
    """(name, first line, lines of the body)"""
    head, begin = "", None
    for number, line in enumerate(lines, 1):
        if line.startswith("{") and C_HEAD.search(head):
            begin = number
        elif line.startswith("}") and begin is not None:
            yield C_HEAD.search(head)[1], begin, number - begin - 1
            begin = None
        if begin is None:
            # A head may run over several lines; it starts in the first column.
            head = head + line if line[:1].isspace() else line


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            yield node.name, node.lineno, node.end_lineno - node.lineno


def measure(paths):
    functions, files = [], []
    for file in paths:
        name = file.as_posix()
        if name in GENERATED or file.suffix not in C_SUFFIXES + (".py",):
            continue
        text = file.read_text(encoding="utf-8")
        lines = text.splitlines()
        files.append((len(lines), name))
        found = python_functions(text) if file.suffix == ".py" else c_functions(lines)
        functions += [(n, f"{name}:{line}", function) for function, line, n in found]
    return functions, files


def sources(arguments):
    for argument in map(Path, arguments):
        yield from sorted(argument.rglob("*")) if argument.is_dir() else [argument]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--most", type=int, default=15, help="rows of each list (15)")
    parser.add_argument("paths", nargs="*", default=["src", "cli", "bench", "tests", "tools"])
    options = parser.parse_args()
    functions, files = measure(f for f in sources(options.paths) if f.is_file())

    lengths = sorted(n for n, _, _ in functions)
    if lengths:
        print(f"{len(lengths)} functions: median {lengths[len(lengths) // 2]} lines, nine in ten "
              f"up to {lengths[len(lengths) * 9 // 10]}, longest {lengths[-1]}")
    for n, place, name in sorted(functions, reverse=True)[:options.most]:
        print(f"{n:6}  {name}  ({place})")
    print(f"{len(files)} files, {sum(n for n, _ in files)} lines")
    for n, name in sorted(files, reverse=True)[:options.most]:
        print(f"{n:6}  {name}")


if __name__ == "__main__":
    main()
