"""The torch operators: autograd, fake tensors, torch.compile."""

import pytest
import torch
from torch.library import opcheck

import fa4
from fa4 import ops
from tests.backward.gradients import differentiate, draw, upstream

OPTIONS = (None, True, None, None, 0.0, False)


def leaves() -> tuple[torch.Tensor, ...]:
    return tuple(t.requires_grad_() for t in draw((70, 90)))


def test_opcheck() -> None:
    opcheck(torch.ops.fa4.attention.default, (*leaves(), *OPTIONS))


def test_opcheck_of_the_backward() -> None:
    inputs = draw((70, 90))
    out, lse = fa4.flash_attn_func(*inputs, causal=True, return_lse=True)
    for grad_lse in (None, upstream(inputs)[1]):
        arguments = (upstream(inputs)[0], grad_lse, *inputs, out, lse, *OPTIONS)
        opcheck(torch.ops.fa4.attention_backward.default, arguments)


def test_compiled_graph_gives_the_same_gradients() -> None:
    inputs = draw((70, 90))
    grads = upstream(inputs)
    expected = differentiate(inputs, grads, causal=True)
    compiled = torch.compile(
        lambda q, k, v: fa4.flash_attn_func(q, k, v, causal=True, return_lse=True),
        fullgraph=True,
        backend="aot_eager",
    )
    tensors = leaves()
    outputs = compiled(*tensors)
    got = torch.autograd.grad(outputs, tensors, grads)
    assert all(a.equal(b) for a, b in zip(got, expected, strict=True))


def test_only_the_inputs_that_want_one_get_a_gradient() -> None:
    q, k, v = draw((70, 90))
    out = fa4.flash_attn_func(q, k.requires_grad_(), v)
    out.sum().backward()
    assert k.grad is not None
    assert q.grad is None


def test_gradient_of_lse_alone() -> None:
    tensors = leaves()
    _, lse = fa4.flash_attn_func(*tensors, return_lse=True)
    dq, dk, dv = torch.autograd.grad(lse.sum(), tensors)
    assert torch.any(dq != 0)
    assert torch.any(dk != 0)
    assert torch.all(dv == 0)


def test_errors_are_those_of_the_entry_point() -> None:
    q, k, v = leaves()
    with pytest.raises(TypeError, match="causal is 'yes'"):
        fa4.flash_attn_func(q, k, v, causal="yes")
    with pytest.raises(ValueError, match="must agree in batch"):
        fa4.flash_attn_func(q, k[..., :32], v)


def test_no_gradient_is_recorded_where_none_is_wanted() -> None:
    q, k, v = leaves()
    with torch.no_grad():
        assert not fa4.flash_attn_func(q, k, v).requires_grad
    assert fa4.flash_attn_func(q, k, v).grad_fn is not None
    assert ops.attention(q.detach(), k.detach(), v.detach(), *OPTIONS)[0].grad_fn is None
