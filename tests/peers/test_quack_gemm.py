"""quack's sm_100 and sm_90 GEMMs, unmodified, in the emulator against torch in float32."""

import pytest
import torch

from tests.peers.stand_in import (
    emulated_peers,
    operand_off_by_five_percent,
    relative_error,
    require,
)

require("quack.gemm")
pytestmark = pytest.mark.peers

TOLERANCE = 0.004  # rounding D to bf16 gives 0.2 %


def operands(batch, m, n, k, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(batch, rows, k, generator=generator).to(dtype).div(k**0.25) for rows in (m, n)
    ]


def gemm(a, b, c=None, *, tile, cluster, **options):
    """D = A B^T (+ C) by quack: a (L, M, K), b (L, N, K)."""
    from quack.gemm import gemm as quack_gemm

    d = torch.empty(a.shape[0], a.shape[1], b.shape[1], dtype=a.dtype)
    quack_gemm(a, b, d, c, None, *tile, *cluster, **options)
    return d


SHAPES = {
    "1-CTA": (1, 256, 256, 128, (128, 128), (1, 1)),
    "2-CTA": (1, 512, 256, 192, (256, 128), (2, 1)),
    "batched, ragged": (3, 200, 136, 96, (128, 64), (1, 1)),
    "multicast": (1, 512, 512, 128, (256, 256), (2, 2)),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.peers_short if name == "1-CTA" else ())
        for name in SHAPES
    ],
)
def test_gemm(name):
    *shape, tile, cluster = SHAPES[name]
    a, b = operands(*shape)
    with emulated_peers() as emulated:
        d = gemm(a, b, tile=tile, cluster=cluster)
    assert relative_error(d, a.float() @ b.float().mT) < TOLERANCE
    assert emulated.launches[0].cluster[:2] == cluster


@pytest.mark.parametrize("name", ["1-CTA", "batched, ragged", "multicast"])
def test_gemm_on_hopper(name):
    *shape, tile, cluster = SHAPES[name]
    a, b = operands(*shape)
    with emulated_peers("sm_90a") as emulated:
        d = gemm(a, b, tile=tile, cluster=cluster)
    assert relative_error(d, a.float() @ b.float().mT) < TOLERANCE
    assert "Sm90" in emulated.launches[0].name


def test_gemm_with_several_tiles_per_cta():
    from quack.cute_dsl_utils import get_max_active_clusters

    a, b = operands(1, 512, 512, 64)
    get_max_active_clusters.cache_clear()  # quack asks for the number of SMs once per process
    with emulated_peers(num_sms=2) as emulated:
        d = gemm(a, b, tile=(128, 128), cluster=(1, 1))
    assert relative_error(d, a.float() @ b.float().mT) < TOLERANCE
    get_max_active_clusters.cache_clear()
    assert emulated.launches[0].grid == (1, 1, 2)


def test_gemm_with_addend_in_float16():
    a, b = operands(1, 256, 256, 128, torch.float16)
    c = torch.randn(1, 256, 256, generator=torch.Generator().manual_seed(1)).half()
    with emulated_peers():
        d = gemm(a, b, c, tile=(128, 256), cluster=(1, 1), alpha=0.5, beta=2.0)
    assert relative_error(d, 0.5 * (a.float() @ b.float().mT) + 2 * c.float()) < TOLERANCE


@pytest.mark.peers_short
def test_a_tensor_core_off_by_five_percent_is_noticed():
    a, b = operands(1, 256, 256, 128)
    with emulated_peers(), operand_off_by_five_percent():
        d = gemm(a, b, tile=(128, 128), cluster=(1, 1))
    assert relative_error(d, a.float() @ b.float().mT) > 5 * TOLERANCE
