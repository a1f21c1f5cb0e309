"""`attn_implementation="fa4"` for the models of transformers.

    from fa4.backends import transformers

    transformers.register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="fa4")

Causal, bidirectional and sliding-window attention, softcap, grouped heads and a growing cache run
on our kernels. Padding, packed sequences, static caches, chunked and sparse attention, sinks and
dropout are errors: they would need kernels that are not here. So is any option that is not known
here, since it might change the result.
"""

from __future__ import annotations

from typing import Any

import torch

from fa4.api import flash_attn_func

NAME = "fa4"

_OPTIONS = ("sliding_window", "softcap", "deterministic")
# Models hand these down to the attention function, and none of them changes what it computes:
# positions are in the queries and keys by now (packed ones `mask` refuses), caches in the keys.
_HARMLESS = (
    *("position_ids", "position_embeddings", "cache_position", "use_cache", "num_items_in_batch"),
    *("output_hidden_states", "output_router_logits", "return_dict"),
)
_OFF = {"dropout": 0.0, "output_attentions": False}  # known, but with these values only

_REMEDY = 'Use another attn_implementation, for example "sdpa".'


def register() -> None:
    """Make `attn_implementation="fa4"` known. Raises ImportError without transformers >= 4.53."""
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise ImportError(
            "fa4.backends.transformers needs transformers >= 4.53: pip install transformers"
        ) from error
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)


def mask(
    batch_size: int, q_length: int, kv_length: int, attention_mask: Any = None, **pattern: Any
) -> None:
    """What transformers calls once per forward pass and kind of layer, to have a mask built.

    Builds none, since `attention` is told what is causal and how wide the window is; raises
    NotImplementedError for a mask that this does not say all about.
    """
    if attention_mask is not None and not attention_mask.all():
        raise NotImplementedError(
            f"attention_mask {tuple(attention_mask.shape)} hides tokens (padding); give sequences "
            f"of one length. {_REMEDY}"
        )
    # What transformers says of a plain mask, and does not of one with additions.
    causal = pattern.get("allow_is_causal_skip", True)
    if not (causal or pattern.get("allow_is_bidirectional_skip")):
        raise NotImplementedError(
            "The mask is not just causal, bidirectional or a window (packed sequences by "
            f"position_ids, a static cache, blocks of tokens). {_REMEDY}"
        )
    queries = pattern.get("q_offset", 0), q_length
    keys = pattern.get("kv_offset", 0), kv_length
    if any(isinstance(offset, torch.Tensor) for offset, _ in (queries, keys)):
        raise NotImplementedError(f"The cache is static: its end is not filled. {_REMEDY}")
    if causal and sum(queries) != sum(keys):
        raise NotImplementedError(
            f"The last query is token {sum(queries) - 1} and the last key {sum(keys) - 1}; causal "
            f"masks are aligned at the last. {_REMEDY}"
        )
    chunk = getattr(pattern.get("config"), "attention_chunk_size", None)
    if chunk is not None and pattern.get("local_size") == chunk and sum(keys) > chunk:
        raise NotImplementedError(f"{sum(keys)} tokens are more than a chunk of {chunk}. {_REMEDY}")


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """An attention function as transformers calls it.

    Args:
        module: the layer; its `is_causal` counts where the argument is None, and without either
            there is no telling: NotImplementedError.
        query, key, value: (batch, heads, seqlen, head_dim); under autocast in its dtype.
        attention_mask: None, or NotImplementedError.
        options: `sliding_window`, `softcap`, `deterministic`; `_HARMLESS` ones count for nothing,
            and any other that is not None or off (`_OFF`) is a NotImplementedError. A
            `sliding_window` below 1 is a ValueError.

    Returns:
        out (batch, seqlen, heads, head_dim), and None for the weights.
    """
    if attention_mask is not None:
        raise NotImplementedError(f"attention_mask is given; no kernel takes one. {_REMEDY}")
    _refuse_unknown(options)
    causal = getattr(module, "is_causal", None) if is_causal is None else is_causal
    if causal is None:
        raise NotImplementedError(
            f"Neither the call nor the layer {type(module).__name__} says is_causal, True or "
            f"False. {_REMEDY}"
        )
    window = options.get("sliding_window")
    if window is not None and window < 1:  # 0 would come out as -1, which is unbounded
        raise ValueError(
            f"sliding_window is {window}; it must be at least 1, which is the token itself, or "
            "None for full attention."
        )
    # transformers counts a token to its own window, and has the same one on both sides
    bound = None if window is None else window - 1
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    softcap, deterministic = options.get("softcap") or 0.0, options.get("deterministic") or False
    asked = {"softmax_scale": scaling, "causal": causal, "window_size": (bound, bound)}
    asked |= {"softcap": softcap, "deterministic": deterministic}
    return flash_attn_func(q, k, v, **asked), None


def _refuse_unknown(options: dict[str, Any]) -> None:
    """Raise NotImplementedError for what may ask for something else than our kernels compute."""
    for name, given in options.items():
        if given is None or name in _OPTIONS or name in _HARMLESS:
            continue
        if name in _OFF and not isinstance(given, torch.Tensor) and given == _OFF[name]:
            continue
        raise NotImplementedError(
            f"{name} is given; no kernel here knows it, but {', '.join(_OPTIONS)}. {_REMEDY}"
        )
