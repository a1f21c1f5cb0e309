"""`python -m bench`: what it lists, and words that are no command."""

import argparse
from importlib import import_module

import pytest

from bench.__main__ import COMMANDS, main


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in COMMANDS)


def test_every_command_is_there():
    assert all(callable(import_module(module).main) for module, _ in COMMANDS.values())


ZERO_MEANS_SOMETHING = {"--first", "--jumps", "--seconds", "--shares"}
NO_NUMBERS = {"--json", "--launch", "--out"}


class Parsed(Exception):
    """A command has accepted its options: args[0] is its parser. Nothing has run."""


@pytest.fixture
def only_parsing(monkeypatch):
    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser, options):
        parse(parser, options)
        raise Parsed(parser)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.usefixtures("only_parsing")
def test_a_size_of_zero_is_refused_while_a_command_parses(command, capsys):
    with pytest.raises(Parsed) as accepted:
        main([command])
    typed = [a.option_strings[0] for a in accepted.value.args[0]._actions if a.type]
    for option in set(typed) - ZERO_MEANS_SOMETHING - NO_NUMBERS:
        with pytest.raises(SystemExit):
            main([command, option, "0"])
        assert f"argument {option}: '0' is not a positive integer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("exp2-share", "--shares"),
        ("fuzz", "--first"),
        ("hopper", "--jumps"),
        ("on-hopper", "--first"),
        ("on-hopper", "--seconds"),
    ],
)
@pytest.mark.usefixtures("only_parsing")
def test_a_zero_that_means_something_is_taken(command, option):
    with pytest.raises(Parsed):
        main([command, option, "0"])


@pytest.mark.usefixtures("only_parsing")
def test_head_dims_without_a_share_are_refused_with_those_that_have_one(capsys):
    with pytest.raises(SystemExit):
        main(["exp2-share", "--head-dims", "72"])
    assert "invalid choice: 72 (choose from 64, 96, 128, 192)" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["fuzz", "on-hopper", "overhead", "sanitize"])
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
