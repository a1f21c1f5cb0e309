"""The cache of compiled kernels on disk: what makes an entry new, and who may share it."""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fa4 import compile as compilation
from fa4 import emulator, launch
from fa4.emulator.hook import the_hook
from fa4.plan import plan_forward
from fa4.plan_base import BasePlan
from fa4.problem import example_problem
from tests.kernel.conftest import make_plan

ROOT = compilation.PACKAGE.parent
FLAVOURS = ("-libs-cu12", "-libs-cu13")
PLAN = make_plan((64, 64), "full", "bfloat16")

ATTENTION = """
import sys, time, torch, fa4
from pathlib import Path
from types import SimpleNamespace
ready, start = Path(sys.argv[1]), Path(sys.argv[2])
from fa4 import launch
ready.touch()
while not start.exists():
    time.sleep(0.001)
q = torch.ones(1, 3, 1, 64, dtype=torch.bfloat16)
assert torch.equal(fa4.flash_attn_func(q, q, q), q)
"""


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "cache"
    monkeypatch.setenv("FA4_CACHE_DIR", str(folder))
    compilation.host_function.cache_clear()
    yield folder
    compilation.host_function.cache_clear()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package's sources to change."""
    ignored = shutil.ignore_patterns("__pycache__")
    return shutil.copytree(compilation.PACKAGE, tmp_path / "fa4", ignore=ignored)


def changed(package: Path, file: str) -> bool:
    """Whether a change of the file makes another fingerprint."""
    before = compilation.fingerprint.__wrapped__(package)
    path = package / file
    path.parent.mkdir(exist_ok=True)
    path.write_text((path.read_text() if path.exists() else "") + "# changed\n")
    return compilation.fingerprint.__wrapped__(package) != before


def test_what_is_compiled_makes_a_new_entry(package: Path) -> None:
    there = ("host.py", "plan_blackwell.py", "warps/mma.py", "warps/hopper/load.py")
    for file in (*there, "tiles/a/new.py"):
        assert changed(package, file), file


def test_what_is_not_compiled_keeps_the_entry(package: Path) -> None:
    for file in ("demo.py", "cli.py", "api.py", "profile/static.py", "emulator/mma.py", "new.py"):
        assert not changed(package, file), file


def test_everything_that_the_kernels_import_is_compiled() -> None:
    """A module that is missing in the list would leave stale kernels behind."""
    code = (
        "import sys, fa4.host, fa4.host_backward\n"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.startswith('fa4.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    imported = {Path(file) for file in done.stdout.split()}
    known = set(compilation.kernel_sources(compilation.PACKAGE))
    assert {path.name for path in imported - known} <= {"_lazy.py", "_version.py"}
    assert {compilation.PACKAGE / f"{module}.py" for module in compilation.MODULES} <= known


def test_another_compiler_or_machine_makes_a_new_entry(
    monkeypatch: pytest.MonkeyPatch, package: Path
) -> None:
    """The compiler is several distributions: which ptxas it has does not show in its own name."""

    def fingerprint(machine: str, *compiler: tuple[str, str]) -> str:
        installed = [SimpleNamespace(name=name, version=version) for name, version in compiler]
        monkeypatch.setattr(compilation, "distributions", lambda: installed)
        monkeypatch.setattr(compilation.platform, "machine", lambda: machine)
        return compilation.fingerprint.__wrapped__(package)

    main, cu12, cu13 = ((f"nvidia-cutlass-dsl{end}", "4.8.1") for end in ("", *FLAVOURS))
    found = [
        fingerprint("x86_64", main, cu12),
        fingerprint("aarch64", main, cu12),
        fingerprint("x86_64", main, cu13),
        fingerprint("x86_64", main, cu12, cu13),
        fingerprint("x86_64", (main[0], "99.0"), cu12),
        fingerprint("x86_64", main, (cu12[0], "99.0")),
    ]
    assert len(set(found)) == len(found)
    underscores = (cu12[0].replace("-", "_"), cu12[1])
    assert fingerprint("x86_64", underscores, ("torch", "99.0"), main) == found[0]


def test_what_an_aborted_installation_left_behind_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = compilation.compiler()
    (tmp_path / "broken-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert compilation.compiler() == known


def test_a_compiler_of_unknown_version_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "distributions", list)
    with pytest.raises(PackageNotFoundError, match="nvidia-cutlass-dsl"):
        compilation.compiler()


def test_two_processes_may_compile_one_kernel_at_once(cache: Path, tmp_path: Path) -> None:
    start, ready = tmp_path / "start", [tmp_path / f"ready{i}" for i in range(2)]
    workers = [
        subprocess.Popen([sys.executable, "-c", ATTENTION, file, start], cwd=ROOT) for file in ready
    ]
    while not all(file.exists() for file in ready):
        assert all(worker.poll() is None for worker in workers)
    start.touch()
    assert [worker.wait(timeout=120) for worker in workers] == [0, 0]
    assert list(cache.iterdir()) == [compilation.object_file(PLAN)]


def test_threads_compile_one_kernel_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def compile_to(plan: BasePlan, path: Path) -> None:
        compiled.append(plan)
        time.sleep(0.1)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    monkeypatch.setattr(compilation, "compile_to", compile_to)
    monkeypatch.setattr(compilation, "load_module", lambda path: {compilation.ENTRY: path})
    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(compilation.load, [PLAN] * 4))
    assert compiled == [PLAN]
    assert loaded == [str(compilation.object_file(PLAN))] * 4


@pytest.fixture
def loaded_where(cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Instead of loading: whether what is loaded gets bound to a session."""
    found = []

    def load(plan: BasePlan) -> SimpleNamespace:
        found.append(bool(the_hook().sessions))
        return SimpleNamespace(to=lambda: None, engine=None, function_name="")

    monkeypatch.setattr(compilation, "load", load)
    monkeypatch.setattr(compilation, "c_interface", lambda *_: SimpleNamespace())
    return found


def test_loading_to_a_gpu_waits_for_what_another_thread_emulates(loaded_where: list[bool]) -> None:
    with ThreadPoolExecutor(1) as other:
        with launch.emulating(PLAN, torch.device("cpu"), {}):
            loading = other.submit(compilation.host_function, PLAN, emulated=False)
            with pytest.raises(TimeoutError):
                loading.result(timeout=0.2)
        loading.result(timeout=60)
    assert loaded_where == [False]


def test_nothing_is_loaded_to_a_gpu_while_a_session_is_open(loaded_where: list[bool]) -> None:
    with emulator.session(), pytest.raises(ValueError, match=r"is open.*outside of the session"):
        compilation.host_function(PLAN, emulated=False)
    compilation.host_function(PLAN, emulated=False)
    assert loaded_where == [False]


def test_threads_compile_for_their_own_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that other threads open wait, too."""
    started, targets = threading.Event(), []

    def compile_slowly(*_args: object, **_options: object) -> SimpleNamespace:
        before = os.environ["CUTE_DSL_ARCH"]
        started.set()
        time.sleep(0.2)
        targets.append((before, os.environ["CUTE_DSL_ARCH"]))
        return SimpleNamespace(__ptx__="", __cubin__=b"")

    def open_session() -> None:
        with emulator.session(arch="sm_90a"):
            time.sleep(0.3)

    monkeypatch.setattr(compilation.cute, "compile", compile_slowly)
    plans = [plan_forward(example_problem(64), arch) for arch in ("sm_100a", "sm_90a")]
    with ThreadPoolExecutor(3) as pool:
        done = [pool.submit(compilation.artifacts.__wrapped__, plan) for plan in plans]
        started.wait(timeout=60)
        done.append(pool.submit(open_session))
        for one in done:
            one.result(timeout=60)
    assert sorted(targets) == [("sm_100a", "sm_100a"), ("sm_90a", "sm_90a")]


def test_leftovers_and_other_versions_are_ignored(cache: Path) -> None:
    """A killed compilation leaves a folder, an older version its objects; neither is read."""
    path = compilation.object_file(PLAN)
    cut_short = cache / "compiling-killed" / "kernel.o"
    other = path.with_name(f"{PLAN.name}_{'0' * 24}.o")
    cut_short.parent.mkdir(parents=True)
    for file in (cut_short, other):
        file.write_bytes(b"no object file")
    with emulator.session():
        assert callable(compilation.host_function(PLAN, emulated=True))
    assert path.exists()
    assert {cut_short.read_bytes(), other.read_bytes()} == {b"no object file"}


def test_what_is_on_disk_is_not_compiled_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with emulator.session():
        compilation.host_function(PLAN, emulated=True)
    compilation.host_function.cache_clear()
    monkeypatch.setattr(compilation, "_compile", None)
    with emulator.session():
        assert callable(compilation.host_function(PLAN, emulated=True))
