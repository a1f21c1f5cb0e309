"""The search finds wrong results, names their seeds, and repeats them."""

from dataclasses import replace

import pytest
import torch

from bench.__main__ import main
from bench.hopper import fuzz
from bench.hopper.fuzz import Result, Search, failure, parse, run, text
from bench.hopper.problems import draw
from fa4 import reference
from tests.asked import problem_of

DIMS = ((64, 64), (40, 24), (192, 128))


def small(seed):
    """The trial of a seed, with lengths that a CPU can do."""
    trial = draw(seed, DIMS)
    heads_kv = min(trial.heads[1], 2)
    heads = (heads_kv * min(trial.heads[0] // trial.heads[1], 2), heads_kv)
    lengths = tuple(min(n, 70) for n in trial.lengths)
    return replace(trial, lengths=lengths, batch=1, heads=heads)


TRIALS = [small(seed) for seed in range(60)]


def right(q, k, v, **options):
    """The reference behind the signature of `flash_attn_func`."""
    problem = problem_of(q, k, v, **options)
    out, lse = reference.attention(problem, q, k, v)
    return out.to(q.dtype), lse


def test_right_results_pass(capsys):
    result = run(Search(0, 60), TRIALS, right, "cpu")
    assert (result.tried, result.failures) == (60, [])
    assert capsys.readouterr().out == ""


def without_window(q, k, v, **options):
    options.pop("window_size", None)
    return right(q, k, v, **options)


def last_row_unwritten(q, k, v, **options):
    out, lse = right(q, k, v, **options)
    out[:, -1:] = torch.nan
    return out, lse


def lse_in_log2(q, k, v, **options):
    out, lse = right(q, k, v, **options)
    return out, lse * 1.442695


def raising(q, k, v, **options):
    raise ValueError("no kernel\nhere")


@pytest.mark.parametrize("wrong", [without_window, last_row_unwritten, lse_in_log2, raising])
def test_wrong_results_are_found(wrong, capsys):
    result = run(Search(0, 60), TRIALS, wrong, "cpu")
    assert len(result.failures) >= 5
    assert capsys.readouterr().out.splitlines() == result.failures
    line = result.failures[0]
    assert line.startswith("FAIL seed ")
    assert "| python -m bench fuzz --seed " in line
    seed = int(line.split()[2].rstrip(":"))
    assert failure(small(seed), wrong, "cpu")
    assert not failure(small(seed), right, "cpu")


def test_errors_are_one_line():
    assert failure(TRIALS[0], raising, "cpu") == "ValueError: no kernel here"


def test_time_is_a_limit():
    result = run(Search(0, 60, seconds=0.0), TRIALS, right, "cpu")
    assert (result.tried, result.left, result.stopped) == (0, 60, "the time is spent")
    assert "60 problems left: the time is spent" in text(Search(0, 60), result, 1.0)


def test_a_lost_gpu_stops_the_search(monkeypatch):
    monkeypatch.setattr(fuzz, "_alive", lambda: False)
    monkeypatch.setattr(fuzz, "failure", lambda *_: "illegal address")
    result = run(Search(0, 60), TRIALS, raising, "cuda")
    assert (result.tried, result.left, len(result.failures)) == (1, 59, 1)
    assert result.stopped == "the GPU was lost in seed 0"


def test_jobs_share_the_seeds_and_no_kernel():
    search = Search(100, 300, jobs=4)
    parts = [list(search.trials(job)) for job in range(4)]
    assert sorted(t.seed for part in parts for t in part) == list(range(100, 400))
    kernels = [{t.kernel for t in part} for part in parts]
    assert sum(map(len, kernels)) == len(set.union(*kernels))
    assert min(map(len, parts)) > 30


def test_results_add_up():
    total = sum((Result(2, ["a"]), Result(3, ["b"], 4, "lost"), Result(1)), Result())
    assert total == Result(6, ["a", "b"], 4, "lost")
    assert "6 problems (seeds 5 to 14), 2 failures, 9 s" in text(Search(5, 10), total, 9.0)


def test_options():
    search = parse(["--count", "5", "--seed", "7", "--head-dims", "64", "192x128", "--jobs", "3"])
    assert search == Search(7, 5, None, 3, ((64, 64), (192, 128)))
    assert search.replay(9) == ("python -m bench fuzz --seed 9 --count 1 --head-dims 64x64 192x128")
    assert parse([]) == Search(0, 2000)


@pytest.mark.skipif(torch.cuda.is_available(), reason="would search")
def test_without_a_gpu_the_command_says_so(capsys):
    assert main(["fuzz", "--count", "1"]) == 2
    assert "No CUDA device" in capsys.readouterr().out
