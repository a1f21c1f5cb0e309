"""flash-attn-4's sm_90 kernels (wgmma), unmodified, in the emulator against torch in float32."""

import pytest
import torch

from fa4.emulator import wgmma
from fa4.emulator.patching import replaced
from tests.golden.cases import CASES
from tests.golden.test_golden import AGREEING, UNITS, units_apart
from tests.peers.attention_checks import (
    GRADIENT_TOLERANCE,
    assert_agrees,
    attention,
    backward_errors,
    forward,
    random_qkv,
)
from tests.peers.stand_in import emulated_peers, require

require("flash_attn.cute")
pytestmark = pytest.mark.peers

ARCH = "sm_90a"
DENSE = {
    "d128 causal": (1, (256, 256), (2, 2), 128, True),
    "d128": (1, (200, 333), (2, 1), 128, False),
    "d64": (1, (256, 384), (2, 2), 64, False),
    "d64 causal": (2, (200, 333), (1, 1), 64, True),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.peers_short if i == 0 else ())
        for i, name in enumerate(DENSE)
    ],
)
def test_forward(name):
    batch, seqlens, heads, head_dim, causal = DENSE[name]
    q, k, v = random_qkv(batch, seqlens, heads, head_dim)
    with emulated_peers(ARCH) as emulated:
        result = forward(q, k, v, causal=causal)
    assert_agrees(result, attention(q, k, v, causal))
    assert "Sm90" in emulated.launches[0].name
    assert emulated.launches[0].stats.mmas > 0


def test_forward_float16():
    q, k, v = random_qkv(1, (256, 256), (1, 1), 128, torch.float16)
    with emulated_peers(ARCH):
        assert_agrees(forward(q, k, v), attention(q, k, v))


@pytest.mark.parametrize("schedule", ["late", "random", "priority"])
def test_schedules_give_the_same_bits(schedule):
    q, k, v = random_qkv(1, (256, 384), (2, 2), 128)
    with emulated_peers(ARCH):
        out, lse = forward(q, k, v, causal=True)
    for seed in range(3):
        with emulated_peers(ARCH, schedule=schedule, seed=seed):
            again, lse_again = forward(q, k, v, causal=True)
        assert torch.equal(out, again)
        assert torch.equal(lse, lse_again)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_backward(head_dim, causal):
    assert max(backward_errors(head_dim, causal, ARCH)) < GRADIENT_TOLERANCE


@pytest.mark.peers_short
@pytest.mark.parametrize("operand", ["memory", "registers"])
def test_a_tensor_core_off_by_five_percent_is_noticed(operand):
    """Q K^T takes A from shared memory, P V from registers."""
    name = {"memory": "operand_values", "registers": "_left_from_registers"}[operand]
    q, k, v = random_qkv(1, (256, 256), (2, 2), 128)

    def off(original):
        return lambda *args: original(*args) * 1.05

    with emulated_peers(ARCH), replaced(wgmma, name, off):
        result = forward(q, k, v, causal=True)
    with pytest.raises(AssertionError):
        assert_agrees(result, attention(q, k, v, causal=True))


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.kernel == "flash-attn-4"],
    ids=lambda case: case.name,
)
def test_emulated_peer_is_what_the_gpu_computed(case):
    with emulated_peers(arch=ARCH):
        out, _ = forward(*case.inputs(), causal=case.causal)
    expected, _ = case.load()
    assert (units_apart(out, expected) <= UNITS[case.dtype]).float().mean() >= AGREEING
