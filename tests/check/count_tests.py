#!/usr/bin/env python3
"""Reads the JUnit files that ctest wrote; prints what failed or was skipped and, last, "PASSED FAILED SKIPPED" as three numbers."""

import sys
import xml.etree.ElementTree as ElementTree


def main():
    passed, failed, skipped = 0, 0, 0
    for path in sys.argv[1:]:
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            status = case.get("status")
            if status == "run":
                passed += 1
            elif status in ("notrun", "disabled"):
                skipped += 1
                print(f"skipped: {case.get('name')}")
            else:
                failed += 1
                print(f"FAILED: {case.get('name')}")
    print(passed, failed, skipped)


if __name__ == "__main__":
    main()
