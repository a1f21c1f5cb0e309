"""Small seeded problems whose results on a Hopper GPU are kept in this folder."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Golden:
    """One problem: `kernel` is "fa4", "flash-attn-4" or "blackwell"; lengths are (queries, keys).

    "blackwell" is fa4's kernel for sm_100a, run on a Hopper GPU by `fa4.on_hopper`.
    """

    kernel: str
    head_dim: int
    causal: bool
    dtype: torch.dtype = torch.bfloat16
    lengths: tuple[int, int] = (150, 200)
    head_dim_v: int | None = None  # None: as head_dim

    @property
    def name(self) -> str:
        mask = "causal" if self.causal else "full"
        return f"{self.kernel}_d{self.head_dim}_{mask}_{str(self.dtype).removeprefix('torch.')}"

    def inputs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k, v with two query heads on one, from numpy's generator: the same everywhere."""
        draw = np.random.default_rng(2611).standard_normal
        rows, keys = self.lengths
        v_dim = self.head_dim if self.head_dim_v is None else self.head_dim_v
        shapes = ((1, rows, 2, self.head_dim), (1, keys, 1, self.head_dim), (1, keys, 1, v_dim))
        q, k, v = (torch.from_numpy(draw(s, dtype=np.float32)).to(self.dtype) for s in shapes)
        return q, k, v

    def load(self) -> tuple[torch.Tensor, torch.Tensor]:
        """O and LSE as the GPU computed them."""
        with np.load(FOLDER / f"{self.name}.npz") as file:
            out = torch.from_numpy(file["out"]).view(self.dtype)
            return out, torch.from_numpy(file["lse"])

    def save(self, out: torch.Tensor, lse: torch.Tensor) -> None:
        """Keep what a GPU computed; 16-bit floats as int16, which numpy can store."""
        np.savez_compressed(
            FOLDER / f"{self.name}.npz",
            out=out.cpu().contiguous().view(torch.int16).numpy(),
            lse=lse.cpu().float().numpy(),
        )


CASES = (
    Golden("fa4", 64, causal=True),
    Golden("fa4", 128, causal=False),
    Golden("fa4", 128, causal=True),
    Golden("fa4", 256, causal=True),
    Golden("fa4", 128, causal=True, dtype=torch.float16),
    Golden("blackwell", 64, causal=True),
    Golden("blackwell", 96, causal=False, dtype=torch.float16),
    Golden("blackwell", 128, causal=True),
    Golden("blackwell", 128, causal=False),
    Golden("blackwell", 192, causal=True, head_dim_v=128),
    Golden("flash-attn-4", 64, causal=False),
    Golden("flash-attn-4", 128, causal=True),
)
