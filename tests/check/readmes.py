#!/usr/bin/env python3
"""Reads the list of tracked files and fails where a folder's README is missing, or names a file that isn't there.

usage: readmes.py [ROOT]     prints one line per fault: FILE:LINE: why; exit status 1 when there is one, 77 when ROOT is no git checkout

A folder that directly holds sources has a README.md. Names in backticks are looked at that end as sources do and have neither wildcard nor
braces. A table's first column says what is there: its names hold from the README's folder or from the project's root. Elsewhere the end of a
path is enough, for the text has often said of which folder it speaks.
"""

import pathlib
import re
import subprocess
import sys

SOURCE = re.compile(r"[\w./-]*\w\.(cc|h|cu|py|sh|proto)")
DATA_FOLDERS = {"golden", "corpus"}  # bytes of tests, whatever their names end with
IN_BACKTICKS = re.compile(r"`([^`]+)`")


def tracked(root):
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z"], stdout=subprocess.PIPE, text=True)
    return {pathlib.PurePosixPath(name) for name in listed.stdout.split("\0") if name}


def folders_without(files):
    folders = {file.parent for file in files if SOURCE.fullmatch(file.name) and not DATA_FOLDERS & set(file.parts)}
    for folder in sorted(folders - {file.parent for file in files if file.name == "README.md"}):
        yield f"{folder}/README.md:1: missing: this folder holds sources"


def names_of_nothing(root, readme, files, tails):
    """`tails`: every tracked file's path, and every end of it."""
    for number, line in enumerate((root / readme).read_text().splitlines(), 1):
        first = line.split("|")[1] if line.lstrip().startswith("|") else ""
        for name in IN_BACKTICKS.findall(line):
            if not SOURCE.fullmatch(name):
                continue
            here = readme.parent / name in files or pathlib.PurePosixPath(name) in files
            if not here and (f"`{name}`" in first or name not in tails):
                yield f"{readme}:{number}: there is no {name}"


def faults(root, files):
    tails = {"/".join(file.parts[i:]) for file in files for i in range(len(file.parts))}
    found = list(folders_without(files))
    for readme in sorted(file for file in files if file.name == "README.md"):
        found += names_of_nothing(root, readme, files, tails)
    return found


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2]
    files = tracked(root)
    if not files:
        print(f"SKIPPED: {root} is no git checkout, so nobody knows which of its files are the project's")
        return 77
    found = faults(root, files)
    print("\n".join(found) if found else "readmes: every folder with sources has one, and they name what is there")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
