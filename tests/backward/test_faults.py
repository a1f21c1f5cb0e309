"""Faults that users of other attention packages met, in the backward pass."""

import math

import pytest
import torch

from tests.backward.gradients import check, differentiate, draw, upstream


@pytest.mark.parametrize("lengths", [(300, 130), (129, 1)], ids=str)
def test_rows_without_a_key_have_zero_gradients(lengths: tuple[int, int]) -> None:
    inputs = draw(lengths)
    grad_out, grad_lse = upstream(inputs)
    top = lengths[0] - lengths[1]
    grad_lse[:, :, :top] = torch.nan  # of an LSE that is -inf
    results = differentiate(inputs, (grad_out, grad_lse), causal=True)
    assert torch.all(results[0][:, :top] == 0)
    assert all(t.isfinite().all() for t in results)
    grad_lse[:, :, :top] = 0.0
    again = differentiate(inputs, (grad_out, grad_lse), causal=True)
    assert all(a.equal(b) for a, b in zip(results, again, strict=True))


@pytest.mark.parametrize("mask", [{"causal": True}, {"window_size": (5, 0)}], ids=str)
def test_keys_that_no_row_sees_have_zero_gradients(mask: dict[str, object]) -> None:
    dq, dk, dv = check(draw((60, 700), heads=(1, 1)), **mask, softmax_scale=0.1)
    seen = 700 if "causal" in mask else 60 + 5
    assert torch.all(dk[:, : 700 - seen] == 0)
    assert torch.all(dv[:, : 700 - seen] == 0)
    assert torch.any(dq != 0)


@pytest.mark.parametrize(("batch", "rows", "keys"), [(0, 8, 8), (2, 0, 8), (2, 8, 0)])
def test_empty_problems(batch: int, rows: int, keys: int) -> None:
    inputs = draw((rows, keys), batch=batch)
    results = differentiate(inputs, upstream(inputs))
    for result, tensor in zip(results, inputs, strict=True):
        assert result.shape == tensor.shape
        assert torch.all(result == 0)


@pytest.mark.parametrize("score", [-120.0, 80.0, -1000.0, 1000.0])
@pytest.mark.parametrize("keys", [1, 200])
def test_all_logits_far_from_zero(score: float, keys: int) -> None:
    q, k, v = draw((70, keys))
    q.zero_()[..., 0] = 8.0
    k.zero_()[..., 0] = score / 8.0
    check((q, k, v), softmax_scale=1.0)


def test_loud_scores() -> None:
    q, k, v = draw((200, 300), dims=(128, 128))
    check((q * 6.0, k * 2.0, v), causal=True)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_memory_around_the_tensors_does_not_leak(value: float) -> None:
    """Rows, keys and head dims beyond those that count, in blocks that are cut."""
    inputs = draw((100, 90), dims=(72, 72))
    grads = upstream(inputs)
    expected = differentiate(inputs, grads)

    def surrounded(tensor: torch.Tensor) -> torch.Tensor:
        batch, rows, heads, dim = tensor.shape
        around = torch.full((batch + 2, rows + 300, heads + 2, dim + 64), value).to(tensor.dtype)
        return around[1:-1, 100 : 100 + rows, 1:-1, 32 : 32 + dim].copy_(tensor)

    got = differentiate(tuple(map(surrounded, inputs)), (surrounded(grads[0]), grads[1]))
    assert all(a.equal(b) for a, b in zip(got, expected, strict=True))


def test_what_no_row_sees_does_not_leak() -> None:
    """Bad keys and values in blocks that no row needs."""
    q, k, v = draw((100, 700))
    mask = {"window_size": (20, 0)}
    grads = upstream((q, k, v))
    expected = differentiate((q, k, v), grads, **mask)
    k[:, :512], v[:, :512] = torch.nan, torch.nan
    got = differentiate((q, k, v), grads, **mask)
    assert got[0].equal(expected[0])
    assert all(a[:, 512:].equal(b[:, 512:]) for a, b in zip(got[1:], expected[1:], strict=True))


def test_grad_out_with_a_row_stride_beyond_two_to_the_31_bytes() -> None:
    inputs = draw((5, 6))
    grad_out, grad_lse = upstream(inputs)
    expected = differentiate(inputs, (grad_out, grad_lse))
    stride = 2**30 + 8
    storage = torch.empty(4 * stride + 128, dtype=grad_out.dtype)  # touched pages take memory
    far = storage.as_strided(grad_out.shape, (0, stride, 64, 1)).copy_(grad_out)
    got = differentiate(inputs, (far, grad_lse))
    assert all(a.equal(b) for a, b in zip(got, expected, strict=True))


def test_a_batch_does_not_change_its_members() -> None:
    inputs = draw((140, 120), heads=(4, 2), batch=3)
    grads = upstream(inputs)
    results = differentiate(inputs, grads, causal=True)
    member = tuple(t[1:2] for t in inputs)
    alone = differentiate(member, (grads[0][1:2], grads[1][1:2]), causal=True)
    assert all(a[0].equal(b[1]) for a, b in zip(alone, results, strict=True))


def test_zero_gradients_where_the_output_does_not_depend_on_scores() -> None:
    """With equal values O is constant: dQ and dK vanish but for rounding, dV counts weights."""
    q, k, v = draw((64, 128))
    v[:] = v[:, :1]
    dq, dk, dv = check((q, k, v), with_lse=False)
    assert dq.abs().max() < 0.02
    assert dk.abs().max() < 0.2
    assert math.isclose(
        dv.float().sum().item(), upstream((q, k, v))[0].float().sum().item(), abs_tol=2.0
    )
