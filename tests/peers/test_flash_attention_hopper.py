"""flash-attn-4's sm_90 kernels in the emulator: faults of wgmma are noticed; golden results."""

import pytest

from fa4.emulator import wgmma
from fa4.emulator.patching import replaced
from fa4.reference import AGREEING, UNITS, units_apart
from tests.golden.cases import CASES
from tests.peers.attention_checks import assert_agrees, attention, forward, random_qkv
from tests.peers.stand_in import emulated_peers, require

require("flash_attn.cute")
pytestmark = pytest.mark.peers

ARCH = "sm_90a"


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
