"""MBPP and HumanEval as a task: does the program pass its tests?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, ClassVar, Literal, get_args

from sctom.readers import DataError, Row
from sctom.rewards.base import Failure
from sctom.rewards.code import CodeReward
from sctom.rewards.code_tests import program_of
from sctom.sandbox import Sandbox
from sctom.tasks.answers import said
from sctom.tasks.evaluation_base import Scored, Task, abstains, check_column, judged_of, share

CodeSet = Literal["code", "mbpp", "humaneval"]

KS = (1, 5, 10, 100)
"""The k of pass@k, as far as there are so many completions of every problem."""

_FORMS: dict[str, dict[str, type]] = {
    "mbpp": {"test_list": list},
    "humaneval": {"prompt": str, "test": str, "entry_point": str},
}
_COLUMNS = ("test_list", "test_setup_code", "test_imports", "prompt", "test", "entry_point")


def pass_at_k(completions: int, passed: int, k: int) -> float:
    """The chance that one of k completions passes, estimated without bias from all of them.

        pass@k = 1 - C(n - c, k) / C(n, k)

    of n completions, c of which pass. Source: Chen et al. (arXiv 2107.03374), equation 1. It is the
    share of the subsets of k completions that have one that passes.

    Args:
        completions: n.
        passed: c.
        k: from 1 to n.

    Raises:
        ValueError: not 0 <= c <= n, or not 1 <= k <= n.

    >>> pass_at_k(4, 1, 2)  # 1 - 3 / 6
    0.5
    """
    if not 0 <= passed <= completions:
        raise ValueError(f"passed must be from 0 to {completions}, not {passed}")
    if not 1 <= k <= completions:
        raise ValueError(f"k must be from 1 to the {completions} completions, not {k}")
    return 1.0 - math.comb(completions - passed, k) / math.comb(completions, k)


class Code(Task):
    r"""MBPP and HumanEval, executed in the sandbox as the reward `CodeReward` does.

    Right is a program that passes all tests of its row. It runs in another process than its tests
    (`sctom.rewards.code_grading`), within 10 s; HumanEval's own evaluation runs both in one process
    within 3 s. Rows whose tests need more than plain values of the program have no verdict.

    Metrics beside those of `Task`: problems; pass_at_1, pass_at_5, ..., the mean over the problems,
    for every k of `KS` that all of them have completions for; timeout and error, the shares of the
    programs that took too long and that do not run. Groups are mbpp and humaneval. `accuracy` is
    over completions: pass_at_1 where every problem has as many.

    Args:
        name: "code" for rows of both forms, "mbpp" or "humaneval" for one of them.
        seconds: limit for a program's own text, and again for all calls of it.
        at_once: most programs that run at a time.
        sandbox: None is the best that works here.

    Raises:
        ValueError: there is no such set, or another setting is out of range.

    >>> task = Code("mbpp")
    >>> row = task.read()[0]
    >>> text = "```python\ndef halve(n):\n    return n // 2\n```"
    >>> task.score(row, text).correct, task.score(row, "n / 2").details["status"]
    (True, 'error')
    """

    headline = "pass_at_1"
    columns: ClassVar[Mapping[str, type | tuple[type, ...]]] = {"id": str}

    def __init__(
        self,
        name: CodeSet = "code",
        *,
        seconds: float = 10.0,
        at_once: int = 2,
        sandbox: Sandbox | None = None,
    ) -> None:
        if name not in get_args(CodeSet):
            raise ValueError(f"name must be one of {', '.join(get_args(CodeSet))}, not {name!r}")
        self.name = name
        forms = _FORMS if name == "code" else (name,)
        self.samples = [f"sctom:tasks/{form}.jsonl" for form in forms]
        self._reward = CodeReward(seconds=seconds, at_once=at_once, sandbox=sandbox)

    def check(self, row: Row, place: str) -> Row:
        """A row, with the tests of one form."""
        super().check(row, place)
        form = _form(row)
        if self.name not in ("code", form):
            raise DataError(f"{place}: the columns are those of {form}, expected {self.name}'s")
        for column, kind in _FORMS[form].items():
            check_column(row, column, kind, place)
        return row

    def extract(self, text: str) -> str | None:
        """The code in a completion, without the prompt that it may continue; None without any."""
        code = program_of(said(text))
        return code if code.strip() and not _abstains(text) else None

    def score(self, row: Row, text: str) -> Scored:
        """Judge one completion; many are faster by `score_all`."""
        return self.score_all([row], [text])[0]

    def score_all(self, rows: Sequence[Row], texts: Sequence[str]) -> list[Scored]:
        """Judge many completions, `at_once` at a time; equal ones of one problem are run once."""
        if len(rows) != len(texts):
            raise ValueError(f"{len(rows)} rows do not go with {len(texts)} completions")
        if not rows:
            return []
        told: dict[str, Sequence[Any]] = {}
        columns: dict[str, Any] = {name: [row.get(name) for row in rows] for name in _COLUMNS}
        programs = [said(text) for text in texts]
        values = self._reward(programs, **columns, log_extra=told.__setitem__)
        results = zip(rows, texts, values, told["code/status"], told["code/detail"], strict=True)
        return [self._scored(*result) for result in results]

    def _scored(
        self, row: Row, text: str, value: float | Failure, status: str, detail: str
    ) -> Scored:
        correct = None if isinstance(value, Failure) else value == 1.0
        details = {"id": row["id"], "form": _form(row), "status": status, "detail": detail}
        return Scored(correct, not correct and _abstains(text), self.extract(text), details)

    def metrics(self, scored: Sequence[Scored]) -> dict[str, float]:
        """Those of `Task`, problems, pass_at_k, timeout and error."""
        judged = judged_of(scored)
        problems: dict[str, list[bool]] = {}
        for one in judged:
            problems.setdefault(one.details["id"], []).append(bool(one.correct))
        fewest = min(map(len, problems.values()), default=0)
        passes = {
            f"pass_at_{k}": fmean(pass_at_k(len(ran), sum(ran), k) for ran in problems.values())
            for k in KS
            if k <= fewest
        }
        statuses = {
            status: share(one.details["status"] == status for one in judged)
            for status in ("timeout", "error")
        }
        return {**super().metrics(scored), "problems": len(problems), **passes, **statuses}

    def groups(self, one: Scored) -> Sequence[str]:
        """The form of its row, where rows of both are expected."""
        return (one.details["form"],) if self.name == "code" else ()


def _form(row: Row) -> str:
    return "humaneval" if row.get("test_list") is None and "entry_point" in row else "mbpp"


def _abstains(text: str) -> bool:
    """Whether a text says that it has no program; one with a block of code does not."""
    return "```" not in text and "def " not in text and abstains(text)
