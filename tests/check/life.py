#!/usr/bin/env python3
"""daemon/LIFE.md names only functions that are in the files that it says.

usage: life.py ROOT
"""

import pathlib
import re
import sys


def steps(page):
    """(file, [functions]) of each row of its tables."""
    for row in re.findall(r"^\| \d+ \|(.*)$", page, re.MULTILINE):
        file, functions = row.split("|")[:2]
        yield file.strip().strip("`"), re.findall(r"`([^`]+)`", functions)


def wrong(page, text_of):
    """What of the page isn't so; `text_of` gives a file's text, or None."""
    found, rows = [], list(steps(page))
    if not rows:
        found.append("no steps at all")
    for file, functions in rows:
        text = text_of(file)
        if text is None:
            found.append(f"{file} is no file")
            continue
        if not functions:
            found.append(f"the step in {file} names no function")
        found += [f"{function} isn't in {file}" for function in functions if function not in text]
    return found


def main(root):
    def text_of(file):
        path = root / file
        return path.read_text() if path.is_file() else None

    page = (root / "daemon/LIFE.md").read_text()
    # It can fail.
    broken = page.replace("`Core::FinishShard`", "`Core::EndShard`").replace("`connector/src/api.cc`", "`connector/api.cc`")
    if len(wrong(broken, text_of)) != len(wrong(page, text_of)) + 2:
        print("this check doesn't see a wrong function and a wrong file")
        return 1
    found = wrong(page, text_of)
    for line in found:
        print("daemon/LIFE.md:", line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
