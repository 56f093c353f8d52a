"""Judging a program by its tests, each in a sandbox of its own.

    grader (runs the tests) -> this process -> candidate (runs the program) -> back

Every call of the program by a test goes this way, as plain values, and so does every result. The
program never shares a process with its tests, their expected values or the verdict, so there is
nothing there for it to read, to patch or to write: an object that equals everything arrives as one
that equals nothing, and a program that ends its process has not passed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from sctom.rewards.base import Failure
from sctom.rewards.code_tests import Tests
from sctom.sandbox import (
    CodeError,
    Iter,
    NotPlain,
    Opaque,
    Plain,
    Sandbox,
    SandboxUnavailable,
    Session,
)

Status = Literal["passed", "wrong", "error", "timeout", "memory", "output", "died", "value"]

_GRADER_SECONDS = 20.0
"""What the tests may take besides the program."""
_DEPTH = 90
_OVER = ("timeout", "output", "died")
_OF_THE_PROGRAM = "an object of the program"
_ITERATOR = "an iterator"


@dataclass(frozen=True)
class Grade:
    """What the tests say about a program.

    Args:
        status: "passed", or why the first failing test failed: "wrong" (its assertion), "error" (an
            exception of the program, or it does not even run), or how its process ended
            ("timeout", "memory", "output", "died", or "value": a result that is no value).
        passed: number of tests passed.
        total: number of tests.
        detail: one line about the first failure.
    """

    status: Status
    passed: int
    total: int
    detail: str = ""


def grade(program: str, tests: Tests, sandbox: Sandbox, *, seconds: float) -> Grade | Failure:
    """Run a program's tests.

    Args:
        program: Python text that nobody trusts.
        tests: what to run; trusted.
        sandbox: where, for both.
        seconds: wall-clock limit for the program itself, and again for all of its calls together.
            After it, the tests that are left have failed.

    Returns:
        The grade; or a Failure where the tests need what cannot cross, are broken, or the sandbox
        does not work.
    """
    limits = replace(sandbox.limits, seconds=seconds)
    try:
        with sandbox.open(program, limits=limits) as candidate:
            return _graded(candidate, tests, sandbox, seconds)
    except CodeError as error:
        return Grade(error.kind, 0, len(tests.cases), _line(error.message))
    except SandboxUnavailable as error:
        return Failure("the sandbox does not work", _line(str(error)))


def _graded(candidate: Session, tests: Tests, sandbox: Sandbox, seconds: float) -> Grade | Failure:
    calls = _Calls(candidate, tests.names, seconds)
    limits = replace(sandbox.limits, seconds=seconds + _GRADER_SECONDS)
    try:
        with sandbox.open(_grader_source(), limits=limits) as grader:
            return _verdict(grader, calls, tests)
    except CodeError as error:  # of the grader: the program's own are in its calls
        if calls.answered and error.kind in ("timeout", "memory", "output"):
            return Grade(error.kind, 0, len(tests.cases), "the tests, with a result of the program")
        return Failure("the tests did not run", _line(str(error)))


def _verdict(grader: Session, calls: _Calls, tests: Tests) -> Grade | Failure:
    """Run setup and tests, up to one that shows that there is no verdict."""
    outcome = _step(grader, calls, "prepare", [tests.setup, list(tests.names)])
    if isinstance(outcome, Failure):
        return outcome
    if outcome[0] == "wrong":
        return Failure("the setup of the tests does not run", outcome[1])
    if outcome[0] != "passed":
        return Grade(outcome[0], 0, len(tests.cases), outcome[1])
    status: Status = "passed"
    detail, passed = "", 0
    for case in tests.cases:
        outcome = _step(grader, calls, "run", [case])
        if isinstance(outcome, Failure):
            return outcome
        passed += outcome[0] == "passed"
        if status == "passed":
            status, detail = outcome
    return Grade(status, passed, len(tests.cases), detail)


def _step(
    grader: Session, calls: _Calls, name: str, arguments: list[Plain]
) -> tuple[Status, str] | Failure:
    """What one answer of the grader, and what the program did meanwhile, come to."""
    calls.failed = None
    answer = grader.call(name, arguments, callbacks={"cross": calls.cross})
    match answer:
        case [str(verdict), str(detail)]:
            pass
        case _:
            return Failure("the tests did not run", _line(repr(answer)))
    if calls.over is not None:
        return calls.over.kind, _line(calls.over.message)
    if verdict == "cannot":
        return Failure("the tests need what cannot leave the program's process", _line(detail))
    if verdict == "broken":
        return Failure("the tests are broken", _line(detail))
    if verdict == "passed":
        return "passed", ""
    if verdict == "value":
        return "value", _line(detail)
    if calls.failed is not None:
        return calls.failed.kind, _line(calls.failed.message)
    return "wrong", _line(detail)


class _Calls:
    """Takes the grader's calls to the program, within its time."""

    def __init__(self, candidate: Session, names: tuple[str, ...], seconds: float) -> None:
        self.candidate = candidate
        self.names = names
        self.left = seconds
        self.failed: CodeError | None = None
        """The last error of the program in the current test."""
        self.answered = False
        """Whether a test has had a result of the program."""
        self.iterators = False
        """Whether one of them was or held an iterator."""
        self.over: CodeError | None = None
        """The error that the program's process has ended with."""

    def cross(self, name: Plain, arguments: Plain) -> Plain:
        """One call. ("value", packed), ("raised", class, text), ("cannot", why) or ("over",)."""
        if not isinstance(name, str) or name not in self.names or not isinstance(arguments, list):
            return "cannot", f"the tests call {name!r:.100}, which is not theirs to call"
        found = next((found for item in arguments if (found := _find_foreign(item))), "")
        if found == _OF_THE_PROGRAM or (found == _ITERATOR and self.iterators):
            return self._error(CodeError("value", f"the tests pass {found} to {name}"))
        if found:
            return "cannot", f"the tests pass {found} to {name}"
        if self.over is not None:
            return ("over",)
        started = time.monotonic()
        try:
            result = self.candidate.call(name, arguments, seconds=self.left)
            self.answered = True
            self.iterators |= _find_foreign(result) == _ITERATOR
            return "value", pack(result)
        except CodeError as error:
            return self._error(error)
        except NotPlain as error:  # the arguments are plain: it is the result
            return self._error(CodeError("value", str(error)))
        finally:
            self.left = max(self.left - (time.monotonic() - started), 0.001)

    def _error(self, error: CodeError) -> Plain:
        self.failed = error
        if error.kind in _OVER:
            self.over = error
            return ("over",)
        kind, _, text = error.message.partition(": ")
        return "raised", kind, text


def pack(value: Plain, depth: int = _DEPTH) -> Plain:
    """A value for the grader: everything but a number and a text as a tuple that says what it is.

    Raises:
        NotPlain: it is nested too deeply.

    >>> pack([1, (2.0, "x")])
    ('list', 1, ('tuple', 2.0, 'x'))
    >>> pack({"a": Opaque("candidate.Pair", "<Pair>", True)})
    ('dict', 'a', ('object', '<Pair>', True))
    """
    if depth == 0:
        raise NotPlain(f"the result is nested more than {_DEPTH} deep")
    match value:
        case Opaque():
            return "object", value.text, value.truth
        case Iter():
            kind, items = "iterator", list(value.items)
        case dict():
            kind, items = "dict", [part for pair in value.items() for part in pair]
        case list() | tuple() | set() | frozenset():
            kind, items = type(value).__name__, list(value)
        case _:
            return value
    return kind, *(pack(item, depth - 1) for item in items)


def _find_foreign(value: Plain) -> str:
    """What in a value cannot cross, "" if nothing."""
    match value:
        case Opaque(type_name=name) if name.endswith(".Foreign"):
            return _OF_THE_PROGRAM
        case Opaque():
            return f"an object of the class {value.type_name}"
        case Iter():
            return _ITERATOR
        case dict():
            items = [*value.keys(), *value.values()]
        case list() | tuple() | set() | frozenset():
            items = list(value)
        case _:
            return ""
    return next((found for item in items if (found := _find_foreign(item))), "")


@cache
def _grader_source() -> str:
    return (Path(__file__).parent / "code_inside.py").read_text(encoding="utf-8")


def _line(text: str) -> str:
    return " ".join(text.split())[:300].encode(errors="backslashreplace").decode()
