"""Rewards for programs that pass tests, in the forms of MBPP and of HumanEval."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Literal, get_args

from sctom.rewards.base import (
    Failure,
    OnError,
    Reward,
    RewardError,
    completion_text,
)
from sctom.rewards.code_grading import Grade, grade
from sctom.rewards.code_tests import CannotJudge, Tests, humaneval_tests, mbpp_tests, program_of
from sctom.sandbox import Sandbox, SandboxUnavailable

Score = Literal["all", "fraction"]


class CodeReward(Reward):
    r"""1 for a program that passes its tests, 0 for one that does not.

    Program and tests run in two sandboxes; calls cross between them as plain values, through this
    process (`sctom.rewards.code_grading`). A program that is too slow, does not run, or lacks the
    function is wrong: 0. Tests that need more than plain values of the program, or are broken, are
    a `Failure`, and so is a sandbox that does not work.

    Columns, of which a row has those of one form:

    - MBPP: `test_list`, `test_setup_code` and `test_imports` (may be missing)
    - HumanEval: `prompt`, `test`, `entry_point`

    Args:
        score: "all" wants all tests to pass; "fraction" gives the share of them that do.
        seconds: wall-clock limit for a program's own text, and again for all calls of it.
        at_once: most programs that are judged at a time; each has two processes.
        sandbox: None is `Sandbox()`: the best that works here.
        settings: `weight`, `name`, `on_error`, `error_value`, `cache` and `clip` of `Reward`.

    Raises:
        RewardError: a setting is out of range.

    >>> reward = CodeReward(seconds=20.0)
    >>> twice = "```python\ndef twice(x):\n    return 2 * x\n```"
    >>> reward([twice, "2 * x"], test_list=[["assert twice(2) == 4"]] * 2)
    [1.0, 0.0]
    """

    concurrent = True
    default_on_error: OnError = "abstain"

    def __init__(
        self,
        *,
        score: Score = "all",
        seconds: float = 10.0,
        at_once: int = 2,
        sandbox: Sandbox | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        if score not in get_args(Score):
            raise RewardError(f"score must be one of {', '.join(get_args(Score))}, not {score!r}")
        if not 0 < seconds < 3600:
            raise RewardError(f"seconds must be above 0 and below 3600, not {seconds}")
        if at_once < 1:
            raise RewardError(f"at_once must be at least 1, not {at_once}")
        self.score = score
        self.seconds = seconds
        self.at_once = at_once
        self.sandbox = sandbox or Sandbox()
        self._places = threading.BoundedSemaphore(at_once)

    def check(self) -> None:
        """Try the sandbox.

        Raises:
            RewardError: none that is safe works here.
        """
        try:
            self.sandbox.check()
        except SandboxUnavailable as error:
            raise RewardError(f"reward {self.name!r} has no sandbox: {error}") from error

    def describe(self) -> list[str]:
        """The level of the sandbox, and the limits."""
        limits = f"{self.seconds:g} s, {self.sandbox.limits.memory_mib} MiB, {self.at_once} at once"
        return [f"{self.name}: programs run in the sandbox {self.sandbox.check()}; {limits}"]

    def __call__(
        self,
        completions: Sequence[Any],
        test_list: Sequence[Sequence[str] | None] | None = None,
        test_setup_code: Sequence[str | None] | None = None,
        test_imports: Sequence[Sequence[str] | None] | None = None,
        prompt: Sequence[str | None] | None = None,
        test: Sequence[str | None] | None = None,
        entry_point: Sequence[str | None] | None = None,
        log_extra: Callable[[str, Sequence[Any]], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
    ) -> list[float | Failure]:
        """Run the tests of each row; equal programs of equal rows are run once.

        Returns:
            numbers from 0 to 1, or failures.
        """
        if test_list is None and test is None:
            raise RewardError(
                f"reward {self.name!r} needs the column test_list (as in MBPP), or the columns "
                "prompt, test and entry_point (as in HumanEval); see docs/reward_library.md"
            )
        columns = {
            "test_list": test_list,
            "test_setup_code": test_setup_code,
            "test_imports": test_imports,
            "prompt": prompt,
            "test": test,
            "entry_point": entry_point,
        }
        given = {name: values for name, values in columns.items() if values is not None}
        jobs = [
            _job(completion, {name: values[row] for name, values in given.items()})
            for row, completion in enumerate(completions)
        ]
        different = list(dict.fromkeys(job for job in jobs if not isinstance(job, Failure)))
        with ThreadPoolExecutor(self.at_once, thread_name_prefix="sctom-code") as pool:
            grades = dict(zip(different, pool.map(self._grade, different), strict=True))
        results = [job if isinstance(job, Failure) else grades[job] for job in jobs]
        self._log(results, log_extra, log_metric)
        return [self._value(result) for result in results]

    def _grade(self, job: tuple[str, Tests]) -> Grade | Failure:
        with self._places:
            return grade(*job, self.sandbox, seconds=self.seconds)

    def _value(self, result: Grade | Failure) -> float | Failure:
        if isinstance(result, Failure):
            return result
        share = result.passed / result.total
        return share if self.score == "fraction" else float(result.passed == result.total)

    def _log(
        self,
        results: Sequence[Grade | Failure],
        log_extra: Callable[[str, Sequence[Any]], None] | None,
        log_metric: Callable[[str, float], None] | None,
    ) -> None:
        statuses = ["failure" if isinstance(r, Failure) else r.status for r in results]
        if log_extra is not None:
            log_extra("code/status", statuses)
            log_extra("code/detail", [_detail(result) for result in results])
        counts = Counter(statuses)
        judged = len(statuses) - counts["failure"]
        if log_metric is not None and judged:
            log_metric("code/passed", counts["passed"] / judged)
            log_metric("code/timeout", counts["timeout"] / judged)


def _detail(result: Grade | Failure) -> str:
    if isinstance(result, Grade):
        return result.detail
    return f"{result.reason}: {result.debug}" if result.debug else result.reason


def code_reward(completions: Sequence[Any], **columns: Any) -> list[float | None]:
    """`CodeReward` with its defaults, as a function for TRL: None where it has no verdict.

    Args:
        completions: texts or messages.
        columns: those of the data, with the columns of `CodeReward` among them; the others are not
            looked at.

    Raises:
        RewardError: there is no column of tests, or no sandbox works.

    >>> code_reward(["def one(): return 1"], test_list=[["assert one() == 1"]], step=[7])
    [1.0]
    """
    reward = _default_reward()
    taken = reward.signature().parameters
    values = reward(completions, **{name: columns[name] for name in taken if name in columns})
    return [None if isinstance(value, Failure) else value for value in values]


@cache
def _default_reward() -> CodeReward:
    reward = CodeReward()
    reward.check()
    return reward


def _job(completion: Any, row: Mapping[str, Any]) -> tuple[str, Tests] | Failure:
    """The program that is in a completion, and the tests of its row."""
    try:
        if row.get("test_list") is not None:
            setup, imports = row.get("test_setup_code") or "", row.get("test_imports") or ()
            tests = mbpp_tests(row["test_list"], setup, imports)
        elif all(row.get(name) is not None for name in ("prompt", "test", "entry_point")):
            tests = humaneval_tests(row["prompt"], row["test"], row["entry_point"])
        else:
            return Failure("the row has neither test_list nor prompt, test and entry_point")
        return program_of(completion_text(completion), tests.prompt), tests
    except CannotJudge as error:
        return Failure(str(error))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:  # tests that are none
        return Failure(f"the tests cannot be read: {type(error).__name__}: {error}")
