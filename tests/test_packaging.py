"""Installation: what the metadata promises, and that fa4 needs nothing that is optional."""

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fa4

ROOT = Path(__file__).resolve().parent.parent
OPTIONAL_MODULES = ("triton", "flash_attn", "quack", "tvm_ffi", "matplotlib")

WITHOUT_OPTIONAL_MODULES = f"""
import sys
for name in {OPTIONAL_MODULES}:
    sys.modules[name] = None  # makes `import name` raise ImportError
"""


def python(code, **environment):
    """Standard output of `code` in a fresh interpreter that sees no GPU."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def fa4_command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "fa4", *arguments], capture_output=True, text=True, cwd=ROOT
    )


def requirements(extra=None):
    """Names that the installed distribution requires, without an extra or for one."""
    found = set()
    for line in importlib.metadata.requires("fa4-kernels"):
        name = re.match(r"[\w-]+", line).group()
        named_extra = re.search(r"extra == ['\"](\w+)['\"]", line)
        if (named_extra.group(1) if named_extra else None) == extra:
            found.add(name)
    return found


@pytest.fixture
def installed():
    try:
        importlib.metadata.version("fa4-kernels")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("fa4-kernels is not installed (the tree is on the path); use `make install`")


def test_required_and_optional_distributions(installed):
    assert importlib.metadata.version("fa4-kernels") == fa4.__version__
    assert requirements() == {"nvidia-cutlass-dsl", "torch", "cuda-python", "numpy"}
    assert requirements("peers") == {"flash-attn-4", "quack-kernels", "triton"}
    assert requirements("sass") == {"nvidia-cuda-nvdisasm"}
    assert requirements("plot") == {"matplotlib"}


def test_every_required_distribution_has_a_tested_version():
    pinned = set(re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert {"nvidia-cutlass-dsl", "torch", "cuda-python", "numpy", "pytest", "ruff"} <= pinned


def test_continuous_integration_is_make_test():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == "exec make test"
    assert "run: .ci/run" in (ROOT / ".github" / "workflows" / "ci.yml").read_text()


def test_fault_25_everything_imports_without_a_gpu_and_without_optional_packages():
    code = WITHOUT_OPTIONAL_MODULES + (
        "import fa4, fa4.launch, fa4.profile, fa4.doctor, fa4.demo\n"
        "print(fa4.flash_attn_func.__name__, fa4.can_implement.__name__, fa4.emulator.session)\n"
    )
    assert python(code).startswith("flash_attn_func can_implement <")


def test_fault_27_tests_collect_without_a_gpu_and_without_optional_packages():
    code = WITHOUT_OPTIONAL_MODULES + (
        "import pytest\n"
        "raise SystemExit(pytest.main(['--collect-only', '-q', '-p', 'no:cacheprovider']))\n"
    )
    assert re.search(r"\d{3,} tests collected", python(code))


def test_import_is_light():
    code = "import sys, fa4; print(sorted({'torch', 'cutlass', 'numpy'} & set(sys.modules)))"
    assert python(code) == "[]"


def test_public_names():
    assert set(fa4.__all__) <= set(dir(fa4))
    assert all(hasattr(fa4, name) for name in fa4.__all__)
    assert set(fa4.__all__) <= set(vars(fa4))  # each is looked for once
    assert not hasattr(fa4, "no_such_name")


def test_command_line_help_version_and_misuse():
    assert "demo" in fa4_command("--help").stdout
    assert fa4_command("--version").stdout == f"fa4 {fa4.__version__}\n"
    unknown = fa4_command("dmeo")
    assert unknown.returncode == 2
    assert "unknown command 'dmeo'" in unknown.stderr
    assert fa4_command().returncode == 2


def test_doctor_names_packages_and_devices():
    report = fa4_command("doctor", "--no-compile")
    assert report.returncode == 0, report.stdout
    for words in ("nvidia-cutlass-dsl", "nvdisasm", "emulator, sm_100a"):
        assert words in report.stdout


def test_doctor_reports_a_missing_package(monkeypatch, capsys):
    from fa4 import doctor

    monkeypatch.setattr(doctor, "REQUIRED", (*doctor.REQUIRED, "fa4-no-such-distribution"))
    assert doctor.doctor_main(["--no-compile"]) == 1
    assert "! fa4-no-such-distribution missing" in capsys.readouterr().out


def test_the_pipeline_in_the_readme_is_that_of_the_demo():
    """To renew it: paste the output of `fa4 demo` between the fences."""
    from fa4.demo import demo_plan
    from fa4.pipeline import diagram

    shown = re.search(r"```pipeline\n(.*?)\n?```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown.group(1) == diagram.render(demo_plan("sm_100a"))


def test_paths_in_the_readme_exist():
    text = (ROOT / "README.md").read_text()
    named = set(re.findall(r"`((?:fa4|tests|bench|examples)/[\w./]*)`", text))
    assert len(named) > 10
    assert {path for path in named if not (ROOT / path).exists()} == set()
