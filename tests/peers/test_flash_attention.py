"""flash-attn-4's kernels, unmodified, in the emulator against torch in float32.

What only one architecture's kernels have: for sm_100 here, for sm_90 in
test_flash_attention_hopper.py.
"""

import pytest
import torch

from tests.peers.attention_checks import (
    GRADIENT_TOLERANCE,
    assert_agrees,
    attention,
    backward_errors,
    forward,
    random_qkv,
)
from tests.peers.stand_in import (
    emulated_peers,
    operand_off_by_five_percent,
    require,
)

require("flash_attn.cute")
pytestmark = pytest.mark.peers

ARCHS = ("sm_100a", "sm_90a")
DENSE = {
    ("sm_100a", "d128 causal"): (1, (256, 256), (2, 2), 128, True),
    ("sm_100a", "d128 2-CTA"): (1, (512, 256), (1, 1), 128, False),
    ("sm_100a", "d64"): (1, (256, 384), (2, 2), 64, False),
    ("sm_100a", "d64 causal"): (2, (200, 333), (1, 1), 64, True),
    ("sm_100a", "d128 GQA"): (1, (256, 256), (4, 2), 128, True),
    ("sm_100a", "d128 MQA"): (1, (129, 257), (3, 1), 128, False),
    ("sm_90a", "d128 causal"): (1, (256, 256), (2, 2), 128, True),
    ("sm_90a", "d128"): (1, (200, 333), (2, 1), 128, False),
    ("sm_90a", "d64"): (1, (256, 384), (2, 2), 64, False),
    ("sm_90a", "d64 causal"): (2, (200, 333), (1, 1), 64, True),
}


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        pytest.param(*case, marks=pytest.mark.peers_short if case[1] == "d128 causal" else ())
        for case in DENSE
    ],
)
def test_forward(arch, name):
    batch, seqlens, heads, head_dim, causal = DENSE[arch, name]
    q, k, v = random_qkv(batch, seqlens, heads, head_dim)
    with emulated_peers(arch) as emulated:
        result = forward(q, k, v, causal=causal)
    assert_agrees(result, attention(q, k, v, causal))
    launched = emulated.launches[0]
    assert ("Sm90" in launched.name) == (arch == "sm_90a")
    assert launched.cluster[0] == (2 if "2-CTA" in name else 1)
    assert launched.stats.mmas > 0


@pytest.mark.parametrize("arch", ARCHS)
def test_forward_float16(arch):
    q, k, v = random_qkv(1, (256, 256), (1, 1), 128, torch.float16)
    with emulated_peers(arch):
        assert_agrees(forward(q, k, v), attention(q, k, v))


@pytest.mark.parametrize("schedule", ["late", "random", "priority"])
@pytest.mark.parametrize("arch", ARCHS)
def test_schedules_give_the_same_bits(arch, schedule):
    q, k, v = random_qkv(1, (256, 384), (2, 2), 128)
    with emulated_peers(arch):
        out, lse = forward(q, k, v, causal=True)
    for seed in range(3):
        with emulated_peers(arch, schedule=schedule, seed=seed):
            again, lse_again = forward(q, k, v, causal=True)
        assert torch.equal(out, again)
        assert torch.equal(lse, lse_again)


def test_forward_varlen():
    lengths_q, lengths_k = [100, 0, 130], [160, 40, 200]
    q, k, v = random_qkv(1, (sum(lengths_q), sum(lengths_k)), (2, 2), 128)
    q, k, v = q[0], k[0], v[0]
    starts_q, starts_k = (
        torch.tensor([0, *lengths]).cumsum(0).int() for lengths in (lengths_q, lengths_k)
    )
    with emulated_peers():
        out, lse = forward(
            q,
            k,
            v,
            cu_seqlens_q=starts_q,
            cu_seqlens_k=starts_k,
            max_seqlen_q=max(lengths_q),
            max_seqlen_k=max(lengths_k),
            causal=True,
        )
    for i in range(len(lengths_q)):
        rows, keys = slice(*starts_q[i : i + 2]), slice(*starts_k[i : i + 2])
        if lengths_q[i]:
            expected, expected_lse = attention(q[None, rows], k[None, keys], v[None, keys], True)
            assert_agrees((out[rows], lse[:, rows]), (expected[0], expected_lse[0]))


@pytest.mark.parametrize("page_size", [128, 16])
def test_forward_paged(page_size):
    q, k, v = random_qkv(2, (128, 256), (2, 1), 128)
    pages = 256 // page_size
    order = torch.randperm(2 * pages, generator=torch.Generator().manual_seed(1))
    table = order.view(2, pages).int()
    cache = [torch.empty(2 * pages, page_size, 1, 128, dtype=torch.bfloat16) for _ in range(2)]
    for paged, dense in zip(cache, (k, v), strict=True):
        paged[order] = dense.reshape(2 * pages, page_size, 1, 128)
    used = torch.tensor([256, 200], dtype=torch.int32)
    with emulated_peers():
        out, lse = forward(q, *cache, page_table=table, seqused_k=used)
    for i, length in enumerate(used.tolist()):
        one = slice(i, i + 1)
        expected = attention(q[one], k[one, :length], v[one, :length])
        assert_agrees((out[one], lse[one]), expected)


def test_forward_split():
    q, k, v = random_qkv(1, (128, 512), (2, 2), 128)
    with emulated_peers() as emulated:
        result = forward(q, k, v, num_splits=2)
    assert_agrees(result, attention(q, k, v))
    assert len(emulated.launches) == 2  # the splits, then their combination


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("arch", ARCHS)
def test_backward(arch, head_dim, causal):
    assert max(backward_errors(head_dim, causal, arch)) < GRADIENT_TOLERANCE


@pytest.mark.parametrize("wrong", [0, 1, 2], ids=["q", "k", "v"])
def test_an_input_off_by_five_percent_is_noticed(wrong):
    operands = random_qkv(1, (256, 256), (2, 2), 128)
    expected = attention(*operands, causal=True)
    operands[wrong] = operands[wrong] * 1.05
    with emulated_peers():
        result = forward(*operands, causal=True)
    with pytest.raises(AssertionError):
        assert_agrees(result, expected)


@pytest.mark.peers_short
def test_a_tensor_core_off_by_five_percent_is_noticed_in_the_forward():
    q, k, v = random_qkv(1, (256, 256), (2, 2), 128)
    with emulated_peers(), operand_off_by_five_percent():
        result = forward(q, k, v, causal=True)
    with pytest.raises(AssertionError):
        assert_agrees(result, attention(q, k, v, causal=True))


def test_a_tensor_core_off_by_five_percent_is_noticed_in_the_backward():
    with operand_off_by_five_percent():
        errors = backward_errors(64, causal=False)
    assert min(errors) > GRADIENT_TOLERANCE
