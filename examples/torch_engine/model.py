"""A decoder-only transformer with paged KV: RMSNorm, rotary positions, grouped-query attention, SwiGLU. On the CPU, KV in bf16.

A token's logits are bit for bit the same whatever is computed beside it, although a matrix product of 3 rows rounds otherwise
than one of 300. The means:

* All is computed in tiles of 16 rows, and a token's row is its place in its page: position % 16. So a token meets products,
  norms and activations of one shape only, always in the same row. The rows of a tile may be any requests': they don't mix.
* Attention is of one tile and one request, to the positions 0 up to the end of the token's page. So its shapes depend on the
  token's position only; what comes after the token has the weight 0.0, exactly.
* Keys and values are read from the pages only, those of the tile's own tokens too. So it can't matter who has written them.
"""

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

PAGE_TOKENS = 16
TILE_ROWS = PAGE_TOKENS
BEGIN_OF_TEXT = 256  # other tokens are bytes
VOCABULARY = 257


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The transformer's shape. The default has 3 million weights and 2 KiB of KV a token."""

    layers: int = 4
    model_dim: int = 256
    heads: int = 8
    kv_heads: int = 4  # divides heads
    head_dim: int = 32  # even
    ffn_dim: int = 704
    context_max: int = 8192  # tokens of prompt and answer
    seed: int = 1  # of the weights

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads != 0:
            raise ValueError(f"heads is {self.heads}: must be a multiple of kv_heads, {self.kv_heads}")
        if self.head_dim % 2 != 0:
            raise ValueError(f"head_dim is {self.head_dim}: must be even, rotary positions turn pairs")

    @property
    def revision(self) -> str:
        """Names the weights: equal for two configurations only if they compute the same."""
        return "-".join(
            f"{field.name}{getattr(self, field.name)}" for field in dataclasses.fields(self) if field.name != "context_max"
        )


@dataclasses.dataclass(frozen=True)
class Span:
    """Consecutive tokens of one sequence; the KV of all earlier positions is in the pages. Pages are from position 0 on."""

    tokens: Sequence[int]
    position: int  # of the first token
    pages: Sequence[int]


@dataclasses.dataclass(frozen=True)
class _Piece:
    """What of a span lies in one page, and so in one tile."""

    span: int  # index in the batch
    tokens: Sequence[int]
    position: int
    pages: Sequence[int]  # up to that page
    last: bool  # of its span

    @property
    def rows(self) -> slice:
        first = self.position % TILE_ROWS
        return slice(first, first + len(self.tokens))


def _pack(spans: Sequence[Span]) -> list[list[_Piece]]:
    """The spans in few tiles: each row of a tile is used once, and the pieces of a span follow each other from tile to tile."""
    tiles: list[list[_Piece]] = []
    used: list[int] = []  # bit r: row r
    for index, span in enumerate(spans):
        tile, at = 0, 0
        while at < len(span.tokens):
            position = span.position + at
            count = min(PAGE_TOKENS - position % PAGE_TOKENS, len(span.tokens) - at)
            pages = span.pages[: position // PAGE_TOKENS + 1]
            piece = _Piece(index, span.tokens[at : at + count], position, pages, at + count == len(span.tokens))
            rows = ((1 << count) - 1) << piece.rows.start
            while tile < len(tiles) and used[tile] & rows:
                tile += 1
            if tile == len(tiles):
                tiles.append([])
                used.append(0)
            tiles[tile].append(piece)
            used[tile] |= rows
            tile, at = tile + 1, at + count
    return tiles


@dataclasses.dataclass(frozen=True)
class _Layer:
    attention_norm: Tensor  # [model_dim]
    qkv: Tensor  # [model_dim, (heads + 2 * kv_heads) * head_dim]
    out: Tensor  # [heads * head_dim, model_dim]
    ffn_norm: Tensor  # [model_dim]
    gate_up: Tensor  # [model_dim, 2 * ffn_dim]
    down: Tensor  # [ffn_dim, model_dim]


class Model:
    """Random weights, a function of the seed. Each matrix has variance 1 / fan-in, so that numbers keep their size from layer
    to layer and attention spreads over all keys: every page has a say in every logit.

    Immutable; any number of engines of one thread may share one.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.config = c = config
        random = torch.Generator().manual_seed(c.seed)

        def matrix(rows: int, columns: int) -> Tensor:
            return torch.randn(rows, columns, generator=random) / math.sqrt(rows)

        def gain() -> Tensor:
            return 1 + 0.1 * torch.randn(c.model_dim, generator=random)

        q_dim, kv_dim = c.heads * c.head_dim, c.kv_heads * c.head_dim
        self._embedding = torch.randn(VOCABULARY, c.model_dim, generator=random)
        self._layers = [
            _Layer(
                attention_norm=gain(),
                qkv=matrix(c.model_dim, q_dim + 2 * kv_dim),
                out=matrix(q_dim, c.model_dim),
                ffn_norm=gain(),
                gate_up=matrix(c.model_dim, 2 * c.ffn_dim),
                down=matrix(c.ffn_dim, c.model_dim),
            )
            for _ in range(c.layers)
        ]
        self._final_norm = gain()
        self._head = matrix(c.model_dim, VOCABULARY)
        rates = 10000.0 ** (-torch.arange(c.head_dim // 2) / (c.head_dim // 2))
        angles = torch.arange(c.context_max)[:, None] * rates  # [context_max, head_dim / 2]
        self._cosine, self._sine = angles.cos(), angles.sin()

    @torch.inference_mode()
    def forward(self, spans: Sequence[Span], kv: Tensor) -> Tensor:
        """Writes the KV of all tokens into `kv` (PagedMemory.kv). The logits after each span's last token: [spans, VOCABULARY].

        Spans are of different sequences. Places of `kv` that no token has been written to may hold anything.
        """
        logits = torch.empty(len(spans), VOCABULARY)
        for tile in _pack(spans):
            x = self._tile(tile, kv)
            last = [piece for piece in tile if piece.last]
            if last:
                of_tile = _rms_norm(x, self._final_norm) @ self._head  # [TILE_ROWS, VOCABULARY]
                for piece in last:
                    logits[piece.span] = of_tile[piece.rows.stop - 1]
        return logits

    def _tile(self, tile: list[_Piece], kv: Tensor) -> Tensor:
        """One tile through all layers: [TILE_ROWS, model_dim]. Rows that nobody has hold numbers that nobody reads."""
        c = self.config
        tokens = torch.zeros(TILE_ROWS, dtype=torch.long)
        positions = torch.zeros(TILE_ROWS, dtype=torch.long)
        for piece in tile:
            tokens[piece.rows] = torch.tensor(piece.tokens)
            positions[piece.rows] = torch.arange(piece.position, piece.position + len(piece.tokens))
        pages = [torch.tensor(piece.pages) for piece in tile]
        cosine, sine = self._cosine[positions][:, None], self._sine[positions][:, None]
        q_dim, kv_dim = c.heads * c.head_dim, c.kv_heads * c.head_dim

        x = self._embedding[tokens]
        for layer, pages_of_layer in zip(self._layers, kv, strict=True):
            q, k, v = (_rms_norm(x, layer.attention_norm) @ layer.qkv).split((q_dim, kv_dim, kv_dim), dim=1)
            q = _rotate(q.view(TILE_ROWS, c.heads, c.head_dim), cosine, sine)
            k = _rotate(k.view(TILE_ROWS, c.kv_heads, c.head_dim), cosine, sine)
            v = v.view(TILE_ROWS, c.kv_heads, c.head_dim)
            attended = torch.zeros(TILE_ROWS, q_dim)
            for piece, table in zip(tile, pages, strict=True):
                pages_of_layer[piece.pages[-1], 0, piece.rows] = k[piece.rows].bfloat16()
                pages_of_layer[piece.pages[-1], 1, piece.rows] = v[piece.rows].bfloat16()
                attended[piece.rows] = self._attend(q, positions, piece, table, pages_of_layer)[piece.rows]
            x = x + attended @ layer.out
            gate, up = (_rms_norm(x, layer.ffn_norm) @ layer.gate_up).chunk(2, dim=1)
            x = x + (torch.nn.functional.silu(gate) * up) @ layer.down
        return x

    def _attend(self, q: Tensor, positions: Tensor, piece: _Piece, table: Tensor, kv: Tensor) -> Tensor:
        """The tile's queries, [TILE_ROWS, heads, head_dim], to the keys of one request: [TILE_ROWS, heads * head_dim].

        Rows of others come out, too, and mean nothing.
        """
        c = self.config
        group, count = c.heads // c.kv_heads, len(piece.pages) * PAGE_TOKENS
        keys, values = (kv[:, which].index_select(0, table).float().view(count, c.kv_heads, c.head_dim) for which in (0, 1))
        # The weight of what isn't written yet is zero, but zero times infinity wouldn't be.
        values[piece.position + len(piece.tokens) :] = 0
        queries = (
            q.view(TILE_ROWS, c.kv_heads, group, c.head_dim)
            .permute(1, 2, 0, 3)
            .reshape(c.kv_heads, group * TILE_ROWS, c.head_dim)
        )
        scores = torch.bmm(queries, keys.permute(1, 2, 0)) / math.sqrt(c.head_dim)
        later = (torch.arange(count) > positions[:, None]).repeat(group, 1)
        weights = scores.masked_fill(later, -torch.inf).softmax(dim=-1)
        out = torch.bmm(weights, values.permute(1, 0, 2)).view(c.kv_heads, group, TILE_ROWS, c.head_dim)
        return out.permute(2, 0, 1, 3).reshape(TILE_ROWS, c.heads * c.head_dim)


def _rms_norm(x: Tensor, gain: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(dim=1, keepdim=True) + 1e-5) * gain


def _rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    a, b = heads.chunk(2, dim=2)
    return torch.cat((a * cosine - b * sine, a * sine + b * cosine), dim=2)
