"""Settings of every test process."""

import os

import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    # Workers share the cores: more threads in each would only take turns.
    torch.set_num_threads(1)
