"""Command-line options that name a kernel and its sizes, and the problem that they mean.

The types of arguments serve all commands: a wrong one ends the program while it parses.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from fa4.problem import Problem, default_scale, example_problem

TOKENS, HIDDEN = 16384, 2048  # of the default workload on a GPU, as in the bench
LENGTH, EMULATED_LENGTH = 4096, 512


def add_kernel_options(parser: argparse.ArgumentParser) -> None:
    """Head dims, dtype and mask."""
    parser.add_argument("--head-dim", type=positive, default=128, help="of Q and K, default 128")
    parser.add_argument("--head-dim-v", type=positive, help="of V, default that of Q and K")
    parser.add_argument("--dtype", default="bfloat16", help="bfloat16 (default) or float16")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument(
        "--window", type=int, nargs=2, metavar=("LEFT", "RIGHT"), help="-1 is unbounded"
    )
    parser.add_argument("--softcap", action="store_true", help="compile the softcap")


def add_size_options(parser: argparse.ArgumentParser) -> None:
    """Lengths, batch and heads."""
    options = (
        ("--seqlen", f"queries; default {LENGTH} on a GPU, {EMULATED_LENGTH} emulated"),
        ("--seqlen-k", "keys; default as many as queries"),
        ("--batch", f"default {TOKENS // 1024}k tokens on a GPU, 1 emulated"),
        ("--heads", f"query heads; default hidden size {HIDDEN} on a GPU, 1 emulated"),
        ("--heads-kv", "key/value heads; default as many as query heads"),
    )
    for name, text in options:
        parser.add_argument(name, type=positive, help=text)


def positive(text: str) -> int:
    """An argument that must be a positive integer."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def output_file(text: str) -> Path:
    """An argument that names a file to write at the end of long work, in a folder that is there."""
    path = Path(text)
    if not os.path.isdir(path.parent):  # unlike Path's, False where it may not be looked into
        raise argparse.ArgumentTypeError(f"{path.parent} is no folder; make it first")
    if os.path.isdir(path):
        raise argparse.ArgumentTypeError(f"{path} is a folder; name a file")
    there = path if os.path.exists(path) else path.parent
    if not os.access(there, os.W_OK):
        raise argparse.ArgumentTypeError(f"{there} may not be written; name another file")
    return path


def output_folder(text: str) -> Path:
    """An argument that names a folder for results, which is made if it is not there."""
    path = Path(text)
    there = next(folder for folder in (path, *path.absolute().parents) if os.path.exists(folder))
    if not os.path.isdir(there):
        raise argparse.ArgumentTypeError(f"{there} is a file; name a folder")
    if not os.access(there, os.W_OK):
        raise argparse.ArgumentTypeError(f"{there} may not be written; name another folder")
    return path


def sizes_of(arguments: argparse.Namespace, on_gpu: bool) -> dict[str, int]:
    """The sizes of a Problem that the options name."""
    length = arguments.seqlen or (LENGTH if on_gpu else EMULATED_LENGTH)
    heads = arguments.heads or (max(1, HIDDEN // arguments.head_dim) if on_gpu else 1)
    return {
        "batch": arguments.batch or (max(1, TOKENS // length) if on_gpu else 1),
        "seqlen_q": length,
        "seqlen_k": arguments.seqlen_k or length,
        "heads_q": heads,
        "heads_kv": arguments.heads_kv or heads,
    }


def problem_of(arguments: argparse.Namespace, **sizes: int) -> Problem:
    """The problem that the options name. Raises ValueError or TypeError, see Problem."""
    left, right = arguments.window or (None, None)
    return example_problem(
        arguments.head_dim,
        arguments.head_dim_v,
        dtype=arguments.dtype,
        causal=arguments.causal,
        window_left=left,
        window_right=right,
        softcap=1.0 if arguments.softcap else 0.0,
        scale=default_scale(arguments.head_dim),
        **sizes,
    )


def command_options(problem: Problem) -> list[str]:
    """The options that name a problem; `problem_of` the other way round."""
    p = problem
    values = {
        "--head-dim": p.head_dim,
        "--head-dim-v": p.head_dim_v,
        "--dtype": p.dtype,
        "--seqlen": p.seqlen_q,
        "--seqlen-k": p.seqlen_k,
        "--batch": p.batch,
        "--heads": p.heads_q,
        "--heads-kv": p.heads_kv,
    }
    options = [word for name, value in values.items() for word in (name, str(value))]
    bounds = [-1 if bound is None else bound for bound in (p.window_left, p.window_right)]
    if p.mask == "window":
        options += ["--window", *map(str, bounds)]
    elif p.causal:
        options.append("--causal")
    return options + (["--softcap"] if p.softcap else [])
