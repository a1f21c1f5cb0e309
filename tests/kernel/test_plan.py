"""Plans: what they depend on, what they fit into, what they refuse."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from fa4.compile import artifacts
from fa4.pipeline.tmem import tmem_map
from fa4.plan import plan_forward
from fa4.plan_backward import plan_backward
from fa4.plan_base import CHIPS
from fa4.plan_blackwell import TUNED, BlackwellPlan
from fa4.plan_hopper import TUNED as HOPPER_TUNED
from fa4.plan_hopper import length_class
from fa4.problem import Problem, example_problem
from fa4.profile.elf import read_resources


def problem(**changes: object) -> Problem:
    dims = changes.pop("head_dim", 128), changes.pop("head_dim_v", 128)
    sizes = {"seqlen_q": 512, "seqlen_k": 512, "heads_q": 4, "heads_kv": 2, "causal": True}
    return example_problem(*dims, **{**sizes, **changes})


@pytest.mark.parametrize("dims", sorted(TUNED))
def test_tuned_plans_fit_the_chip(dims: tuple[int, int]) -> None:
    plan = plan_forward(problem(head_dim=dims[0], head_dim_v=dims[1]))
    chip = CHIPS[plan.arch]
    assert plan.smem().nbytes <= chip.smem_bytes
    assert sum(32 * r.warps * r.registers for r in plan.roles.values()) <= chip.registers
    assert plan.tmem().allocated <= 512


def test_plan_does_not_depend_on_sizes_and_numbers() -> None:
    base = plan_forward(problem())
    changes = {"batch": 7, "seqlen_q": 3, "seqlen_k": 99999, "heads_q": 8, "scale": 0.7}
    assert all(plan_forward(problem(**{k: v})) is base for k, v in changes.items())
    windows = {plan_forward(problem(window_left=w)).key() for w in (1, 2, 300)}
    assert len(windows) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "float16"},
        {"causal": False},
        {"window_left": 5},
        {"softcap": 3.0},
        {"head_dim": 64, "head_dim_v": 64},
    ],
)
def test_plan_depends_on_what_changes_the_code(change: dict) -> None:
    assert plan_forward(problem(**change)).key() != plan_forward(problem()).key()


@pytest.mark.parametrize(
    ("dims", "padded"),
    [((8, 8), (64, 64)), ((72, 72), (96, 96)), ((104, 112), (128, 128)), ((64, 128), (64, 128))],
)
def test_head_dims_are_padded(dims: tuple[int, int], padded: tuple[int, int]) -> None:
    plan = plan_forward(problem(head_dim=dims[0], head_dim_v=dims[1]))
    assert (plan.head_dim, plan.head_dim_v) == padded


def test_too_much_shared_memory_is_refused() -> None:
    plan = plan_forward(problem())
    greedy = replace(plan, tuning=replace(plan.tuning, kv_stages=5))
    with pytest.raises(ValueError, match=r"nbytes=\d+ of shared memory, 232448 allowed"):
        greedy.check()


def test_too_many_registers_are_refused() -> None:
    plan = plan_forward(problem())
    greedy = replace(plan, tuning=replace(plan.tuning, registers=(200, 72, 56)))
    with pytest.raises(ValueError, match="registers=67584, 65536 allowed"):
        greedy.check()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"exp2_emulated": 20}, "exp2_emulated=20 of 128;.*Take a multiple of 8 in 0 ... 128"),
        ({"exp2_emulated": -8}, "exp2_emulated=-8"),
        ({"exp2_emulated": 136}, "exp2_emulated=136"),
        ({"p_head": 48}, "p_head=48;.*Take a multiple of 32 in 32 ... 128"),
        ({"p_head": 0}, "p_head=0"),
        ({"p_head": 160}, "p_head=160"),
        ({"registers": (188, 72, 56)}, "188 registers for softmax;.*multiples of 8 from 24 to 256"),
        ({"registers": (192, 16, 56)}, "16 registers for correction"),
        ({"registers": (264, 24, 24)}, "264 registers for softmax"),
        ({"registers": (120, 72, 56)}, "120 registers for softmax.*inc starts from 128; at least"),
        ({"registers": (152, 136, 56)}, "136 registers for correction.*dec starts from 128"),
        ({"registers": (152, 64, 136)}, "136 registers for mma.*at most that many"),
        ({"kv_stages": 1}, "kv_stages=1;.*Take at least 2"),
    ],
    ids=str,
)
def test_tunings_that_the_kernel_cannot_follow_are_refused(change: dict, words: str) -> None:
    plan = plan_forward(problem())
    wrong = replace(plan, tuning=replace(plan.tuning, **change))
    with pytest.raises(ValueError, match=words):
        wrong.check()
    with pytest.raises(ValueError, match=words):
        artifacts(wrong)


def test_tunings_at_the_ends_of_the_rules_are_fine() -> None:
    plan = plan_forward(problem(head_dim=64, head_dim_v=64))
    for change in ({"exp2_emulated": 0}, {"exp2_emulated": 128}, {"p_head": 128}, {"kv_stages": 2}):
        replace(plan, tuning=replace(plan.tuning, **change)).check()


def test_unknown_architecture_is_refused() -> None:
    with pytest.raises(ValueError, match=r"arch='sm_80'.*available: sm_90a, sm_100a, sm_103a"):
        plan_forward(problem(), arch="sm_80")


def test_tmem_tiles_do_not_overlap() -> None:
    columns = tmem_map(128, 128)
    tiles = [(c, 128) for c in (*columns.s, *columns.o)]
    taken = [column for first, width in tiles for column in range(first, first + width)]
    assert len(taken) == len(set(taken)) == 512
    with pytest.raises(ValueError, match="768 of 512"):
        tmem_map(128, 256)


def test_shared_memory_regions_do_not_overlap(every_plan: BlackwellPlan) -> None:
    smem = every_plan.smem()
    starts = sorted([*smem.full.values(), *smem.empty.values(), *smem.tiles.values()])
    assert len(starts) == len(set(starts))
    barriers = max([*smem.full.values(), *smem.empty.values()])
    assert barriers < min(smem.tiles.values())
    assert all(smem.tiles[name] % 1024 == 0 for name in ("sQ", "sKV", "sO"))


@pytest.mark.parametrize("dims", [(192, 192), (128, 192), (256, 256), (136, 64)])
def test_blackwell_refuses_wide_heads(dims: tuple[int, int]) -> None:
    wide = problem(head_dim=dims[0], head_dim_v=dims[1])
    with pytest.raises(ValueError, match=r"sm_100a supports both at most 128, or \(192, 128\)"):
        plan_forward(wide)
    assert plan_forward(wide, "sm_90a").head_dim >= dims[0]


@pytest.mark.parametrize("dims", sorted({line.dims for line in HOPPER_TUNED}))
@pytest.mark.parametrize("keys", [1, 512, 513, 4096, 4097, 8192, 8193, 2**20])
@pytest.mark.parametrize("causal", [False, True])
def test_hopper_plans_fit_the_chip(dims: tuple[int, int], keys: int, causal: bool) -> None:
    asked = problem(head_dim=dims[0], head_dim_v=dims[1], causal=causal, seqlen_k=keys)
    plan = plan_forward(asked, "sm_90a")
    assert plan.smem().nbytes <= CHIPS["sm_90a"].smem_bytes
    assert sum(32 * r.warps * r.registers for r in plan.roles.values()) <= 65536


def test_every_hopper_line_is_taken_by_some_problem() -> None:
    taken = {
        plan_forward(
            problem(head_dim=d, head_dim_v=dv, causal=causal, seqlen_k=keys), "sm_90a"
        ).tuning
        for d, dv in {line.dims for line in HOPPER_TUNED}
        for causal in (False, True)
        for keys in (1, 5000, 9000)
    }
    assert taken == {line.tuning for line in HOPPER_TUNED}


def test_lengths_are_planned_in_classes() -> None:
    assert length_class(1) == length_class(4096) < length_class(4097) == length_class(8192)
    assert length_class(8193) == length_class(2**29)


def test_only_bfloat16_freezes_its_reference() -> None:
    assert plan_forward(problem(), "sm_90a").fixed_reference
    assert not plan_forward(problem(dtype="float16"), "sm_90a").fixed_reference


def test_registers_must_fit_what_the_kernel_starts_with() -> None:
    """384 threads start with 168 each, 64512 in all: 65536 would leave setmaxnreg waiting."""
    plan = plan_forward(problem(head_dim=256, head_dim_v=256), "sm_90a")
    greedy = replace(plan, tuning=replace(plan.tuning, registers=(240, 32)))
    with pytest.raises(ValueError, match="registers=65536, 64512 allowed"):
        greedy.check()


@pytest.mark.parametrize(
    ("registers", "words"),
    [
        ((160, 24), "160 registers for attend.*inc starts from 168; at least that many"),
        ((24, 24), "24 registers for attend"),
        ((96, 176), "176 registers for load.*dec starts from 168; at most that many"),
    ],
    ids=str,
)
def test_setmaxnreg_raises_and_lowers_as_the_kernel_says(
    registers: tuple[int, int], words: str
) -> None:
    plan = plan_forward(problem(head_dim=256, head_dim_v=256), "sm_90a")
    with pytest.raises(ValueError, match=words):
        replace(plan, tuning=replace(plan.tuning, registers=registers)).check()
    replace(plan, tuning=replace(plan.tuning, registers=(168, 168))).check()


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("plan_of", [plan_forward, plan_backward])
def test_plans_know_who_grows_and_from_how_many_registers(plan_of: Callable, arch: str) -> None:
    plan = plan_of(problem(), arch)
    ptx = artifacts(plan).ptx
    asked = set(re.findall(r"setmaxnreg\.(inc|dec)\S*\s+(\d+);", ptx))
    assert asked == {
        ("inc" if name in plan.growing else "dec", str(role.registers))
        for name, role in plan.roles.items()
    }
    resources = read_resources(artifacts(plan).cubin)
    assert plan.registers_at_launch in {kernel.registers for kernel in resources}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"warpgroups": 1}, "warpgroups=1"),
        ({"warpgroups": 6}, "warpgroups=6"),
        ({"q_stages": 2, "o_parts": 1}, "o_parts=1 with q_stages=2"),
        ({"q_stages": 1, "o_parts": 3}, "o_parts=3 of 128 columns"),
    ],
    ids=str,
)
def test_tunings_that_the_hopper_kernel_cannot_run(changes: dict, message: str) -> None:
    plan = plan_forward(problem(), "sm_90a")
    with pytest.raises(ValueError, match=message):
        replace(plan, tuning=replace(plan.tuning, **changes)).check()
