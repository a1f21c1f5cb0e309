"""The search finds wrong results, names their seeds, and repeats them."""

import json
from dataclasses import replace

import pytest
import torch

from bench.__main__ import main
from bench.hopper import fuzz
from bench.hopper.attempt import RIGHT, SKIPPED, WRONG, Record, attempt, check_forward
from bench.hopper.cuda import CudaDevice
from bench.hopper.fuzz import Search, parse, run, shown, summary, text
from bench.hopper.problems import draw
from fa4 import reference
from tests.asked import problem_of

DIMS = ((64, 64), (40, 24), (192, 128))
SEARCH = Search(0, 60)


def small(seed):
    """The trial of a seed, with lengths that a CPU can do."""
    trial = draw(seed, DIMS)
    heads_kv = min(trial.heads[1], 2)
    heads = (heads_kv * min(trial.heads[0] // trial.heads[1], 2), heads_kv)
    lengths = tuple(min(n, 70) for n in trial.lengths)
    return replace(trial, lengths=lengths, batch=1, heads=heads)


TRIALS = [small(seed) for seed in range(60)]


class Attention(torch.autograd.Function):
    """The reference with its own gradients; `wrong` is added to one element of dK."""

    @staticmethod
    def forward(ctx, problem, wrong, q, k, v):
        ctx.save_for_backward(q, k, v)
        ctx.problem, ctx.wrong = problem, wrong
        out, lse = reference.attention(problem, q, k, v)
        return out.to(q.dtype), lse

    @staticmethod
    def backward(ctx, grad_out, grad_lse):
        inputs = ctx.saved_tensors
        grads = reference.gradients(ctx.problem, inputs, grad_out, grad_lse)
        grads[1][:1, :1, :1, :1] += ctx.wrong
        return None, None, *(grad.to(inputs[0].dtype) for grad in grads)


def right(q, k, v, **options):
    """The reference behind the signature of `flash_attn_func`."""
    return Attention.apply(problem_of(q, k, v, **options), 0.0, q, k, v)


def wrong_gradient(q, k, v, **options):
    return Attention.apply(problem_of(q, k, v, **options), 20.0, q, k, v)


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


def too_large(q, k, v, **options):
    raise torch.OutOfMemoryError("tried to allocate\n64 GiB")


@pytest.mark.parametrize("backward", [False, True])
def test_right_results_pass(capsys, backward):
    trials = TRIALS[:20] if backward else TRIALS
    found = list(shown(SEARCH, run(trials, right, "cpu", backward=backward)))
    assert [record.outcome for record in found] == [RIGHT] * len(trials)
    assert capsys.readouterr().out == ""
    named = ["O", "LSE", *(["dQ", "dK", "dV"] if backward else [])]
    report = summary(SEARCH, found, 1.0)
    assert list(report["worst_share_of_limit"]) == named
    assert all(0.0 <= row["share"] <= 1.0 for row in report["worst_share_of_limit"].values())


@pytest.mark.parametrize("wrong", [without_window, last_row_unwritten, lse_in_log2, raising])
def test_wrong_results_are_found(wrong, capsys):
    found = list(shown(SEARCH, run(TRIALS, wrong, "cpu")))
    failures = [record for record in found if record.outcome == WRONG]
    assert len(failures) >= 5
    lines = capsys.readouterr().out.splitlines()
    assert lines == [fuzz.line(SEARCH, record) for record in failures]
    assert lines[0].startswith(f"FAIL seed {failures[0].seed}: ")
    assert f"| python -m bench fuzz --first {failures[0].seed} --count 1" in lines[0]
    again = small(failures[0].seed)
    assert attempt(again, check_forward, wrong, "cpu").outcome == WRONG
    assert attempt(again, check_forward, right, "cpu").outcome == RIGHT


def test_wrong_gradients_are_found_by_the_backward_alone():
    trials = TRIALS[:10]
    assert not [r for r in run(trials, wrong_gradient, "cpu") if r.outcome == WRONG]
    found = list(run(trials, wrong_gradient, "cpu", backward=True))
    report = summary(replace(SEARCH, backward=True), found, 1.0)
    assert report["wrong"] >= 8
    assert "dK" in report["failures"][0]
    assert "fuzz --backward --first" in report["failures"][0]
    assert report["worst_share_of_limit"]["dK"]["share"] > 1.0


def test_what_is_no_number_is_the_worst():
    report = summary(SEARCH, list(run(TRIALS, last_row_unwritten, "cpu")), 1.0)
    assert report["worst_share_of_limit"]["O"]["share"] is None
    assert "NaN" not in json.dumps(report)


def test_errors_are_one_line():
    record = attempt(TRIALS[0], check_forward, raising, "cpu")
    assert (record.outcome, record.reason) == (WRONG, "ValueError: no kernel here")


@pytest.mark.parametrize("backward", [False, True])
def test_too_little_memory_is_neither_right_nor_wrong(backward, capsys):
    search = replace(SEARCH, backward=backward)
    found = list(shown(search, run(TRIALS[:3], too_large, "cpu", backward=backward)))
    assert [record.outcome for record in found] == [SKIPPED] * 3
    assert capsys.readouterr().out.count("SKIPPED for memory seed") == 3
    report = summary(search, found, 1.0)
    assert (report["right"], report["wrong"], report["skipped_for_memory"]) == (0, 0, 3)
    assert report["left"] == 60


def in_this_process(outcome_of):
    """Stands for `processes.records`: the outcome of each seed, None ends all."""

    def records(work, shares, seconds):
        for trial in (trial for (share,) in shares for trial in share):
            outcome = outcome_of(trial.seed)
            if outcome is None:
                return
            yield Record(trial.seed, str(trial), outcome)

    return records


def test_further_seeds_take_the_place_of_skipped_ones(monkeypatch):
    skipping = in_this_process(lambda seed: SKIPPED if seed in (3, 9, 11) else RIGHT)
    monkeypatch.setattr(fuzz.processes, "records", skipping)
    search = Search(0, 10, jobs=2)
    found = list(fuzz.attempts(search))
    assert sorted(record.seed for record in found) == list(range(13))
    report = summary(search, found, 1.0)
    assert (report["right"], report["left"], report["seeds"]) == (10, 0, [0, 12])


@pytest.mark.parametrize(
    ("outcome_of", "seconds", "why"),
    [
        (lambda seed: SKIPPED, None, "too many are skipped for memory: use fewer --jobs"),
        (lambda seed: RIGHT if seed < 5 else None, None, "a process ended or hung"),
        (lambda seed: RIGHT if seed < 5 else None, 1.0, "the time is spent"),
    ],
)
def test_problems_that_are_left_fail_the_search(monkeypatch, capsys, outcome_of, seconds, why):
    monkeypatch.setattr(fuzz.processes, "records", in_this_process(outcome_of))
    search = Search(0, 10, seconds)
    report = summary(search, list(fuzz.attempts(search)), 2.0)
    assert report["left"] == 10 - report["right"] > 0
    assert f"problems left: {why}" in text(report)


def test_time_is_a_limit():
    assert list(run(TRIALS, right, "cpu", seconds=0.0)) == []


def test_a_lost_gpu_stops_a_process(monkeypatch):
    def lost(trial, *_):
        raise RuntimeError("illegal address")

    monkeypatch.setattr(CudaDevice, "alive", lambda _: False)
    monkeypatch.setattr(fuzz, "check_forward", lost)
    (record,) = run(TRIALS, right, "cuda")
    assert (record.outcome, record.lost) == (WRONG, True)
    report = summary(SEARCH, [record], 1.0)
    assert (report["left"], report["stopped"]) == (59, "the GPU was lost in seed 0")


@pytest.mark.parametrize("backward", [False, True])
def test_jobs_share_the_seeds_and_no_kernel(backward):
    search = Search(100, 300, jobs=4, backward=backward)
    shares = search.shares(search.trials(range(100, 400)))
    assert sorted(t.seed for share in shares for t in share) == list(range(100, 400))
    for passed in {backward, False}:
        plans = [{replace(search, backward=passed).plan(t) for t in share} for share in shares]
        assert sum(map(len, plans)) == len(set.union(*plans))
    assert min(map(len, shares)) > 60


def test_options():
    options = ["--count", "5", "--first", "7", "--head-dims", "64", "192x128", "--jobs", "3"]
    search, file = parse([*options, "--backward", "--json", "a.json"])
    assert search == Search(7, 5, None, 3, ((64, 64), (192, 128)), backward=True)
    assert file.name == "a.json"
    again = search.replay(9)
    assert again == (
        "python -m bench fuzz --backward --first 9 --count 1 --head-dims 64x64 192x128"
    )
    assert parse(again.split()[4:])[0] == replace(search, first=9, count=1, jobs=1)
    assert parse([]) == (Search(0, 2000), None)


@pytest.mark.parametrize(("outcome", "code"), [(RIGHT, 0), (WRONG, 1), (SKIPPED, 1)])
def test_the_command_saves_its_summary(monkeypatch, tmp_path, capsys, outcome, code):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "GPU")
    monkeypatch.setattr(fuzz, "environment", lambda: {"gpu": "GPU"})
    monkeypatch.setattr(fuzz.processes, "records", in_this_process(lambda seed: outcome))
    path = tmp_path / "fuzz.json"
    assert main(["fuzz", "--count", "3", "--first", "5", "--json", str(path)]) == code
    saved = json.loads(path.read_text())
    assert (saved["gpu"], saved["count"], saved["pass"]) == ("GPU", 3, "forward")
    tried = {RIGHT: "right", WRONG: "wrong", SKIPPED: "skipped_for_memory"}[outcome]
    assert saved[tried] == (6 if outcome == SKIPPED else 3)
    assert saved["seeds"][0] == 5
    assert len(saved["failures"]) == (3 if outcome == WRONG else 0)
    assert f"{saved[tried]} {tried.replace('_', ' ')}" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="would search")
def test_without_a_gpu_the_command_says_so(capsys):
    assert main(["fuzz", "--count", "1"]) == 2
    assert "No CUDA device" in capsys.readouterr().out
