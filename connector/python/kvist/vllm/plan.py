"""What the scheduler's side and the workers' sides of one engine tell each other, once a step, by pickle."""

import dataclasses
from array import array
from typing import NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

import kvist


@dataclasses.dataclass
class Handshake(KVConnectorHandshakeMetadata):
    """A worker's to the scheduler at the start: what it described to kvistd. tables: [kvist's group] -> vLLM's block table."""

    instance: str
    space: kvist.Space
    tables: tuple[int, ...]


class LoadPart(NamedTuple):
    """Of one of kvist's groups. pages: [chunk_count * pages of a chunk]"""

    group: int
    first_chunk: int
    chunk_count: int
    pages: array


class Load(NamedTuple):
    """KV of a leased hit into a request's pages. Without parts it has failed already. inside: the step itself needs it."""

    job: int
    request_id: str
    lease: int
    parts: list[LoadPart]
    inside: bool


class Store(NamedTuple):
    """Full chunks of one of kvist's groups out of a request's pages. keys: those of the chunks, and before them that of the first one's parent if
    there is one: `parents` is 1 then, else 0. A job for each group: vLLM may take back the pages of one, and the others' chunks are kept all the same."""

    job: int
    request_id: str  # whose step fills the chunks; "": full before
    keys: bytes
    parents: int
    group: int
    pages: array


@dataclasses.dataclass
class Plan(KVConnectorMetadata):
    """Of one step, to all workers.

    give_up   loads whose requests are gone
    stop      stores that read blocks which this step writes
    prefill   the first token and the number of tokens of the one prompt that the step computes, if it computes nothing else
    """

    loads: list[Load] = dataclasses.field(default_factory=list)
    stores: list[Store] = dataclasses.field(default_factory=list)
    give_up: list[int] = dataclasses.field(default_factory=list)
    stop: list[int] = dataclasses.field(default_factory=list)
    prefill: tuple[int, int] | None = None


@dataclasses.dataclass
class Report(KVConnectorWorkerMetadata):
    """Of one step, from the workers: [job] -> how many ranks.

    stored    the store has ended: the pages are not read any more
    refused   of those: some chunk had no room, or the one before it isn't there any more
    unstored  of those: it failed
    late      the load was given up, but kvistd may still write into the pages
    quiet     of those: it doesn't any more
    inside    a load inside a step has ended
    inside_failed   of those: not well; vLLM has been told the blocks
    """

    stored: dict[int, int] = dataclasses.field(default_factory=dict)
    refused: dict[int, int] = dataclasses.field(default_factory=dict)
    unstored: dict[int, int] = dataclasses.field(default_factory=dict)
    late: dict[int, int] = dataclasses.field(default_factory=dict)
    quiet: dict[int, int] = dataclasses.field(default_factory=dict)
    inside: dict[int, int] = dataclasses.field(default_factory=dict)
    inside_failed: dict[int, int] = dataclasses.field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "Report":
        assert isinstance(other, Report)
        merged = Report()
        for field in dataclasses.fields(Report):
            into = getattr(merged, field.name)
            for ranks in (getattr(self, field.name), getattr(other, field.name)):
                for job, count in ranks.items():
                    into[job] = into.get(job, 0) + count
        return merged

    def __bool__(self) -> bool:
        return any(vars(self).values())
