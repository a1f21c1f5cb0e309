"""Runs small kernels under the checker."""

import numpy as np

from fa4.emulator.checker.findings import Finding
from fa4.emulator.program import RunStats
from tests.emulator.ptx_kernels import run


def check(body: str, *arrays: np.ndarray, **options: object) -> RunStats:
    """Runs a kernel body (see ptx_kernels.run) that must have no findings."""
    stats = run(body, *arrays, check=True, **options)
    assert not stats.findings, "\n".join(map(str, stats.findings))
    return stats


def faults(body: str, *arrays: np.ndarray, **options: object) -> list[Finding]:
    """The findings on a kernel body."""
    return run(body, *arrays, check=True, **options).findings
