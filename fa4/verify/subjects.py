"""What climbs: a kernel variant with the problem that it is run on, and the rule for its result."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch

import fa4
from fa4 import ops, reference
from fa4.emulator.patching import environment
from fa4.problem import Problem
from fa4.variants import Variant

Tensors = tuple[torch.Tensor, ...]

ROWS, KEYS, HEADS, BATCH = 300, 200, (2, 1), 2
SHORT = 28  # keys that the last block lacks


@dataclass(frozen=True)
class Subject:
    """A forward kernel: O and LSE of q, k, v."""

    variant: Variant
    kernels: ClassVar[int] = 1  # that its plan is compiled to

    @property
    def keys(self) -> int:
        """Of the problem."""
        return max(KEYS, self.variant.keys)

    @cached_property
    def problem(self) -> Problem:
        """Several tiles per CTA, an odd number of rows, two query heads on one of K and V."""
        return self.variant.problem(
            batch=BATCH if self.variant.keys <= KEYS else 1,  # long ones take long to emulate
            seqlen_q=ROWS,
            seqlen_k=self.keys,
            heads_q=HEADS[0],
            heads_kv=HEADS[1],
        )

    def inputs(self, device: str) -> Tensors:
        """q, k, v: random, the same everywhere."""
        p = self.problem
        queries, keys = (p.batch, p.seqlen_q, p.heads_q), (p.batch, p.seqlen_k, p.heads_kv)
        shapes = (*queries, p.head_dim), (*keys, p.head_dim), (*keys, p.head_dim_v)
        generator = torch.Generator().manual_seed(2911)
        drawn = (torch.randn(shape, generator=generator) for shape in shapes)
        return tuple(t.to(device, getattr(torch, p.dtype)) for t in drawn)

    def run(self, device: str) -> Tensors:
        """What the kernel computes, wherever the tensors and sessions send it."""
        p = self.problem
        with environment("FA4_EMULATE_ARCH", self.variant.arch):
            return fa4.flash_attn_func(
                *self.inputs(device),
                softmax_scale=p.scale,
                window_size=(p.window_left, p.window_right),
                softcap=p.softcap,
                return_lse=True,
            )

    def wrong(self, result: Tensors) -> str:
        """How the result breaks the error rule; empty if it does not."""
        inputs = self.inputs(result[0].device.type)
        return _unless_ok(reference.compare(self.problem, inputs, *result))


@dataclass(frozen=True)
class BackwardSubject(Subject):
    """The backward kernels of a plan: dQ, dK, dV of q, k, v and the gradients of O and LSE."""

    kernels: ClassVar[int] = 3  # preprocess, the main one, postprocess

    @property
    def keys(self) -> int:
        """Two blocks, whose parts of dQ have one sum in any order, as 0 + a + b = 0 + b + a; three
        for kernels that keep an order."""
        blocks = 3 if self.variant.deterministic else 2
        return blocks * self.variant.plan.n_block - SHORT

    @cached_property
    def _around(self) -> tuple[Tensors, Tensors]:
        """Random dO and dLSE; O and LSE as a right forward pass gives them."""
        inputs = self.inputs("cpu")
        out, lse = reference.attention(self.problem, *inputs)
        generator = torch.Generator().manual_seed(3011)
        grad_out, grad_lse = (torch.randn(t.shape, generator=generator) for t in (out, lse))
        dtype = inputs[0].dtype
        return (grad_out.to(dtype), grad_lse), (out.to(dtype), lse)

    def grads(self, device: str) -> Tensors:
        """dO and dLSE."""
        return tuple(t.to(device) for t in self._around[0])

    def run(self, device: str) -> Tensors:
        """The gradients. The operator is called as autograd would, in a thread of its own."""
        forward = (t.to(device) for t in self._around[1])
        given = *self.grads(device), *self.inputs(device), *forward
        with environment("FA4_EMULATE_ARCH", self.variant.arch):
            return torch.ops.fa4.attention_backward(*given, *ops.options_of(self.problem))

    def wrong(self, result: Tensors) -> str:
        """How the gradients break the error rule; empty if they do not."""
        device = result[0].device.type
        given = self.inputs(device), self.grads(device)
        return _unless_ok(reference.compare_gradients(self.problem, *given, result))


def subject_of(variant: Variant) -> Subject:
    """The variant as it climbs."""
    return (BackwardSubject if variant.backward else Subject)(variant)


def _unless_ok(agreement: reference.Agreement | reference.GradientAgreement) -> str:
    return "" if agreement.ok else str(agreement)
