"""vLLM's cache groups as kvist's: which layers share a block table and a reuse rule.

Of recurrent layers a block has the state after its last token. There is one at the end of each step of a prompt, and of each block that is decoded; the
others are null in the table. So only few chunks have one, and a hit ends at one of those.
"""

import math
from collections.abc import Iterator

from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

import kvist
from kvist.tensors import EngineGroup

# Exact types: what derives from them keeps other things in its pages, or frees them by other rules.
_SUPPORTED = (FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec, SlidingWindowMLASpec, MambaSpec)


def _layers(names: list[str], spec: KVCacheSpec) -> Iterator[tuple[str, KVCacheSpec]]:
    for name in names:
        yield name, spec.kv_cache_specs[name] if isinstance(spec, UniformTypeKVCacheSpecs) else spec


def _refuse(name: str, spec: KVCacheSpec) -> None:
    """Raises ValueError for a layer whose blocks kvist can't keep."""
    if type(spec) not in _SUPPORTED:
        supported = ", ".join(kind.__name__ for kind in _SUPPORTED)
        raise ValueError(f"kvist doesn't keep the KV of layer {name}, a {type(spec).__name__} (supported: {supported})")
    if not spec.prefix_cacheable:
        raise ValueError(f"kvist doesn't keep the KV of layer {name}: vLLM doesn't cache its prefixes")
    if isinstance(spec, MambaSpec):
        # Only in this mode steps end where blocks do.
        if spec.mamba_cache_mode != "align":
            raise ValueError(
                f"kvist keeps recurrent states that vLLM keeps at the ends of blocks; those of layer {name} have the mode "
                f"{spec.mamba_cache_mode!r} (supported: 'align'): leave prefix caching on, and use --mamba-cache-mode align"
            )
    elif spec.tokens_per_state != 1 or spec.prefix_replay_tokens:
        raise ValueError(
            f"kvist doesn't keep the KV of layer {name}: its pages hold {spec.tokens_per_state} tokens a state, "
            f"{spec.prefix_replay_tokens} of a hit are replayed (supported: 1 and 0)"
        )


def _one(table: int, what: str, seen: set[int]) -> int:
    if len(seen) != 1:
        raise ValueError(f"kvist can't keep group {table}: its layers have {what} {sorted(seen)}, of each one")
    return seen.pop()


def engine_groups(config: KVCacheConfig, tensor_parallel: int) -> list[EngineGroup]:
    """The groups whose pages go to kvist. Raises ValueError for those that it can't keep: it says what was seen and what is supported."""
    groups = []
    for table in config.transfer_group_ids:
        group = config.kv_cache_groups[table]
        windows, sizes, kinds, replicated = set(), set(), set(), set()
        for name, spec in _layers(group.layer_names, group.kv_cache_spec):
            _refuse(name, spec)
            recurrent = isinstance(spec, MambaSpec)
            window = isinstance(spec, SlidingWindowSpec)
            windows.add(spec.sliding_window + spec.extra_retained_tokens if window else 0)
            sizes.add(spec.block_size)
            kinds.add(recurrent)
            alike = spec.tp_replicated if recurrent else config.kv_tp_replicas >= tensor_parallel
            replicated.add(alike and tensor_parallel > 1)
        groups.append(
            EngineGroup(
                table,
                tuple(group.layer_names),
                block_tokens=_one(table, "blocks of tokens", sizes),
                window_tokens=_one(table, "windows", windows),
                replicated=bool(_one(table, "KV that ranks share or don't", replicated)),
                recurrent=bool(_one(table, "states or KV of tokens", kinds)),
            )
        )
    if not groups:
        raise ValueError("kvist found no cache group whose KV it could keep")
    return groups


class Tables:
    """How kvist's groups follow vLLM's block tables. Iterates over (table, blocks of a chunk), in the order of kvist's groups."""

    def __init__(self, groups: list[EngineGroup], tables: tuple[int, ...], tokens: int) -> None:
        """tables: [kvist's group] its block table. tokens: of a chunk. first_full: the first group that needs whole prefixes, else 0.
        full, windowed, recurrent: groups that need whole prefixes, of sliding windows, of states."""
        by_table = {group.table: group for group in groups}
        self.chunk_tokens = tokens
        self.block_tokens = tuple(by_table[table].block_tokens for table in tables)
        kinds = [by_table[table].kind for table in tables]
        self.first_full = next((group for group, kind in enumerate(kinds) if kind == kvist.GroupKind.FULL), 0)
        self.full, self.windowed, self.recurrent = (
            frozenset(group for group, kind in enumerate(kinds) if kind == wanted)
            for wanted in (kvist.GroupKind.FULL, kvist.GroupKind.WINDOW, kvist.GroupKind.STATE)
        )
        self._followed = tuple((table, tokens // by_table[table].block_tokens) for table in tables)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._followed)

    def __getitem__(self, group: int) -> tuple[int, int]:
        return self._followed[group]

    def __len__(self) -> int:
        return len(self._followed)


def chunk_tokens(groups: list[EngineGroup], wanted: int) -> int:
    """Tokens of a chunk: what was wanted, as a multiple of all groups' blocks. With states as few as can be: vLLM keeps those at the ends of few
    blocks, and any that isn't at a chunk's end would be lost."""
    step = math.lcm(*(group.block_tokens for group in groups))
    wanted = wanted or (1 if any(group.recurrent for group in groups) else kvist.default_chunk_tokens())
    return -(-wanted // step) * step
