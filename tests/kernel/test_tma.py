"""TMA in the compiled kernel: descriptors come early, and one lane issues each store."""

import re
from unittest import mock

import pytest
import torch

import fa4
from fa4 import emulator
from fa4.compile import artifacts
from fa4.emulator.cta import Cta
from tests.kernel.conftest import make_plan


@pytest.mark.parametrize(("head_dim", "boxes"), [(64, 1), (128, 2)])
def test_every_output_tile_is_stored_once(head_dim: int, boxes: int) -> None:
    """PTX runs an instruction in every active lane: a whole warp would store 32 times."""
    q = torch.zeros(1, 256, 1, head_dim, dtype=torch.bfloat16)
    stores = []
    original = Cta.submit_copy

    def counted(cta: Cta, *args: object) -> None:
        stores.append(args)
        original(cta, *args)

    with emulator.session(), mock.patch.object(Cta, "submit_copy", counted):
        fa4.flash_attn_func(q, q, q)
    assert len(stores) == 2 * boxes  # two query tiles; a box is 64 columns wide


def test_descriptors_are_prefetched_before_the_cta_barrier() -> None:
    ptx = artifacts(make_plan((64, 64), "full", "bfloat16")).ptx
    setup, _ = re.split(r"\n\s*(?:bar|barrier)\.sync\s+0;", ptx, maxsplit=1)
    assert setup.count("prefetch.tensormap") == ptx.count("prefetch.tensormap") == 4
