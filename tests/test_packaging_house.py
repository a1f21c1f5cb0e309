"""The house rules that a program can check: sizes of files, functions and signatures, wording."""

import ast
import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 120
MAX_PARAMETERS = 8
# The signature that users of flash-attn know.
LONG_SIGNATURES = ("flash_attn_func",)


def sources(*folders):
    """Text of every Python file below `folders`, by its path in the repository."""
    paths = (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


SHIPPED = sources("fa4")
ALL = {**SHIPPED, **sources("bench", "examples", "tests")}


def functions(texts):
    """(where, node) of every function."""
    for path, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield f"{path}:{node.lineno} {node.name}", node


def parameters(function):
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [argument for argument in named if argument.arg not in ("self", "cls")]


def test_files_fit_on_a_few_screens():
    lengths = {path: len(text.splitlines()) for path, text in ALL.items()}
    assert {p: n for p, n in lengths.items() if n > MAX_FILE_LINES} == {}


def test_functions_fit_on_one_screen():
    lengths = {where: f.end_lineno - f.lineno + 1 for where, f in functions(ALL)}
    assert {w: n for w, n in lengths.items() if n > MAX_FUNCTION_LINES} == {}


def test_signatures_are_short():
    counts = {
        where: len(parameters(function))
        for where, function in functions(SHIPPED)
        if function.name not in LONG_SIGNATURES
    }
    assert {w: n for w, n in counts.items() if n > MAX_PARAMETERS} == {}


def test_modules_have_a_docstring():
    bare = [p for p, text in SHIPPED.items() if text and not ast.get_docstring(ast.parse(text))]
    assert bare == []


def test_no_path_of_one_machine():
    pattern = re.compile(r"(?<![\w.)])/(?:work|root|home|tmp|farm)/\w+")
    others = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for ending in ("*.json", "*.md", "*.txt", "*.toml")
        for folder in (ROOT / "bench", ROOT / "tests", ROOT / "examples")
        for path in folder.rglob(ending)
    }
    others["README.md"] = (ROOT / "README.md").read_text(encoding="utf-8")
    texts = ALL | others
    assert {p: found for p, text in texts.items() if (found := pattern.findall(text))} == {}


def comments(text):
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


def test_nothing_is_exempt_from_the_linter_without_a_reason():
    silencing = re.compile(r"noqa|ruff:|fmt:")
    reasoned = re.compile(r"noqa: [A-Z0-9]+\s+(- |\()\w+")
    bare = {p: [c for c in comments(text) if silencing.search(c)] for p, text in ALL.items()}
    assert [c for found in bare.values() for c in found if not reasoned.search(c)] == []
