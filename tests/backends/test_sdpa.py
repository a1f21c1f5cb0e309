"""`scaled_dot_product_attention` on our kernels, by torch's own choice."""

from collections.abc import Iterator

import pytest
import torch
from torch.nn import attention as torch_attention
from torch.nn.functional import scaled_dot_product_attention as sdpa

from fa4 import emulator
from fa4.backends import sdpa as backend

Tensors = tuple[torch.Tensor, ...]
pytestmark = pytest.mark.filterwarnings("ignore:Warning only once for all operators")
TOLERANCE = 0.02  # of two results in bfloat16 with entries near 1


@pytest.fixture
def active() -> Iterator[None]:
    backend.activate(emulate=True)
    yield
    backend.deactivate()


def draw(rows: int, keys: int, heads: int = 2, heads_kv: int = 2, packed: bool = True) -> Tensors:
    """query, key, value (1, heads, seqlen, 64) in the layout of a projection, or contiguous."""
    generator = torch.Generator().manual_seed(3)
    shapes = ((1, rows, heads, 64), (1, keys, heads_kv, 64), (1, keys, heads_kv, 64))
    tensors = (
        torch.randn(shape, generator=generator).bfloat16().transpose(1, 2) for shape in shapes
    )
    return tuple(t.detach() if packed else t.contiguous() for t in tensors)


def differentiate(inputs: Tensors, exact: bool = False, **options: object) -> Tensors:
    """out and the gradients of query, key, value; `exact` by torch in float32."""
    leaves = tuple((t.float() if exact else t).detach().requires_grad_() for t in inputs)
    if exact:
        with torch_attention.sdpa_kernel(torch_attention.SDPBackend.MATH):
            out = sdpa(*leaves, **options)
    else:
        out = sdpa(*leaves, **options)
        assert "Flash" in type(out.grad_fn).__name__
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(4)).to(out.dtype)
    return out, *torch.autograd.grad(out, leaves, upstream)


def check(inputs: Tensors, **options: object) -> None:
    got = differentiate(inputs, **options)
    for ours, exact in zip(got, differentiate(inputs, exact=True, **options), strict=True):
        torch.testing.assert_close(ours.float(), exact, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.usefixtures("active")
@pytest.mark.parametrize("packed", [True, False])
def test_result_and_gradients(packed: bool) -> None:
    check(draw(70, 70, packed=packed), is_causal=True)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("on", ["cpu", "cuda"])
def test_layouts_are_those_that_torch_promises_to_compiled_graphs(on: str, packed: bool) -> None:
    inputs = draw(40, 70, heads=4, packed=packed)
    cuda = on == "cuda"
    forward, backward = getattr(backend, f"_forward_{on}"), getattr(backend, f"_backward_{on}")
    name = "_scaled_dot_product_flash_attention" + ("" if cuda else "_for_cpu")
    operators = getattr(torch.ops.aten, name), getattr(torch.ops.aten, f"{name}_backward")
    got, given = forward(*inputs, 0.0, True), [*inputs]
    promised = operators[0](*(t.to("meta") for t in inputs), 0.0, True)
    given = torch.ones_like(got[0]), *inputs, *got[:2], *(got[2:6] if cuda else ()), 0.0, True
    state = got[6:8] if cuda else ()
    metas = [t.to("meta") if isinstance(t, torch.Tensor) else t for t in (*given, *state)]
    got += backward(*given, *state)
    promised += operators[1](*metas)
    described = [
        [t if not isinstance(t, torch.Tensor) else (t.shape, t.stride(), t.dtype) for t in outputs]
        for outputs in (got, promised)
    ]
    assert described[0] == described[1]


@pytest.mark.usefixtures("active")
def test_scale_and_groups_of_heads() -> None:
    check(draw(70, 90, heads=4, heads_kv=2), scale=0.3, enable_gqa=True)


@pytest.mark.usefixtures("active")
@pytest.mark.parametrize("lengths", [(40, 90), (90, 40)])
def test_causal_is_aligned_at_the_top_left(lengths: tuple[int, int]) -> None:
    check(draw(*lengths), is_causal=True)


@pytest.mark.usefixtures("active")
def test_our_kernel_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    attention = backend.api.attention
    monkeypatch.setattr(
        backend.api, "attention", lambda *given: called.append(given) or attention(*given)
    )
    inputs = draw(70, 70)
    sdpa(*inputs)
    assert len(called) == 1
    backend.deactivate()
    sdpa(*inputs)
    assert len(called) == 1
    backend.activate(emulate=True)
    assert torch_attention.current_flash_attention_impl() == backend.EMULATED_NAME


@pytest.mark.usefixtures("active")
def test_what_flash_attention_cannot_do_is_refused() -> None:
    q, k, v = draw(70, 70)
    with pytest.raises(NotImplementedError, match=r"attn_mask has shape \(70, 70\)"):
        sdpa(q, k, v, attn_mask=torch.ones(70, 70, dtype=torch.bool))
    with pytest.raises(TypeError, match=r"dtype torch\.float32"):
        sdpa(q.float(), k.float(), v.float())
    with pytest.raises(NotImplementedError, match=r"dropout_p is 0\.1"):
        backend._forward((q, k, v), 0.1, False, None)


@pytest.mark.usefixtures("active")
def test_torch_chooses_another_backend_for_dropout() -> None:
    inputs = draw(70, 70)
    torch.manual_seed(0)
    got = sdpa(*inputs, dropout_p=0.5)
    backend.deactivate()
    torch.manual_seed(0)
    assert got.equal(sdpa(*inputs, dropout_p=0.5))
    backend.activate(emulate=True)


@pytest.mark.usefixtures("active")
def test_compiled_graph() -> None:
    inputs = draw(70, 70)
    compiled = torch.compile(
        lambda q, k, v: sdpa(q, k, v, is_causal=True), fullgraph=True, backend="aot_eager"
    )
    eager, leaves = differentiate(inputs, is_causal=True), [t.requires_grad_() for t in inputs]
    upstream = torch.randn(eager[0].shape, generator=torch.Generator().manual_seed(4)).bfloat16()
    out = compiled(*leaves)
    got = out, *torch.autograd.grad(out, leaves, upstream)
    assert all(a.equal(b) for a, b in zip(got[:1] + got[2:], eager[:1] + eager[2:], strict=True))
    torch.testing.assert_close(got[1], eager[1], rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.usefixtures("active")
@pytest.mark.parametrize("warn_only", [False, True])
def test_deterministic_algorithms_are_taken_where_torch_asks_for_them(warn_only: bool) -> None:
    q, k, v = (t.requires_grad_() for t in draw(70, 70))
    with emulator.session(arch="sm_90a") as emulated:
        try:
            torch.use_deterministic_algorithms(True, warn_only=warn_only)
            sdpa(q, k, v).sum().backward()
        finally:
            torch.use_deterministic_algorithms(False)
    assert "deterministic" in emulated.launches[-1].name


@pytest.mark.usefixtures("active")
def test_second_derivatives_are_refused() -> None:
    q, k, v = (t.requires_grad_() for t in draw(40, 40))
    (dq,) = torch.autograd.grad(sdpa(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match=r"derivative for .* is not implemented"):
        torch.autograd.grad(dq.square().sum(), q)


def test_kernels_of_cuda_tensors_have_the_signatures_of_torch() -> None:
    """Called as the dispatcher would, since there is no GPU; the operators' schemas give names."""
    inputs = draw(70, 70)
    given = {"dropout_p": 0.0, "is_causal": True}
    returned = backend._forward_cuda(*inputs, *given.values(), False, scale=0.2)
    schema = torch.ops.aten._scaled_dot_product_flash_attention.default._schema
    assert len(returned) == len(schema.returns)
    schema = torch.ops.aten._scaled_dot_product_flash_attention_backward.default._schema
    q, k, v = inputs
    out, lse, *between = returned
    named = {"query": q, "key": k, "value": v, "out": out, "logsumexp": lse, **given}
    names = ("cum_seq_q", "cum_seq_k", "max_q", "max_k", "philox_seed", "philox_offset")
    named |= dict(zip(names, between, strict=False)) | {"grad_out": torch.ones_like(out)}
    ordered = [named[a.name] for a in schema.arguments if not a.kwarg_only]
    exact = tuple(t.float().requires_grad_() for t in inputs)
    sdpa(*exact, is_causal=True, scale=0.2).sum().backward()
    for ours, leaf in zip(backend._backward_cuda(*ordered, scale=0.2), exact, strict=True):
        torch.testing.assert_close(ours.float(), leaf.grad, rtol=TOLERANCE, atol=TOLERANCE)


def test_torch_without_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch_attention, "register_flash_attention_impl")
    with pytest.raises(RuntimeError, match=f"torch {torch.__version__} has no".replace("+", r"\+")):
        backend.activate()


def test_native_and_emulated_replace_each_other() -> None:
    backend.activate(emulate=True)
    backend.activate()
    assert torch_attention.current_flash_attention_impl() == backend.NAME
    inputs = tuple(t.float() for t in draw(20, 20))
    sdpa(*inputs)  # float32 on the CPU is torch's again
    backend.deactivate()
