#!/usr/bin/env python3
"""Reads the JUnit files that ctest wrote; prints what failed, with what it said of that, what was skipped, also of tests that have passed,
and last "PASSED FAILED SKIPPED"."""

import re
import sys
import xml.etree.ElementTree as ElementTree

# Where a test's output tells of what went wrong: Catch2, the sanitizers, KVIST_CHECK and Abseil's, Python.
SIGNS = re.compile(r"FAILED|WARNING: ThreadSanitizer|ERROR: |runtime error:|check failed|Check failed|Traceback")
# A case that says so and returns, which is a test passed for ctest.
LEFT_OUT = re.compile(r"^\s*skipped: (.*)$", re.MULTILINE)
BEFORE, AFTER, LAST = 6, 30, 10  # lines around the first sign, and at the end


def excerpt(output):
    """The lines of a failed test's output that a reader would look for."""
    lines = output.splitlines()
    sign = next((i for i, line in enumerate(lines) if SIGNS.search(line)), len(lines))
    around = range(max(0, sign - BEFORE), min(len(lines), sign + AFTER))
    wanted = sorted({*around, *range(max(0, len(lines) - LAST), len(lines))})
    previous = -1
    for i in wanted:
        if i != previous + 1:
            yield "..."
        yield lines[i]
        previous = i


def main():
    passed, failed, skipped = 0, 0, 0
    for path in sys.argv[1:]:
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            status = case.get("status")
            if status == "run":
                passed += 1
                for why in LEFT_OUT.findall(case.findtext("system-out") or ""):
                    print(f"not all of {case.get('name')}: {why}")
            elif status in ("notrun", "disabled"):
                skipped += 1
                print(f"skipped: {case.get('name')}")
            else:
                failed += 1
                print(f"FAILED: {case.get('name')} after {float(case.get('time', 0)):.0f} s")
                for line in excerpt(case.findtext("system-out") or ""):
                    print(f"    {line}")
    print(passed, failed, skipped)


if __name__ == "__main__":
    main()
