"""`python -m bench pipes` without a GPU: which cells, and the table."""

import json
import re

import pytest

from bench.hopper import pipes
from bench.hopper.implementations import Implementation
from bench.hopper.pipes import chosen
from bench.results import FOLDER

HOPPER, PIPES = (json.loads((FOLDER / f"{name}.json").read_text()) for name in ("hopper", "pipes"))
MEASURED = HOPPER["cells"]


def cell(name: str, length: int, ratio: float) -> dict:
    return {"name": name, "length": length, "ratio": ratio}


def test_below_aim_is_what_the_table_shows() -> None:
    assert not pipes.below_aim(cell("d128 full 4k", 4096, 1.1251))  # shown as 1.13, the aim
    assert pipes.below_aim(cell("d128 full 4k", 4096, 1.1249))
    assert not pipes.below_aim(cell("d128 full gqa 32/8 4k", 4096, 0.5))  # has no aim


def test_each_cell_is_taken_with_its_best_peer() -> None:
    assert chosen(MEASURED, ["d64 full 512"]) == [
        ["d64 full 512", "ours"],
        ["d64 full 512", "cudnn"],
    ]
    below = [c["name"] for c in MEASURED if pipes.below_aim(c)]
    assert [name for name, who in chosen(MEASURED, None) if who == "ours"] == below


def unlike(hopper: dict, pipes: dict) -> list[list[str]]:
    """Launches that one file has and the other asks for, if both are of the same kernels."""
    if not hopper.get("fingerprint") or hopper["fingerprint"] != pipes.get("fingerprint"):
        return []
    profiled = [[row["cell"], row["implementation"]] for row in pipes["rows"]]
    asked_for = chosen(hopper["cells"], None)
    return [pair for pair in profiled + asked_for if (pair in profiled) != (pair in asked_for)]


def test_what_was_profiled_is_what_lies_below_its_aim() -> None:
    assert unlike(HOPPER, PIPES) == []
    hopper, pipes = {**HOPPER, "fingerprint": "a"}, {**PIPES, "fingerprint": "a"}
    pipes["rows"] = [{"cell": c, "implementation": who} for c, who in chosen(MEASURED, None)]
    assert unlike(hopper, pipes) == []
    first = pipes["rows"].pop(0)
    assert unlike(hopper, pipes) == [list(first.values())]
    assert unlike({**hopper, "fingerprint": "b"}, pipes) == []


def test_an_unknown_cell_is_named() -> None:
    with pytest.raises(ValueError, match="d65 full 4k; there are d64 full 512"):
        chosen(MEASURED, ["d65 full 4k"])


def test_a_missing_peer_is_named_before_anything_is_profiled() -> None:
    known = [Implementation("ours", None, None), Implementation("fa3", None, None, missing="why")]
    pipes.refuse_missing([["d64 full 512", "ours"]], known)
    with pytest.raises(ValueError, match="fa3, the best peer of d64 full 512, is missing: why"):
        pipes.refuse_missing([["d64 full 512", "ours"], ["d64 full 512", "fa3"]], known)


def test_of_fa3s_two_kernels_the_attention_is_profiled() -> None:
    kernels = ("fa4_fwd_d64", "cudnn_generated_fort", "kernel_cutlass", "flash_fwd_kernel")
    for kernel in (*kernels, "device_kernel"):
        assert re.match(pipes.ATTENTION, kernel), kernel
    assert not re.match(pipes.ATTENTION, "prepare_varlen_num_blocks_kernel")


def test_stalls_are_shares_and_the_largest_are_shown() -> None:
    kernel = dict.fromkeys(pipes.PIPES.values(), 50.0)
    kernel |= {pipes.STALL.format(reason): 1.0 for reason in pipes.REASONS}
    kernel[pipes.STALL.format("wait")] = 1.0 + len(pipes.REASONS)
    row = {"cell": "d64 full 8k", "implementation": "ours", **pipes._row(kernel)}
    assert sum(row["stalls"].values()) == pytest.approx(100.0)
    line = pipes.report([row]).splitlines()[-1]
    assert line.startswith("d64 full 8k  ours")
    assert "wait 54" in line


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture) -> None:
    assert pipes.main([]) == 2
    assert "GPU" in capsys.readouterr().out
