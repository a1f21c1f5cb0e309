"""What training does around the operators: autocast, checkpointing, several processes."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import fa4

WIDTH, LENGTH = 128, 70  # two heads of 64
PROCESSES = 2


class Model(nn.Module):
    """Projections in float32 around our attention, for autocast to cast."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 64)).unbind(2)
        return self.mix(fa4.flash_attn_func(q, k, v, causal=True).flatten(2))


def samples() -> Tensor:
    """(PROCESSES, LENGTH, WIDTH)"""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(PROCESSES, LENGTH, WIDTH, generator=generator)


def gradients(call: Callable[[Tensor], Tensor], model: nn.Module, x: Tensor) -> list[Tensor]:
    """Of the model's parameters, after one step under autocast."""
    with torch.autocast("cpu", torch.bfloat16):
        out = call(x)
    out.float().square().mean().backward()
    return [parameter.grad for parameter in model.parameters()]


def test_autocast_and_checkpointing() -> None:
    plain, recomputed = Model(), Model()
    expected = gradients(plain, plain, samples()[:1])
    calls = []
    recomputed.register_forward_pre_hook(lambda *_: calls.append(1))
    got = gradients(
        lambda x: checkpoint(recomputed, x, use_reentrant=False), recomputed, samples()[:1]
    )
    assert len(calls) == 2
    assert all(a.equal(b) for a, b in zip(got, expected, strict=True))
    assert all(grad.dtype == torch.float32 and grad.any() for grad in got)


def one_of_several(rank: int, folder: Path) -> None:
    """A process with its own sample; keeps the gradients that DDP gives it."""
    torch.set_num_threads(1)
    init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=PROCESSES
    )
    model = DistributedDataParallel(Model())
    got = gradients(model, model, samples()[rank : rank + 1])
    torch.save(got, folder / f"{rank}.pt")
    destroy_process_group()


def test_two_processes_give_the_gradients_of_one(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(one_of_several, (tmp_path,), nprocs=PROCESSES)
    both = [torch.load(tmp_path / f"{rank}.pt") for rank in range(PROCESSES)]
    model = Model()
    expected = gradients(model, model, samples())
    alone = Model()
    of_the_first = gradients(alone, alone, samples()[:1])
    for first, second, together, single in zip(*both, expected, of_the_first, strict=True):
        assert first.equal(second)
        # autocast rounds weight gradients to bfloat16, once a sample or once a batch
        near = 0.01 * together.norm()
        assert (first - together).norm() < near
        assert (single - together).norm() > 10 * near
