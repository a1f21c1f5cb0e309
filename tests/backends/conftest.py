"""CPU tensors stand for those of a Hopper GPU."""

import pytest


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FA4_EMULATE_ARCH", "sm_90a")
