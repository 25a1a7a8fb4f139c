"""What names a model's weights where they lie on this machine."""

import hashlib
import os

_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".json")


def digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(str(part) for part in parts).encode()).hexdigest()[:32]


def files(path: str) -> str:
    """Digest of the names, sizes and times of the files in a directory (or of the one file) that hold weights. Raises OSError."""
    names = [path] if os.path.isfile(path) else sorted(e.path for e in os.scandir(path) if e.name.endswith(_SUFFIXES))
    parts: list[object] = []
    for name in names:
        status = os.stat(name)
        parts += [os.path.basename(name), status.st_size, status.st_mtime_ns]
    return digest(*parts)
