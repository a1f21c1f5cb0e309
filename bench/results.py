"""Saves a table as JSON with the versions that produced it."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fa4.compile import PACKAGE, source_digest

FOLDER = Path(__file__).parent / "results"
PACKAGES = ("nvidia-cutlass-dsl", "flash-attn-4", "quack-kernels", "nvidia-cuda-nvdisasm")
DIGITS = 12  # of the fingerprint, and of other digests, that files have

STATIC = "static counts of compiled code; cycles are modelled, nothing is measured"


def provenance() -> dict[str, str]:
    """When, and of which kernels: another source of them has another one."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "fingerprint": source_digest(PACKAGE)[:DIGITS],
    }


def save(name: str, rows: list[dict[str, Any]], ptxas: str, note: str = STATIC) -> Path:
    """Write `results/NAME.json`; returns its path."""
    versions = {package: _version(package) for package in PACKAGES}
    content = {
        **provenance(),
        "versions": {"ptxas": ptxas, **versions},
        "note": note,
        "rows": rows,
    }
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
