"""SDPA on our kernels where they run natively; skipped elsewhere."""

from collections.abc import Iterator

import pytest
import torch
from torch.nn import attention as torch_attention
from torch.nn.functional import scaled_dot_product_attention as sdpa

from fa4.backends import sdpa as backend

Tensors = tuple[torch.Tensor, ...]
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [
    pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU"),
    pytest.mark.filterwarnings("ignore:Warning only once for all operators"),
]


@pytest.fixture(autouse=True)
def active() -> Iterator[None]:
    backend.activate()
    yield
    backend.deactivate()


def draw(dim: int = 128, length: int = 512) -> Tensors:
    """query, key, value (2, 8, length, dim), views of one projection."""
    generator = torch.Generator("cuda").manual_seed(3)
    packed = torch.randn(2, length, 3, 8, dim, device="cuda", generator=generator).bfloat16()
    return tuple(packed.unbind(2)[i].transpose(1, 2).detach().requires_grad_() for i in range(3))


def differentiate(inputs: Tensors, call: object = sdpa) -> Tensors:
    out = call(*inputs, is_causal=True)
    generator = torch.Generator("cuda").manual_seed(4)
    upstream = torch.randn(out.shape, device="cuda", generator=generator).to(out.dtype)
    return out, *torch.autograd.grad(out, inputs, upstream)


def exact(inputs: Tensors) -> Tensors:
    with torch_attention.sdpa_kernel(torch_attention.SDPBackend.MATH):
        return differentiate(tuple(t.detach().float().requires_grad_() for t in inputs))


def check(got: Tensors, expected: Tensors) -> None:
    for ours, reference in zip(got, expected, strict=True):
        assert (ours - reference).norm() < 0.01 * reference.norm()


@pytest.mark.parametrize("dim", [64, 100, 128, 256])  # 100: torch pads to 104
def test_result_and_gradients(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    called, attention = [], backend.api.attention
    monkeypatch.setattr(
        backend.api, "attention", lambda *given: called.append(1) or attention(*given)
    )
    inputs = draw(dim)
    with torch_attention.sdpa_kernel(torch_attention.SDPBackend.FLASH_ATTENTION):
        got = differentiate(inputs)
    assert called
    check(got, exact(inputs))


def test_compiled_graph() -> None:
    inputs = draw()
    with torch_attention.sdpa_kernel(torch_attention.SDPBackend.FLASH_ATTENTION):
        check(differentiate(inputs, torch.compile(sdpa, fullgraph=True)), exact(inputs))


def test_dropout_is_refused_by_the_flash_backend() -> None:
    with (
        torch_attention.sdpa_kernel(torch_attention.SDPBackend.FLASH_ATTENTION),
        pytest.raises(NotImplementedError, match=r"dropout_p is 0\.1"),
    ):
        sdpa(*draw(), dropout_p=0.1)


def test_what_torch_gives_to_other_backends_is_theirs() -> None:
    q, k, v = draw()
    mask = torch.ones(512, 512, dtype=torch.bool, device="cuda").tril()
    expected = exact((q, k, v))[0]
    for out in (
        sdpa(q, k, v, attn_mask=mask),
        sdpa(q.float(), k.float(), v.float(), is_causal=True),
    ):
        check((out,), (expected,))


def test_captured_training_step() -> None:
    model = torch.nn.Linear(256, 3 * 256, dtype=torch.bfloat16, device="cuda")
    x = torch.randn(2, 300, 256, dtype=torch.bfloat16, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def step() -> None:
        q, k, v = model(x).view(2, 300, 3, 4, 64).permute(2, 0, 3, 1, 4)
        with torch_attention.sdpa_kernel(torch_attention.SDPBackend.FLASH_ATTENTION):
            sdpa(q, k, v, is_causal=True).float().square().mean().backward()
        optimizer.step()

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            step()
    torch.cuda.current_stream().wait_stream(aside)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    captured = model.weight.grad.clone()
    model.weight.grad.zero_()
    step()
    assert captured.any()
    check((captured,), (model.weight.grad,))
