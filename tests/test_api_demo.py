"""`fa4 demo` end to end in the emulator, and that it notices a wrong result."""

import pytest
import torch

from fa4 import api, demo


@pytest.mark.parametrize(
    ("arch", "roles"), [("sm_100a", ("softmax", "correction")), ("sm_90a", ("attend", "load"))]
)
def test_demo_agrees_and_reports(monkeypatch, capsys, arch, roles):
    monkeypatch.setenv("FA4_EMULATE_ARCH", arch)
    assert demo.demo_main([]) == 0
    report = capsys.readouterr().out
    for words in ("emulator", f"compiled {arch}", "agrees with float32", "torch bf16", *roles):
        assert words in report


def test_demo_names_an_architecture_that_is_not_emulated(monkeypatch, capsys):
    monkeypatch.setenv("FA4_EMULATE_ARCH", "sm_80")
    assert demo.demo_main([]) == 2
    assert "FA4_EMULATE_ARCH is 'sm_80'; this version emulates sm_100a, sm_90a" in (
        capsys.readouterr().err
    )


def test_demo_shows_the_pipeline_of_what_ran(monkeypatch, capsys):
    """On a Hopper GPU that is Hopper's; here the run itself is emulated."""
    monkeypatch.setattr(demo, "native_gpu", lambda: torch.device("cuda", 0))
    monkeypatch.setattr(api, "native_arch", lambda device: "sm_90a")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a Hopper")
    monkeypatch.setattr(demo, "run_native", lambda inputs, gpu: demo.run_emulated(inputs))
    assert demo.demo_main([]) == 0
    report = capsys.readouterr().out
    assert "the sm_90a kernel runs natively on a Hopper" in report
    assert "tile_assigned" in report
    assert "s_computed" not in report


@pytest.mark.parametrize("which", [0, 1], ids=["out", "lse"])
def test_demo_fails_on_a_wrong_result(monkeypatch, capsys, which):
    compute = api.flash_attn_func

    def five_percent_off(*args, **options):
        results = list(compute(*args, **options))
        results[which] = results[which] * 1.05
        return tuple(results)

    monkeypatch.setattr(api, "flash_attn_func", five_percent_off)
    assert demo.demo_main(["--seed", "1"]) == 1
    assert "DISAGREES" in capsys.readouterr().out
