#!/usr/bin/env python3
"""The check of READMEs is itself tested: every fault that is planted here must be found, and nothing else."""

import pathlib
import tempfile
import unittest

import readmes

RIGHT = {
    "README.md": "`core/a.cc` is read first.",
    "core/README.md": "| `a.cc`, `a.{h,cc}` | `cuda/kernels/k.cu`; `*_test.cc`; `<gone.h>` is another's |\n| `cuda/kernels/k.cu` | from the root |",
    "core/a.cc": "",
    "cuda/kernels/README.md": "| file | what |\n| `k.cu` | after `core/a.cc`, and `a.cc` again |",
    "cuda/kernels/k.cu": "",
    "data/golden/made.py": "",
    "data/corpus/some/made.sh": "",
    "words/NOTES.txt": "",
}
WITHOUT = ["a/b.cc", "b/b.h", "c/b.cu", "d/b.py", "e/b.sh", "f/b.proto", "core/inner/b.cc"]  # in folders that have no README
NAMES_OF_NOTHING = {  # README -> (text, line)
    "g/README.md": ("| file | what |\n| `gone.cc` | |", 2),
    "h/README.md": ("text\n\n- `gone.h`: a list", 3),
    "i/README.md": ("| `k.cu` | lies elsewhere |", 1),
    "j/README.md": ("Text: `core/gone.py`.", 1),
    "k/README.md": ("| `core/` | `nels/k.cu` is no end of a path |", 1),
}


class ReadmesTest(unittest.TestCase):
    def faults(self, files):
        with tempfile.TemporaryDirectory() as root:
            for name, text in files.items():
                path = pathlib.Path(root, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text + "\n")
            return readmes.faults(pathlib.Path(root), {pathlib.PurePosixPath(name) for name in files})

    def test_nothing_is_found_where_all_is_right(self):
        self.assertEqual(self.faults(RIGHT), [])

    def test_every_folder_without_a_readme_is_found_and_nothing_else(self):
        found = self.faults(RIGHT | dict.fromkeys(WITHOUT, ""))
        self.assertEqual({line.split(":")[0] for line in found}, {str(pathlib.PurePosixPath(name).parent / "README.md") for name in WITHOUT})

    def test_every_name_of_nothing_is_found_by_its_line_and_nothing_else(self):
        found = self.faults(RIGHT | {name: text for name, (text, _) in NAMES_OF_NOTHING.items()})
        self.assertEqual({":".join(line.split(":")[:2]) for line in found}, {f"{name}:{line}" for name, (_, line) in NAMES_OF_NOTHING.items()})


if __name__ == "__main__":
    unittest.main()
