"""`flash_attn_func` and `can_implement` without the kernel: checks, copies, allocation.

A stand-in for `fa4.launch` records its arguments and writes the oracle's result; the real kernel
runs in tests/matrix.
"""

import inspect
import logging
from types import SimpleNamespace

import pytest
import torch

import fa4
from fa4 import addressing, api, emulator, reference
from fa4.plan import plan_forward
from fa4.problem import example_problem


class Launches(list):
    """Stand-in for `fa4.launch`: keeps (problem, plan, q, k, v, out, lse) of every launch, the
    tensors as a kernel would see them."""

    def prepare(self, problem, plan, strides, device, with_lse):
        def launch(*given):
            *tensors, lse = given
            q, k, v, out = (t.as_strided(t.shape, s) for t, s in zip(tensors, strides, strict=True))
            assert out.is_contiguous()
            assert {t.device for t in (q, k, v, out)} == {device}
            assert (lse is not None) == with_lse
            self.append(
                SimpleNamespace(problem=problem, plan=plan, q=q, k=k, v=v, out=out, lse=lse)
            )
            expected = reference.attention(problem, q, k, v)
            out.copy_(expected[0])
            if with_lse:
                lse.copy_(expected[1])

        return launch


@pytest.fixture
def launches(monkeypatch):
    recorded = Launches()
    monkeypatch.setattr(api, "_launcher", lambda: recorded)
    api._prepare.cache_clear()
    yield recorded
    api._prepare.cache_clear()


def tensors(shape=(2, 8, 4, 64), kv=(2, 16, 2, 64), v_dim=None, dtype=torch.bfloat16):
    torch.manual_seed(0)
    return (
        torch.randn(shape).to(dtype),
        torch.randn(kv).to(dtype),
        torch.randn((*kv[:3], v_dim or kv[3])).to(dtype),
    )


def test_result_shapes_dtypes_and_layout(launches):
    q, k, v = tensors(v_dim=32)
    out, lse = fa4.flash_attn_func(q, k, v, causal=True, return_lse=True)
    assert (out.shape, out.dtype) == ((2, 8, 4, 32), torch.bfloat16)
    assert (lse.shape, lse.dtype) == ((2, 4, 8), torch.float32)
    assert out.is_contiguous()
    assert lse.is_contiguous()
    assert reference.compare(launches[0].problem, (q, k, v), out, lse).ok
    assert torch.equal(fa4.flash_attn_func(q, k, v, causal=True), out)


def test_arguments_reach_the_problem(launches):
    q, k, v = tensors(v_dim=32)
    fa4.flash_attn_func(q, k, v, softmax_scale=0.5, window_size=(3, -1), softcap=7)
    problem = launches[0].problem
    assert (problem.seqlen_q, problem.seqlen_k, problem.batch) == (8, 16, 2)
    assert (problem.heads_q, problem.heads_kv) == (4, 2)
    assert (problem.head_dim, problem.head_dim_v, problem.dtype) == (64, 32, "bfloat16")
    assert (problem.scale, problem.softcap) == (0.5, 7.0)
    assert (problem.causal, problem.window_left, problem.window_right) == (False, 3, None)
    fa4.flash_attn_func(q, k, v, window_size=[3, 2])
    assert (launches[1].problem.window_right, launches[1].problem.scale) == (2, 0.125)


def test_names_follow_flash_attention():
    parameters = list(inspect.signature(fa4.flash_attn_func).parameters)
    assert parameters == [
        *("q", "k", "v", "softmax_scale", "causal", "window_size", "softcap", "return_lse"),
        "deterministic",
    ]


def bad_calls():
    q, k, v = tensors()
    wide = torch.zeros(2, 8, 4, 128, dtype=torch.bfloat16)[..., ::2]
    floats = [t.float() for t in (q, k, v)]
    return {
        "dtype mix": ((q, k.half(), v), {}, TypeError, "bfloat16, torch.float16"),
        "float32": (floats, {}, TypeError, "torch.float32; cast them to bfloat16 or float16"),
        "not a tensor": ((q, k.tolist(), v), {}, TypeError, "k is a list"),
        "devices": ((q, k, v.to("meta")), {}, ValueError, "v is on meta but q is on cpu"),
        "rank": ((q[0], k[0], v[0]), {}, ValueError, "q has shape (8, 4, 64)"),
        "batch": ((q[:1], k, v), {}, ValueError, "must agree in batch"),
        "head dim": ((q[..., :32], k, v), {}, ValueError, "must agree in batch (0) and head_dim"),
        "keys and values": ((q, k, v[:, :5]), {}, ValueError, "seqlen_k (1)"),
        "heads": ((q[:, :, :3], k, v), {}, ValueError, "heads_q=3 is no multiple of heads_kv=2"),
        "odd head dim": (
            [t[..., :60] for t in (q, k, v)],
            {},
            ValueError,
            "head_dim is 60; it must be",
        ),
        "zero head dim": ([t[..., :0] for t in (q, k, v)], {}, ValueError, "head_dim"),
        "large head dim": ([t.repeat(1, 1, 1, 4) for t in (q, k, v)], {}, ValueError, "(256, 256)"),
        "last stride": ((wide, k, v), {}, ValueError, "the last must be 1. Pass q.contiguous()"),
        "negative scale": ((q, k, v), {"softmax_scale": -1.0}, ValueError, "scale is -1.0"),
        "infinite scale": ((q, k, v), {"softmax_scale": torch.inf}, ValueError, "scale is inf"),
        "softcap": ((q, k, v), {"softcap": -3.0}, ValueError, "softcap is -3.0"),
        "window": ((q, k, v), {"window_size": 5}, TypeError, "window_size is 5"),
        "window triple": ((q, k, v), {"window_size": (1, 2, 3)}, TypeError, "(1, 2, 3)"),
        "float window": ((q, k, v), {"window_size": (1.5, 0)}, TypeError, "window_left is 1.5"),
        "a list": ((q, k, v), {"softcap": [1.0]}, TypeError, "softcap is [1.0]"),
        "a dict": ((q, k, v), {"softmax_scale": {}}, TypeError, "scale is {}"),
        "list in window": ((q, k, v), {"window_size": ([1], 0)}, TypeError, "window_left is [1]"),
        "causal": ((q, k, v), {"causal": "yes"}, TypeError, "causal is 'yes'"),
        "device": (
            [t.to("meta") for t in (q, k, v)],
            {},
            NotImplementedError,
            "compute capability 9.0 or 10.0 or 10.3",
        ),
    }


@pytest.mark.parametrize("name", bad_calls())
def test_fault_28_misuse_is_a_clear_error_before_any_launch(launches, name):
    args, options, error, words = bad_calls()[name]
    with pytest.raises(error) as caught:
        fa4.flash_attn_func(*args, **options)
    assert words in str(caught.value)
    assert not launches
    support = fa4.can_implement(*args, **options)
    assert not support
    assert support == fa4.Support(False, str(caught.value))


def test_fault_28_dropout_is_no_argument(launches):
    with pytest.raises(TypeError, match="dropout_p"):
        fa4.flash_attn_func(*tensors(), dropout_p=0.1)
    for call in (fa4.flash_attn_func, fa4.can_implement):
        with pytest.raises(TypeError, match="positional"):
            call(*tensors(), 0.1)  # where FlashAttention-2 has dropout_p


def test_a_gradient_flag_is_fine_where_no_gradient_is_recorded(launches):
    q, k, v = tensors()
    q.requires_grad_()
    with torch.no_grad():
        assert fa4.can_implement(q, k, v)
        fa4.flash_attn_func(q, k, v)
    with torch.inference_mode():
        fa4.flash_attn_func(q, k, v)
    fa4.flash_attn_func(q.detach(), k, v)
    assert len(launches) == 3


@pytest.mark.parametrize(("batch", "seqlen_q", "seqlen_k"), [(0, 8, 8), (2, 0, 8), (2, 8, 0)])
def test_fault_05_empty_problems_have_values_without_a_launch(launches, batch, seqlen_q, seqlen_k):
    q, k, v = tensors((batch, seqlen_q, 4, 64), (batch, seqlen_k, 2, 64), 32)
    out, lse = fa4.flash_attn_func(q, k, v, causal=True, return_lse=True)
    assert out.shape == (batch, seqlen_q, 4, 32)
    assert lse.shape == (batch, 4, seqlen_q)
    assert torch.all(out == 0)
    assert torch.all(lse == -torch.inf)
    assert not launches


def legal(tensor):
    size = tensor.element_size()
    strides = [stride * size for stride in tensor.stride()[:-1]]
    return tensor.data_ptr() % 16 == 0 and not any(s % 16 for s in strides) and max(strides) < 2**40


def layouts():
    q = tensors((2, 16, 4, 64))[0]
    padded = torch.randn(2, 16, 4, 72).bfloat16()
    odd_rows = torch.randn(2, 16, 4, 65).bfloat16()[..., :64]
    one_head = torch.randn(2, 16, 1, 64).bfloat16()
    odd_stride = one_head.as_strided(one_head.shape, (1024, 64, 7, 1))
    flat = torch.randn(q.numel() + 8).bfloat16()
    return {  # name: (tensor, whether it must be copied)
        "contiguous": (q, False),
        "transposed": (q.transpose(1, 2).contiguous().transpose(1, 2), False),
        "fused qkv": (torch.randn(2, 16, 12, 64).bfloat16().chunk(3, dim=2)[1], False),
        "batch stride 0": (q[:1].expand(2, -1, -1, -1), False),
        "sequence stride 0": (q[:, :1].expand(-1, 16, -1, -1), False),
        "overlapping rows": (flat.as_strided((2, 16, 4, 64), (64, 8, 16, 1)), False),
        "one head, odd stride": (odd_stride, False),
        "sliced head dim": (padded[..., 8:], False),
        "base 16 bytes off": (flat[8:].view(q.shape), False),
        "base 2 bytes off": (flat[1:-7].view(q.shape), True),
        "odd row stride": (odd_rows, True),
    }


@pytest.mark.parametrize("name", layouts())
def test_fault_08_every_layout_reaches_the_kernel_as_tma_wants_it(launches, name, caplog):
    q, copied = layouts()[name]
    with caplog.at_level(logging.DEBUG, logger="fa4"):
        out, lse = fa4.flash_attn_func(q, q, q, causal=True, return_lse=True)
    launch = launches[0]
    assert reference.compare(launch.problem, (q, q, q), out, lse).ok
    for tensor in (launch.q, launch.k, launch.v):
        assert legal(tensor)
        assert torch.equal(tensor, q)
        assert (tensor.data_ptr() != q.data_ptr()) == copied
    notes = [record.getMessage() for record in caplog.records if "copied" in record.getMessage()]
    assert [note[0] for note in notes] == (["q", "k", "v"] if copied else [])
    support = fa4.can_implement(q, q, q)
    assert support.ok
    assert bool(support.reason) == copied


def test_fault_09_offsets_beyond_two_to_the_31_are_passed_on(launches):
    row = 2**30 + 8
    storage = torch.empty(2 * row + 256, dtype=torch.bfloat16)  # touched pages only are backed
    q = storage.as_strided((1, 3, 2, 64), (0, row, 64, 1))
    q.copy_(torch.randn(q.shape))
    k = torch.randn(1, 4, 2, 64).bfloat16()
    fa4.flash_attn_func(q, k, k)
    assert launches[0].q.stride(1) == row
    assert launches[0].q.data_ptr() == q.data_ptr()


def test_a_stride_of_two_to_the_40_bytes_is_an_obstacle():
    q = torch.empty(64, dtype=torch.bfloat16)
    far = torch.empty_strided(
        (2, 1, 1, 64), (2**39, 64, 64, 1), dtype=torch.bfloat16, device="meta"
    )
    assert "2^40" in addressing.tma_obstacle(
        SimpleNamespace(stride=far.stride, element_size=far.element_size, data_ptr=q.data_ptr)
    )


def test_fault_10_a_batch_of_65536_is_one_launch(launches):
    q = torch.randn(1, 1, 1, 8).bfloat16().expand(65536 + 3, -1, -1, -1)
    out = fa4.flash_attn_func(q, q, q)
    assert launches[0].problem.batch == 65539
    assert torch.equal(out, q)


def test_fault_23_varying_lengths_share_one_plan(launches):
    plans = set()
    for length in range(1, 40):
        q, k, v = tensors((1, length, 2, 64), (1, 40 - length, 2, 64))
        fa4.flash_attn_func(q, k, v, causal=True)
        plans.add(launches[-1].plan.key())
    assert len(plans) == 1


def test_emulation_is_announced_once(launches, caplog):
    api._announce_emulator.cache_clear()
    q, k, v = tensors()
    with caplog.at_level(logging.INFO, logger="fa4"):
        fa4.can_implement(q, k, v)
        fa4.flash_attn_func(q, k[:, :0], v[:, :0])
        assert not caplog.records
        fa4.flash_attn_func(q, k, v)
        fa4.flash_attn_func(q, k, v)
    assert [r.getMessage() for r in caplog.records if "emulator" in r.getMessage()] == [
        "CPU tensors: the compiled sm_100a kernel runs in the emulator, far slower than on a GPU"
    ]


def test_the_emulated_architecture_comes_from_the_environment(launches, monkeypatch):
    q, k, v = tensors()
    monkeypatch.setenv("FA4_EMULATE_ARCH", "sm_100a")
    fa4.flash_attn_func(q, k, v)
    assert launches[0].plan.arch == "sm_100a"
    monkeypatch.setenv("FA4_EMULATE_ARCH", "sm_80")
    with pytest.raises(ValueError, match=r"FA4_EMULATE_ARCH is 'sm_80'.*emulates sm_100a"):
        fa4.flash_attn_func(q, k, v)
    assert not fa4.can_implement(q, k, v)


def test_every_architecture_has_plans_and_every_emulated_one_a_session():
    for arch in {*api.NATIVE_ARCHS.values(), *api.EMULATED_ARCHS}:
        assert plan_forward(example_problem(64), arch).arch == arch
    for arch in api.EMULATED_ARCHS:
        assert emulator.session(arch=arch).arch == arch


@pytest.mark.parametrize(
    ("capability", "arch"),
    [
        *(((9, 0), "sm_90a"), ((10, 0), "sm_100a"), ((10, 3), "sm_103a")),
        *(((major, minor), None) for major, minor in ((8, 9), (10, 1), (11, 0), (12, 0), (8, 0))),
    ],
)
def test_only_devices_that_a_kernel_was_made_for_are_native(monkeypatch, capability, arch):
    api.native_arch.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    device = torch.device("cuda", 1)
    if arch:
        assert api.native_arch(device) == arch
    else:
        supported = r"Some GPU \(cuda:1.*Supported: .*capability 9.0 or 10.0 or 10.3"
        with pytest.raises(NotImplementedError, match=supported):
            api.native_arch(device)
    api.native_arch.cache_clear()


def test_a_second_call_is_prepared_already(launches, monkeypatch):
    q, k, v = tensors()
    first = fa4.flash_attn_func(q, k, v, causal=True)
    monkeypatch.setattr(api, "resolve", None)
    q2, k2, v2 = (t.clone() for t in (q, k, v))
    assert torch.equal(fa4.flash_attn_func(q2, k2, v2, causal=True), first)
    assert [launches[1].q.data_ptr(), launches[0].q.data_ptr()] == [q2.data_ptr(), q.data_ptr()]
    assert launches[0].out.data_ptr() != launches[1].out.data_ptr()


def test_what_was_prepared_once_is_still_checked(launches):
    """Each of these calls differs from the one before only in what the cache might overlook."""
    q, k, v = tensors((2, 8, 2, 64))
    fa4.flash_attn_func(q, k, v, causal=True, window_size=(1, 0))
    with pytest.raises(TypeError, match="causal is 1"):
        fa4.flash_attn_func(q, k, v, causal=1, window_size=(1, 0))
    with pytest.raises(TypeError, match="window_left is True"):
        fa4.flash_attn_func(q, k, v, causal=True, window_size=(True, 0))
    with pytest.raises(TypeError, match=r"window_left is 1\.0"):
        fa4.flash_attn_func(q, k, v, causal=True, window_size=(1.0, 0))
    flat = torch.randn(q.numel() + 1).bfloat16()
    fa4.flash_attn_func(flat[1:].view(q.shape), k, v, causal=True, window_size=(1, 0))
    assert legal(launches[-1].q)
    assert torch.equal(launches[-1].q, flat[1:].view(q.shape))
    assert len(launches) == 2
