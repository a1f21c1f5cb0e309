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


@pytest.mark.parametrize("word", ["nonsense", "hoper"])
def test_another_word_is_refused_with_the_list(word, capsys):
    assert main([word]) == 2
    printed = capsys.readouterr().err
    assert f"unknown command '{word}'" in printed
    assert "hopper-backward" in printed
