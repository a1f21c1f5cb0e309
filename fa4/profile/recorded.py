"""The timeline that a probed kernel records itself: on a GPU, or in the emulator for tests."""

from __future__ import annotations

import tempfile
from dataclasses import replace

import numpy as np
import torch

from fa4 import emulator
from fa4.emulator.labels import Labels
from fa4.emulator.patching import environment
from fa4.launch import labels, num_sms
from fa4.pipeline.records import (
    NUMBER_BITS,
    SLOT_BITS,
    START,
    WORDS,
    ProbeBuffer,
    buffer_words,
)
from fa4.pipeline.storage import MBARRIER_BYTES
from fa4.plan_base import require
from fa4.profile.timeline import Timeline, Track, Wait
from fa4.profile.workload import Workload

RECORDS = 4096  # per warp
_GPU_UNIT = "SM clock cycles"
_EMULATED_UNIT = "emulator events"
_NOTED = (
    "Waits are those for mbarriers (the edges); named barriers, wgmma.wait_group and "
    "cp.async.bulk.wait_group count as work."
)
_EMULATED_NOTE = "Recorded by the probed kernel in the emulator, no time model. Not a measurement."


def record(workload: Workload, records: int = RECORDS, sms: int = 1) -> Timeline:
    """Compile the workload's kernel with a probe, launch it, read the records.

    records: kept per warp, the last ones; a power of two. sms: of the emulated GPU.

    Raises ValueError for a plan that starts a CTA per tile: there are rings for a CTA per SM.
    """
    require(
        workload.plan.persistent,
        f"{workload.plan.name}: persistent=False starts a CTA per tile, and the recorder has room "
        "for one per SM; take a plan with persistent=True.",
    )
    device, native = workload.device, workload.device.type == "cuda"
    ctas = num_sms(device) if native else sms
    words = torch.zeros(
        buffer_words(workload.plan, ctas, records), dtype=torch.int64, device=device
    )
    probed = workload.with_plan(probe=ProbeBuffer(words.data_ptr(), records))
    # the address is in the code: of no use to a later process
    with (
        tempfile.TemporaryDirectory(prefix="fa4-probe-") as folder,
        environment("FA4_CACHE_DIR", folder),
    ):
        unit, note = _EMULATED_UNIT, _EMULATED_NOTE
        if native:
            unit, note = _GPU_UNIT, _run_native(workload, probed, words)
        else:
            _run_emulated(probed, words, sms)
    shape = (ctas, workload.plan.threads // 32, records, WORDS)
    read = words.cpu().numpy().reshape(shape)
    empty = Timeline(workload.title, unit, f"{note} {_NOTED}", (), ())
    return decode(read, labels(workload.plan), empty)


def decode(words: np.ndarray, names: Labels, empty: Timeline) -> Timeline:
    """The records of a launch, (CTA, warp, record, word) as int64, as a timeline.

    Times start with the first record of a CTA: clocks of two SMs have nothing to do with each
    other. Overwritten records are counted in the note.
    """
    tracks: list[Track] = []
    waits: list[Wait] = []
    lost = 0
    for cta, rings in enumerate(words):
        warps = {warp: _records(ring) for warp, ring in enumerate(rings) if ring.any()}
        origin = min((int(found[0, 0]) for found in warps.values()), default=0)
        for warp, found in warps.items():
            lost += int(found[-1, 3]) + 1 - len(found)
            begin, end = int(found[0, 0]), int(found[-1, 0])
            for at, length, slot, _ in found.tolist():
                if slot == START:
                    continue
                label = names.mbarriers[(slot - 1) * MBARRIER_BYTES]
                first = at - origin
                waits.append(Wait(cta, warp, label.edge, label.stage, first, first + length))
                end = at + length
            tracks.append(Track(cta, warp, names.role(warp), begin - origin, end - origin))
    note = empty.note
    if lost:
        note += f" {lost} records were overwritten by later ones."
    return replace(empty, note=note, tracks=tuple(tracks), waits=tuple(waits))


def _records(ring: np.ndarray) -> np.ndarray:
    """(begin, length or SM, slot, number) of a warp's records, oldest first."""
    begin, packed = ring[ring[:, 1] != 0].T
    length = packed & 0xFFFFFFFF
    slot = packed >> 32 & ((1 << SLOT_BITS) - 1)
    number = packed >> (32 + SLOT_BITS) & ((1 << NUMBER_BITS) - 1)
    found = np.stack([begin, length, slot, number], axis=1)
    return found[np.argsort(number, kind="stable")]


def _run_native(workload: Workload, probed: Workload, words: torch.Tensor) -> str:
    """Launches both; the last probed launch leaves its records. Returns the note."""
    plain = _microseconds(workload)
    with_probe = _microseconds(probed)
    words.zero_()
    probed.launch()
    torch.cuda.synchronize(workload.device)
    name = torch.cuda.get_device_name(workload.device)
    return (
        f"Recorded in the kernel on one {name}. The probe costs time itself: "
        f"{with_probe:.0f} us per launch with it, {plain:.0f} us without."
    )


def _microseconds(workload: Workload, launches: int = 10) -> float:
    """Mean time of a launch, after one to warm up."""
    workload.launch()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(launches):
        workload.launch()
    end.record()
    end.synchronize()
    return 1000 * begin.elapsed_time(end) / launches


def _run_emulated(probed: Workload, words: torch.Tensor, sms: int) -> None:
    with emulator.session(arch=probed.plan.arch, num_sms=sms) as session:
        session.register(words, name="probe")
        probed.launch()
