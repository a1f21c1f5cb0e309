"""What the tests of flash-attn-4 on both architectures share: inputs, oracle, tolerances."""

import torch

from tests.peers.stand_in import emulated_peers, relative_error

# Seen: 0.2 % for O (bf16 rounding of P and O) and for gradients, 2e-5 for LSE. One input or the
# tensor core off by 5 % gives 4.7 % for O, and 17 % for gradients.
TOLERANCE = 0.004
LSE_TOLERANCE = 2e-4
GRADIENT_TOLERANCE = 0.005


def attention(q, k, v, causal=False):
    """(O, LSE) in float32 for q (B, Sq, H, D), k and v (B, Sk, Hk, D); causal is bottom-right."""
    q, k, v = (t.float().transpose(1, 2) for t in (q, k, v))
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).mT / q.shape[-1] ** 0.5
    if causal:
        rows, columns = scores.shape[-2:]
        seen = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)
        scores = scores.masked_fill(~seen, -torch.inf)
    out = scores.softmax(-1) @ v.repeat_interleave(group, 1)
    return out.transpose(1, 2), scores.logsumexp(-1)


def random_qkv(batch, seqlens, heads, head_dim, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(0)
    (seqlen_q, seqlen_k), (heads_q, heads_kv) = seqlens, heads
    shapes = [(seqlen_q, heads_q), (seqlen_k, heads_kv), (seqlen_k, heads_kv)]
    return [torch.randn(batch, *shape, head_dim, generator=generator).to(dtype) for shape in shapes]


def forward(*args, **kwargs):
    from flash_attn.cute.interface import _flash_attn_fwd

    return _flash_attn_fwd(*args, return_lse=True, **kwargs)[:2]


def assert_agrees(result, expected):
    (out, lse), (expected_out, expected_lse) = result, expected
    assert relative_error(out, expected_out) < TOLERANCE
    assert (lse - expected_lse).abs().max() < LSE_TOLERANCE


def backward_errors(head_dim, causal, arch="sm_100a"):
    """Relative errors of dQ, dK and dV."""
    from flash_attn.cute.interface import _flash_attn_bwd

    q, k, v = random_qkv(1, (256, 256), (2, 1), head_dim)
    grad_out = torch.randn(q.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    leaves = [t.float().requires_grad_() for t in (q, k, v)]
    out, lse = attention(*leaves, causal)
    out.backward(grad_out.float())
    with emulated_peers(arch):
        grads = _flash_attn_bwd(
            q, k, v, out.detach().bfloat16(), grad_out, lse.detach().contiguous(), causal=causal
        )
    return [relative_error(grad, leaf.grad) for grad, leaf in zip(grads, leaves, strict=False)]
