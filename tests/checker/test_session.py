"""`session(check=True)` around our kernels: clean as they are; a fault is told with its edge."""

from unittest import mock

import pytest
import torch

import fa4
from fa4 import emulator
from fa4.emulator.checker.findings import CheckError
from fa4.emulator.program import Program

Tensors = tuple[torch.Tensor, ...]


def draw(dims: tuple[int, int]) -> Tensors:
    generator = torch.Generator().manual_seed(5)
    shapes = ((1, 300, 2, dims[0]), (1, 260, 1, dims[0]), (1, 260, 1, dims[1]))
    return tuple(torch.randn(*s, generator=generator).to(torch.bfloat16) for s in shapes)


MASKS = {"full": {}, "causal": {"causal": True}, "window": {"window_size": (70, 20)}}
DIMS = {
    "sm_100a": [(64, 64), (96, 96), (128, 128), (192, 128)],
    "sm_90a": [(64, 64), (96, 96), (128, 128), (192, 128), (256, 256)],
}
QUICK = [("sm_100a", (64, 64), "causal"), ("sm_90a", (64, 64), "causal")]
CASES = [
    pytest.param(*(arch, dims, mask), marks=() if (arch, dims, mask) in QUICK else pytest.mark.slow)
    for arch, every in DIMS.items()
    for dims in every
    for mask in MASKS
]


@pytest.mark.parametrize(("arch", "dims", "mask"), CASES, ids=str)
def test_our_kernels_are_clean(
    arch: str, dims: tuple[int, int], mask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FA4_EMULATE_ARCH", arch)
    inputs = draw(dims)
    with emulator.session(arch=arch, num_sms=1) as plain:
        expected = fa4.flash_attn_func(*inputs, **MASKS[mask])
    with emulator.session(arch=arch, num_sms=1, check=True) as checked:
        out = fa4.flash_attn_func(*inputs, **MASKS[mask])
    assert out.equal(expected)
    assert plain.launches[0].stats.remarks == []
    if arch == "sm_100a":
        assert checked.launches[0].stats.remarks == []


@pytest.mark.parametrize("schedule", ["late", "random", "priority"])
def test_any_schedule_may_be_checked(schedule: str) -> None:
    with emulator.session(schedule=schedule, seed=1, num_sms=1, check=True):
        fa4.flash_attn_func(*draw((64, 64)), causal=True)


def test_a_finding_names_both_sides_and_the_edge() -> None:
    original = Program.from_ptx

    def without_fences(ptx: str, entry: str) -> Program:
        return original(ptx.replace("fence.proxy.async.shared::cta;", ""), entry)

    with (
        mock.patch.object(Program, "from_ptx", staticmethod(without_fences)),
        pytest.raises(CheckError) as error,
        emulator.session(num_sms=1, check=True),
    ):
        fa4.flash_attn_func(*draw((64, 64)))
    ((finding, *_),) = error.value.findings.values()
    assert finding.kind == "race"
    assert finding.first.role == "correction"
    assert finding.second.role == "epilogue"
    assert finding.second.engine == "the copy engine"
    assert "fence.proxy.async" in finding.missing
    assert finding.edge == "o_written"
    text = str(error.value)
    assert "st.shared" in text
    assert "cp.async.bulk.tensor" in text
    assert "correction.py" in text
    assert "epilogue.py" in text
    assert "CTA (0, 0, 0)" in text


def test_what_the_backward_reads_of_keys_that_no_query_sees_is_told() -> None:
    """The one finding on our kernels, and a true one: for such keys nothing was accumulated, and
    what the epilogue reads all the same it replaces by zeros."""
    generator = torch.Generator().manual_seed(5)
    shapes = ((1, 60, 1, 64), (1, 300, 1, 64), (1, 300, 1, 64))
    q, k, v = (torch.randn(*s, generator=generator).bfloat16().requires_grad_() for s in shapes)

    def gradients() -> Tensors:
        out = fa4.flash_attn_func(q, k, v, window_size=(10, 0))
        return torch.autograd.grad(out.sum(), (q, k, v))

    with pytest.raises(CheckError) as error, emulator.session(num_sms=1, check=True):
        dq, dk, dv = gradients()
    found = [finding for findings in error.value.findings.values() for finding in findings]
    assert {(f.kind, f.message.split(" (")[0]) for f in found} == {
        ("unwritten", "tensor memory is read that nobody has written")
    }
    assert {f.second.role for f in found} == {"compute"}
    unseen = 300 - 60 - 10
    assert not dk[:, :unseen].any()
    assert not dv[:, :unseen].any()
    assert dk[:, unseen:].any()
    assert dq.isfinite().all()
