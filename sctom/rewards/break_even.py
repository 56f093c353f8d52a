"""From which probability of being right an answer is worth more than an abstention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FAIR = 0.5
"""Below this break-even a guess pays although it is more often wrong than right."""


@dataclass(frozen=True)
class FiveValues:
    """What a reward gives in the five cases of question and response.

    The defaults are those of SC-TOM, "GRPO Reward", section 2.1.
    """

    correct: float = 1.0
    """A right answer to an answerable question."""
    abstained: float = -0.5
    """An abstention on an answerable question."""
    wrong: float = -1.0
    """A wrong answer to an answerable question."""
    unanswerable_abstained: float = 1.0
    """An abstention on an unanswerable question."""
    unanswerable_answered: float = -1.0
    """An answer to an unanswerable question."""

    @property
    def honesty(self) -> float:
        """What abstaining is worth over answering where nobody could know."""
        return self.unanswerable_abstained - self.unanswerable_answered


def break_even(values: FiveValues, unanswerable: float) -> float:
    """The probability of being right above which answering is worth more than abstaining.

    Let u be the share of unanswerable questions among those that look alike, and p the probability
    to be right if the question is answerable. Then

        E[answer]  = (1 - u) (p correct + (1 - p) wrong) + u unanswerable_answered
        E[abstain] = (1 - u) abstained                   + u unanswerable_abstained

    and E[answer] > E[abstain] exactly for p > p*,

        p* = (abstained - wrong + u / (1 - u) (unanswerable_abstained - unanswerable_answered))
             / (correct - wrong)

    With the defaults that is 0.25 + u / (1 - u). SC-TOM's document gives the five values and not
    this consequence of them. Advantages subtract one mean from both responses, which leaves p*
    where it is; dividing by the group's deviation weighs groups unequally and may move it.

    Args:
        values: the five values.
        unanswerable: u, from 0 to below 1.

    Returns:
        p*; at most 0 means that answering always pays, at least 1 that it never does.

    Raises:
        ValueError: u is not from 0 to below 1, or a right answer is not worth more than a wrong
            one, so that no probability of being right can make answering pay.

    >>> round(break_even(FiveValues(), 0.0), 3), round(break_even(FiveValues(), 58 / 2198), 3)
    (0.25, 0.277)
    """
    if not 0.0 <= unanswerable < 1.0:
        raise ValueError(f"unanswerable is a share from 0 to below 1 but is {unanswerable}")
    if not values.correct > values.wrong:
        raise ValueError(
            f"correct ({values.correct:g}) must be above wrong ({values.wrong:g}); "
            "otherwise being right never pays"
        )
    odds = unanswerable / (1.0 - unanswerable)
    loss = values.abstained - values.wrong + odds * values.honesty
    return loss / (values.correct - values.wrong)


def fair_share(values: FiveValues) -> float | None:
    """The share of unanswerable questions that puts the break-even at 0.5; None where none does.

    From p* = 0.5:  u / (1 - u) = ((correct + wrong) / 2 - abstained) / honesty

    >>> fair_share(FiveValues())  # odds (0 + 0.5) / 2 = 0.25, u = 0.25 / 1.25
    0.2
    """
    missing = (values.correct + values.wrong) / 2 - values.abstained
    if values.honesty <= 0 or missing < 0:
        return None
    odds = missing / values.honesty
    return odds / (1.0 + odds)


def fair_abstention(values: FiveValues, unanswerable: float) -> float:
    """The value of an abstention on an answerable question that puts the break-even at 0.5.

    From p* = 0.5:  abstained = (correct + wrong) / 2 - u / (1 - u) honesty

    >>> fair_abstention(FiveValues(), 0.2)
    -0.5
    """
    odds = unanswerable / (1.0 - unanswerable)
    return (values.correct + values.wrong) / 2 - odds * values.honesty


def break_even_advice(
    reward: str, values: FiveValues, unanswerable: Sequence[bool], *, setting: str = "abstained"
) -> list[str]:
    """What the break-even of a reward on the training data means, in one line.

    Args:
        reward: its name, put in front of the line.
        values: its five values.
        unanswerable: for every question, whether the reward counts it as unanswerable.
        setting: the setting of the reward that holds the value of an abstention on an answerable
            question.

    Returns:
        One line; none without questions.

    >>> (line,) = break_even_advice("self_aware", FiveValues(), [True] * 58 + [False] * 2140)
    >>> print(line)  # doctest: +NORMALIZE_WHITESPACE
    self_aware: 58 of 2,198 questions (2.6%) are unanswerable, so guessing pays above a chance of
    0.277 to be right; 20% unanswerable questions, or abstained -0.054, would put that line at 0.5
    """
    if not unanswerable:
        return []
    count, total = sum(unanswerable), len(unanswerable)
    if not values.correct > values.wrong:
        never = f"a right answer ({values.correct:g}) is worth no more than a wrong one"
        return [f"{reward}: {never} ({values.wrong:g}), so being right never pays; raise correct"]
    if count == total:
        return [f"{reward}: {_all_unanswerable(total, values)}"]
    if count == 0:
        return [f"{reward}: {_none_unanswerable(total, values)}"]
    return [f"{reward}: {_mixed(count, total, values, setting)}"]


def _all_unanswerable(total: int, values: FiveValues) -> str:
    pays = "abstaining" if values.honesty > 0 else "answering"
    return (
        f"all of {total:,} questions are unanswerable, so {pays} always pays and nothing teaches "
        "the model to answer what it knows; add answerable questions"
    )


def _none_unanswerable(total: int, values: FiveValues) -> str:
    line = break_even(values, 0.0)
    return (
        f"none of {total:,} questions is unanswerable, so an abstention is never right, only less "
        f"wrong than an answer with a chance below {line:.3g} to be right; add unanswerable "
        "questions"
    )


def _mixed(count: int, total: int, values: FiveValues, setting: str) -> str:
    share = count / total
    line, told_apart = break_even(values, share), break_even(values, 0.0)
    found = f"{count:,} of {total:,} questions ({_percent(share)}) are unanswerable, so"
    if line < FAIR:
        pays = f"guessing pays above a chance of {line:.3g} to be right"
        if line <= 0:
            pays = f"guessing always pays (break-even {line:.3g})"
        return f"{found} {pays}; {_remedy(values, share, setting)} would put that line at {FAIR}"
    blind = "where the model cannot tell them apart"
    if line < 1:
        return (
            f"{found} {blind} an answer pays above a chance of {line:.3g} to be right "
            f"({told_apart:.3g} where it can); more of them or a higher {setting} make it more "
            "careful, fewer or a lower one less"
        )
    return (
        f"{found} {blind} even a sure answer pays no more than an abstention (break-even "
        f"{line:.3g}; {told_apart:.3g} where it can); if it comes to abstain too often, lower "
        f"{setting} or take some of them out"
    )


def _remedy(values: FiveValues, share: float, setting: str) -> str:
    """What brings a break-even that is too low up to 0.5."""
    remedy = f"{setting} {round(fair_abstention(values, share), 3):g}"
    wanted = fair_share(values)
    return remedy if wanted is None else f"{_percent(wanted)} unanswerable questions, or {remedy},"


def _percent(share: float) -> str:
    """A share for people: 2.6%, 20%, 0.18%."""
    return f"{100 * share:.{2 if share < 0.1 else 3}g}%"
