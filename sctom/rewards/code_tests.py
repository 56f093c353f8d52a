"""Tests of programs, in the form of MBPP and in that of HumanEval, and the code of a completion."""

from __future__ import annotations

import ast
import builtins
import re
import symtable
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_FENCE = re.compile(
    r"^[ ]{0,3}(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[\w+.-]*)[^\n`]*\n"
    r"(?P<code>.*?)(?:^[ ]{0,3}(?P=fence)[ \t]*$|\Z)",
    re.DOTALL | re.MULTILINE,
)
_PYTHON = ("python", "python3", "py")
_BUILTINS = frozenset(vars(builtins))


class CannotJudge(ValueError):
    """The tests need something of the program that cannot leave its process, or are broken."""


@dataclass(frozen=True)
class Tests:
    """The tests of one program.

    Args:
        cases: Python text of each test; it passes when it runs to its end.
        setup: Python text executed before them.
        names: the functions of the program, which the tests call.
        prompt: the beginning of the program, where the completion is its continuation.
    """

    cases: tuple[str, ...]
    setup: str
    names: tuple[str, ...]
    prompt: str | None = None

    __test__ = False  # not a class of tests to pytest


def mbpp_tests(test_list: Sequence[str], setup: str = "", imports: Sequence[str] = ()) -> Tests:
    """Tests in the form of MBPP: statements that call what the program defines.

    What they call is found in them: the names that neither they nor the setup define. A module of
    the standard library that they use without importing it, since the reference did, is imported.
    Built-in names are the tests' own whatever the program defines, unless the tests call nothing
    else.

    Args:
        test_list: each of them one test.
        setup: Python text that comes before.
        imports: import lines that come before that.

    Raises:
        CannotJudge: see there.

    >>> mbpp_tests(["assert add(1, 2) == 3", "assert add(sys.maxsize, 0) == sys.maxsize"])
    Tests(cases=('assert add(1, 2) == 3', 'assert add(sys.maxsize, 0) == sys.maxsize'), \
setup='import sys', names=('add',), prompt=None)
    """
    cases = tuple(_lines(test) for test in test_list)
    before = "\n".join([*imports, _lines(setup)])
    whole = "\n".join([before, *cases])
    tree = _parsed(whole)
    missing = _missing_names(whole)
    modules = sorted(_used_as_modules(tree) & missing & sys.stdlib_module_names)
    names = missing.difference(modules)
    if not names:
        called = _called(tree)
        names = called if len(called) == 1 else set()
    if not cases or not names:
        raise CannotJudge("the tests call no function of the program")
    _check_calls(tree, names)
    setup = "\n".join([*(f"import {name}" for name in modules), before]).strip()
    return Tests(cases, setup, tuple(sorted(names)))


def humaneval_tests(prompt: str, test: str, entry_point: str) -> Tests:
    r"""Tests in the form of HumanEval: a function `check` that is given the function to test.

    Helpers that the prompt defines are executed with the tests, from the prompt: the program cannot
    redefine what its results are checked with. `check` is one test.

    Args:
        prompt: Python text that ends with signature and docstring of the function.
        test: Python text that defines `check(candidate)`.
        entry_point: the name of the function.

    Raises:
        CannotJudge: see there.

    >>> tests = humaneval_tests("def one():\n    'Return 1.'\n",
    ...     "def check(candidate):\n    assert candidate() == 1\n", "one")
    >>> tests.cases, tests.names
    (('check(one)',), ('one',))
    """
    prompt, test = _lines(prompt), _lines(test)
    tree = _parsed(test)
    checks = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "check"]
    if not checks or len(checks[-1].args.args) != 1:
        raise CannotJudge("the column `test` must define check(candidate)")
    _check_calls(tree, {entry_point, checks[-1].args.args[0].arg})
    setup = f"{prompt.rstrip()}\n\n{test}"
    _parsed(setup)
    missing = sorted(_missing_names(setup) - {entry_point})
    if missing:
        raise CannotJudge(f"the tests use {', '.join(missing)}, which they do not define")
    return Tests((f"check({entry_point})",), setup, (entry_point,), prompt)


def program_of(completion: str, prompt: str | None = None) -> str:
    r"""The program that a completion holds.

    The last fenced block marked as Python, else the last fenced block, else all of the text. A
    fence that is not closed goes to the end. With a prompt the program is the prompt and what was
    found: the whole function again, or its body only. Of text without fences that begins with the
    body, what follows the body is left out.

    Args:
        completion: the text.
        prompt: beginning of the program in HumanEval's form, None in MBPP's.

    >>> program_of("So:\n```python\nx = 1\n```\nor\n```\nx = 2\n```")
    'x = 1\n'
    >>> program_of("    return 1\n\nprint(one())", "def one():")
    'def one():\n    return 1\n\n'
    """
    blocks = list(_FENCE.finditer(_lines(completion)))
    marked = [block for block in blocks if block["language"].lower() in _PYTHON]
    if blocks:
        code = (marked or blocks)[-1]["code"]
    else:
        code = _lines(completion)
        if prompt is not None and re.match(r"\s*\n?[ \t]", code):
            code = re.split(r"^(?=\S)", code, maxsplit=1, flags=re.MULTILINE)[0]
    if prompt is None:
        return code
    return prompt + ("" if prompt.endswith("\n") else "\n") + code


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n")


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise CannotJudge(f"the tests are not Python: {error}") from error


def _missing_names(text: str) -> set[str]:
    """Global names that a text uses and does not define."""
    top = symtable.symtable(text, "<tests>", "exec")
    defined = {symbol.get_name() for symbol in top.get_symbols() if not _is_missing(symbol)}
    used = {
        symbol.get_name()
        for table in _tables(top)
        for symbol in table.get_symbols()
        if symbol.is_referenced() and (symbol.is_global() or table is top)
    }
    return used - defined - _BUILTINS


def _is_missing(symbol: symtable.Symbol) -> bool:
    return not (symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace())


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _used_as_modules(tree: ast.Module) -> set[str]:
    """Names of which an attribute is used."""
    owners = (node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {owner.id for owner in owners if isinstance(owner, ast.Name)}


def _called(tree: ast.AST) -> set[str]:
    functions = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {function.id for function in functions if isinstance(function, ast.Name)}


def _check_calls(tree: ast.Module, names: set[str]) -> None:
    """Refuse what can be seen to need more than plain values of the program.

    It is seen in the tests, so that all completions of a prompt are refused alike.
    """
    found = [n for n in ast.walk(tree) if isinstance(n, ast.Name)]
    stored = {name.id for name in found if isinstance(name.ctx, ast.Store)}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in names:
                _check_call(node, name, names, functions=names | _BUILTINS - stored)
            case ast.Expr(value=ast.Call(func=ast.Name(id=name))) if name in names:
                raise CannotJudge(f"the tests look at what {name} does to its arguments")
            case ast.Assign(value=ast.Call(func=ast.Name(id=name))) if name in names:
                _check_is_no_class(name)
            case ast.Attribute(value=ast.Name(id=name)) if name in names:
                raise CannotJudge(f"the tests use {name}.{node.attr}")


def _check_call(call: ast.Call, name: str, names: set[str], functions: set[str]) -> None:
    if call.keywords:
        raise CannotJudge(f"the tests pass keyword arguments to {name}")
    for argument in call.args:
        if isinstance(argument, ast.Lambda):
            raise CannotJudge(f"the tests pass a function to {name}")
        if isinstance(argument, ast.Name) and argument.id in functions:
            raise CannotJudge(f"the tests pass {argument.id} to {name}")
        for inner in _called(argument) & names:
            _check_is_no_class(inner)


def _check_is_no_class(name: str) -> None:
    """A capital alone says nothing: two dozen problems of MBPP have functions written so."""
    if name[:1].isupper():
        raise CannotJudge(f"the tests make objects of the program's class {name}")
