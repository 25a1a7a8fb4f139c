"""`python examples/torch_engine demo`: see README.md."""

import pathlib
import sys

if __package__ in (None, ""):  # run as a folder: the package's own parent is what has to be found
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from torch_engine.demo import main

if __name__ == "__main__":
    sys.exit(main())
