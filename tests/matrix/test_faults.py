"""Faults that users of other attention packages met, as small inputs for the emulated kernels.

The number in a test's name is that of the fault in the project's list. Faults that need no kernel
are in tests/test_problem.py, tests/test_api.py and tests/test_packaging.py.
"""

import math

import pytest
import torch

import fa4
from fa4 import api, launch, reference
from tests.asked import problem_of

WIDE_HEAD_DIMS = [(136, 136), (200, 72), (72, 256), (248, 256)]  # of Hopper alone
LEFT_RIGHT_PAIRS = [(-1, 0), (-1, -1), (None, None), (None, 0), (0, 0), (9, -1), (9, 0), (-1, 5)]


@pytest.fixture(autouse=True, params=api.EMULATED_ARCHS)
def arch(request, monkeypatch):
    """Every test runs the kernel of each architecture."""
    monkeypatch.setenv("FA4_EMULATE_ARCH", request.param)
    return request.param


def randoms(lengths, heads=(2, 1), head_dims=(64, 64), dtype=torch.bfloat16, batch=1):
    torch.manual_seed(0)
    (seqlen_q, seqlen_k), (heads_q, heads_kv), (head_dim, head_dim_v) = lengths, heads, head_dims
    return (
        torch.randn(batch, seqlen_q, heads_q, head_dim).to(dtype),
        torch.randn(batch, seqlen_k, heads_kv, head_dim).to(dtype),
        torch.randn(batch, seqlen_k, heads_kv, head_dim_v).to(dtype),
    )


def run(q, k, v, scale=None, **mask):
    """out, lse of the kernel, after a comparison with float32."""
    out, lse = fa4.flash_attn_func(q, k, v, softmax_scale=scale, **mask, return_lse=True)
    agreement = reference.compare(problem_of(q, k, v, scale, **mask), (q, k, v), out, lse)
    assert agreement.ok, agreement
    return out, lse


def assert_same(found, expected, arch):
    """Equal bits on Blackwell.

    On Hopper the reference that bfloat16 P is rounded against is that of a row's tile, and the
    size of a block follows the mask and the number of keys: roundings of P depend on the rows
    around, no more than that.
    """
    if arch == "sm_100a":
        assert all(map(torch.equal, found, expected))
    else:
        torch.testing.assert_close(found[0], expected[0], rtol=2**-6, atol=2**-7)
        torch.testing.assert_close(found[1], expected[1], rtol=0, atol=1e-4)


def seen_by_kernel(seqlen_q, seqlen_k, **mask):
    """Which keys each query saw: with equal scores and one-hot values, O is 1/count where seen."""
    q = torch.zeros(1, seqlen_q, 1, 128, dtype=torch.bfloat16)
    k = torch.zeros(1, seqlen_k, 1, 128, dtype=torch.bfloat16)
    v = torch.eye(seqlen_k, 128, dtype=torch.bfloat16).reshape(1, seqlen_k, 1, 128)
    out, lse = fa4.flash_attn_func(q, k, v, **mask, return_lse=True)
    seen = out[0, :, 0, :seqlen_k] > 0
    torch.testing.assert_close(lse[0, 0], seen.sum(-1).log(), rtol=0, atol=1e-5)
    return seen


def seen_by_definition(seqlen_q, seqlen_k, left, right):
    query = torch.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q
    key = torch.arange(seqlen_k)[None, :]
    return (key >= query - left) & (key <= query + right)


@pytest.mark.parametrize("lengths", [(60, 100), (80, 80), (300, 90)], ids=str)
@pytest.mark.parametrize("window", LEFT_RIGHT_PAIRS, ids=str)
def test_fault_01_causal_with_every_window_encoding(window, lengths):
    left = math.inf if window[0] in (None, -1) else window[0]
    seen = seen_by_kernel(*lengths, causal=True, window_size=window)
    assert torch.equal(seen, seen_by_definition(*lengths, left, 0))


@pytest.mark.parametrize(
    "window", [(0, 0), (1, 0), (7, 0), (8, 0), (5, 3), (-1, 4), (6, -1)], ids=str
)
@pytest.mark.parametrize("lengths", [(60, 100), (150, 120)], ids=str)
def test_fault_02_a_window_of_w_sees_exactly_w_plus_one_keys(window, lengths):
    left, right = (math.inf if bound == -1 else bound for bound in window)
    seen = seen_by_kernel(*lengths, window_size=window)
    assert torch.equal(seen, seen_by_definition(*lengths, left, right))


def test_fault_01_causal_with_window_minus_one_zero_at_the_reported_shape():
    run(*randoms((1024, 1024), (1, 1), (128, 128)), causal=True, window_size=(-1, 0))


@pytest.mark.parametrize("lengths", [(200, 70), (129, 1), (640, 128)], ids=str)
def test_fault_03_rows_above_the_first_key_are_zero_and_minus_infinity(lengths):
    out, lse = run(*randoms(lengths), causal=True)
    top = lengths[0] - lengths[1]
    assert torch.all(out[:, :top] == 0)
    assert torch.all(lse[:, :, :top] == -torch.inf)
    assert torch.all(lse[:, :, top:].isfinite())


@pytest.mark.parametrize(
    "mask",
    [{"causal": True}, {"window_size": (5, 0)}, {"causal": True, "window_size": (300, 0)}],
    ids=str,
)
def test_fault_04_many_empty_tiles_in_a_row_do_not_hang(mask):
    """Nearly all tiles of a head see no key, with heads that have work between."""
    out, lse = run(*randoms((1500, 60), (3, 3)), **mask)
    assert torch.all(lse[:, :, : 1500 - 60] == -torch.inf)
    assert torch.all(out[:, : 1500 - 60] == 0)


def test_fault_04_a_window_that_starts_beyond_the_first_key_blocks():
    run(*randoms((40, 900)), window_size=(3, 2))


@pytest.mark.parametrize(("batch", "seqlen_q", "seqlen_k"), [(0, 8, 8), (2, 0, 8), (2, 8, 0)])
def test_fault_05_empty_problems(batch, seqlen_q, seqlen_k):
    out, lse = run(*randoms((seqlen_q, seqlen_k), batch=batch))
    assert torch.all(out == 0)
    assert torch.all(lse == -torch.inf)


@pytest.mark.parametrize("length", [1, 7, 63, 64, 65, 127, 129, 1000])
def test_fault_06_lengths_that_are_a_multiple_of_nothing(length):
    run(*randoms((length, length), (1, 1)), causal=True)
    run(*randoms((length, 65), (1, 1)))
    run(*randoms((33, length), (1, 1)))


@pytest.mark.parametrize(
    "head_dims",
    [
        *((d, d) for d in (8, 16, 72, 80, 104, 112, 120)),
        *((64, 128), (128, 64), (72, 112), (40, 8), (192, 128), *WIDE_HEAD_DIMS),
    ],
    ids=str,
)
def test_fault_07_head_dims(head_dims, arch):
    if head_dims in WIDE_HEAD_DIMS and arch != "sm_90a":
        with pytest.raises(ValueError, match="head_dim"):
            run(*randoms((150, 200), (2, 2), head_dims))
        return
    run(*randoms((150, 200), (2, 2), head_dims), causal=True)


def layouts():
    base = randoms((100, 100), (2, 2))[0]
    flat = torch.randn(base.numel() + 8).bfloat16()
    one_head = torch.randn(1, 100, 1, 64).bfloat16()
    return {
        "transposed": base.transpose(1, 2).contiguous().transpose(1, 2),
        "fused qkv": torch.randn(1, 100, 6, 64).bfloat16().chunk(3, dim=2)[1],
        "batch stride 0": base.expand(2, -1, -1, -1),
        "size-1 dimensions of odd stride": one_head.as_strided(one_head.shape, (3, 64, 7, 1)),
        "base 16 bytes off": flat[8:].view(base.shape),
        "base 2 bytes off": flat[1:-7].view(base.shape),
        "odd row stride": torch.randn(1, 100, 2, 65).bfloat16()[..., :64],
    }


@pytest.mark.parametrize("name", layouts())
def test_fault_08_layouts(name):
    tensor = layouts()[name]
    run(tensor, tensor, tensor, causal=True)


def spread(tensor, row_stride):
    """The same rows `row_stride` elements apart; only the touched pages take memory."""
    _, rows, heads, head_dim = tensor.shape
    storage = torch.empty((rows - 1) * row_stride + heads * head_dim, dtype=tensor.dtype)
    view = storage.as_strided(tensor.shape, (0, row_stride, head_dim, 1))
    return view.copy_(tensor)


@pytest.mark.parametrize("which", ["q", "k", "v", "out"])
def test_fault_09_offsets_beyond_two_to_the_31_elements(which, arch):
    q, k, v = randoms((5, 6), (2, 2))
    expected = fa4.flash_attn_func(q, k, v, return_lse=True)
    tensors = {"q": q, "k": k, "v": v, "out": torch.full_like(q, torch.nan)}
    tensors[which] = spread(tensors[which], 2**30 + 8)
    lse = torch.empty(1, 2, 5)
    problem = problem_of(q, k, v)
    plan = api.plan_forward(problem, arch)
    strides = tuple(tensor.stride() for tensor in tensors.values())
    launch.prepare(problem, plan, strides, q.device, True)(*tensors.values(), lse)
    assert torch.equal(tensors["out"], expected[0])
    assert torch.equal(lse, expected[1])


def test_fault_11_four_million_keys(arch):
    """A window on the last of 2^22 keys gives what the last 512 keys alone give."""
    q, k, v = randoms((256, 512))
    long_k, long_v = (
        torch.zeros(1, 2**22, 1, 64, dtype=torch.bfloat16) for _ in range(2)
    )  # pages that nobody touches take no memory
    long_k[:, -512:], long_v[:, -512:] = k, v
    expected = run(q, k, v, window_size=(200, 0))
    actual = fa4.flash_attn_func(q, long_k, long_v, window_size=(200, 0), return_lse=True)
    assert_same(actual, expected, arch)


def constant_scores(value, keys, dtype):
    """q, k, v of two blocks of keys whose scores are all `value` with softmax_scale 1."""
    q, k, v = randoms((70, keys), dtype=dtype)
    q.zero_()[..., 0] = 8.0
    k.zero_()[..., 0] = value / 8.0
    return q, k, v


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("score", [-120.0, 80.0, -1000.0, 1000.0])
@pytest.mark.parametrize("keys", [1, 200])
def test_fault_13_all_logits_far_from_zero(score, keys, dtype):
    _, lse = run(*constant_scores(score, keys, dtype), scale=1.0)
    expected = torch.full_like(lse, score + math.log(keys))
    torch.testing.assert_close(lse, expected, rtol=0, atol=5e-4)


def test_fault_13_a_maximum_that_jumps_after_every_block():
    """Scores grow by 40 a block, down then up, so every rescale path is taken."""
    q, k, v = randoms((130, 640))
    steps = torch.arange(640) // 128
    for ramp in (steps, -steps, (steps * 3) % 5):
        k.zero_()[..., 0] = (40.0 * ramp)[None, :, None].to(k.dtype)
        q.zero_()[..., 0] = 1.0
        run(q, k, v, scale=1.0)


def test_fault_13_equal_rows_give_equal_results():
    q, k, v = randoms((300, 200))
    q[:] = q[:, :1]
    out, lse = run(q, k, v)
    assert torch.equal(out, out[:, :1].expand_as(out))
    assert torch.equal(lse, lse[:, :, :1].expand_as(lse))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_fault_15_what_no_row_sees_does_not_leak(value):
    """Bad keys at masked positions, bad values in blocks that no row needs."""
    q, k, v = randoms((100, 700))
    mask = {"window_size": (20, 0)}
    expected = run(q, k, v, **mask)
    k[:, : 600 - 20] = value
    v[:, :512] = value
    assert all(map(torch.equal, fa4.flash_attn_func(q, k, v, **mask, return_lse=True), expected))


def test_fault_15_a_bad_key_harms_only_the_rows_that_see_it(arch):
    q, k, v = randoms((300, 300))
    expected, expected_lse = run(q, k, v, causal=True)
    k[:, 200] = torch.nan
    out, lse = fa4.flash_attn_func(q, k, v, causal=True, return_lse=True)
    unharmed = out[:, :200], lse[..., :200]
    assert_same(unharmed, (expected[:, :200], expected_lse[..., :200]), arch)
    assert out[:, 200:].isnan().all()


def test_fault_15_a_hidden_bad_value_in_a_processed_block_is_multiplied_by_zero_as_in_torch():
    q, k, v = randoms((100, 100), (1, 1))
    v[0, 60, 0, 7] = torch.nan
    out = fa4.flash_attn_func(q, k, v, causal=True)
    weights = torch.ones(100, 100).tril()  # rows above 60 have a zero there
    assert torch.equal(out[0, :, 0].isnan(), (weights @ v[0, :, 0].float()).isnan())
    assert out[0, 0, 0, 7].isnan()


@pytest.mark.parametrize("row", [0, 1, 100, 127, 128, 200, 255, 256, 299])
def test_fault_16_a_row_is_the_same_alone_and_inside_a_prefill(row, arch):
    q, k, v = randoms((300, 300), (2, 1), (128, 128))
    out, lse = fa4.flash_attn_func(q, k, v, causal=True, return_lse=True)
    keys = row + 1
    alone = fa4.flash_attn_func(q[:, row:keys], k[:, :keys], v[:, :keys], return_lse=True)
    assert_same((alone[0][:, 0], alone[1][:, :, 0]), (out[:, row], lse[:, :, row]), arch)


def test_bits_do_not_depend_on_the_rest_of_the_batch():
    q, k, v = randoms((140, 260), (4, 2), batch=3)
    out, lse = run(q, k, v, causal=True)
    alone = fa4.flash_attn_func(q[1:2], k[1:2], v[1:2], causal=True, return_lse=True)
    assert torch.equal(alone[0][0], out[1])
    assert torch.equal(alone[1][0], lse[1])
