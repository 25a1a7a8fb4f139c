#!/usr/bin/env python3
"""Turns the corpus, which is text, into the inputs of the fuzz targets.

usage: seeds.py CORPUS OUT     writes OUT/<target>/<name> for every CORPUS/<target>/<name>.<kind>

    .toml        as it stands; a line "--set KEY=VALUE" is an argument: it goes behind a zero byte
    .hex         bytes in hexadecimal; from # to the end of a line is a comment
    .textproto   a ClientFrame in protobuf's text form, encoded by protoc; a first line "# fds N" gives the byte before it
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def encode_toml(text):
    arguments = [line[6:] for line in text.splitlines() if line.startswith("--set ")]
    file = "\n".join(line for line in text.splitlines() if not line.startswith("--set ")) + "\n"
    return b"\0".join(part.encode() for part in [file, *arguments])


def encode_hex(text):
    return bytes.fromhex(re.sub(r"#.*", "", text))


def encode_textproto(text):
    fds = re.match(r"# fds (\d+)\n", text)
    frame = subprocess.run(["protoc", f"-I{ROOT}", "--encode=kvist.session.v1.ClientFrame", "proto/session.proto"],
                           input=text.encode(), capture_output=True, check=True)
    return bytes([int(fds.group(1)) if fds else 0]) + frame.stdout


ENCODE = {".toml": encode_toml, ".hex": encode_hex, ".textproto": encode_textproto}


def main():
    corpus, out = map(pathlib.Path, sys.argv[1:])
    for seed in sorted(corpus.glob("*/*")):
        folder = out / seed.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / seed.stem).write_bytes(ENCODE[seed.suffix](seed.read_text()))


if __name__ == "__main__":
    main()
