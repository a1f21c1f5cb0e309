"""The public context manager on a machine without a Hopper GPU, and its parts."""

import ctypes
from types import SimpleNamespace

import pytest
import torch

import fa4
from fa4 import api, emulator, launch, on_hopper
from fa4.emulator import current_session
from fa4.emulator.cuda_runtime import Kernel, RawLaunch
from fa4.on_hopper import sessions
from fa4.on_hopper import workspace as ws
from fa4.on_hopper.arguments import ExtendedArguments
from fa4.on_hopper.instructions import NotCovered
from fa4.on_hopper.rewrite import Rewritten
from fa4.plan import plan_forward
from fa4.problem import example_problem


def test_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=r"needs a Hopper GPU.*fa4\.emulator\.session"):
        on_hopper.session().__enter__()
    assert current_session() is None


@pytest.mark.parametrize("num_sms", [0, -1])
def test_at_least_one_sm(num_sms):
    with pytest.raises(ValueError, match=f"num_sms={num_sms}: at least one SM is needed"):
        on_hopper.session(num_sms=num_sms)


def test_on_another_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 7)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A100")
    with pytest.raises(RuntimeError, match=r"cuda:7 is A100.* 8\.0.*runs on 9\.0"):
        on_hopper.session().__enter__()
    assert current_session() is None


@pytest.fixture
def hopper(monkeypatch):
    """A machine that says it has a Hopper GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(sessions, "require_hopper", lambda _: None)


def test_cuda_tensors_get_the_blackwell_kernel(hopper):
    device = torch.device("cuda", 0)
    q = SimpleNamespace(is_cpu=False, device=device)
    problem, strides = example_problem(64), ((64, 64, 64, 1),) * 4
    assert api.foreign_arch(q) is None
    with on_hopper.session():
        assert api.foreign_arch(q) == "sm_100a"
        made = launch.prepare(problem, plan_forward(problem), strides, device, True)
        assert isinstance(made, launch._SessionLaunch)
        with emulator.session():
            assert api.foreign_arch(q) is None, "the innermost session counts"
    assert current_session() is None


def test_cpu_tensors_are_refused(hopper):
    q = torch.zeros(1, 8, 1, 64, dtype=torch.bfloat16)
    with on_hopper.session(), pytest.raises(ValueError, match="takes cuda tensors"):
        fa4.flash_attn_func(q, q, q)


def test_arguments_are_extended():
    values = [ctypes.c_int32(7), ctypes.c_double(0.5)]
    own = (ctypes.c_void_p * 2)(*(ctypes.addressof(value) for value in values))
    extended = ExtendedArguments(ctypes.addressof(own), 2, 1 << 40, 9)
    pointers = (ctypes.c_void_p * 4).from_address(extended.address)
    assert ctypes.c_int32.from_address(pointers[0]).value == 7
    assert ctypes.c_double.from_address(pointers[1]).value == 0.5
    assert ctypes.c_uint64.from_address(pointers[2]).value == 1 << 40
    assert ctypes.c_uint32.from_address(pointers[3]).value == 9


@pytest.mark.parametrize(("block", "cluster"), [((512, 1, 1), (2, 1, 1)), ((256, 2, 1), (1, 1, 1))])
def test_launches_of_another_shape_are_refused(block, cluster):
    raw = RawLaunch(Kernel("k", ""), (1, 1, 1), block, cluster, 0, 0)
    with pytest.raises(NotCovered, match=r"covered: block \(512, 1, 1\)"):
        sessions.check_shape(raw, Rewritten("", "k", 640, 512, 0))


def test_a_fault_of_the_tensor_core_is_raised_once():
    workspace = torch.zeros(3, ws.STRIDE // 4, dtype=torch.int32)
    workspace[1, ws.FAULT // 4 : ws.FAULT // 4 + 3] = torch.tensor([1, 0x10, 0])
    with pytest.raises(
        NotCovered, match=r"kernel k: tcgen05\.mma with instruction descriptor 0x0*10"
    ):
        sessions.raise_fault(workspace, "k")
    sessions.raise_fault(workspace, "k")
