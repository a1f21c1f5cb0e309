"""Random problems of `bench fuzz`: everything about one follows from its seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bench.hopper.layouts import LAYOUTS, Tensors
from fa4.problem import Problem, default_scale

HEAD_DIMS = ((64, 64), (96, 96), (128, 128), (192, 192), (192, 128), (256, 256))
UNEQUAL = ((64, 128), (128, 64))
DTYPES = ("bfloat16", "float16")
MASKS = ("full", "causal", "window")
EDGES = (1, 2, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257)  # around tiles
LONGEST = 4096
MAX_SCORES = 1 << 26  # batch * heads * seqlen_q * seqlen_k: the reference holds all of them
MAX_ELEMENTS = 1 << 25  # of q, and of k
SOFTCAPS = (1.0, 15.0, 30.0, 50.0)
CONTENTS = ("normal", "loud", "jump", "offset")


@dataclass(frozen=True)
class Trial:
    """One call of `flash_attn_func`."""

    seed: int
    batch: int
    lengths: tuple[int, int]  # of queries, of keys
    heads: tuple[int, int]  # of queries, of keys and values
    head_dims: tuple[int, int]  # of q and k, of v
    dtype: str
    layout: str
    contents: str
    options: dict[str, Any]  # keyword arguments

    def __str__(self) -> str:
        sizes = "x".join(map(str, (self.batch, *self.lengths, *self.heads, *self.head_dims)))
        options = " ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.dtype} {sizes} {self.layout} {self.contents} {options}".rstrip()

    def problem(self) -> Problem:
        """The same call as a Problem."""
        left, right = self.options.get("window_size", (None, None))
        return Problem(
            batch=self.batch,
            seqlen_q=self.lengths[0],
            seqlen_k=self.lengths[1],
            heads_q=self.heads[0],
            heads_kv=self.heads[1],
            head_dim=self.head_dims[0],
            head_dim_v=self.head_dims[1],
            dtype=self.dtype,
            causal=self.options.get("causal", False),
            window_left=left,
            window_right=right,
            softcap=self.options.get("softcap", 0.0),
            scale=self.options.get("softmax_scale", default_scale(self.head_dims[0])),
        )

    def inputs(self, device: str) -> Tensors:
        """q, k, v in the trial's layout."""
        generator = torch.Generator(device=device).manual_seed(self.seed)
        (seqlen_q, seqlen_k), (heads_q, heads_kv) = self.lengths, self.heads
        q, k, v = (
            torch.randn((self.batch, *shape), generator=generator, device=device)
            for shape in (
                (seqlen_q, heads_q, self.head_dims[0]),
                (seqlen_k, heads_kv, self.head_dims[0]),
                (seqlen_k, heads_kv, self.head_dims[1]),
            )
        )
        self._shape_scores(q, k)
        return LAYOUTS[self.layout](*(t.to(getattr(torch, self.dtype)) for t in (q, k, v)))

    def _shape_scores(self, q: torch.Tensor, k: torch.Tensor) -> None:
        """Give the scores their character, in place."""
        if self.contents == "loud":
            q *= 4.0
        elif self.contents == "offset":
            k += 0.5
        elif self.contents == "jump" and k.shape[1]:
            # a few keys far above the others, anywhere in the sequence: a row's maximum jumps
            rng = random.Random(self.seed)
            for key in rng.sample(range(k.shape[1]), min(rng.randint(1, 4), k.shape[1])):
                k[:, key] *= 2.0 ** rng.uniform(2.0, 5.0)


def draw(seed: int, head_dims: Sequence[tuple[int, int]] = (), longest: int = LONGEST) -> Trial:
    """The problem of a seed; `head_dims` restricts it to those pairs, `longest` its lengths."""
    rng = random.Random(seed)
    dims = _head_dims(rng, head_dims)
    heads_kv = rng.choice((1, 1, 2, 3, 4, 8))
    heads_q = heads_kv * rng.choice((1, 1, 1, 2, 3, 4, 8))
    seqlen_q = _length(rng, longest)
    seqlen_k = seqlen_q if rng.random() < 0.4 else _length(rng, longest)
    batch = rng.choice((1, 1, 2, 3, 5))
    while not _fits(batch, seqlen_q, seqlen_k, heads_q, dims[0]):
        if batch > 1:
            batch -= 1
        else:
            seqlen_q, seqlen_k = -(-seqlen_q // 2), -(-seqlen_k // 2)
    contents = rng.choice(CONTENTS)
    return Trial(
        seed=seed,
        batch=batch,
        lengths=(seqlen_q, seqlen_k),
        heads=(heads_q, heads_kv),
        head_dims=dims,
        dtype=rng.choice(DTYPES),
        layout=rng.choice(sorted(LAYOUTS)),
        contents=contents,
        options=_options(rng, seqlen_k, contents),
    )


def _head_dims(rng: random.Random, chosen: Sequence[tuple[int, int]]) -> tuple[int, int]:
    if chosen:
        return rng.choice(chosen)
    kind = rng.random()
    if kind < 0.75:
        return rng.choice(HEAD_DIMS)
    if kind < 0.85:
        return rng.choice(UNEQUAL)
    return (8 * rng.randint(1, 16),) * 2


def _length(rng: random.Random, longest: int) -> int:
    kind = rng.random()
    if kind < 0.02:
        return 0
    if kind < 0.35:
        return rng.choice(EDGES)
    return round(2.0 ** rng.uniform(0.0, longest.bit_length() - 1))


def _fits(batch: int, seqlen_q: int, seqlen_k: int, heads: int, head_dim: int) -> bool:
    elements = batch * heads * head_dim * max(seqlen_q, seqlen_k)
    return batch * heads * seqlen_q * seqlen_k <= MAX_SCORES and elements <= MAX_ELEMENTS


def _options(rng: random.Random, seqlen_k: int, contents: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    mask = rng.choice(MASKS)
    if mask == "causal":
        options["causal"] = True
    elif mask == "window":
        options["window_size"] = (_bound(rng, seqlen_k), _bound(rng, seqlen_k))
    if rng.random() < 0.25:
        options["softcap"] = rng.choice(SOFTCAPS)
    # Larger scores than "jump" makes would leave float32 too few digits for the LSE's tolerance
    if contents == "normal" and rng.random() < 0.5:
        options["softmax_scale"] = rng.uniform(0.02, 0.3)
    return options


def _bound(rng: random.Random, seqlen_k: int) -> int | None:
    kind = rng.random()
    if kind < 0.25:
        return rng.choice((None, -1))
    if kind < 0.5:
        return rng.choice((0, 1, *EDGES))
    return rng.randint(0, seqlen_k + 8)


def upstream(out: torch.Tensor, lse: torch.Tensor, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random gradients of O and LSE; that of LSE is zero for every other seed."""
    generator = torch.Generator().manual_seed(seed)
    grad_out, grad_lse = (
        torch.randn(t.shape, generator=generator).to(t.device, t.dtype) for t in (out, lse)
    )
    return grad_out, grad_lse * (seed % 2)
