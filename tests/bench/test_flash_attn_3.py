"""FlashAttention-3 as a peer: where its library is found, and what its entry is given."""

import sys
from contextlib import contextmanager
from itertools import pairwise

import pytest
import torch

from bench.hopper import accuracy
from bench.hopper.implementations import FA3_LIBRARY, Implementation, implementations

# Of the library in vllm 0.33, as torch reads it, without its marks of what is written to
SCHEMA = """\
fwd(Tensor q, Tensor k, Tensor v, Tensor? k_new, Tensor? v_new, Tensor? q_v, Tensor? out,
Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new, Tensor? seqused_q,
Tensor? seqused_k, int? max_seqlen_q, int? max_seqlen_k, Tensor? page_table, Tensor? kv_batch_idx,
Tensor? leftpad_k, Tensor? rotary_cos, Tensor? rotary_sin, Tensor? seqlens_rotary,
Tensor? q_descale, Tensor? k_descale, Tensor? v_descale, float softmax_scale,
bool is_causal, int window_size_left, int window_size_right, float softcap,
bool is_rotary_interleaved, Tensor? scheduler_metadata, int num_splits, bool? pack_gqa,
int sm_margin, Tensor? s_aux, int cp_world_size, int cp_rank, Tensor? cp_tot_seqused_k)
-> Tensor[]""".replace("\n", " ")
NEUTRAL = {
    "softcap": 0.0,
    "window_size_left": -1,
    "window_size_right": -1,
    "sm_margin": 0,
    "num_splits": 0,
    "cp_world_size": 1,
    "cp_rank": 0,
    "is_rotary_interleaved": True,
}


def fa3() -> Implementation:
    (found,) = (i for i in implementations() if i.name == "fa3")
    return found


def per_sequence(q, k, v, given):
    """What the entry computes: each sequence by itself, rows (tokens, heads, head dim)."""
    parts = []
    starts = list(zip(given["cu_seqlens_q"].tolist(), given["cu_seqlens_k"].tolist(), strict=True))
    for (q0, k0), (q1, k1) in pairwise(starts):
        rows = (t.transpose(0, 1)[None] for t in (q[q0:q1], k[k0:k1], v[k0:k1]))
        out = torch.nn.functional.scaled_dot_product_attention(
            *rows, is_causal=given["is_causal"], scale=given["softmax_scale"], enable_gqa=True
        )
        parts.append(out[0].transpose(0, 1))
    return torch.cat(parts)


@contextmanager
def defined(schema):
    """The entry with this schema, computed on the CPU; the arguments of its calls."""
    calls, names = [], [argument.name for argument in torch._C.parse_schema(schema).arguments]

    def forward(*arguments):
        given = dict(zip(names, arguments, strict=True))
        calls.append(given)
        q, k, v = given["q"], given["k"], given["v"]
        return [per_sequence(q, k, v, given), *(q.new_empty(0) for _ in range(3))]

    with torch.library._scoped_library("_vllm_fa3_C", "DEF") as library:
        library.define(schema)
        library.impl("fwd", forward, "CPU")
        yield calls


@pytest.fixture
def loaded(monkeypatch):
    """The paths of libraries that are loaded, FA3_LIBRARY being one."""
    if hasattr(torch.ops._vllm_fa3_C, "fwd"):
        pytest.skip("the library itself is loaded: its entry cannot be defined anew")
    paths = []
    monkeypatch.setenv(FA3_LIBRARY, "fa3.so")
    monkeypatch.setattr(torch.ops, "load_library", paths.append)
    return paths


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("heads_kv", [4, 2])
def test_it_computes_our_problem(loaded, head_dim, heads_kv, causal):
    shapes = ((3, 32, 4, head_dim), (3, 32, heads_kv, head_dim), (3, 32, heads_kv, head_dim))
    inputs = accuracy.inputs(shapes, torch.float32, "cpu")
    with defined(SCHEMA) as calls:
        peer = fa3()
        assert not peer.missing
        call = peer.bind(inputs, causal)
        for _ in range(2):
            (out,) = peer.output(call())
            assert out.shape == inputs[0].shape
            assert accuracy.error(out, accuracy.reference(*inputs, causal)).ok
    assert loaded == ["fa3.so"]
    first, second = calls
    assert first["cu_seqlens_q"] is second["cu_seqlens_q"]  # made when bound
    assert first["cu_seqlens_q"].dtype == torch.int32
    assert first["cu_seqlens_q"].tolist() == first["cu_seqlens_k"].tolist() == [0, 32, 64, 96]
    assert (first["max_seqlen_q"], first["max_seqlen_k"]) == (32, 32)
    for name, tensor in zip("qkv", inputs, strict=True):
        assert first[name].data_ptr() == tensor.data_ptr()
        assert first[name].shape == (96, *tensor.shape[2:])
    assert NEUTRAL.items() <= first.items()
    used = {*"qkv", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"}
    used |= {"softmax_scale", "is_causal", *NEUTRAL}
    assert {name for name, value in first.items() if value is not None} == used


def test_a_library_whose_entry_takes_something_else_is_refused(loaded):
    inputs = accuracy.inputs(((1, 8, 1, 64),) * 3, torch.float32, "cpu")
    other = SCHEMA.replace("bool is_causal", "bool causal").replace("int num_splits", "int splits")
    refused = "takes no is_causal, num_splits: it is not that of vllm 0.33, but _vllm_fa3_C::fwd"
    with defined(other), pytest.raises(ValueError, match=refused):
        fa3().bind(inputs, True)


@pytest.mark.parametrize("complete", [True, False])
def test_it_is_found_in_a_vllm_that_is_not_imported(loaded, complete, monkeypatch, tmp_path):
    monkeypatch.delenv(FA3_LIBRARY)
    folder = tmp_path / "vllm" / "vllm_flash_attn"
    folder.mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").write_text("raise AssertionError('imported')")
    if complete:
        (folder / "_vllm_fa3_C.abi3.so").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    with defined(SCHEMA):
        missing = fa3().missing
    assert loaded == ([str(folder / "_vllm_fa3_C.abi3.so")] if complete else [])
    assert complete == (not missing)
    assert complete or "the vllm that is installed has no vllm_flash_attn" in missing


def test_without_vllm_it_is_missing_and_says_how_to_have_it(monkeypatch):
    monkeypatch.delenv(FA3_LIBRARY, raising=False)
    monkeypatch.setitem(sys.modules, "vllm", None)
    peer = fa3()
    assert "no vllm is installed: install vllm 0.33, or set FA3_LIBRARY to the path" in peer.missing
    assert "_vllm_fa3_C.abi3.so" in peer.missing


def test_a_library_that_does_not_load_says_why(monkeypatch, tmp_path):
    monkeypatch.setenv(FA3_LIBRARY, str(tmp_path / "none.so"))
    assert "none.so: cannot open shared object file" in fa3().missing
