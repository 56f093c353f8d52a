"""The strict self-awareness reward: that of SC-TOM without the traps of its definition.

docs/rewards.md sets the two side by side, trap by trap.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from sctom.rewards.base import Reward, completion_text
from sctom.rewards.break_even import FiveValues, break_even_advice
from sctom.rewards.confidence_text import without_confidence
from sctom.rewards.reading.abstention import Abstentions
from sctom.rewards.reading.matching import holds_answer
from sctom.rewards.selfaware import Completion

StrictOutcome = Literal[
    "correct",
    "hedged",
    "hedged_wrong",
    "abstained",
    "wrong",
    "unanswerable_abstained",
    "unanswerable_hedged",
    "unanswerable_answered",
]

_SHARES = {
    "correct": ("correct",),
    "hedged": ("hedged", "hedged_wrong", "unanswerable_hedged"),
    "abstained": ("abstained", "unanswerable_abstained"),
    "wrong": ("wrong", "unanswerable_answered"),
}


def strict_outcome(
    text: str,
    answers: Sequence[str],
    answerable: bool,
    question: str = "",
    *,
    abstentions: Abstentions | None = None,
    max_words: int | None = 100,
) -> StrictOutcome:
    """What a text did: its stance first, which knows no label, and only then whether it is right.

    Of a text with thoughts, only what is behind the last `</think>` counts, and of that only the
    last `<answer>`, if there are such tags. A stated confidence ("Confidence: 80%") is no answer.

    Args:
        text: a completion.
        answers: accepted answers of an answerable question; one is enough.
        answerable: the explicit label.
        question: what was asked; an "I don't know" that repeats it is none.
        abstentions: which phrases are known; by default those of all languages.
        max_words: a longer answer is not right; None: no limit.

    >>> strict_outcome("I'm not sure, perhaps Seoul.", ["Seoul"], True)
    'hedged'
    >>> strict_outcome("I know.", ["no"], True)
    'wrong'
    """
    text = _said(text)
    accepted = answers if answerable else ()
    reading = (abstentions or _ALL).read(text, question, accepted)
    if not answerable:
        return _UNANSWERABLE[reading.stance]
    if reading.stance == "abstained":
        return "abstained"
    right = holds_answer(text, answers, question, read=reading.answer, max_words=max_words)
    if reading.stance == "hedged":
        return "hedged" if right else "hedged_wrong"
    return "correct" if right else "wrong"


def _said(text: str) -> str:
    """A text without its thoughts and what says how sure it is."""
    text = text.rpartition("</think>")[2]
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    if start >= 0:
        return text[start + len("<answer>") : end]
    return without_confidence(text) if "confidence" in text.casefold() else text


_ALL = Abstentions()
_UNANSWERABLE: dict[str, StrictOutcome] = {
    "abstained": "unanswerable_abstained",
    "hedged": "unanswerable_hedged",
    "answered": "unanswerable_answered",
}


class SelfAwareStrict(Reward):
    """For right answers and honest "I don't know"s, against guesses and against hedging.

    | question     | response                          | reward | setting                |
    |--------------|-----------------------------------|--------|------------------------|
    | answerable   | gives an accepted answer          | +1.0   | correct                |
    | answerable   | gives it beside an "I don't know" | +0.5   | hedged                 |
    | answerable   | another one beside that           | -0.9   | hedged_wrong           |
    | answerable   | says "I don't know" in the end    | -0.5   | abstained              |
    | answerable   | anything else                     | -1.0   | wrong                  |
    | unanswerable | says "I don't know" in the end    | +1.0   | unanswerable_abstained |
    | unanswerable | answers beside an "I don't know"  | -0.5   | unanswerable_hedged    |
    | unanswerable | anything else                     | -1.0   | unanswerable_answered  |

    Columns: `answers` (a list of accepted answers) where a row has some, else `expected_answer`;
    `answerable` (bool), the explicit label. Source: SC-TOM, "GRPO Reward" section 2, for the five
    values without a hedge, with the same defaults; the rest is ours. What is an answer:
    `sctom.rewards.reading.matching`; what is an abstention: `sctom.rewards.reading.abstention`.

    The defaults of a hedge make it a worse bet than the better of a plain answer and a plain
    abstention, by 0.05 or more, whatever the chances (`hedging_margin`).

    Metrics: shares of the completions that were NAME/correct, NAME/hedged, NAME/abstained (on
    either kind of question) and NAME/wrong. The outcome of each, named as its setting, goes to
    the completions table under "outcome".

    Args:
        correct: reward of a right answer to an answerable question; the other seven settings
            likewise, see the table.
        languages: codes of the languages in which an abstention is known; None: all eight (de, en,
            es, fr, ja, ko, pt, zh).
        phrases: further phrases that are abstentions, in any language.
        max_words: an answer of more words is not right; null: no limit.
        weight: factor in the weighted sum.
        name: metric key, "self_aware_strict" by default.

    >>> reward = SelfAwareStrict()
    >>> completions = ["Seoul", "Not sure, Seoul?", "I don't know.", "Anything but Seoul"]
    >>> reward(["Capital?"] * 4, completions, [True] * 4, ["Seoul"] * 4)
    [1.0, 0.5, -0.5, -1.0]
    """

    def __init__(
        self,
        *,
        correct: float = 1.0,
        hedged: float = 0.5,
        hedged_wrong: float = -0.9,
        abstained: float = -0.5,
        wrong: float = -1.0,
        unanswerable_abstained: float = 1.0,
        unanswerable_hedged: float = -0.5,
        unanswerable_answered: float = -1.0,
        languages: list[str] | None = None,
        phrases: list[str] | None = None,
        max_words: int | None = 100,
        weight: float = 1.0,
        name: str | None = None,
    ) -> None:
        super().__init__(weight=weight, name=name)
        if max_words is not None and max_words < 1:
            raise ValueError(f"max_words must be at least 1, or null for no limit, not {max_words}")
        self.table: dict[StrictOutcome, float] = {
            "correct": correct,
            "hedged": hedged,
            "hedged_wrong": hedged_wrong,
            "abstained": abstained,
            "wrong": wrong,
            "unanswerable_abstained": unanswerable_abstained,
            "unanswerable_hedged": unanswerable_hedged,
            "unanswerable_answered": unanswerable_answered,
        }
        self.max_words = max_words
        self.abstentions = Abstentions(languages, phrases or ())

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Completion],
        answerable: Sequence[bool],
        expected_answer: Sequence[str],
        answers: Sequence[Sequence[str] | None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        log_extra: Callable[[str, list[Any]], None] | None = None,
    ) -> list[float]:
        """One reward per completion.

        Raises:
            TypeError: an `answerable` that is not a bool, or answers that are not text.
            ValueError: an answerable question without answers or with a blank one; lists of
                different lengths.
        """
        lists = [None] * len(completions) if answers is None else answers
        outcomes: list[StrictOutcome] = []
        for index, (prompt, completion, label, expected, several) in enumerate(
            zip(prompts, completions, answerable, expected_answer, lists, strict=True)
        ):
            if not isinstance(label, bool):  # the text "False" would count as true
                raise TypeError(f"answerable[{index}] must be a bool, found {label!r}")
            outcomes.append(
                strict_outcome(
                    completion_text(completion),
                    _accepted(several, expected, index) if label else (),
                    label,
                    question_of(prompt),
                    abstentions=self.abstentions,
                    max_words=self.max_words,
                )
            )
        if log_metric is not None and outcomes:
            for share, kinds in _SHARES.items():
                count = sum(outcome in kinds for outcome in outcomes)
                log_metric(f"{self.name}/{share}", count / len(outcomes))
        if log_extra is not None:
            log_extra("outcome", list(outcomes))
        return [self.table[outcome] for outcome in outcomes]

    @property
    def five_values(self) -> FiveValues:
        """The table without its hedges, as the five values of a break-even."""
        return FiveValues(
            correct=self.table["correct"],
            abstained=self.table["abstained"],
            wrong=self.table["wrong"],
            unanswerable_abstained=self.table["unanswerable_abstained"],
            unanswerable_answered=self.table["unanswerable_answered"],
        )

    @property
    def hedging_margin(self) -> float:
        """What hedging loses against the better of answering and abstaining, at the least.

        For a right answer, a wrong one and an unanswerable question let a, d and h be the values of
        answering, abstaining ("don't know") and hedging. Over all chances of the three,

            min over chances of max(E[a], E[d]) - E[h]  =  max over s of min(s a + (1 - s) d - h)

        with s from 0 to 1 and the second minimum over the three cases (von Neumann's minimax). Not
        negative: hedging never pays more than being frank.

        >>> round(SelfAwareStrict().hedging_margin, 6)
        0.05
        >>> round(SelfAwareStrict(hedged=1.0).hedging_margin, 6)  # 3/14, with a share of 6/7
        -0.214286
        """
        answer = [self.table[k] for k in ("correct", "wrong", "unanswerable_answered")]
        unknown = [self.table[k] for k in ("abstained", "abstained", "unanswerable_abstained")]
        hedge = [self.table[k] for k in ("hedged", "hedged_wrong", "unanswerable_hedged")]
        lines = [(d - h, a - d) for a, d, h in zip(answer, unknown, hedge, strict=True)]
        shares = [0.0, 1.0]  # the maximum is at an end or where two of the lines cross
        for (start, slope), (other, steep) in itertools.combinations(lines, 2):
            if slope != steep and 0.0 < (share := (other - start) / (slope - steep)) < 1.0:
                shares.append(share)
        return max(min(start + share * slope for start, slope in lines) for share in shares)

    def advice(self, columns: Mapping[str, Sequence[Any]]) -> list[str]:
        """From which chance to be right answering pays, and whether hedging does."""
        labels = [v for v in columns.get("answerable", []) if isinstance(v, bool)]
        lines = break_even_advice(self.name, self.five_values, [not label for label in labels])
        if self.hedging_margin < 0:
            lines.append(
                f"{self.name}: with these values hedging can pay {-self.hedging_margin:.3g} more "
                "than answering and abstaining; lower hedged, hedged_wrong or unanswerable_hedged"
            )
        return lines


def question_of(prompt: str | Sequence[Mapping[str, Any]]) -> str:
    """The question of a prompt: the text, or what the user said last.

    >>> question_of([{"role": "system", "content": "Answer."}, {"role": "user", "content": "Who?"}])
    'Who?'
    """
    if isinstance(prompt, str):
        return prompt
    said = [message["content"] for message in prompt if message["role"] == "user"]
    if not said or not isinstance(said[-1], str):
        raise ValueError(f"expected messages with the text of a user, found {prompt!r:.200}")
    return said[-1]


def _accepted(several: Sequence[str] | None, expected: str, index: int) -> Sequence[str]:
    """The accepted answers of an answerable question, checked."""
    column = "answers" if several else "expected_answer"
    accepted = several or [expected]
    if isinstance(accepted, str) or not all(isinstance(answer, str) for answer in accepted):
        kind = "a list of texts" if several else "text"
        raise TypeError(f"{column}[{index}] must be {kind}, found {several or expected!r:.60}")
    if not all(answer.strip() for answer in accepted):
        raise ValueError(f"{column}[{index}] holds a blank answer, which no completion can give")
    return accepted
