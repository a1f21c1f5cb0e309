"""The compiled backward in the emulator against float64, over shapes, masks and layouts."""

import pytest
import torch

from fa4 import plan_backward_blackwell as blackwell
from fa4 import plan_hopper_backward, reference
from tests.asked import problem_of
from tests.backward.gradients import check, differentiate, draw, upstream
from tests.matrix.cases import LAYOUTS, Case

MASKS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window_size": (70, 20)},
    "softcap": {"softcap": 15.0, "causal": True},
}
DTYPES = (torch.bfloat16, torch.float16)
DIMS = {"sm_90a": sorted(plan_hopper_backward.TUNED), "sm_100a": sorted(blackwell.TUNED)}
Kind = tuple[str, tuple[int, int], str, torch.dtype]


def short(arch: str) -> list[Kind]:
    """Every head dim with and without a mask, every mask and dtype with some head dim."""
    dims = DIMS[arch]
    return [
        *((arch, d, ("full", "causal")[i % 2], DTYPES[0]) for i, d in enumerate(dims)),
        *((arch, d, ("causal", "window")[i % 2], DTYPES[i % 2]) for i, d in enumerate(dims)),
        (arch, (64, 64), "softcap", DTYPES[0]),
        (arch, (192, 128), "softcap", DTYPES[1]),
    ]


SHORT = [kind for arch in DIMS for kind in short(arch)]
LONG = [
    (arch, dims, mask, dtype)
    for arch, several in DIMS.items()
    for dims in several
    for mask in MASKS
    for dtype in DTYPES
    if (arch, dims, mask, dtype) not in SHORT
]


@pytest.mark.parametrize(
    ("arch", "dims", "mask", "dtype"),
    [*SHORT, *(pytest.param(*case, marks=pytest.mark.slow) for case in LONG)],
    indirect=["arch"],
    ids=str,
)
def test_kinds_of_kernels(dims: tuple[int, int], mask: str, dtype: torch.dtype) -> None:
    check(draw((333, 257), dims=dims, dtype=dtype), **MASKS[mask])


@pytest.mark.parametrize(("size", "seed"), [(1, 49), (4, 46), (8, 77)])
def test_few_scores(size: int, seed: int) -> None:
    """Four rows see one to four keys: what torch rounds cancels for these dO."""
    q, k, v = draw((84, 4), heads=(1, 1))
    inputs, generator = (q, size * k, v), torch.Generator().manual_seed(seed)
    grads = torch.randn(q.shape, generator=generator).to(q.dtype), None
    results = differentiate(inputs, grads, causal=True)
    problem = problem_of(*inputs, causal=True)
    agreement = reference.compare_gradients(problem, inputs, grads, results)
    assert agreement.ok, agreement


@pytest.mark.parametrize(
    "lengths",
    [(1, 1), (1, 300), (300, 1), (63, 129), (64, 128), (65, 127), (200, 7), (7, 200), (640, 640)],
    ids=str,
)
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_lengths(lengths: tuple[int, int], mask: str) -> None:
    check(draw(lengths), **MASKS[mask])


@pytest.mark.parametrize("window", [(0, 0), (17, 0), (200, 5), (128, 127), (30, -1)], ids=str)
@pytest.mark.parametrize("lengths", [(300, 300), (500, 200), (130, 450)], ids=str)
def test_windows(window: tuple[int, int], lengths: tuple[int, int]) -> None:
    check(draw(lengths, heads=(1, 1)), window_size=window)


@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (6, 2), (8, 1)], ids=str)
def test_heads_and_batch(heads: tuple[int, int]) -> None:
    check(draw((150, 150), heads=heads, batch=2), causal=True)


@pytest.mark.parametrize("dims", [(8, 8), (72, 72), (40, 104), (64, 128)], ids=str)
def test_head_dims_between_the_tuned_ones(dims: tuple[int, int]) -> None:
    check(draw((100, 90), dims=dims), causal=True)


@pytest.mark.parametrize("arch", ["sm_90a"], indirect=True)
def test_head_dims_that_only_hopper_has() -> None:
    check(draw((100, 90), dims=(200, 136)), causal=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_inputs(layout: str, arch: str) -> None:
    """Memory between the elements is NaN."""
    case = Case(arch, (64, 64), "bfloat16", (100, 90), (2, 1), 2, layout, {})
    check(case.inputs(), causal=True)


def test_without_a_gradient_of_lse() -> None:
    check(draw((200, 200)), with_lse=False, causal=True)


@pytest.mark.parametrize("scale", [0.01, 1.0])
def test_scale(scale: float) -> None:
    q, k, v = draw((100, 200))
    check((q * 0.5, k * 0.5, v), softmax_scale=scale)


def layouts_of_grad_out(plain: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same values, elsewhere in memory."""
    batch, rows, heads, dim = plain.shape
    odd = torch.full((batch, rows, heads, dim + 1), torch.nan, dtype=plain.dtype)
    wide = torch.full((batch, rows, 3 * heads, dim), torch.nan, dtype=plain.dtype)
    offset = torch.full((plain.numel() + 1,), torch.nan, dtype=plain.dtype)
    last = torch.empty(batch, rows, dim, heads, dtype=plain.dtype).transpose(2, 3)
    views = {
        "heads first": torch.empty_like(plain.transpose(1, 2)).transpose(1, 2),
        "odd row stride": odd[..., :dim],
        "every third head": wide[:, :, ::3],
        "base 2 bytes off": offset[1:].view(plain.shape),
        "last stride not 1": last,
    }
    return {name: view.copy_(plain) for name, view in views.items()}


@pytest.mark.parametrize("layout", layouts_of_grad_out(torch.zeros(1, 1, 1, 8)))
def test_layouts_of_grad_out(layout: str) -> None:
    inputs = draw((100, 90))
    grad_out, grad_lse = upstream(inputs)
    expected = differentiate(inputs, (grad_out, grad_lse), causal=True)
    moved = layouts_of_grad_out(grad_out)[layout]
    got = differentiate(inputs, (moved, grad_lse), causal=True)
    assert all(a.equal(b) for a, b in zip(got, expected, strict=True))


def test_expanded_grad_out() -> None:
    """What `out.sum().backward()` gives: all strides 0."""
    inputs = draw((100, 90))
    ones = torch.ones((), dtype=torch.bfloat16).expand(1, 100, 2, 64)
    got = differentiate(inputs, (ones, None))
    expected = differentiate(inputs, (ones.contiguous(), None))
    assert all(a.equal(b) for a, b in zip(got, expected, strict=True))
