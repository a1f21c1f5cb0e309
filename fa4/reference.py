"""The oracle: attention in float32 or float64 by the textbook formula, and the error rule.

Everything materialises the scores, (batch, heads_q, seqlen_q, seqlen_k): for tests, not for use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from fa4.problem import Problem

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

OUT_FACTOR = 1.5  # O may err this many times as much as torch's attention in the same dtype,
OUT_SLACK = 1e-3  # plus this,
LSE_TOLERANCE = 5e-4  # and LSE by this
GRADIENT_FACTOR = 2.0  # a gradient may err this many times as much as torch's in the same dtype
FEW_SCORES = 4096  # Problems with fewer visible scores
DRAWS = 8  # have torch's error measured so many times, see `compare_gradients`

# Two runs of one kernel, on a GPU and in the emulator: exp2 and reciprocal of GPUs are approximate
AGREEING = 0.999  # of the elements of O lie within
UNITS = {torch.bfloat16: 1, torch.float16: 8}  # one unit in the last place of bfloat16


def visible_keys(problem: Problem, device: torch.device | str = "cpu") -> torch.Tensor:
    """Boolean (seqlen_q, seqlen_k): True where query i may see key j."""
    row = torch.arange(problem.seqlen_q, device=device)[:, None] + problem.diagonal_shift
    offset = torch.arange(problem.seqlen_k, device=device)[None, :] - row
    seen = torch.ones_like(offset, dtype=torch.bool)
    if problem.window_left is not None:
        seen &= offset >= -problem.window_left
    if problem.window_right is not None:
        seen &= offset <= problem.window_right
    return seen


def attention(
    problem: Problem,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor]:
    """O (B, Sq, H, Dv) and natural-log LSE (B, H, Sq), both computed and returned in `dtype`.

    Shapes of q, k, v as in `Problem`. A row that sees no key has O = 0 and LSE = -inf.
    """
    q, k, v = (_heads_first(t.to(dtype), problem) for t in (q, k, v))
    scores = _scores(problem, q, k)
    lse = scores.logsumexp(dim=-1)
    return (_probabilities(scores, lse) @ v).transpose(1, 2), lse


def gradients(
    problem: Problem,
    inputs: Tensors,
    grad_out: torch.Tensor,
    grad_lse: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> Tensors:
    """dQ, dK, dV in the shapes of `inputs` = (q, k, v), computed and returned in `dtype`.

    grad_out (B, Sq, H, Dv) and grad_lse (B, H, Sq; None: zeros) are the gradients of what
    `attention` returns. Rows without a key have none.
    """
    return _gradients(problem, inputs, grad_out, grad_lse, dtype, lambda t: t)


def gradients_in_dtype(
    problem: Problem,
    inputs: Tensors,
    grad_out: torch.Tensor,
    grad_lse: torch.Tensor | None = None,
) -> Tensors:
    """The same as plain torch computes it in the dtype of q: every product and P are rounded."""
    rounding = inputs[0].dtype
    return _gradients(
        problem, inputs, grad_out, grad_lse, torch.float32, lambda t: t.to(rounding).float()
    )


def _gradients(
    problem: Problem,
    inputs: Tensors,
    grad_out: torch.Tensor,
    grad_lse: torch.Tensor | None,
    dtype: torch.dtype,
    rounded: Callable[[torch.Tensor], torch.Tensor],
) -> Tensors:
    """With P the probabilities and dP = dO V^T: dS = P (dP - rowsum(dO O) + dLSE), see
    FlashAttention-2, section 3.1; a softcap multiplies dS by 1 - (score / softcap)^2.
    """
    q, k, v, grad_out = (_heads_first(t.to(dtype), problem) for t in (*inputs, grad_out))
    scores = rounded(_scores(problem, q, k))
    p = rounded(_probabilities(scores, scores.logsumexp(dim=-1)))
    grad_p = rounded(grad_out @ v.transpose(-1, -2))
    delta = (rounded(p @ v) * grad_out).sum(dim=-1)
    if grad_lse is not None:
        delta = delta - grad_lse.to(dtype).masked_fill(~visible_keys(problem, q.device).any(-1), 0)
    grad_scores = p * (grad_p - delta[..., None])
    if problem.softcap:
        capped = scores.masked_fill(scores.isneginf(), 0.0)
        grad_scores = grad_scores * (1.0 - (capped / problem.softcap) ** 2)
    grad_scores = rounded(grad_scores * problem.scale)
    grad_k = _sum_groups(grad_scores.transpose(-1, -2) @ q, problem)
    grad_v = _sum_groups(p.transpose(-1, -2) @ grad_out, problem)
    return tuple(rounded(t.transpose(1, 2)) for t in (grad_scores @ k, grad_k, grad_v))


def attention_in_dtype(
    problem: Problem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    """O as plain torch computes it in the dtype of q: scores, probabilities and O are rounded."""
    q, k, v = (_heads_first(t, problem) for t in (q, k, v))
    scores = _scores(problem, q, k)
    p = torch.softmax(scores.float(), dim=-1).nan_to_num(0.0)
    return (p.to(q.dtype) @ v).transpose(1, 2)


@dataclass(frozen=True)
class Agreement:
    """Largest absolute errors against float32; `torch_error` is that of `attention_in_dtype`."""

    out_error: float
    torch_error: float
    lse_error: float

    @property
    def out_limit(self) -> float:
        return OUT_FACTOR * self.torch_error + OUT_SLACK

    @property
    def ok(self) -> bool:
        """The error rule. A NaN anywhere fails it."""
        return self.out_error <= self.out_limit and self.lse_error <= LSE_TOLERANCE

    def __str__(self) -> str:
        return (
            f"O {self.out_error:.2e} (limit {self.out_limit:.2e}, torch {self.torch_error:.2e}), "
            f"LSE {self.lse_error:.2e} (limit {LSE_TOLERANCE:.0e})"
        )


def compare(
    problem: Problem,
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    out: torch.Tensor,
    lse: torch.Tensor,
) -> Agreement:
    """Errors of a result `out`, `lse` for `inputs` = (q, k, v), beside those of torch."""
    expected_out, expected_lse = attention(problem, *inputs)
    return Agreement(
        out_error=_largest(out.float() - expected_out),
        torch_error=_largest(attention_in_dtype(problem, *inputs).float() - expected_out),
        lse_error=_largest(torch.where(lse == expected_lse, 0.0, lse - expected_lse)),
    )


@dataclass(frozen=True)
class GradientAgreement:
    """Largest absolute errors of dQ, dK, dV against float64, and what they may be."""

    errors: tuple[float, float, float]
    limits: tuple[float, float, float]

    @property
    def ok(self) -> bool:
        """The error rule. A NaN anywhere fails it."""
        return all(error <= limit for error, limit in zip(self.errors, self.limits, strict=True))

    def __str__(self) -> str:
        rows = zip(("dQ", "dK", "dV"), self.errors, self.limits, strict=True)
        return ", ".join(f"{name} {error:.2e} (limit {limit:.2e})" for name, error, limit in rows)


def compare_gradients(
    problem: Problem,
    inputs: Tensors,
    grads: tuple[torch.Tensor, torch.Tensor | None],
    results: Tensors,
) -> GradientAgreement:
    """Errors of dQ, dK, dV = `results` for `grads` = (dO, dLSE), beside those of torch.

    The limit is GRADIENT_FACTOR times the error of torch, plus half a unit in the last place of
    the largest element, which the rounding of an exact result may cost.

    Where few scores are visible, few roundings make up the largest error, and they cancel in some
    draws of dO: both errors are random numbers that may be close to zero. That of torch is then the
    largest of DRAWS, which differ in the signs of dO. These leave the sizes of O and dO as they
    are, so also the bounds of all errors: of delta = rowsum(O dO), the largest one as O is rounded,
    it is the unit times rowsum(|O| |dO|), however small dS = P (dP - delta) may be.
    """
    expected = gradients(problem, inputs, *grads)
    errors = _torch_errors(problem, inputs, grads, expected)
    for grad_out in _other_signs(problem, grads[0]):
        again = grad_out, grads[1]
        exact = gradients(problem, inputs, *again)
        errors = tuple(map(max, errors, _torch_errors(problem, inputs, again, exact)))
    return GradientAgreement(
        errors=_largest_errors(results, expected),
        limits=tuple(
            GRADIENT_FACTOR * error + _half_unit(_largest(e), inputs[0].dtype)
            for error, e in zip(errors, expected, strict=True)
        ),
    )


def _other_signs(problem: Problem, grad_out: torch.Tensor) -> Iterator[torch.Tensor]:
    """dO with random signs, if so few scores are visible that torch's error is a matter of luck."""
    visible = visible_keys(problem, grad_out.device).sum().item()
    if problem.batch * problem.heads_q * visible < FEW_SCORES:
        generator = torch.Generator().manual_seed(0)
        for _ in range(DRAWS - 1):
            flipped = torch.rand(grad_out.shape, generator=generator) < 0.5
            yield torch.where(flipped.to(grad_out.device), -grad_out, grad_out)


def _torch_errors(
    problem: Problem,
    inputs: Tensors,
    grads: tuple[torch.Tensor, torch.Tensor | None],
    expected: Tensors,
) -> tuple[float, ...]:
    return _largest_errors(gradients_in_dtype(problem, inputs, *grads), expected)


def _largest_errors(results: Tensors, expected: Tensors) -> tuple[float, ...]:
    return tuple(_largest(r.double() - e) for r, e in zip(results, expected, strict=True))


def _half_unit(largest: float, dtype: torch.dtype) -> float:
    """Half of what lies between two numbers of `dtype` that are as large as this."""
    info = torch.finfo(dtype)
    _, exponent = math.frexp(max(info.tiny, largest))  # 2^(exponent - 1) <= largest
    return math.ldexp(info.eps / 2, exponent - 1)


def units_apart(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How many representable numbers lie between two tensors of 16-bit floats, elementwise."""

    def ordered(x: torch.Tensor) -> torch.Tensor:
        bits = x.contiguous().view(torch.int16).int()
        return torch.where(bits < 0, -32768 - bits, bits)

    return (ordered(a) - ordered(b)).abs()


def _heads_first(t: torch.Tensor, problem: Problem) -> torch.Tensor:
    """(B, S, H, D) -> (B, heads_q, S, D), key/value heads repeated for their group."""
    repeats = problem.heads_q // t.shape[2]
    return t.repeat_interleave(repeats, dim=2).transpose(1, 2)


def _sum_groups(t: torch.Tensor, problem: Problem) -> torch.Tensor:
    return t.unflatten(1, (problem.heads_kv, problem.group_size)).sum(dim=2)


def _scores(problem: Problem, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    scores = (q * problem.scale) @ k.transpose(-1, -2)
    if problem.softcap:
        scores = problem.softcap * torch.tanh(scores / problem.softcap)
    return scores.masked_fill(~visible_keys(problem, q.device), -torch.inf)


def _probabilities(scores: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """exp(scores - lse), with 0 instead of NaN in rows whose lse is -inf."""
    return torch.exp(scores - lse.masked_fill(lse.isneginf(), 0.0)[..., None])


def _largest(error: torch.Tensor) -> float:
    return error.abs().max().item() if error.numel() else 0.0
