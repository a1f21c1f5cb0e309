"""Train a small GPT on the Python standard library's sources, byte by byte.

    python examples/train_gpt.py                     # on a Hopper GPU
    python examples/train_gpt.py --attn sdpa         # the same with torch's attention
    python examples/train_gpt.py --device cpu --steps 3   # a tiny model, our kernels emulated

Prints loss and tokens/s. With --out DIR the losses are kept as DIR/ATTN.json, and those of all runs
there are drawn into DIR/loss.png (which needs matplotlib, from the `plot` extra). Same seed, same
batches: the curves of two attentions should lie on top of each other.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import fa4

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Causal attention of q, k, v (batch, length, heads, head_dim)."""


def sdpa(q: Tensor, k: Tensor, v: Tensor, backend: SDPBackend | None = None) -> Tensor:
    """torch's attention, by its own choice of a backend or by the given one."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    attend = partial(functional.scaled_dot_product_attention, is_causal=True)
    if backend is None:
        return attend(q, k, v).transpose(1, 2)
    with sdpa_kernel(backend):
        return attend(q, k, v).transpose(1, 2)


@cache
def compiled_flex() -> tuple[Callable[..., Tensor], Callable[..., object]]:
    """flex_attention and its block masks; imported late, since it brings the compiler along."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    return torch.compile(flex_attention), cache(create_block_mask)


def is_causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """flex_attention's form of the mask."""
    return query >= key


def flex(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's compiled flex_attention."""
    attend, block_mask = compiled_flex()
    mask = block_mask(is_causal, None, None, q.shape[1], k.shape[1], device=q.device)
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return attend(q, k, v, block_mask=mask).transpose(1, 2)


ATTENTIONS: dict[str, Attention] = {
    "fa4": partial(fa4.flash_attn_func, causal=True),
    "sdpa": sdpa,
    "sdpa-flash": partial(sdpa, backend=SDPBackend.FLASH_ATTENTION),
    "sdpa-cudnn": partial(sdpa, backend=SDPBackend.CUDNN_ATTENTION),
    "flex": flex,
}


@dataclass(frozen=True)
class Sizes:
    """Of the model and of a batch."""

    layers: int = 8
    heads: int = 8
    head_dim: int = 128
    length: int = 4096  # tokens of a sequence
    batch: int = 8

    @property
    def width(self) -> int:
        return self.heads * self.head_dim


TINY = Sizes(layers=1, heads=2, head_dim=64, length=96, batch=2)  # seconds in the emulator


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, sizes: Sizes, attention: Attention) -> None:
        super().__init__()
        self.heads, self.attention = sizes.heads, attention
        self.norms = nn.ModuleList(nn.LayerNorm(sizes.width) for _ in range(2))
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width, bias=False)
        self.mix = nn.Linear(sizes.width, sizes.width, bias=False)
        self.grow = nn.Linear(sizes.width, 4 * sizes.width, bias=False)
        self.shrink = nn.Linear(4 * sizes.width, sizes.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        x = x + self.mix(self.attention(q, k, v).flatten(2))
        return x + self.shrink(functional.gelu(self.grow(self.norms[1](x))))


class GPT(nn.Module):
    """Logits of the next byte; tokens are (batch, length) bytes."""

    def __init__(self, sizes: Sizes, attention: Attention) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, sizes.width)
        self.places = nn.Embedding(sizes.length, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes, attention) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, 256, bias=False)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.bytes(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def corpus() -> Tensor:
    """Bytes of the standard library's sources, some ten million."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(p.read_bytes() for p in paths)), dtype=torch.uint8)


def batches(sizes: Sizes, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (tokens, next tokens), each (batch, length), the same in every run."""
    text = corpus().to(device)
    generator = torch.Generator().manual_seed(0)
    span = torch.arange(sizes.length + 1, device=device)
    while True:
        starts = torch.randint(len(text) - sizes.length, (sizes.batch, 1), generator=generator)
        window = text[starts.to(device) + span].long()
        yield window[:, :-1], window[:, 1:]


def train(
    attention: Attention, sizes: Sizes, steps: int, device: torch.device, compiled: bool = False
) -> tuple[list[float], float]:
    """Losses of all steps, and tokens/s over those after the first few, which compile.

    Weights are float32, the rest is bfloat16 by autocast.
    """
    torch.manual_seed(0)
    model = GPT(sizes, attention).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.95))
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=max(steps // 10, 1))
    predict = torch.compile(model, fullgraph=True) if compiled else model
    losses, skipped = [], min(5, steps - 1)
    for step, (tokens, targets) in zip(range(steps), batches(sizes, device), strict=False):
        if step == skipped:
            synchronize(device)
            start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16):
            logits = predict(tokens)
        loss = functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warm_up.step()
        losses.append(loss.detach())
        if step % 10 == 0 or step == steps - 1:  # reading the loss makes the host wait
            progress(step + 1, steps, loss.item())
    synchronize(device)
    rate = (steps - skipped) * sizes.batch * sizes.length / (time.perf_counter() - start)
    return torch.stack(losses).tolist(), rate


def synchronize(device: torch.device) -> None:
    """Wait until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def progress(done: int, steps: int, loss: float) -> None:
    """A bar on stderr, one line a call where that is no terminal."""
    bar = "#" * (30 * done // steps)
    end = "\n" if done == steps or not sys.stderr.isatty() else ""
    print(f"\r[{bar:30}] {done}/{steps} loss {loss:.3f}", end=end, file=sys.stderr, flush=True)


def save(folder: Path, name: str, losses: list[float], rate: float) -> None:
    """`name`.json, and loss.png of all runs in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    run = {"losses": losses, "tokens_per_second": rate}
    (folder / f"{name}.json").write_text(json.dumps(run), encoding="utf-8")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no loss.png: it needs matplotlib, pip install 'fa4-kernels[plot]'", file=sys.stderr)
        return
    axes = (figure := Figure(layout="constrained")).subplots()
    for path in sorted(folder.glob("*.json")):
        axes.plot(json.loads(path.read_text(encoding="utf-8"))["losses"], label=path.stem, lw=1)
    axes.set(xlabel="step", ylabel="loss (nats per byte)")
    axes.legend()
    figure.savefig(folder / "loss.png", dpi=120)


def writable_folder(text: str) -> Path:
    """The folder for the results, refused before the training rather than after it."""
    folder = Path(text)
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    if not (os.path.isdir(there) and os.access(there, os.W_OK)):
        raise argparse.ArgumentTypeError(f"{there} is no folder to write in; name another")
    return folder


def main() -> int:
    """Train once, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--attn", choices=ATTENTIONS, default="fa4")
    parser.add_argument("--device", type=torch.device, default=torch.device(here))
    parser.add_argument("--steps", type=int, help="default: 300, on a CPU 3")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--out", type=writable_folder, metavar="DIR", help="keep losses and a plot")
    asked = parser.parse_args()
    on_cpu = asked.device.type == "cpu"
    steps = asked.steps if asked.steps is not None else (3 if on_cpu else 300)
    if steps < 1:
        parser.error(f"--steps is {steps}; it must be at least 1.")
    sizes = TINY if on_cpu else Sizes()
    losses, rate = train(ATTENTIONS[asked.attn], sizes, steps, asked.device, asked.compile)
    last = losses[-10:]
    print(f"{asked.attn}: loss {sum(last) / len(last):.4f} (last {len(last)}), {rate:.0f} tokens/s")
    if asked.out is not None:
        save(asked.out, asked.attn, losses, rate)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
