"""`attn_implementation="fa4"`: the functions, their registration, a model where there is one."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

import fa4
from fa4 import emulator
from fa4.api import emulated_arch
from fa4.backends import transformers as backend
from tests.backward.gradients import draw

CAUSAL = SimpleNamespace(is_causal=True)
PLAIN = {"allow_is_causal_skip": True}


def heads_first() -> tuple[torch.Tensor, ...]:
    """query, key, value (1, heads, seqlen, 64)."""
    return tuple(tensor.transpose(1, 2) for tensor in draw((40, 70)))


def test_register(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {}
    stand_in = ModuleType("transformers")
    for name in ("AttentionInterface", "AttentionMaskInterface"):
        registry = SimpleNamespace(
            register=lambda key, f, name=name: known.update({name: (key, f)})
        )
        setattr(stand_in, name, registry)
    monkeypatch.setitem(sys.modules, "transformers", stand_in)
    backend.register()
    assert known == {
        "AttentionInterface": ("fa4", backend.attention),
        "AttentionMaskInterface": ("fa4", backend.mask),
    }


def test_register_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match="needs transformers >="):
        backend.register()


def test_options_become_ours() -> None:
    query, key, value = heads_first()
    options = {"sliding_window": 20, "softcap": 5.0, "dropout": 0.0, "use_cache": True}
    out, weights = backend.attention(CAUSAL, query, key, value, None, scaling=0.2, **options)
    asked = {"softmax_scale": 0.2, "causal": True, "window_size": (19, 0), "softcap": 5.0}
    expected = fa4.flash_attn_func(*draw((40, 70)), **asked)
    assert weights is None
    assert out.equal(expected)
    out, _ = backend.attention(CAUSAL, query, key, value, None, is_causal=False, sliding_window=20)
    assert out.equal(fa4.flash_attn_func(*draw((40, 70)), window_size=(19, 19)))


@pytest.mark.parametrize("window", [0, -1])
@pytest.mark.parametrize("causal", [False, True])
def test_a_window_without_a_token_is_refused(window: int, causal: bool) -> None:
    with pytest.raises(ValueError, match=f"sliding_window is {window}; it must be at least 1"):
        backend.attention(CAUSAL, *heads_first(), None, is_causal=causal, sliding_window=window)


def test_the_narrowest_window_is_the_token_itself() -> None:
    query, key, value = (tensor[:, :, :40] for tensor in heads_first())
    out, _ = backend.attention(CAUSAL, query, key, value, None, sliding_window=1)
    each = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
    assert out.equal(each.transpose(1, 2))


@pytest.mark.parametrize("asked", [None, False, True])
def test_gradients_are_deterministic_on_request(asked: bool | None) -> None:
    query, key, value = (tensor.requires_grad_() for tensor in heads_first())
    with emulator.session(arch=emulated_arch()) as emulated:
        out, _ = backend.attention(CAUSAL, query, key, value, None, deterministic=asked)
        torch.autograd.grad(out.sum(), (query, key, value))
    names = [launch.name for launch in emulated.launches]
    assert any("deterministic" in name for name in names) is bool(asked)


def test_autocast_decides_the_dtype() -> None:
    query, key, value = heads_first()
    with torch.autocast("cpu", torch.bfloat16):
        out, _ = backend.attention(CAUSAL, query.float(), key, value, None)
    assert out.equal(fa4.flash_attn_func(*draw((40, 70)), causal=True))


@pytest.mark.parametrize(
    "given",
    [
        {"dropout": 0.1},
        {"s_aux": torch.zeros(2)},
        {"position_bias": torch.zeros(1, 2, 40, 70)},
        {"cu_seq_lens_q": torch.zeros(3)},
        {"max_length_k": 40},
        {"seq_idx": torch.zeros(1, 40)},
        {"output_attentions": True},
        {"indices": torch.zeros(1, 40, 8)},  # sparse attention, as several models ask for it
        {"block_indices": torch.zeros(1, 2, 8)},
        {"sinks": torch.zeros(2)},
        {"of_a_later_release": False},
    ],
)
def test_options_without_a_kernel_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(NotImplementedError, match=f"{next(iter(given))} is given"):
        backend.attention(CAUSAL, *heads_first(), None, **given)


def test_what_does_not_change_the_result_is_taken() -> None:
    harmless = {
        **dict.fromkeys(("s_aux", "position_bias", "cu_seq_lens_q", "of_a_later_release")),
        "position_ids": torch.arange(40)[None],
        "use_cache": True,
        "return_dict": True,
        "num_items_in_batch": torch.tensor(1),
        "dropout": 0,
        "output_attentions": False,
    }
    out, _ = backend.attention(CAUSAL, *heads_first(), None, **harmless)
    assert out.equal(fa4.flash_attn_func(*draw((40, 70)), causal=True))


def test_a_layer_that_does_not_say_whether_it_is_causal() -> None:
    layer = torch.nn.Identity()
    with pytest.raises(NotImplementedError, match="nor the layer Identity says is_causal"):
        backend.attention(layer, *heads_first(), None)
    out, _ = backend.attention(layer, *heads_first(), None, is_causal=False)
    assert out.equal(fa4.flash_attn_func(*draw((40, 70))))


def test_a_mask_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="attention_mask is given"):
        backend.attention(CAUSAL, *heads_first(), torch.ones(1, 1, 40, 70))


def test_plain_masks_need_none() -> None:
    assert backend.mask(2, 8, 8, **PLAIN) is None
    assert backend.mask(2, 8, 8, torch.ones(2, 8, dtype=torch.bool), **PLAIN) is None
    assert backend.mask(2, 1, 8, q_offset=7, **PLAIN) is None
    assert backend.mask(2, 1, 5, q_offset=7, kv_offset=3, local_size=5, **PLAIN) is None
    crossed = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": True}
    assert backend.mask(2, 3, 8, **crossed) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"attention_mask": torch.arange(16).view(2, 8) > 0}, "hides tokens"),
        ({"allow_is_causal_skip": False}, "not just causal"),
        ({"q_offset": torch.tensor(0)}, "cache is static"),
        ({"kv_offset": 4}, "last query is token 7 and the last key 11"),
        ({"config": SimpleNamespace(attention_chunk_size=4), "local_size": 4}, "a chunk of 4"),
    ],
)
def test_other_masks_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(NotImplementedError, match=message):
        backend.mask(2, 8, 8, **PLAIN | given)


def test_a_model_learns_as_with_sdpa() -> None:
    transformers = pytest.importorskip("transformers")
    backend.register()
    sizes = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 64}
    config = transformers.LlamaConfig(**sizes, **heads)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).bfloat16()
    tokens = torch.randint(64, (2, 40))
    gradients = []
    for name in ("sdpa", "fa4"):
        model.set_attn_implementation(name)
        model.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        gradients.append(torch.cat([p.grad.float().flatten() for p in model.parameters()]))
    expected, got = gradients
    assert (got - expected).norm() < 0.02 * expected.norm()
    assert not got.equal(expected)  # other kernels, other roundings
    positions = torch.arange(40).remainder(20)[None].expand(2, -1)
    with pytest.raises(NotImplementedError, match="packed sequences"):
        model(input_ids=tokens, position_ids=positions, use_cache=False)
    with torch.no_grad():
        model.generation_config.pad_token_id = 0
        got = model.generate(tokens[:, :20], max_new_tokens=3, do_sample=False)
        model.set_attn_implementation("sdpa")
        assert got.equal(model.generate(tokens[:, :20], max_new_tokens=3, do_sample=False))


TOKENS = {"input_ids": torch.arange(3, 43)[None]}
SMALL = {"vocab_size": 64, "pad_token_id": 0}
DECODER = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "head_dim": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "sliding_window": 9,
}
ENCODER = {"hidden_size": 128, "intermediate_size": 128}
ENCODER |= {"num_hidden_layers": 1, "num_attention_heads": 2}
TWO_STACKS = {"d_model": 128, "encoder_layers": 1, "decoder_layers": 1}
TWO_STACKS |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
TWO_STACKS |= dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 128)
MODELS = {
    "Gemma2": (DECODER, TOKENS),  # softcap, windows in every second layer
    "Bert": (ENCODER, TOKENS),
    "Bart": (TWO_STACKS, TOKENS | {"decoder_input_ids": torch.arange(3, 12)[None]}),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_of_other_kinds_compute_as_in_eager(name: str) -> None:
    """What they hand down to an attention function is known here."""
    transformers = pytest.importorskip("transformers")
    backend.register()
    sizes, inputs = MODELS[name]
    config = getattr(transformers, f"{name}Config")(**sizes, **SMALL)
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}Model")(config).bfloat16().eval()
    results = []
    for implementation in ("eager", "fa4"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            results.append(model(**inputs, output_hidden_states=True)[0].float())
    expected, got = results
    assert (got - expected).norm() < 0.02 * expected.norm()
    assert not got.equal(expected)
