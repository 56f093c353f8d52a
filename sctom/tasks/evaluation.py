"""The tasks of the cross-evaluation by name: what training on one does to the others.

Source: SC-TOM, "GRPO Reward" section 5.3, which evaluates on exploretom, selfaware, gsm8k, triviaqa
and mbpp / humaneval after a run. docs/tasks.md has the rules of each and where they differ from the
source's own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sctom.readers import nearest
from sctom.tasks.evaluation_base import Scored, Task
from sctom.tasks.evaluation_code import Code, pass_at_k
from sctom.tasks.evaluation_gsm8k import Gsm8k
from sctom.tasks.evaluation_selfaware import SelfAware
from sctom.tasks.exploretom import ExploreTom
from sctom.tasks.triviaqa import TriviaQa

__all__ = ["FIVE", "TASKS", "Scored", "Task", "pass_at_k", "task_named"]

FIVE = ("exploretom", "selfaware", "gsm8k", "triviaqa", "code")
"""SC-TOM's five, in its order."""

TASKS: dict[str, Callable[[], Task]] = {
    "exploretom": ExploreTom,
    "selfaware": SelfAware,
    "gsm8k": Gsm8k,
    "triviaqa": TriviaQa,
    "code": Code,
    "mbpp": partial(Code, "mbpp"),
    "humaneval": partial(Code, "humaneval"),
}
"""How to make each of them with its defaults; "code" takes the rows of the last two."""


def task_named(name: str) -> Task:
    """The task of a name, with its defaults.

    Raises:
        ValueError: there is none.

    >>> task_named("gsm8k").score({"solution": "7", "messages": [{"role": "user", "content": ""}]},
    ...                           "2 + 5 = 7").correct
    True
    >>> task_named("gsm8")
    Traceback (most recent call last):
        ...
    ValueError: there is no task 'gsm8'; expected one of exploretom, selfaware, gsm8k, triviaqa, \
code, mbpp, humaneval. Did you mean 'gsm8k'?
    """
    if name not in TASKS:
        expected = f"expected one of {', '.join(TASKS)}.{nearest(name, list(TASKS))}"
        raise ValueError(f"there is no task {name!r}; {expected}")
    return TASKS[name]()
