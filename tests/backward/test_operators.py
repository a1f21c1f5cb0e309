"""The torch operators: autograd, torch.compile, flops, what is prepared once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch._dynamo import compiled_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck
from torch.utils.flop_counter import FlopCounterMode

import fa4
from fa4 import api, gradients, ops
from tests.backward.gradients import Tensors, differentiate, draw, upstream

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


@pytest.mark.parametrize(("queries", "keys"), [(70, 0), (0, 90)])
def test_opcheck_of_empty_problems(queries: int, keys: int) -> None:
    q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in draw((70, 90)))
    inputs = q[:, :queries], k[:, :keys], v[:, :keys]
    out, lse = fa4.flash_attn_func(*inputs, return_lse=True)
    arguments = (torch.ones_like(out), None, *inputs, out, lse, *OPTIONS)
    opcheck(torch.ops.fa4.attention_backward.default, arguments)
    results = torch.ops.fa4.attention_backward(*arguments)
    assert all(r.eq(0).all() and r.shape == t.shape for r, t in zip(results, inputs, strict=True))
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) for t in inputs]
        promised = torch.ops.fa4.attention(*fakes, *OPTIONS)
    assert [t.stride() for t in (out, lse)] == [t.stride() for t in promised]
    opcheck(torch.ops.fa4.attention.default, (*(t.requires_grad_() for t in inputs), *OPTIONS))


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


def test_compiled_autograd_calls_the_operator() -> None:
    tensors = leaves()
    expected = torch.autograd.grad(fa4.flash_attn_func(*tensors).sum(), tensors)
    targets = []
    compiled_autograd.reset()  # of what it knows of a graph like this one

    def note(graph: torch.fx.GraphModule, _: Any) -> torch.fx.GraphModule:
        targets.extend(node.target for node in graph.graph.nodes)
        return graph

    out = fa4.flash_attn_func(*tensors)
    with compiled_autograd._enable(torch.compile(backend=note)):
        out.sum().backward()
    assert torch.ops.fa4.attention_backward in targets
    assert all(t.grad.equal(e) for t, e in zip(tensors, expected, strict=True))


def test_threads_take_turns_in_the_emulator() -> None:
    """Each with gradients of its own, and no two of one shape."""
    problems = [draw((20 + i, 30 + i)) for i in range(4)]

    def gradients_of(inputs: Tensors) -> Tensors:
        tensors = tuple(t.clone().requires_grad_() for t in inputs)
        return torch.autograd.grad(fa4.flash_attn_func(*tensors).sum(), tensors)

    expected = [gradients_of(inputs) for inputs in problems]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(gradients_of, problems * 3))
    for ours, theirs in zip(got, expected * 3, strict=True):
        assert all(a.equal(b) for a, b in zip(ours, theirs, strict=True))


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


@pytest.mark.parametrize("through", [fa4.flash_attn_func, torch.ops.fa4.attention])
def test_second_derivatives_are_refused(through: Callable[..., Any]) -> None:
    tensors = leaves()
    options = OPTIONS if through is torch.ops.fa4.attention else ()
    results = through(*tensors, *options)
    out = results[0] if options else results
    once = torch.autograd.grad(out.sum(), tensors, retain_graph=True)
    recorded = torch.autograd.grad(out.sum(), tensors, create_graph=True)
    assert all(a.equal(b) for a, b in zip(once, recorded, strict=True))
    with pytest.raises(NotImplementedError, match=r"first derivatives only.*SDPBackend\.MATH"):
        torch.autograd.grad(recorded[0].square().sum(), tensors)


def test_second_derivatives_of_the_operator_of_the_backward_are_refused() -> None:
    inputs = draw((70, 90))
    out, lse = fa4.flash_attn_func(*inputs, return_lse=True)
    grad_out = torch.ones_like(out).requires_grad_()
    dq, _, _ = torch.ops.fa4.attention_backward(grad_out, None, *inputs, out, lse, *OPTIONS)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        dq.sum().backward()


def test_results_of_another_problem_are_refused() -> None:
    inputs = draw((70, 90))
    out, lse = fa4.flash_attn_func(*inputs, return_lse=True)
    right = {"grad_out": out, "grad_lse": lse, "out": out, "lse": lse}
    wrong = {
        "grad_out": out[:, 1:],
        "grad_lse": lse.double(),
        "out": out.float(),
        "lse": lse[..., :1],
    }
    for name, tensor in wrong.items():
        grad_out, grad_lse, *saved = (right | {name: tensor}).values()
        with pytest.raises(ValueError, match=f"^{name} has shape .* that of q, k and v has shape"):
            torch.ops.fa4.attention_backward(grad_out, grad_lse, *inputs, *saved, *OPTIONS)


@pytest.mark.parametrize("name", ["q", "k", "v", "out", "grad_out"])
@pytest.mark.parametrize("fault", ["base", "rows", "last"])
def test_what_tma_cannot_address_is_copied(name: str, fault: str) -> None:
    """Bases and rows that are no multiples of 16 bytes; a last stride that is not 1."""
    q, k, v = draw((20, 30), heads=(2, 2))
    grad_out = upstream((q, k, v))[0]
    out, lse = fa4.flash_attn_func(q, k, v, causal=True, return_lse=True)
    given = {"grad_out": grad_out, "grad_lse": None, "q": q, "k": k, "v": v, "out": out, "lse": lse}
    expected = torch.ops.fa4.attention_backward(*given.values(), *OPTIONS)
    if fault == "last" and name in "qkv":
        given[name] = elsewhere(given[name], fault)
        with pytest.raises(ValueError, match=f"{name} has strides .* the last must be 1"):
            torch.ops.fa4.attention_backward(*given.values(), *OPTIONS)
        return
    given[name] = elsewhere(given[name], fault)
    got = torch.ops.fa4.attention_backward(*given.values(), *OPTIONS)
    assert all(a.equal(b) for a, b in zip(got, expected, strict=True))


def elsewhere(tensor: torch.Tensor, fault: str) -> torch.Tensor:
    """The same values, where a fault says."""
    if fault == "last":
        return tensor.transpose(2, 3).contiguous().transpose(2, 3)
    if fault == "rows":
        return torch.cat([tensor, tensor[..., :1]], -1)[..., :-1]
    return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)


def test_a_second_step_is_prepared_already(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = draw((23, 37))  # lengths that no other test has prepared in this process
    grads = upstream(inputs)
    first = differentiate(inputs, grads, causal=True)
    for place in ((api, "resolve"), (gradients, "plan_backward"), (gradients, "prepare")):
        monkeypatch.setattr(*place, None)
    second = differentiate([t.clone() for t in inputs], grads, causal=True)
    assert all(a.equal(b) for a, b in zip(first, second, strict=True))
    with pytest.raises(TypeError, match="NoneType"):
        differentiate(inputs, grads)


def test_flops_are_counted_as_those_of_sdpa() -> None:
    """Whether a gradient is recorded or not, and whatever the mask, as torch does."""
    q, k, v = (t.requires_grad_() for t in draw((20, 30), heads=(4, 2), dims=(64, 32)))
    with torch.no_grad(), FlopCounterMode(display=False) as forward:
        fa4.flash_attn_func(q, k, v, causal=True)
    with FlopCounterMode(display=False) as both:
        out = fa4.flash_attn_func(q, k, v, window_size=(3, 0))
        out.sum().backward()
    out = fa4.flash_attn_func(q, k, v)
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()
    sdpa = torch.ops.aten._scaled_dot_product_flash_attention
    like = [t.to("meta").transpose(1, 2) for t in (q, k, v)]
    like[1:] = (t.repeat_interleave(2, 1) for t in like[1:])
    rest = torch.empty(1, 4, 20, device="meta"), None, None, 20, 30, 0.0, True
    state = (torch.empty(0, device="meta"),) * 2
    result = torch.empty(1, 4, 20, 32, device="meta")
    with FlopCounterMode(display=False) as expected:
        sdpa(*like)
    with FlopCounterMode(display=False) as expected_backward:
        torch.ops.aten._scaled_dot_product_flash_attention_backward(
            result, *like, result, *rest, *state
        )
    assert forward.get_total_flops() == expected.get_total_flops() > 0
    assert backward.get_total_flops() == expected_backward.get_total_flops() > 0
    assert both.get_total_flops() == forward.get_total_flops() + backward.get_total_flops()
