#!/usr/bin/env python3
"""Reads every #include and every linked target of the project and fails on a wrong arrow between layers.

usage: layering.py [ROOT]     prints one line per wrong arrow: FILE:LINE: why; exit status 1 when there is one

The arrows (DESIGN: the lower layer declares an interface, the upper one implements or calls it):

    storage/base <- storage/* <- cuda <- daemon        daemon/core <- daemon/session <- wiring (the files of daemon/ itself)
    proto <- daemon, connector                         daemon/core <- daemon/rpc     <- wiring
    daemon/rpc <- daemon/controller <- wiring          daemon/endpoint <- daemon/rpc, daemon/controller, daemon/ctl
    daemon/session <- daemon/metrics <- wiring
    storage/base, cuda/driver, proto <- connector <- examples (its include/ only)
"""

import pathlib
import posixpath
import re
import sys

# Foreign libraries that only some layers may know.
FOREIGN = {
    "gRPC": re.compile(r"^grpc(pp|\+\+)?/|\.grpc\.pb\.h$"),
    "protobuf": re.compile(r"^google/protobuf/|(?<!\.grpc)\.pb\.h$"),
    "UCX": re.compile(r"^uc[pstm]/"),
    "CUDA": re.compile(r"^(cuda|nv)[a-z_]*\.h(pp)?$|^(cub|thrust)/"),
}
FOREIGN_TARGETS = {
    "gRPC": re.compile(r"^gRPC::|^PkgConfig::GRPC|grpc", re.IGNORECASE),
    "protobuf": re.compile(r"^protobuf::|^kvist_proto$"),
    "UCX": re.compile(r"^(ucx::|PkgConfig::UCX)"),
    "CUDA": re.compile(r"^CUDA::"),
}

# Layer -> (project folders it may include beside itself, foreign libraries it may know). The longest matching layer counts.
LAYERS = {
    "storage/base": ([], []),
    "storage/pool": (["storage/base"], []),
    "storage/ssd": (["storage/base", "storage/pool", "storage/codec"], []),
    "storage/remote": (["storage/base", "storage/pool", "storage/codec"], []),
    "storage/codec": (["storage/base"], []),
    "cuda/driver": (["storage/base"], ["CUDA"]),
    "cuda": (["storage", "cuda/driver"], ["CUDA"]),
    "proto": ([], ["gRPC", "protobuf"]),
    "daemon/core": (["storage/base", "storage/pool"], []),
    "daemon/session": (["storage", "cuda", "proto", "daemon/core"], ["protobuf"]),
    "daemon/endpoint": (["storage/base"], ["gRPC"]),
    "daemon/rpc": (["storage", "cuda", "proto", "daemon/core", "daemon/endpoint"], ["gRPC", "protobuf"]),
    "daemon/metrics": (["storage", "daemon/core", "daemon/session"], []),
    "daemon/peer": (["storage", "cuda", "proto", "daemon/core"], ["protobuf", "UCX"]),
    "daemon/cluster": (["storage", "proto", "daemon/core"], ["gRPC", "protobuf"]),
    "daemon/controller": (["storage/base", "proto", "daemon/endpoint", "daemon/rpc"], ["gRPC", "protobuf"]),
    "daemon/ctl": (["storage/base", "storage/ssd", "proto", "daemon/endpoint"], ["gRPC", "protobuf"]),
    "daemon": (["storage", "cuda", "proto", "daemon"], ["protobuf"]),  # wiring: the one place where all is joined
    "connector": (["proto", "storage/base", "cuda/driver", "connector"], ["protobuf"]),
    "connector/include": ([], []),
    "examples": (["connector/include"], []),
    "tests": (["storage", "cuda", "proto", "daemon", "connector", "examples", "tests"], list(FOREIGN)),
}

# The core is pure: no clock, no thread, no I/O. So what it may include from outside itself is named, header by header.
CORE_ALLOWED = {
    *("storage/base/" + name for name in ("check.h", "ids.h", "reuse_rule.h", "status.h", "units.h")),
    *("storage/pool/" + name for name in ("sections.h", "slot_allocator.h")),
    *("absl/container/" + name for name in ("btree_map.h", "btree_set.h", "flat_hash_map.h", "flat_hash_set.h", "inlined_vector.h")),
    *("absl/" + name for name in ("functional/function_ref.h", "status/status.h", "status/statusor.h", "strings/str_cat.h", "strings/string_view.h", "time/time.h")),
    "algorithm", "array", "bit", "cmath", "compare", "cstddef", "cstdint", "cstdlib", "cstring", "deque", "functional", "iterator",
    "limits", "map", "memory", "new", "numeric", "optional", "set", "span", "string", "string_view", "type_traits", "utility",
    "variant", "vector",
}
PUBLIC_ALLOWED = re.compile(r"^[a-z_]+$|^(stddef|stdint|stdbool|limits)\.h$|^kvist/")  # what an engine must have to compile ours

PROJECT_FOLDERS = ("storage", "cuda", "proto", "daemon", "connector", "examples", "tests")
SOURCE_SUFFIXES = {".h", ".hpp", ".cc", ".cu", ".cuh", ".c"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
TARGET = re.compile(r"^\s*(?:kvist_library|kvist_executable|kvist_test|add_library|add_executable|target_link_libraries)"
                    r"\s*\(\s*([\w:.+-]+)([^)]*)\)", re.MULTILINE)


def under(path, folder):
    return path == folder or path.startswith(folder + "/")


def layer_of(path):
    """The longest layer that holds `path`, or None."""
    return max((layer for layer in LAYERS if under(path, layer)), key=len, default=None)


def project_path(included):
    """The project's path of an included header, or None when it is foreign."""
    if included.startswith("kvist/"):
        return "connector/include/" + included
    return included if included.split("/")[0] in PROJECT_FOLDERS and "/" in included else None


def may_see(layer, target_layer):
    if target_layer == layer:
        return True
    return any(under(target_layer, allowed) for allowed in LAYERS[layer][0])


def check_include(source, relative, included):
    """Why this include is wrong, or None."""
    layer = layer_of(relative)
    included = posixpath.normpath(included)  # "kvist/../../src/client.h" is no public header
    path = project_path(included)
    if path is None and (included.startswith(".") or (source.parent / included).exists()):
        return f'"{included}" does not name its folder: write the path from the project\'s root'
    if layer == "daemon/core" and not under(included, layer) and included not in CORE_ALLOWED:
        return f"daemon/core is pure: no clock, threads or I/O; {included} is not among the CORE_ALLOWED of tests/check/layering.py"
    for library, pattern in FOREIGN.items():
        if pattern.search(included):
            if library not in LAYERS[layer][1]:
                return f"{layer} must not know {library} ({included})"
            if library == "gRPC" and source.suffix in {".h", ".hpp"}:
                return f"gRPC in a header ({included}): it costs every includer seconds; keep it in the .cc"
    if path is None:
        if layer == "connector/include" and not PUBLIC_ALLOWED.search(included):
            return f"public headers need nothing but the standard library ({included})"
        return None
    target_layer = layer_of(path)
    if target_layer is None:
        return f"{path} is in no known layer: add it to LAYERS in tests/check/layering.py"
    if not may_see(layer, target_layer):
        return f"{layer} must not include {target_layer} ({included})"
    return None


def sources(root):
    for folder in PROJECT_FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SOURCE_SUFFIXES and path.is_file():
                yield path


def check_includes(root):
    for source in sources(root):
        relative = source.relative_to(root).as_posix()
        if layer_of(relative) is None:
            yield f"{relative}:1: in no known layer: add it to LAYERS in tests/check/layering.py"
            continue
        for number, line in enumerate(source.read_text(errors="replace").splitlines(), 1):
            if match := INCLUDE.match(line):
                if why := check_include(source, relative, match.group(1)):
                    yield f"{relative}:{number}: {why}"


def check_links(root):
    lists = [path for folder in PROJECT_FOLDERS for path in sorted((root / folder).rglob("CMakeLists.txt"))]
    found = []  # (file, line, target, linked words)
    owner = {}  # target -> layer
    for path in lists:
        relative = path.relative_to(root).as_posix()
        layer = layer_of(relative)
        text = re.sub(r"#.*", "", path.read_text())
        for match in TARGET.finditer(text):
            target, rest = match.group(1), match.group(2).split()
            line = text.count("\n", 0, match.start(1)) + 1
            is_definition = "target_link_libraries" not in match.group(0).split("(")[0]
            if is_definition:
                owner.setdefault(target, layer)  # tests come last: a stand-in of theirs is not the product
                rest = rest[rest.index("LINK") + 1:] if "LINK" in rest else []
            found.append((relative, line, layer, rest))
    for relative, line, layer, words in found:
        if layer is None:
            yield f"{relative}:{line}: in no known layer: add it to LAYERS in tests/check/layering.py"
            continue
        for word in words:
            if word in owner:
                # Examples link the connector's library and see its include folder alone.
                seen = "connector/include" if layer == "examples" and owner[word] == "connector" else owner[word]
                if not may_see(layer, seen):
                    yield f"{relative}:{line}: {layer} must not link {owner[word]} ({word})"
                    continue
            for library, pattern in FOREIGN_TARGETS.items():
                if pattern.search(word) and library not in LAYERS[layer][1]:
                    yield f"{relative}:{line}: {layer} must not link {library} ({word})"


def wrong_arrows(root):
    root = pathlib.Path(root)
    return [*check_includes(root), *check_links(root)]


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2]
    count = sum(1 for _ in sources(root))
    wrong = wrong_arrows(root)
    print("\n".join(wrong) if wrong else f"layering: {count} files, no wrong arrow")
    if count == 0:
        print(f"no sources under {root}")
    return 1 if wrong or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
