"""deterministic=True: gradients have the same bits in whatever order CTAs and effects go on."""

import re
from dataclasses import dataclass

import pytest
import torch

import fa4
from fa4 import emulator
from fa4.api import emulated_arch
from fa4.emulator.errors import DeadlockError
from fa4.plan import plan_forward
from fa4.plan_backward import plan_backward
from fa4.problem import example_problem
from tests.backward.broken import CHANGES, replaced
from tests.backward.gradients import Tensors, check, draw, upstream

# schedule, seed, CTAs side by side (1: no CTA needs one that starts later)
ORDERS = [
    ("early", 0, 1),
    ("late", 0, 4),
    ("random", 0, 4),
    *(("priority", seed, 4 + seed) for seed in range(2)),
]
KERNELS = [  # head dims that are computed in different ways, and four blocks of keys
    pytest.param("sm_90a", (64, 64), 400, id="dq by rows"),
    pytest.param("sm_90a", (96, 96), 400, id="dq by columns"),
    pytest.param("sm_90a", (192, 128), 230, id="columns split"),
    pytest.param("sm_100a", (128, 128), 400, id="tensor memory"),
    pytest.param("sm_100a", (192, 128), 400, id="shared columns"),
]
DIMS = {
    "sm_90a": ((64, 64), (128, 128), (192, 128), (256, 256)),
    "sm_100a": ((64, 64), (96, 96), (128, 128), (192, 128)),
}
MASKS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window_size": (150, 20)},
    "left": {"window_size": (200, None)},
}


@dataclass(frozen=True)
class Backward:
    """A backward pass that can be run again and again."""

    leaves: Tensors
    out: torch.Tensor
    grad_out: torch.Tensor

    def run(self, schedule: str, seed: int, resident: int | None) -> Tensors:
        with emulator.session(schedule, seed, arch=emulated_arch(), resident=resident):
            return self.gradients()

    def gradients(self) -> Tensors:
        return torch.autograd.grad(self.out, self.leaves, self.grad_out, retain_graph=True)

    def remarks(self) -> list[str]:
        """What the checker says of the main kernel but for findings, which it raises."""
        arch = emulated_arch()
        with emulator.session("random", 1, arch=arch, resident=4, check=True) as checked:
            self.gradients()
        return checked.launches[1].stats.remarks


def backward(inputs: Tensors, deterministic: bool = True, **options: object) -> Backward:
    leaves = tuple(t.detach().requires_grad_() for t in inputs)
    out = fa4.flash_attn_func(*leaves, deterministic=deterministic, **options)
    return Backward(leaves, out, upstream(inputs)[0])


def same(some: Tensors, others: Tensors) -> bool:
    return all(a.equal(b) for a, b in zip(some, others, strict=True))


def assert_same_bits(made: Backward) -> None:
    expected = made.run("early", 0, None)
    for order in ORDERS:
        assert same(made.run(*order), expected), order


@pytest.mark.parametrize(("arch", "dims", "keys"), KERNELS, indirect=["arch"])
def test_same_bits(dims: tuple[int, int], keys: int) -> None:
    assert_same_bits(backward(draw((150, keys), dims=dims), causal=True))


@pytest.mark.parametrize(
    ("mask", "lengths"),
    [
        ("full", (150, 400)),
        ("window", (400, 260)),
        ("left", (150, 400)),
        pytest.param("left", (400, 260), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_same_bits_with_other_masks(mask: str, lengths: tuple[int, int]) -> None:
    """Rows without a key, and key blocks that only some rows see; two heads share keys."""
    assert_same_bits(backward(draw(lengths), **MASKS[mask]))


def test_other_kernels_do_not_have_the_same_bits() -> None:
    """The control: under these orders the bits of dQ do depend on them otherwise."""
    made = backward(draw((150, 400)), deterministic=False)
    expected = made.run("early", 0, None)
    found = [made.run(*order) for order in ORDERS]
    assert not all(dq.equal(expected[0]) for dq, _, _ in found)
    assert all(same(got[1:], expected[1:]) for got in found)


SHORT = [
    ("sm_90a", (64, 64), "left"),
    ("sm_90a", (128, 128), "causal"),
    ("sm_90a", (256, 256), "full"),
    ("sm_100a", (64, 64), "left"),
    ("sm_100a", (128, 128), "causal"),
]
LONG = [
    (arch, dims, mask)
    for arch, several in DIMS.items()
    for dims in several
    for mask in MASKS
    if (arch, dims, mask) not in SHORT
]


@pytest.mark.parametrize(
    ("arch", "dims", "mask"),
    [*SHORT, *(pytest.param(*case, marks=pytest.mark.slow) for case in LONG)],
    indirect=["arch"],
    ids=str,
)
def test_gradients_are_right(dims: tuple[int, int], mask: str) -> None:
    check(draw((200, 300), dims=dims), deterministic=True, **MASKS[mask])


@pytest.mark.parametrize("lengths", [(1, 300), (300, 1), (300, 130), (7, 200)], ids=str)
def test_lengths(lengths: tuple[int, int]) -> None:
    check(draw(lengths, heads=(4, 2), batch=2), deterministic=True, causal=True)


# ---- what orders the sums is needed

ANY_ORDER = "floats are added to memory in no fixed order"


def test_the_checker_sees_an_order() -> None:
    assert not any(ANY_ORDER in remark for remark in backward(draw((150, 400))).remarks())
    other = backward(draw((150, 400)), deterministic=False)
    assert any(ANY_ORDER in remark for remark in other.remarks())


@pytest.mark.parametrize("strong", ["ld.acquire", "st.release"])
def test_the_checker_misses_an_acquire_or_a_release(strong: str) -> None:
    made = backward(draw((150, 400)))
    with replaced(re.escape(f"{strong}.gpu"), f"{strong[:2]}.relaxed.gpu"):
        assert any(ANY_ORDER in remark for remark in made.remarks())


@pytest.mark.parametrize("change", CHANGES)
def test_the_checker_sees_no_order_without(change: str) -> None:
    made = backward(draw((150, 400)))
    with replaced(*CHANGES[change]):
        assert any(ANY_ORDER in remark for remark in made.remarks())


def test_bits_differ_without_turns() -> None:
    made = backward(draw((150, 400)))
    expected = made.run("early", 0, None)
    with replaced(*CHANGES["no wait for the turn"]):
        assert not all(same(made.run(*order), expected) for order in ORDERS)


def test_a_turn_that_never_comes_is_a_deadlock() -> None:
    made = backward(draw((150, 400)))
    with (
        replaced(r"st\.release\.gpu.*;", ""),
        pytest.raises(DeadlockError, match=r"(?s)poll memory.*reduce.*dq_turn\.py"),
    ):
        made.run("random", 0, 4)


# ---- who asks for it


def test_plans_of_the_backward_alone_depend_on_it(arch: str) -> None:
    problems = [example_problem(64, deterministic=each) for each in (False, True)]
    names = [plan_backward(problem, arch).name for problem in problems]
    assert names[1] == f"{names[0]}_deterministic"
    assert len({plan_forward(problem, arch) for problem in problems}) == 1


def test_torch_may_ask_for_it(arch: str) -> None:
    made = backward(draw((70, 90)), deterministic=False)
    with emulator.session(arch=arch) as emulated:
        try:
            torch.use_deterministic_algorithms(True)
            made.gradients()
        finally:
            torch.use_deterministic_algorithms(False)
        made.gradients()
    told = ["deterministic" in launch.name for launch in emulated.launches]
    assert told == [True] * 3 + [False] * 3


def test_what_is_no_flag_is_refused() -> None:
    q, k, v = draw((8, 8))
    with pytest.raises(TypeError, match="deterministic is 1; it must be True or False"):
        fa4.flash_attn_func(q, k, v, deterministic=1)
    with pytest.raises(TypeError, match="deterministic is 1; it must be True or False"):
        fa4.flash_attn_func(q.requires_grad_(), k, v, deterministic=1)
    assert not fa4.can_implement(q, k, v, deterministic=1)
