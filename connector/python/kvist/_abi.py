"""The C ABI of libkvist (kvist.h) as ctypes sees it: structs, constants, functions. `tests/engines/client/abi_test.py` compares them with C."""

import ctypes
import os
import pathlib
from ctypes import POINTER, Structure, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p

ABI_VERSION = 1
NO_PAGE = 0xFFFFFFFF
ALL_LAYERS = 0xFFFFFFFF
GROUPS_MAX = 64
KEY_BYTES = 32
WHERE_KEYS_MAX = 192


class Group(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kind", c_int),
        ("layers", c_uint32),
        ("window_tokens", c_uint32),
        ("page_tokens", c_uint32),
        ("segment_bytes", c_uint64),
        ("segments", c_uint32),
        ("replicated", c_int32),
    ]


class Space(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("model", c_char_p),
        ("revision", c_char_p),
        ("kv_dtype", c_char_p),
        ("layout", c_char_p),
        ("layers", c_uint32),
        ("page_tokens", c_uint32),
        ("chunk_tokens", c_uint32),
        ("segment_bytes", c_uint64),
        ("segments", c_uint32),
        ("tensor_parallel", c_uint32),
        ("pipeline_parallel", c_uint32),
        ("slot_order", c_int),
        ("groups", POINTER(Group)),
        ("group_count", c_size_t),
    ]


class Dim(Structure):
    _fields_ = [("count", c_uint32), ("stride", c_uint64)]


class Layer(Structure):
    _fields_ = [("region", c_uint32), ("offset", c_uint64)]


class GroupPages(Structure):
    _fields_ = [("pages", c_uint32), ("page_stride", c_uint64), ("dims", POINTER(Dim)), ("dim_count", c_size_t)]


class ProcessRegion(Structure):
    _fields_ = [("address", c_void_p), ("length", c_uint64)]


class CudaRegion(Structure):
    _fields_ = [("address", c_void_p), ("length", c_uint64)]


WRITE_PAGE = ctypes.CFUNCTYPE(c_int, c_void_p, c_uint32, c_uint32, c_void_p, c_size_t)


class Memory(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("memfds", POINTER(c_int)),
        ("memfd_count", c_size_t),
        ("layers", POINTER(Layer)),
        ("layer_count", c_size_t),
        ("pages", c_uint32),
        ("page_stride", c_uint64),
        ("dims", POINTER(Dim)),
        ("dim_count", c_size_t),
        ("write_page", WRITE_PAGE),
        ("context", c_void_p),
        ("groups", POINTER(GroupPages)),
        ("group_count", c_size_t),
        ("process_regions", POINTER(ProcessRegion)),
        ("process_region_count", c_size_t),
        ("cuda_regions", POINTER(CudaRegion)),
        ("cuda_region_count", c_size_t),
    ]


class Options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("socket", c_char_p),
        ("instance", c_char_p),
        ("role", c_int),
        ("rank", c_uint32),
        ("space", POINTER(Space)),
        ("memory", POINTER(Memory)),
        ("deadline_us", c_int64),
        ("connect_timeout_us", c_int64),
        ("ask_again", c_int32),
        ("by_layer", c_int32),
    ]


class ChainOptions(Structure):
    _fields_ = [("struct_size", c_size_t), ("chunk_tokens", c_uint32), ("salt", c_char_p), ("lora", c_char_p)]


class Hit(Structure):
    _fields_ = [("chunks", c_uint32), ("coming", c_uint32), ("lease", c_uint64)]


class LoadArgs(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("lease", c_uint64),
        ("first_chunk", c_uint32),
        ("chunk_count", c_uint32),
        ("pages", c_void_p),
        ("page_count", c_size_t),
        ("first_layer", c_uint32),
        ("layer_count", c_uint32),
        ("deadline_us", c_int64),
        ("group", c_uint32),
        ("after", c_int32),
        ("stream", c_void_p),
    ]


class StoreArgs(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("keys", c_char_p),
        ("key_count", c_size_t),
        ("first_chunk", c_uint32),
        ("pages", c_void_p),
        ("page_count", c_size_t),
        ("deadline_us", c_int64),
        ("group", c_uint32),
        ("after", c_int32),
        ("stream", c_void_p),
    ]


class SwapArgs(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("allocation", c_uint64),
        ("group", c_uint32),
        ("first_chunk", c_uint32),
        ("chunk_count", c_uint32),
        ("pages", c_void_p),
        ("page_count", c_size_t),
        ("first_layer", c_uint32),
        ("layer_count", c_uint32),
        ("deadline_us", c_int64),
        ("after", c_int32),
        ("stream", c_void_p),
    ]


class Result(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("status", c_int),
        ("layers", c_uint32),
        ("chunks_copied", c_uint32),
        ("chunks_skipped", c_uint32),
        ("chunks_refused", c_uint32),
        ("pages_released", c_int32),
    ]


class HintArgs(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("session_ended", c_int32),
        ("expected_reuse", c_int32),
        ("stop_reason", c_int32),
        ("reserved", c_int32),
    ]


# name -> (result, arguments). A client and a chain are c_void_p; keys and pages go by address.
_PROMPT = {  # never block: called with the interpreter's lock held, because giving it up can cost a scheduler 5 ms to get back
    "kvist_status_name": (c_char_p, [c_int]),
    "kvist_error": (c_char_p, []),
    "kvist_abi_version": (c_uint32, []),
    "kvist_default_chunk_tokens": (c_uint32, []),
    "kvist_chain_create": (c_int, [POINTER(ChainOptions), POINTER(c_void_p)]),
    "kvist_chain_destroy": (None, [c_void_p]),
    "kvist_chain_append": (c_int, [c_void_p, c_void_p, c_size_t]),
    "kvist_chain_bind": (c_int, [c_void_p, c_char_p, c_size_t]),
    "kvist_chain_keys": (c_void_p, [c_void_p, POINTER(c_size_t)]),
    "kvist_connection_state": (c_int, [c_void_p, POINTER(c_uint8)]),
    "kvist_lookup_start": (c_int, [c_void_p, c_void_p, c_size_t, c_uint32, c_int64, c_int64, POINTER(c_uint64)]),
    "kvist_where_start": (c_int, [c_void_p, c_void_p, c_size_t, c_uint32, c_int64, POINTER(c_uint64)]),
    "kvist_first_needed": (c_uint32, [c_void_p, c_uint32, c_uint32]),
    "kvist_release": (c_int, [c_void_p, c_uint64]),
    "kvist_load": (c_int, [c_void_p, POINTER(LoadArgs), POINTER(c_uint64)]),
    "kvist_store": (c_int, [c_void_p, POINTER(StoreArgs), POINTER(c_uint64)]),
    "kvist_poll": (c_int, [c_void_p, c_uint64, POINTER(Result)]),
    "kvist_cancel": (c_int, [c_void_p, c_uint64]),
    "kvist_wait_on_stream": (c_int, [c_void_p, c_uint64, c_uint32, c_void_p]),
    "kvist_pages_ready": (c_int, [c_void_p, c_uint64, c_uint32, c_void_p]),
    "kvist_bus_busy": (c_int, [c_void_p, c_int64]),
    "kvist_hint": (c_int, [c_void_p, c_void_p, c_size_t, POINTER(HintArgs)]),
    "kvist_report_prefill": (c_int, [c_void_p, c_uint32, c_uint32, c_int64]),
    "kvist_free": (c_int, [c_void_p, c_uint64]),
    "kvist_swap_out": (c_int, [c_void_p, POINTER(SwapArgs), POINTER(c_uint64)]),
    "kvist_swap_in": (c_int, [c_void_p, POINTER(SwapArgs), POINTER(c_uint64)]),
}
_WAITING = {  # wait up to a deadline, or call back: the interpreter runs other threads meanwhile
    "kvist_connect": (c_int, [POINTER(Options), POINTER(c_void_p)]),
    "kvist_disconnect": (c_int, [c_void_p]),
    "kvist_wait_connected": (c_int, [c_void_p, c_int64]),
    "kvist_lookup": (c_int, [c_void_p, c_void_p, c_size_t, c_uint32, c_int64, c_int64, POINTER(Hit)]),
    "kvist_lookup_result": (c_int, [c_void_p, c_uint64, c_int64, POINTER(Hit)]),
    "kvist_where_result": (c_int, [c_void_p, c_uint64, c_int64, c_void_p, c_size_t]),
    "kvist_wait": (c_int, [c_void_p, c_uint64, c_uint32, c_int64, POINTER(Result)]),
    "kvist_flush": (c_int, [c_void_p, c_int64, POINTER(c_uint32)]),
    "kvist_pin": (c_int, [c_void_p, c_void_p, c_size_t, c_int64, POINTER(c_uint32)]),
    "kvist_unpin": (c_int, [c_void_p, c_void_p, c_size_t, c_int64]),
    "kvist_alloc": (c_int, [c_void_p, c_uint32, c_uint32, c_int64, POINTER(c_uint64)]),
}


class Library:
    """libkvist.so and its functions by name, `kvist_` left out."""

    def __init__(self, path: str) -> None:
        self.path = path
        for loader, functions in ((ctypes.PyDLL, _PROMPT), (ctypes.CDLL, _WAITING)):
            library = loader(path)
            for name, (result, arguments) in functions.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
                setattr(self, name.removeprefix("kvist_"), function)
        # Polls for an answer, as opposed to waiting for it.
        self.lookup_poll = self._prompt("kvist_lookup_result")
        self.where_poll = self._prompt("kvist_where_result")
        found = self.abi_version()
        if found != ABI_VERSION:
            raise ImportError(
                f"{path} has version {found} of the ABI, this package wants {ABI_VERSION}: install them together"
            )

    def _prompt(self, name: str):
        function = getattr(ctypes.PyDLL(self.path), name)
        function.restype, function.argtypes = _WAITING[name]
        return function


def load() -> Library:
    """The library inside the package, or the one that $KVIST_LIBRARY names."""
    own = pathlib.Path(__file__).with_name("libkvist.so.1")
    path = os.environ.get("KVIST_LIBRARY") or str(own)
    try:
        return Library(path)
    except OSError as error:
        raise ImportError(f"{path} can't be loaded ({error}): `pip install .` in a checkout of kvist builds it") from error
