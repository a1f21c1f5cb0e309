"""The oracle against torch's scaled_dot_product_attention with masks built from the definition."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F

from fa4 import reference
from fa4.problem import Problem

SIZES = {"batch": 2, "heads_q": 4, "heads_kv": 2, "head_dim": 16, "head_dim_v": 24}
NO_MASK = {"causal": False, "window_left": None, "window_right": None}
MASKS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window_left": 3, "window_right": 2},
    "sliding": {"causal": True, "window_left": 4},
    "right": {"window_right": 1},
}


def make(seqlen_q, seqlen_k, dtype="bfloat16", softcap=0.0, **mask):
    lengths = {"seqlen_q": seqlen_q, "seqlen_k": seqlen_k}
    return Problem(
        **SIZES, **lengths, **{**NO_MASK, **mask}, dtype=dtype, softcap=softcap, scale=0.3
    )


def inputs(problem, dtype=torch.float64):
    torch.manual_seed(0)
    p = problem
    return (
        torch.randn(p.batch, p.seqlen_q, p.heads_q, p.head_dim, dtype=dtype),
        torch.randn(p.batch, p.seqlen_k, p.heads_kv, p.head_dim, dtype=dtype),
        torch.randn(p.batch, p.seqlen_k, p.heads_kv, p.head_dim_v, dtype=dtype),
    )


def bias_by_definition(problem):
    bias = torch.zeros(problem.seqlen_q, problem.seqlen_k, dtype=torch.float64)
    for i in range(problem.seqlen_q):
        for j in range(problem.seqlen_k):
            distance = j - (i + problem.seqlen_k - problem.seqlen_q)
            if problem.window_left is not None and distance < -problem.window_left:
                bias[i, j] = -math.inf
            if problem.window_right is not None and distance > problem.window_right:
                bias[i, j] = -math.inf
    return bias


def sdpa(problem, q, k, v):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    bias = bias_by_definition(problem)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, scale=problem.scale, enable_gqa=True
        )
    return out.transpose(1, 2)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("lengths", [(9, 9), (5, 12), (1, 7)])
def test_out_and_lse_equal_sdpa(mask, lengths):
    problem = make(*lengths, **MASKS[mask])
    q, k, v = inputs(problem)
    out, lse = reference.attention(problem, q, k, v, torch.float64)
    torch.testing.assert_close(out, sdpa(problem, q, k, v), rtol=0, atol=1e-12)
    scores = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(2, 2)) * problem.scale
    expected = torch.logsumexp(scores + bias_by_definition(problem), -1)
    torch.testing.assert_close(lse, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_gradients_equal_autograd(mask, softcap):
    problem = make(6, 9, softcap=softcap, **MASKS[mask])
    leaves = [t.requires_grad_() for t in inputs(problem)]
    if softcap:
        out = reference.attention(problem, *leaves, torch.float64)[0]
    else:
        out = sdpa(problem, *leaves)
    grad_out = torch.randn_like(out)
    expected = torch.autograd.grad(out, leaves, grad_out)
    with torch.no_grad():
        actual = reference.gradients(problem, tuple(leaves), grad_out)
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_softcap_bounds_the_scores():
    problem = make(4, 4, softcap=1.0)
    q, k, v = inputs(problem)
    out, lse = reference.attention(problem, 100 * q, k, v, torch.float64)
    scores = torch.tanh(
        torch.einsum("bihd,bjhd->bhij", 100 * q, k.repeat_interleave(2, 2)) * problem.scale
    )
    torch.testing.assert_close(lse, scores.logsumexp(-1), rtol=0, atol=1e-12)
    expected = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v.repeat_interleave(2, 2))
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)


def test_fault_03_rows_without_a_key_are_zero_minus_infinity_and_have_no_gradient():
    problem = make(9, 4, causal=True)
    q, k, v = inputs(problem)
    out, lse = reference.attention(problem, q, k, v)
    assert torch.all(out[:, :5] == 0)
    assert torch.all(lse[:, :, :5] == -torch.inf)
    assert torch.all(lse[:, :, 5:].isfinite())
    for grad in reference.gradients(problem, (q, k, v), torch.ones_like(out)):
        assert grad.isfinite().all()
    assert torch.all(reference.attention_in_dtype(problem, q, k, v)[:, :5] == 0)


def test_no_keys_at_all():
    problem = make(3, 0)
    out, lse = reference.attention(problem, *inputs(problem))
    assert torch.all(out == 0)
    assert torch.all(lse == -torch.inf)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_error_rule_accepts_a_rounded_result_and_refuses_five_percent(dtype):
    problem = make(64, 64, dtype=str(dtype).removeprefix("torch."), causal=True)
    q, k, v = inputs(problem, dtype)
    out, lse = reference.attention(problem, q, k, v)
    good = reference.compare(problem, (q, k, v), out.to(dtype), lse)
    assert good.ok
    assert good.out_error > 0.0
    assert not reference.compare(problem, (q, k, v), (1.05 * out).to(dtype), lse).ok
    assert not reference.compare(problem, (q, k, v), out.to(dtype), lse + 1e-3).ok
    out[0, 0, 0, 0] = torch.nan
    assert not reference.compare(problem, (q, k, v), out, lse).ok


def test_error_rule_wants_minus_infinity_exactly():
    problem = make(3, 2, causal=True)
    q, k, v = inputs(problem, torch.bfloat16)
    out, lse = reference.attention(problem, q, k, v)
    assert reference.compare(problem, (q, k, v), out, lse).lse_error == 0.0
    assert not reference.compare(problem, (q, k, v), out, lse.clamp(min=-1e30)).ok
    assert "LSE" in str(dataclasses.replace(reference.compare(problem, (q, k, v), out, lse)))


def one_head(seqlen, dtype):
    return dataclasses.replace(
        make(seqlen, seqlen, dtype=str(dtype).removeprefix("torch."), causal=True),
        batch=1,
        heads_q=1,
        heads_kv=1,
        head_dim=64,
        head_dim_v=64,
        scale=1 / 8,
    )


def random_grad_out(problem, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (problem.batch, problem.seqlen_q, problem.heads_q, problem.head_dim_v)
    return torch.randn(shape, generator=generator).to(dtype)


def flash_gradients(problem, tensors, grad_out, delta=1.0, stretch=1.0):
    """One head's, rounded where no kernel can avoid it: O, P, dS and the results.

    The others are wrong: delta is so many times the right one, dS is stretched.
    """

    def rounded(t):
        return t.to(grad_out.dtype).double()

    out, lse = reference.attention(problem, *tensors, torch.float64)
    q, k, v, o, do = (t.double()[0, :, 0] for t in (*tensors, out, grad_out))
    scores = (problem.scale * q @ k.T).masked_fill(~reference.visible_keys(problem), -torch.inf)
    p = torch.exp(scores - lse[0, 0, :, None])
    row_sums = (rounded(o) * do).sum(dim=1, keepdim=True)
    ds = rounded(stretch * p * (do @ v.T - delta * row_sums))
    grads = problem.scale * ds @ k, problem.scale * ds.T @ q, rounded(p).T @ do
    return tuple(rounded(t)[None, :, None] for t in grads)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradient_rule_is_no_matter_of_luck(dtype, monkeypatch):
    """Three rows: in some draws of dO nearly all that torch rounds cancels."""
    problem = one_head(3, dtype)
    q, k, v = inputs(problem, dtype)
    tensors = q, 4 * k, v

    def agrees(seed):
        grad_out = random_grad_out(problem, dtype, seed)
        results = flash_gradients(problem, tensors, grad_out)
        return reference.compare_gradients(problem, tensors, (grad_out, None), results).ok

    assert all(map(agrees, range(150)))
    monkeypatch.setattr(reference, "FEW_SCORES", 0)
    assert not all(map(agrees, range(150)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("seqlen", [64, 100], ids=["few scores", "many"])
@pytest.mark.parametrize("size", [1.0, 1e-3])
def test_gradient_rule_refuses_wrong_kernels(dtype, seqlen, size):
    """However small dO is."""
    problem = one_head(seqlen, dtype)
    tensors = inputs(problem, dtype)
    grad_out = (size * random_grad_out(problem, dtype)).to(dtype)

    def agreement(results):
        return reference.compare_gradients(problem, tensors, (grad_out, None), results)

    dq, dk, dv = flash_gradients(problem, tensors, grad_out)
    assert agreement((dq, dk, dv)).ok
    assert not agreement(flash_gradients(problem, tensors, grad_out, delta=0.0)).ok
    assert not agreement(flash_gradients(problem, tensors, grad_out, stretch=1.05)).ok
    assert not agreement((dq, to_digits(dk, 4 if dtype == torch.bfloat16 else 7), dv)).ok
    assert not agreement((dq, dk, torch.where(dv == dv.max(), torch.nan, dv))).ok


def to_digits(t, digits):
    """Rounded to so many binary digits; bfloat16 has 8, float16 has 11."""
    mantissa, exponent = torch.frexp(t)
    return torch.ldexp(torch.round(mantissa * 2**digits) / 2**digits, exponent)


@pytest.mark.parametrize(("dtype", "half"), [(torch.bfloat16, 2**-9), (torch.float16, 2**-12)])
def test_gradient_rule_forgives_the_rounding_of_exact_gradients(dtype, half, monkeypatch):
    """Where torch makes no error: half a unit between 1/2 and 1, twice as much between 1 and 2."""
    monkeypatch.setattr(reference, "gradients_in_dtype", reference.gradients)
    problem = one_head(5, dtype)
    tensors = inputs(problem, dtype)
    grad_out = random_grad_out(problem, dtype)
    exact = reference.gradients(problem, tensors, grad_out)
    results = tuple(t.to(dtype) for t in exact)
    agreement = reference.compare_gradients(problem, tensors, (grad_out, None), results)
    assert agreement.ok
    sizes = [t.abs().max().log2().floor().item() for t in exact]
    assert agreement.limits == tuple(half * 2.0 ** (1 + size) for size in sizes)
