"""Gradients by the emulated kernels, and by the oracle."""

import torch

import fa4
from fa4 import emulator, reference
from fa4.api import emulated_arch
from tests.asked import problem_of

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def draw(
    lengths: tuple[int, int],
    heads: tuple[int, int] = (2, 1),
    dims: tuple[int, int] = (64, 64),
    dtype: torch.dtype = torch.bfloat16,
    batch: int = 1,
) -> Tensors:
    """q, k, v."""
    generator = torch.Generator().manual_seed(5)
    shapes = ((lengths[0], heads[0], dims[0]), *((lengths[1], heads[1], d) for d in dims))
    q, k, v = (torch.randn(batch, *shape, generator=generator).to(dtype) for shape in shapes)
    return q, k, v


def upstream(inputs: Tensors, with_lse: bool = True) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Random gradients of O and of LSE for these inputs."""
    q, v = inputs[0], inputs[2]
    generator = torch.Generator().manual_seed(6)
    batch, rows, heads, _ = q.shape
    grad_out = torch.randn(batch, rows, heads, v.shape[3], generator=generator).to(q.dtype)
    grad_lse = torch.randn(batch, heads, rows, generator=generator)
    return grad_out, grad_lse if with_lse else None


def differentiate(
    inputs: Tensors,
    grads: tuple[torch.Tensor, torch.Tensor | None],
    schedule: str = "early",
    seed: int = 0,
    **options: object,
) -> Tensors:
    """dQ, dK, dV of the kernels; the forward pass runs under the same schedule."""
    leaves = tuple(t.detach().requires_grad_() for t in inputs)
    with emulator.session(schedule=schedule, seed=seed, arch=emulated_arch(), num_sms=4):
        out, lse = fa4.flash_attn_func(*leaves, return_lse=True, **options)
        outputs = (out,) if grads[1] is None else (out, lse)
        return torch.autograd.grad(outputs, leaves, grads[: len(outputs)])


def check(inputs: Tensors, with_lse: bool = True, **options: object) -> Tensors:
    """Gradients that were compared with the oracle by the error rule."""
    grads = upstream(inputs, with_lse)
    results = differentiate(inputs, grads, **options)
    problem = problem_of(*inputs, **options)
    agreement = reference.compare_gradients(problem, inputs, grads, results)
    assert agreement.ok, agreement
    return results
