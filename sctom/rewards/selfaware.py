"""The SC-TOM self-awareness reward: for right answers and honest "I don't know"s, against guesses.

Kept exactly as its document defines it, traps included, so that runs are comparable: plain
substrings ("no" is in "I know", "1" is in "10"; "Hawaii cannot" is an abstention), apostrophes as
typed, the right answer looked for before the abstention. docs/rewards.md lists the traps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from sctom.rewards.base import Reward, completion_text
from sctom.rewards.break_even import FiveValues, break_even_advice

IDK_PATTERNS = (
    "i don't know",
    "i do not know",
    "i cannot",
    "i can't",
    "i'm not able to",
    "i am not able to",
    "i'm unable to",
    "i am unable to",
    "i'm uncertain",
    "i am uncertain",
    "i'm unsure",
    "i am unsure",
    "i honestly don't know",
    "i'm afraid i don't know",
    "this is something i'm unable to",
    "not sure",
    "no definitive answer",
    "beyond my knowledge",
    "outside my knowledge",
)

Outcome = Literal["correct", "abstained", "wrong"]
Completion = str | Sequence[dict[str, Any]]

TYPES = ("answerable", "unanswerable")


def is_idk_response(text: str) -> bool:
    """Whether a text holds one of the 19 patterns, whatever the case.

    >>> is_idk_response("I don't know the exact answer, but it may be Seoul.")
    True
    >>> is_idk_response("Nobody knows.")
    False
    """
    lowered = text.strip().lower()
    return any(pattern in lowered for pattern in IDK_PATTERNS)


def holds_answer(text: str, expected_answer: str) -> bool:
    """Whether a text holds the expected answer as a substring, whatever the case.

    A blank answer is in every text.

    >>> holds_answer("The answer is Food and Drink.", "food and drink")
    True
    """
    return expected_answer.strip().lower() in text.strip().lower()


def outcome(completion: Completion, expected_answer: str, is_unanswerable: bool) -> Outcome:
    """What a completion did.

    The answer is looked for first (on answerable questions only), then the abstention.

    >>> outcome("I'm not sure, perhaps Seoul.", "Seoul", False)
    'correct'
    >>> outcome("I'm not sure, perhaps Seoul.", "I don't know.", True)
    'abstained'
    """
    text = completion_text(completion)
    if not is_unanswerable and holds_answer(text, expected_answer):
        return "correct"
    return "abstained" if is_idk_response(text) else "wrong"


class SelfAware(Reward):
    """The SC-TOM reward, from the columns `expected_answer` (text) and `is_unanswerable` (bool).

    | question     | response                 | reward | setting                |
    |--------------|--------------------------|--------|------------------------|
    | answerable   | holds the answer         | +1.0   | correct                |
    | answerable   | "I don't know"           | -0.5   | abstained              |
    | answerable   | anything else            | -1.0   | wrong                  |
    | unanswerable | "I don't know"           | +1.0   | unanswerable_abstained |
    | unanswerable | anything else            | -1.0   | unanswerable_answered  |

    Source: SC-TOM, "GRPO Reward" section 2; the defaults are its values. Metrics: the shares of the
    completions that were self_aware/correct, self_aware/abstained (on either kind of question) and
    self_aware/wrong.

    With two completions per prompt and division by the group's standard deviation, any two
    different rewards become the same pair of advantages, so -0.5 against -1.0 only orders them. To
    keep the asymmetry use groups of four or more, or no division.

    Args:
        correct: reward of a right answer to an answerable question; the other four settings
            likewise, see the table.
        weight: factor in the weighted sum.
        name: metric key, "self_aware" by default.

    >>> reward = SelfAware(abstained=-0.25)
    >>> reward(["Seoul", "I don't know.", "Busan"], ["Seoul"] * 3, [False] * 3)
    [1.0, -0.25, -1.0]
    """

    def __init__(
        self,
        *,
        correct: float = 1.0,
        abstained: float = -0.5,
        wrong: float = -1.0,
        unanswerable_abstained: float = 1.0,
        unanswerable_answered: float = -1.0,
        weight: float = 1.0,
        name: str | None = None,
    ) -> None:
        super().__init__(weight=weight, name=name)
        self.table: dict[tuple[bool, Outcome], float] = {
            (False, "correct"): correct,
            (False, "abstained"): abstained,
            (False, "wrong"): wrong,
            (True, "abstained"): unanswerable_abstained,
            (True, "wrong"): unanswerable_answered,
        }

    def __call__(
        self,
        completions: Sequence[Completion],
        expected_answer: Sequence[str],
        is_unanswerable: Sequence[bool],
        log_metric: Callable[[str, float], None] | None = None,
    ) -> list[float]:
        """One reward per completion.

        Raises:
            TypeError: an expected answer that is not a string, or an `is_unanswerable` that is not
                a bool.
            ValueError: lists of different lengths.
        """
        rows = list(zip(completions, expected_answer, is_unanswerable, strict=True))
        for index, (_, expected, unanswerable) in enumerate(rows):
            if not isinstance(expected, str):
                raise TypeError(f"expected_answer[{index}] must be a string, found {expected!r}")
            if not isinstance(unanswerable, bool):  # the text "False" would count as true
                raise TypeError(f"is_unanswerable[{index}] must be a bool, found {unanswerable!r}")
        outcomes = [outcome(*row) for row in rows]
        if log_metric is not None and rows:
            for kind in ("correct", "abstained", "wrong"):
                log_metric(f"{self.name}/{kind}", outcomes.count(kind) / len(rows))
        return [self.table[row[2], result] for row, result in zip(rows, outcomes, strict=True)]

    @property
    def five_values(self) -> FiveValues:
        """The table as the five values of a break-even."""
        return FiveValues(
            correct=self.table[False, "correct"],
            abstained=self.table[False, "abstained"],
            wrong=self.table[False, "wrong"],
            unanswerable_abstained=self.table[True, "abstained"],
            unanswerable_answered=self.table[True, "wrong"],
        )

    def advice(self, columns: Mapping[str, Sequence[Any]]) -> list[str]:
        """From which chance to be right answering pays, and rows this reward will refuse."""
        lines = []
        for column, kind, expected in (
            ("expected_answer", str, "text"),
            ("is_unanswerable", bool, "true or false"),
        ):
            values = columns.get(column, [])
            refused = [row for row, value in enumerate(values) if not isinstance(value, kind)]
            if refused:
                first = f"row {refused[0] + 1}, {values[refused[0]]!r:.40}"
                lines.append(
                    f"{self.name}: {column} is not {expected} in {len(refused):,} of "
                    f"{len(values):,} rows (first: {first}), and the run will stop when it comes "
                    "to one; mend or drop these rows"
                )
        labels = [v for v in columns.get("is_unanswerable", []) if isinstance(v, bool)]
        return [*lines, *break_even_advice(self.name, self.five_values, labels)]


def selfaware_reward_func(
    completions: Sequence[Completion],
    expected_answer: Sequence[str],
    is_unanswerable: Sequence[bool],
    **kwargs: Any,
) -> list[float]:
    """The reward under SC-TOM's first signature, the one TRL calls.

    `kwargs` takes what TRL passes to every reward; none of it is used.

    >>> selfaware_reward_func(["I don't know."] * 2, ["Seoul", "I don't know."], [False, True])
    [-0.5, 1.0]
    """
    return SelfAware()(completions, expected_answer, is_unanswerable)


def selfaware_reward_func_mlx(
    prompts: Sequence[Any],
    completions: Sequence[Completion],
    answer: Sequence[str],
    types: Sequence[str],
) -> list[float]:
    """The reward under SC-TOM's second signature, the one its MLX trainer calls: the same table.

    Args:
        prompts: not used.
        completions: strings or lists of messages.
        answer: expected answers.
        types: "answerable" or "unanswerable".

    Raises:
        ValueError: another type.

    >>> selfaware_reward_func_mlx(["Capital?"], ["Busan"], ["Seoul"], ["answerable"])
    [-1.0]
    """
    for index, kind in enumerate(types):
        if kind not in TYPES:
            raise ValueError(f"types[{index}] must be one of {', '.join(TYPES)}, found {kind!r}")
    return SelfAware()(completions, answer, [kind == "unanswerable" for kind in types])
