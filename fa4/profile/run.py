"""`python -m fa4.profile.run ...`: a few launches on the GPU, for a profiler to watch.

Every launch stands in an NVTX range that names the kernel, the architecture and the sizes.
"""

from __future__ import annotations

import argparse
import sys

import torch

from fa4 import api
from fa4.profile.options import add_kernel_options, add_size_options, problem_of, sizes_of
from fa4.profile.workload import workload


def main(argv: list[str]) -> int:
    """Launch one problem; returns 0."""
    parser = argparse.ArgumentParser(prog="python -m fa4.profile.run", description=__doc__)
    add_kernel_options(parser)
    add_size_options(parser)
    parser.add_argument("--launches", type=int, default=2, help="default 2")
    arguments = parser.parse_args(argv)
    device = torch.device("cuda", torch.cuda.current_device())
    problem = problem_of(arguments, **sizes_of(arguments, on_gpu=True))
    load = workload(problem, api.native_arch(device), device)
    for number in range(arguments.launches):
        with torch.cuda.nvtx.range(f"{load.title}, launch {number}"):
            load.launch()
    torch.cuda.synchronize(device)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
