"""What is no plain tensor: subclasses, no memory, transforms, forward-mode derivatives."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.distributed import destroy_process_group, init_device_mesh, init_process_group
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.func import functionalize, grad, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import fa4
from tests.backward.gradients import draw, upstream


class Named(torch.Tensor):
    """A subclass with memory."""


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("recorded", [True, False])
def test_fake_tensors_give_fake_results(inside: bool, recorded: bool) -> None:
    """Inside of their mode, and outside: nothing asks them for an address."""
    mode = FakeTensorMode()
    with mode:
        q = torch.empty(2, 20, 4, 64, dtype=torch.bfloat16).requires_grad_(recorded)
        k = torch.empty(2, 30, 2, 64, dtype=torch.bfloat16)
        v = torch.empty(2, 30, 2, 32, dtype=torch.bfloat16)
    with mode if inside else torch.enable_grad():
        out, lse = fa4.flash_attn_func(q, k, v, return_lse=True)
        assert type(out) is type(lse) is type(q)
        assert (out.shape, lse.shape, out.dtype) == ((2, 20, 4, 32), (2, 4, 20), torch.bfloat16)
        assert out.requires_grad == recorded
        if recorded:
            (dq,) = torch.autograd.grad(out.sum(), q)
            assert type(dq) is type(q)
            assert dq.shape == q.shape
    support = fa4.can_implement(q, k, v)
    assert not support
    assert support.reason.startswith("q is a FakeTensor that may have no memory")


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """Of this process alone."""
    init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    destroy_process_group()


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("recorded", [True, False])
def test_distributed_tensors_are_refused(recorded: bool) -> None:
    mesh, inputs = init_device_mesh("cpu", (1,)), draw((20, 30))
    spread = [distribute_tensor(t, mesh, [Replicate()]).requires_grad_(recorded) for t in inputs]
    for given in (spread, (*inputs[:2], spread[2])):
        with pytest.raises(TypeError, match=r"is a DTensor.*Shard it by batch or heads.*to_local"):
            fa4.flash_attn_func(*given)
        assert "DTensor" in fa4.can_implement(*given).reason
    assert fa4.flash_attn_func(*(t.to_local() for t in spread)).shape == inputs[0].shape


def test_a_subclass_with_memory_is_computed_with() -> None:
    inputs = draw((20, 30))
    expected = fa4.flash_attn_func(*inputs)
    out = fa4.flash_attn_func(*(t.as_subclass(Named) for t in inputs))
    assert type(out) is Named
    assert out.as_subclass(torch.Tensor).equal(expected)
    parameters = (torch.nn.Parameter(t, requires_grad=False) for t in inputs)
    assert fa4.flash_attn_func(*parameters).equal(expected)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("recorded", [True, False])
def test_nested_tensors_are_refused(layout: torch.layout, recorded: bool) -> None:
    inputs = (t[0].requires_grad_(recorded) for t in draw((20, 30)))
    nested = [torch.nested.as_nested_tensor([t, t[:9]], layout=layout) for t in inputs]
    with pytest.raises(TypeError, match=r"q is nested; .* Call once for each"):
        fa4.flash_attn_func(*nested)
    assert "q is nested" in fa4.can_implement(*nested).reason


def test_transforms_of_functions() -> None:
    inputs = draw((20, 30))
    expected = fa4.flash_attn_func(*inputs)
    assert functionalize(fa4.flash_attn_func)(*inputs).equal(expected)
    assert vmap(fa4.flash_attn_func)(*(t[None] for t in inputs))[0].equal(expected)
    answers = []
    vmap(lambda q: answers.append(fa4.can_implement(q, *inputs[1:])) or q)(inputs[0][None])
    assert "outside of torch.func" in answers[0].reason


def test_a_traced_call_is_in_the_graph() -> None:
    """As a call of the operator, not as its results."""
    q, k, v = draw((20, 30))
    graph = make_fx(lambda q: fa4.flash_attn_func(q, k, v))(q)
    assert torch.ops.fa4.attention.default in [node.target for node in graph.graph.nodes]
    assert graph(-q).equal(fa4.flash_attn_func(-q, k, v))


def test_forward_mode_derivatives_are_refused() -> None:
    q, k, v = draw((20, 30))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        with pytest.raises(NotImplementedError, match="forward mode AD"):
            fa4.flash_attn_func(dual, k, v)
    assert fa4.flash_attn_func(q, k, v).shape == q.shape


def test_derivatives_inside_transforms_are_refused() -> None:
    q, k, v = draw((20, 30))
    with pytest.raises(NotImplementedError, match=r"torch\.func's transforms"):
        grad(lambda q: fa4.flash_attn_func(q, k, v).sum())(q)
    with pytest.raises(NotImplementedError, match=r"torch\.func's transforms"):
        jvp(lambda q: fa4.flash_attn_func(q, k, v), (q,), (q,))


@pytest.mark.parametrize("which", [0, 1])
def test_gradients_that_are_not_what_lies_in_memory(which: int) -> None:
    """Zeros without memory, and negative ones that nobody has negated yet."""
    leaves = tuple(t.requires_grad_() for t in draw((20, 30)))
    results = fa4.flash_attn_func(*leaves, return_lse=True)
    given = list(upstream(leaves))
    positive = given[which]
    zeros = torch._efficientzerotensor(positive.shape, dtype=positive.dtype)
    for lazy, meant in (
        (zeros, torch.zeros_like(positive)),
        (torch._neg_view(positive), -positive),
    ):
        answers = []
        for given[which] in (lazy, meant):
            answers.append(torch.autograd.grad(results, leaves, given, retain_graph=True))
        assert all(a.equal(b) for a, b in zip(*answers, strict=True))


def test_a_batch_of_gradients() -> None:
    leaves = tuple(t.requires_grad_() for t in draw((20, 30)))
    out = fa4.flash_attn_func(*leaves)
    ones = torch.ones_like(out)
    expected = torch.autograd.grad(out, leaves, ones, retain_graph=True)
    got = torch.autograd.grad(out, leaves, torch.stack((-ones, ones)), is_grads_batched=True)
    assert all(a[1].equal(b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("kind", ["sparse_coo", "mkldnn"])
def test_tensors_that_are_not_strided_are_refused(kind: str) -> None:
    plain = torch.zeros(1, 8, 1, 64, dtype=torch.bfloat16)
    other = plain.to_sparse() if kind == "sparse_coo" else plain.to_mkldnn()
    message = rf"q has layout torch\.\w*{kind}\w*; pass q\.to_dense\(\)"
    with pytest.raises(TypeError, match=message):
        fa4.flash_attn_func(other, plain, plain)
    assert re.search(message, fa4.can_implement(other, plain, plain).reason)
