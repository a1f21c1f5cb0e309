"""The command `fa4 inspect`, and where nvdisasm is looked for."""

import json

import pytest

from fa4.profile import disassembler, inspect_main, report
from fa4.profile.__main__ import main as cubin_main
from fa4.profile.disassembler import DisassemblerMissingError, disassemble, find_nvdisasm
from fa4.profile.report_text import NO_SASS
from fa4.profile.table import table
from tests.profile import tiny_kernels

needs_nvdisasm = pytest.mark.skipif(
    find_nvdisasm() is None, reason="nvdisasm is not installed (extra `sass`)"
)


@pytest.fixture
def no_nvdisasm(monkeypatch):
    monkeypatch.setattr(report, "find_nvdisasm", lambda: None)
    monkeypatch.setattr("fa4.profile.inspect.find_nvdisasm", lambda: None)


@needs_nvdisasm
def test_json_report_and_kept_files(tmp_path, capsys):
    assert inspect_main(["--head-dim", "64", "--json", "--keep", str(tmp_path / "kept")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kernel"] == "fa4_fwd_d64_bfloat16"
    assert [role["role"] for role in found["roles"]][:3] == ["softmax", "correction", "mma"]
    assert all(role["honoured"] for role in found["roles"])
    edges = {barrier["edge"]: barrier for barrier in found["barriers"]}
    assert edges["s_computed"]["producer"] == "mma"
    assert edges["q_loaded"]["full"] == 0
    assert found["summary"]["unmasked"]["f2fp"] == 64
    kept = sorted(path.suffix for path in (tmp_path / "kept").iterdir())
    assert kept == [".cubin", ".ptx", ".sass"]


def test_a_plan_without_tensor_memory_is_reported_too(no_nvdisasm, capsys):
    assert inspect_main(["--arch", "sm_90a", "--head-dim", "64"]) == 0
    text = capsys.readouterr().out
    assert "fa4_fwd_d64_bfloat16 for sm_90a" in text
    assert "attend" in text
    assert "tensor memory" not in text


@pytest.mark.parametrize("arch", ["sm_100a", "sm_90a"])
def test_the_backward_kernel_is_reported_too(arch, capsys):
    assert inspect_main(["--backward", "--arch", arch, "--head-dim", "64", "--causal"]) == 0
    text = capsys.readouterr().out
    assert f"fa4_bwd_d64_bfloat16_right for {arch}" in text
    assert "dq" in text
    assert ("Compute loop per warp and 64 scores of a thread: " in text) == bool(find_nvdisasm())


def test_report_without_nvdisasm_says_so(no_nvdisasm, tmp_path, capsys):
    assert inspect_main(["--head-dim", "64", "--keep", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert NO_SASS in text
    for part in ("registers", "tensor memory: S0 at 0", "kv_loaded", "correction"):
        assert part in text
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".cubin", ".ptx"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--head-dim", "136"],
        ["--dtype", "float8"],
        ["--arch", "sm_42"],
        ["--head-dim", "136", "--backward"],
        ["--arch", "sm_42", "--backward"],
    ],
)
def test_what_has_no_kernel_is_refused(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        inspect_main(arguments)
    assert arguments[1] in capsys.readouterr().err


def test_missing_nvdisasm_says_what_to_do(monkeypatch):
    monkeypatch.setattr(disassembler, "find_nvdisasm", lambda: None)
    with pytest.raises(DisassemblerMissingError, match="nvidia-cuda-nvdisasm"):
        disassemble(b"")


def test_nvdisasm_of_cuda_home_comes_first(monkeypatch, tmp_path):
    tool = tmp_path / "bin" / "nvdisasm"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'bad cubin' >&2\nexit 3\n")
    tool.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    find_nvdisasm.cache_clear()
    try:
        assert find_nvdisasm() == str(tool)
        with pytest.raises(RuntimeError, match=r"code 3: bad cubin"):
            disassemble(b"")
    finally:
        find_nvdisasm.cache_clear()


@needs_nvdisasm
def test_any_cubin_can_be_analysed(tmp_path, capsys):
    _, cubin = tiny_kernels.compiled(tiny_kernels.budgets_honoured)
    (tmp_path / "tiny.cubin").write_bytes(cubin)
    assert cubin_main([str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "setmaxnreg in SASS: " in text
    assert "160" in text
    with pytest.raises(SystemExit, match="no cubin"):
        cubin_main([str(tmp_path / "empty")])


def test_table_aligns_numbers_right():
    lines = table("name | count", [("a", 5), ("bcd", 1000)]).splitlines()
    assert lines == ["name  count", "----  -----", "a         5", "bcd    1000"]
