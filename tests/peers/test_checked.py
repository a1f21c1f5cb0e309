"""Kernels in use are clean under the checker, but for findings that are true."""

import pytest

from fa4.emulator import CheckError
from fa4.emulator.patching import replaced
from tests.peers import attention_checks
from tests.peers.attention_checks import backward_errors, forward, random_qkv
from tests.peers.stand_in import emulated_peers, require
from tests.peers.test_quack_gemm import SHAPES, gemm, operands

require("flash_attn.cute")
require("quack.gemm")
pytestmark = pytest.mark.peers

FORWARD = {
    "d128 causal": (1, (256, 256), (2, 2), 128, True),
    "d128 2-CTA": (1, (512, 256), (1, 1), 128, False),
    "d64": (2, (200, 333), (1, 1), 64, True),
    "d128 GQA": (1, (256, 256), (4, 2), 128, True),
}


@pytest.mark.parametrize("arch", ["sm_100a", "sm_90a"])
@pytest.mark.parametrize("name", FORWARD)
def test_flash_attention_forward(name, arch):
    batch, seqlens, heads, head_dim, causal = FORWARD[name]
    with emulated_peers(arch, check=True) as emulated:
        forward(*random_qkv(batch, seqlens, heads, head_dim), causal=causal)
    assert emulated.launches


# The preprocess kernel has 256 threads for 128 rows, and all that are inside the tensor store
# log2-scaled LSE: the upper half stores what the next CTA stores too, the same values.
TWICE = ("race", "global memory is written while another write may still be under way")
# The last of the bulk additions of dK and dV is in no group, so no thread waits for it, and the CTA
# may end while its shared memory is still read.
NOT_WAITED_FOR = ("misuse", "the CTA may end before this bulk store has read its shared memory")


@pytest.mark.parametrize("head_dim", [64, 128])
def test_flash_attention_backward(head_dim):
    def checked(original):
        return lambda arch: original(arch, check=True)

    with (
        replaced(attention_checks, "emulated_peers", checked),
        pytest.raises(CheckError) as error,
    ):
        backward_errors(head_dim, causal=False)
    found = error.value.findings
    by_kernel = {
        name: {(f.kind, f.message.split(":")[0]) for f in fs} for name, fs in found.items()
    }
    assert {frozenset(each) for each in by_kernel.values()} == {
        frozenset([TWICE]),
        frozenset([NOT_WAITED_FOR]),
    }
    assert all(
        f.first.instruction.opcode == f.second.instruction.opcode == "st.global.b32"
        for each in found.values()
        for f in each
        if f.kind == "race"
    )


@pytest.mark.parametrize("arch", ["sm_100a", "sm_90a"])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.peers_short if name == "1-CTA" else ())
        for name in SHAPES
    ],
)
def test_quack_gemm(name, arch):
    *shape, tile, cluster = SHAPES[name]
    if arch == "sm_90a" and name == "2-CTA":
        pytest.skip("a tile of sm_100 only")
    a, b = operands(*shape)
    with emulated_peers(arch, check=True) as emulated:
        gemm(a, b, tile=tile, cluster=cluster)
    assert emulated.launches
