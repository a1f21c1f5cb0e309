"""What `bench on-hopper` runs: problems that go through every variant of the kernels."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from bench.hopper.problems import SOFTCAPS, Trial, draw
from fa4.variants import variants

LONGEST = 8192
LONGEST_BACKWARD = 1024  # five products per block in software, and a reference in float64
EVERY = 21  # one problem of these has LONGEST queries and keys; the variants come round every 160
# A list of another length gives seeds another meaning.
VARIANTS = variants("sm_100a")


@dataclass(frozen=True)
class Task:
    """One problem in one mode: its forward pass, or its gradients after that."""

    trial: Trial
    mode: str
    backward: bool = False

    def __str__(self) -> str:
        return f"{self.mode}: seed {self.trial.seed}: {self.trial}"


def variant_trial(seed: int) -> Trial:
    """A random problem for variant `seed` modulo their number."""
    variant = VARIANTS[seed % len(VARIANTS)]
    rng = random.Random(seed)
    trial = draw(seed, [variant.dims], LONGEST)
    seqlen_k = trial.lengths[1]
    options = dict(trial.options)
    for name in ("causal", "window_size", "softcap"):
        options.pop(name, None)
    if variant.mask == "causal":
        options["causal"] = True
    elif variant.mask != "full":
        left, right = (rng.randint(0, seqlen_k + 8) for _ in range(2))
        options["window_size"] = (left, right if variant.mask == "window" else None)
    if variant.softcap:
        options["softcap"] = rng.choice(SOFTCAPS)
    if seed % EVERY == 0:
        trial = replace(trial, batch=1, lengths=(LONGEST, LONGEST), heads=(1, 1))
    return replace(trial, dtype=variant.dtype, options=options)


def backward_trial(seed: int) -> Trial:
    """The same variants and options, on problems of a length for gradients."""
    trial = variant_trial(seed)
    lengths = tuple(min(length, LONGEST_BACKWARD) for length in trial.lengths)
    return replace(trial, batch=min(trial.batch, 2), lengths=lengths)


def small_trial(variant: int) -> Trial:
    """A problem of the variant that the emulator does in a second: two blocks, two heads."""
    trial = variant_trial(variant)
    options = dict(trial.options)
    if "window_size" in options:
        right = options["window_size"][1]
        options["window_size"] = (100, None if right is None else 30)
    return replace(
        trial,
        batch=1,
        lengths=(150, 200),
        heads=(2, 1),
        layout="contiguous",
        contents="normal",
        options=options,
    )
