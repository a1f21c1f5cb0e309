"""`python -m fa4.profile.run ...`: a few launches on the GPU, for a profiler to watch.

    run-iket --output-dir DIR profile --postprocess all -- python -m fa4.profile.run --iket ...

Every launch stands in an NVTX range that names the kernel, the architecture and the sizes.
"""

from __future__ import annotations

import argparse
import sys
from tempfile import TemporaryDirectory

import torch

from fa4.emulator.patching import environment
from fa4.pipeline.records import IketRanges
from fa4.profile.options import (
    add_kernel_options,
    add_size_options,
    positive,
    problem_of,
    sizes_of,
)
from fa4.profile.workload import Workload, this_gpu, workload


def main(argv: list[str]) -> int:
    """Launch one problem; returns 0. Exits with 2 without a GPU, or for what has no kernel."""
    parser = argparse.ArgumentParser(prog="python -m fa4.profile.run", description=__doc__)
    add_kernel_options(parser)
    add_size_options(parser)
    parser.add_argument("--launches", type=positive, default=2, help="default 2")
    parser.add_argument("--iket", action="store_true", help="waits as ranges for run-iket")
    arguments = parser.parse_args(argv)
    try:
        device, arch = this_gpu()
        problem = problem_of(arguments, **sizes_of(arguments, on_gpu=True))
        load = workload(problem, arch, device)
    except (ValueError, TypeError, NotImplementedError) as error:
        parser.error(str(error))
    if not arguments.iket:
        return _launch(load, arguments.launches)
    # what the compiler makes of ranges depends on run-iket: not for the cache
    with TemporaryDirectory(prefix="fa4-iket-") as folder, environment("FA4_CACHE_DIR", folder):
        return _launch(load.with_plan(probe=IketRanges()), arguments.launches)


def _launch(load: Workload, launches: int) -> int:
    for number in range(launches):
        with torch.cuda.nvtx.range(f"{load.title}, launch {number}"):
            load.launch()
    torch.cuda.synchronize(load.device)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
