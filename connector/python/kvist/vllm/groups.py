"""vLLM's cache groups as kvist's: which layers share a block table and a reuse rule."""

import math
from collections.abc import Iterator

from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

import kvist
from kvist.tensors import EngineGroup

# Exact types: what derives from them keeps other things in its pages, or frees them by other rules.
_SUPPORTED = (FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec, SlidingWindowMLASpec)


def _layers(names: list[str], spec: KVCacheSpec) -> Iterator[tuple[str, KVCacheSpec]]:
    for name in names:
        yield name, spec.kv_cache_specs[name] if isinstance(spec, UniformTypeKVCacheSpecs) else spec


def engine_groups(config: KVCacheConfig, tensor_parallel: int) -> list[EngineGroup]:
    """The groups whose pages go to kvist. Raises ValueError for those that it can't keep: it says what was seen and what is supported."""
    groups = []
    replicated = config.kv_tp_replicas >= tensor_parallel > 1
    for table in config.transfer_group_ids:
        group = config.kv_cache_groups[table]
        windows, states = set(), set()
        for name, spec in _layers(group.layer_names, group.kv_cache_spec):
            if type(spec) not in _SUPPORTED:
                supported = ", ".join(kind.__name__ for kind in _SUPPORTED)
                raise ValueError(
                    f"kvist doesn't keep the KV of layer {name}, a {type(spec).__name__} (supported: {supported})"
                )
            if spec.tokens_per_state != 1 or spec.prefix_replay_tokens:
                raise ValueError(
                    f"kvist doesn't keep the KV of layer {name}: its pages hold {spec.tokens_per_state} tokens a state, "
                    f"{spec.prefix_replay_tokens} of a hit are replayed (supported: 1 and 0)"
                )
            if not spec.prefix_cacheable:
                raise ValueError(f"kvist doesn't keep the KV of layer {name}: vLLM doesn't cache its prefixes")
            window = 0
            if isinstance(spec, SlidingWindowSpec):
                window = spec.sliding_window + spec.extra_retained_tokens
            windows.add(window)
            states.add(spec.block_size)
        if len(windows) != 1 or len(states) != 1:
            raise ValueError(
                f"kvist can't keep group {table}: its layers have windows {windows} and blocks of {states} tokens, of each one"
            )
        groups.append(EngineGroup(table, tuple(group.layer_names), states.pop(), windows.pop(), replicated))
    if not groups:
        raise ValueError("kvist found no cache group whose KV it could keep")
    return groups


class Tables:
    """How kvist's groups follow vLLM's block tables. Iterates over (table, blocks of a chunk), in the order of kvist's groups."""

    def __init__(self, groups: list[EngineGroup], tables: tuple[int, ...], tokens: int) -> None:
        """tables: [kvist's group] its block table. tokens: of a chunk. first_full: the first group that needs whole prefixes, else 0."""
        by_table = {group.table: group for group in groups}
        self.chunk_tokens = tokens
        self.block_tokens = tuple(by_table[table].block_tokens for table in tables)
        windows = [by_table[table].window_tokens for table in tables]
        self.first_full = next((group for group, window in enumerate(windows) if window == 0), 0)
        self._followed = tuple((table, tokens // by_table[table].block_tokens) for table in tables)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._followed)

    def __len__(self) -> int:
        return len(self._followed)


def chunk_tokens(groups: list[EngineGroup], wanted: int) -> int:
    """Tokens of a chunk: what was wanted, as a multiple of all groups' blocks."""
    step = math.lcm(*(group.block_tokens for group in groups))
    wanted = wanted or kvist.default_chunk_tokens()
    return -(-wanted // step) * step
