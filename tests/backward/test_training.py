"""What training does around the operators: autocast, checkpointing, several processes."""

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import destroy_process_group, init_device_mesh, init_process_group
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import scaled_dot_product_attention as sdpa
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import fa4
from fa4 import emulator
from fa4.api import emulated_arch

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


@pytest.mark.parametrize("kept", [True, False])
def test_selective_checkpointing_keeps_attention_on_request(kept: bool) -> None:
    plain, recomputed = Model(), Model()
    expected = gradients(plain, plain, samples()[:1])
    operators = [torch.ops.fa4.attention.default] if kept else []
    contexts = partial(create_selective_checkpoint_contexts, operators)
    call = partial(checkpoint, recomputed, use_reentrant=False, context_fn=contexts)
    with emulator.session(arch=emulated_arch()) as emulated:
        got = gradients(call, recomputed, samples()[:1])
    forwards = [launch for launch in emulated.launches if launch.name.startswith("fa4_fwd")]
    assert len(forwards) == (1 if kept else 2)
    assert all(a.equal(b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("cast", [torch.bfloat16, torch.float16])
def test_autocast_casts_as_it_does_for_sdpa(cast: torch.dtype) -> None:
    """Arguments of any floating-point dtypes; gradients come back in those."""
    generator = torch.Generator().manual_seed(2)
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    drawn = [torch.randn(1, 40, 2, 64, generator=generator).to(dtype) for dtype in dtypes]
    leaves = [t.requires_grad_() for t in drawn]
    with torch.autocast("cpu", cast):
        out = fa4.flash_attn_func(*leaves)
        like = sdpa(*(t.transpose(1, 2) for t in leaves)).transpose(1, 2)
    assert out.dtype == like.dtype == cast
    grads = torch.autograd.grad(out.float().square().sum(), leaves)
    expected = torch.autograd.grad(like.float().square().sum(), leaves)
    for mine, theirs, dtype in zip(grads, expected, dtypes, strict=True):
        assert mine.dtype == theirs.dtype == dtype
        assert (mine - theirs).norm() < 0.02 * theirs.norm()
    with torch.autocast("cpu", cast), torch.no_grad():
        assert fa4.flash_attn_func(*leaves).equal(out)
        compiled = torch.compile(fa4.flash_attn_func, fullgraph=True, backend="aot_eager")
        assert compiled(*leaves).equal(out)
    with pytest.raises(TypeError, match="they must be equal"):
        fa4.flash_attn_func(*leaves)


def test_autocast_leaves_float64_alone() -> None:
    q = torch.zeros(1, 8, 1, 64, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(TypeError, match="float64"):
        fa4.flash_attn_func(q, q, q)


def replicated() -> nn.Module:
    return DistributedDataParallel(Model())


def sharded() -> nn.Module:
    """Each process keeps half of every parameter, gathers them for a pass, and frees them."""
    model = Model()
    mesh = init_device_mesh("cpu", (PROCESSES,))
    for part in (model.qkv, model.mix, model):
        fully_shard(part, mesh=mesh)
    return model


def one_of_several(rank: int, folder: Path, make: Callable[[], nn.Module]) -> None:
    """A process with its own sample; keeps the gradients that it ends up with."""
    torch.set_num_threads(1)
    init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=PROCESSES
    )
    torch.save(whole_gradients(rank, make), folder / f"{rank}.pt")
    gc.collect()
    destroy_process_group()


def whole_gradients(rank: int, make: Callable[[], nn.Module]) -> list[torch.Tensor]:
    """Returns without a reference to the model: DDP's reducer must not be the last to let go of
    the process group, since it then waits for the group's thread, which may wait for the GIL.
    """
    model = make()
    got = gradients(model, model, samples()[rank : rank + 1])
    assert all(isinstance(grad, DTensor) == (make is sharded) for grad in got)
    return [grad.full_tensor() if isinstance(grad, DTensor) else grad for grad in got]


@pytest.mark.parametrize("make", [replicated, sharded])
def test_two_processes_give_the_gradients_of_one(
    make: Callable[[], nn.Module], tmp_path: Path
) -> None:
    torch.multiprocessing.spawn(one_of_several, (tmp_path, make), nprocs=PROCESSES)
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
