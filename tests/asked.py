"""The problem that tensors and the options of `flash_attn_func` ask for, for the oracle."""

from torch import Tensor

from fa4.problem import Problem, default_scale


def problem_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    softcap: float = 0.0,
    return_lse: bool = False,
    deterministic: bool = False,
) -> Problem:
    """The signature is that of `flash_attn_func`; `return_lse` does not change the problem."""
    return Problem(
        *(q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3]),
        dtype=str(q.dtype).removeprefix("torch."),
        causal=causal,
        window_left=window_size[0],
        window_right=window_size[1],
        softcap=softcap,
        scale=default_scale(q.shape[3]) if softmax_scale is None else softmax_scale,
        deterministic=deterministic,
    )
