"""`python -m bench`: what it lists, and words that are no command."""

from importlib import import_module

import pytest

from bench.__main__ import COMMANDS, main


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in COMMANDS)


def test_every_command_is_there():
    assert all(callable(import_module(module).main) for module, _ in COMMANDS.values())


@pytest.mark.parametrize("command", ["fuzz", "on-hopper", "sanitize"])
def test_a_file_in_a_folder_that_is_missing_is_said_before_anything_runs(command, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([command, "--json", str(tmp_path / "missing" / "results.json")])
    assert stopped.value.code == 2
    assert f"{tmp_path / 'missing'} is no folder; make it first" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["hopper", "hopper-backward", "pipes", "techniques"])
def test_a_folder_whose_name_a_file_has_is_refused_before_anything_runs(command, tmp_path, capsys):
    file = tmp_path / "results"
    file.touch()
    with pytest.raises(SystemExit) as stopped:
        main([command, "--out", str(file / "new")])
    assert stopped.value.code == 2
    assert f"{file} is a file; name a folder" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["nonsense", "hoper"])
def test_another_word_is_refused_with_the_list(word, capsys):
    assert main([word]) == 2
    printed = capsys.readouterr().err
    assert f"unknown command '{word}'" in printed
    assert "hopper-backward" in printed
