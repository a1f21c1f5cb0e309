"""Types of arguments that serve all commands."""

import argparse
import os
from pathlib import Path

import pytest

from fa4.profile.options import output_file, output_folder


def deny_writing(monkeypatch: pytest.MonkeyPatch, there: Path) -> None:
    """As the system does for other users than root, who runs some of the tests."""
    monkeypatch.setattr(os, "access", lambda path, mode: not (mode & os.W_OK and path == there))


@pytest.mark.parametrize(
    ("kind", "named", "there"),
    [
        (output_file, "new.json", "."),
        (output_file, "old.json", "old.json"),
        (output_folder, ".", "."),
        (output_folder, "new/run", "."),
    ],
)
def test_a_place_that_may_not_be_written_is_refused(kind, named, there, tmp_path, monkeypatch):
    (tmp_path / "old.json").touch()
    assert kind(str(tmp_path / named)) == tmp_path / named
    deny_writing(monkeypatch, tmp_path / there)
    with pytest.raises(argparse.ArgumentTypeError, match=f"{tmp_path / there} may not be written"):
        kind(str(tmp_path / named))


def test_a_file_that_is_there_may_lie_in_a_folder_that_may_not_be_written(tmp_path, monkeypatch):
    deny_writing(monkeypatch, tmp_path)
    file = tmp_path / "old.json"
    file.touch()
    assert output_file(str(file)) == file


@pytest.mark.parametrize("kind", [output_file, output_folder])
def test_a_folder_that_may_not_be_looked_into_is_refused(kind, tmp_path, monkeypatch):
    deny_writing(monkeypatch, tmp_path)
    stat = os.stat

    def denied(path, *args, **options):
        if tmp_path in Path(os.fspath(path)).parents:
            raise PermissionError(path)
        return stat(path, *args, **options)

    monkeypatch.setattr(os, "stat", denied)
    with pytest.raises(argparse.ArgumentTypeError, match=r"is no folder|may not be written"):
        kind(str(tmp_path / "closed" / "results"))
