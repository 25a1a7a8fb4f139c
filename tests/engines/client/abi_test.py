"""kvist/_abi.py against kvist.h: a C program says where everything lies."""

import ctypes
import re
import subprocess

import pytest
from kvist import Connection, ExpectedReuse, GroupKind, Role, Status, StopReason, Tier, _abi
from kvist_daemon import REPO

INCLUDE = REPO / "connector/include"
HEADER = (INCLUDE / "kvist/kvist.h").read_text()
CODE = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.DOTALL)


def c_name(struct: type) -> str:
    """GroupPages -> kvist_group_pages"""
    return "kvist" + re.sub("([A-Z])", lambda letter: "_" + letter[1].lower(), struct.__name__)


STRUCTS = [
    s for s in vars(_abi).values() if isinstance(s, type) and issubclass(s, ctypes.Structure) and s is not ctypes.Structure
]
ENUMS = {
    "kvist_status": (Status, "KVIST_"),
    "kvist_role": (Role, "KVIST_"),
    "kvist_group_kind": (GroupKind, "KVIST_"),
    "kvist_connection": (Connection, "KVIST_"),
    "kvist_expected_reuse": (ExpectedReuse, "KVIST_REUSE_"),
    "kvist_stop_reason": (StopReason, "KVIST_STOP_"),
    "kvist_tier": (Tier, "KVIST_"),
}
CONSTANTS = {
    "ABI_VERSION": "KVIST_ABI_VERSION",
    "NO_PAGE": "KVIST_NO_PAGE",
    "ALL_LAYERS": "KVIST_ALL_LAYERS",
    "GROUPS_MAX": "KVIST_GROUPS_MAX",
    "WHERE_KEYS_MAX": "KVIST_WHERE_KEYS_MAX",
}


@pytest.fixture(scope="module")
def of_c(tmp_path_factory):
    """name -> number, for sizes, places and sizes of fields, enumerators and constants."""
    wanted = ["sizeof(kvist_key)", *CONSTANTS.values()]
    for struct in STRUCTS:
        wanted.append(f"sizeof({c_name(struct)})")
        for name, *_ in struct._fields_:
            wanted += [f"offsetof({c_name(struct)}, {name})", f"sizeof((({c_name(struct)}*)0)->{name})"]
    wanted += [prefix + member.name for enum, prefix in ENUMS.values() for member in enum]
    prints = "\n".join(f'  printf("%s=%llu\\n", "{what}", (unsigned long long)({what}));' for what in wanted)
    folder = tmp_path_factory.mktemp("abi")
    (folder / "abi.c").write_text(
        f"#include <kvist/kvist.h>\n#include <stdio.h>\nint main(void) {{\n{prints}\n  return 0;\n}}\n"
    )
    subprocess.run(
        ["cc", "-std=c11", "-Wall", "-Werror", f"-I{INCLUDE}", folder / "abi.c", "-o", folder / "abi"], check=True
    )
    said = subprocess.run([folder / "abi"], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in (line.rsplit("=", 1) for line in said.splitlines())}


@pytest.mark.parametrize("struct", STRUCTS, ids=c_name)
def test_struct_lies_as_in_c(of_c, struct):
    assert ctypes.sizeof(struct) == of_c[f"sizeof({c_name(struct)})"]
    for name, kind in struct._fields_:
        assert getattr(struct, name).offset == of_c[f"offsetof({c_name(struct)}, {name})"], name
        assert ctypes.sizeof(kind) == of_c[f"sizeof((({c_name(struct)}*)0)->{name})"], name


def test_every_struct_and_field_of_the_header_is_there():
    in_header = {name: body for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", CODE, re.DOTALL)}
    del in_header["kvist_key"]  # bytes in Python
    assert {c_name(struct) for struct in STRUCTS} == in_header.keys()
    for struct in STRUCTS:
        fields = re.findall(r"(\w+)\s*;", in_header[c_name(struct)])
        assert [name for name, *_ in struct._fields_] == fields


@pytest.mark.parametrize("name", ENUMS)
def test_enumerators_are_those_of_the_header(of_c, name):
    enum, prefix = ENUMS[name]
    (body,) = re.findall(r"typedef enum " + name + r" \{(.*?)\}", CODE, re.DOTALL)
    assert [prefix + member.name for member in enum] == re.findall(r"(\w+) = ", body)
    for member in enum:
        assert member.value == of_c[prefix + member.name], member


def test_constants_are_those_of_the_header(of_c):
    for name, in_c in CONSTANTS.items():
        assert getattr(_abi, name) == of_c[in_c], name
    assert of_c["sizeof(kvist_key)"] == _abi.KEY_BYTES


def test_every_function_of_the_header_is_there_with_its_parameters():
    declared = re.findall(r"KVIST_API\s+(.*?)(kvist_\w+)\(([^)]*)\);", CODE, re.DOTALL)
    functions = _abi._PROMPT | _abi._WAITING
    assert {name for _, name, _ in declared} == functions.keys()
    for result, name, parameters in declared:
        found_result, found = functions[name]
        wanted = [] if parameters.strip() == "void" else [parameter.strip() for parameter in parameters.split(",")]
        assert len(found) == len(wanted), name
        for parameter, kind in zip(wanted, found, strict=True):
            is_pointer = "*" in parameter or "[" in parameter
            assert is_pointer == (
                ctypes.sizeof(kind) == 8 and not issubclass(kind, ctypes._SimpleCData) or kind in POINTERS
            ), (name, parameter)
            if not is_pointer:
                assert kind in NUMBERS[parameter.split()[0]], (name, parameter)
        assert (found_result in (ctypes.c_char_p, ctypes.c_void_p)) == ("*" in result), name


POINTERS = (ctypes.c_void_p, ctypes.c_char_p)
NUMBERS = {
    "size_t": (ctypes.c_size_t,),
    "int64_t": (ctypes.c_int64,),
    "uint32_t": (ctypes.c_uint32,),
    "kvist_lease": (ctypes.c_uint64,),
    "kvist_op": (ctypes.c_uint64,),
    "kvist_allocation": (ctypes.c_uint64,),
    "kvist_status": (ctypes.c_int,),
}
