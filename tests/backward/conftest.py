"""Every test of the backward pass runs on the kernels of both architectures."""

import pytest

ARCHS = ("sm_90a", "sm_100a")


@pytest.fixture(autouse=True, params=ARCHS)
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """CPU tensors stand for those of a GPU of this architecture."""
    monkeypatch.setenv("FA4_EMULATE_ARCH", request.param)
    return request.param
