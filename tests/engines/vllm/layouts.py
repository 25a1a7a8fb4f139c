"""The shapes in which vLLM's backends hold a layer's KV (engines.md A.4), and where a token lies in them."""

import dataclasses

import torch


@dataclasses.dataclass(frozen=True)
class Layout:
    """`name` is one of LAYOUTS. Each tensor is float32: its words are compared as int32."""

    name: str
    heads: int = 2
    head_size: int = 8

    @property
    def words(self) -> int:
        """Of one token in one layer."""
        return self.head_size if self.name == "mla" else self.heads * 2 * self.head_size

    def allocate(self, blocks: int, block: int, layers: int) -> list[torch.Tensor]:
        """One tensor a layer, as the model runner hands them to register_kv_caches; cross_layers share one storage."""
        h, d = self.heads, self.head_size
        if self.name == "cross_layers":
            whole = torch.zeros(blocks, layers, h, block, 2 * d)
            return [whole[:, i] for i in range(layers)]
        if self.name == "mixed":  # pages of two forms behind one block table
            return [Layout("hnd" if i % 2 else "kv_first", h, d)._one(blocks, block, h, d) for i in range(layers)]
        return [self._one(blocks, block, h, d) for _ in range(layers)]

    def _one(self, blocks: int, block: int, h: int, d: int) -> torch.Tensor:
        match self.name:
            case "hnd":  # CPU_ATTN, and the packed FLASH_ATTN with HND
                return torch.zeros(blocks, h, block, 2 * d)
            case "nhd":
                return torch.zeros(blocks, block, h, 2 * d).permute(0, 2, 1, 3)
            case "kv_first":  # FLASH_ATTN before 2026-05
                return torch.zeros(2, blocks, block, h, d)
            case "kv_second":  # until 2026-07
                return torch.zeros(blocks, 2, block, h, d)
            case "mla":
                return torch.zeros(blocks, block, d)
            case "kernel_blocks":  # a block is two kernel blocks
                return torch.zeros(2 * blocks, h, block // 2, 2 * d)
        raise ValueError(self.name)

    @staticmethod
    def states(tensor: torch.Tensor, blocks: int) -> torch.Tensor:
        """The same memory as a recurrent layer has it: bytes, a state a block. Of a tensor whose blocks are contiguous."""
        return tensor.view(torch.int8).view(blocks, 1, 1, -1)

    def tokens(self, tensor: torch.Tensor, blocks: int) -> torch.Tensor:
        """[block, part, token of the part, ...]: an int32 view; a block is its parts one after the other."""
        t = tensor.view(torch.int32)
        match self.name:
            case "mixed":
                return Layout("hnd" if t.dim() == 4 else "kv_first", self.heads, self.head_size).tokens(tensor, blocks)
            case "hnd" | "nhd" | "cross_layers":
                return t.permute(0, 2, 1, 3).unsqueeze(1)
            case "kv_first":
                return t.permute(1, 2, 0, 3, 4).unsqueeze(1)
            case "kv_second":
                return t.permute(0, 2, 1, 3, 4).unsqueeze(1)
            case "mla":
                return t.unsqueeze(1)
            case "kernel_blocks":
                return t.unflatten(0, (blocks, 2)).permute(0, 1, 3, 2, 4)
        raise ValueError(self.name)


LAYOUTS = ("hnd", "nhd", "kv_first", "kv_second", "mla", "kernel_blocks", "cross_layers", "mixed")
