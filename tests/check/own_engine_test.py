#!/usr/bin/env python3
"""The patch of examples/own_engine is tinyllm's code still: its lines stand in the engine, in this order.

usage: own_engine_test.py ROOT
"""

import pathlib
import re
import sys


def hunks(patch):
    """(file, [lines that the file with kvist has]) of each hunk."""
    path, lines = None, None
    for line in patch.splitlines():
        if line.startswith("+++ b/"):
            path = line[len("+++ b/"):]
        elif line.startswith("@@"):
            lines = []
            yield path, lines
        elif lines is not None and line[:1] in ("+", " "):
            lines.append(line[1:])


def missing(lines, of_file):
    """The first of `lines` that isn't in the file behind the one before it; None when all are."""
    at = 0
    for line in lines:
        try:
            at = of_file.index(line, at) + 1
        except ValueError:
            return line
    return None


def main(root):
    patch = (root / "examples/own_engine/tinyllm.patch").read_text()
    wrong = []
    ends = {}
    for path, lines in list(hunks(patch)):
        of_file = (root / path).read_text().splitlines()[ends.get(path, 0):]
        line = missing(lines, of_file)
        if line is not None:
            wrong.append(f"{path} doesn't have this line of the patch any more, or not there: {line!r}")
        else:
            ends[path] = ends.get(path, 0) + of_file.index(lines[0])
    added = "\n".join(line for line in patch.splitlines() if line.startswith("+"))
    calls, of_engine = (set(re.findall(r"kvist_->(\w+)\(", text)) for text in (added, (root / "examples/tinyllm/engine.cc").read_text()))
    if calls != {call for call in of_engine if "Swap" not in call and call != "ReportPrefill"}:  # these are other matters
        wrong.append(f"the engine calls {sorted(of_engine)}, the patch {sorted(calls)}")
    diffs = re.findall(r"```diff\n(.*?)```", (root / "examples/own_engine/README.md").read_text(), re.DOTALL)
    shown = re.findall(r"^\+ *(.*?)(?:  +// .*)?$", "".join(diffs), re.MULTILINE)
    wrong += [f"README.md shows a line that the patch doesn't have: {line!r}" for line in shown if line not in patch]
    if not shown:
        wrong.append("README.md shows nothing of the patch")
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
