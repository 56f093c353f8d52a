"""How well detectors of abstentions do on answers labelled by a person, and where they differ.

Every metric of abstention stands on one of these detectors, so its errors are theirs as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from sctom.rewards.judge import Judge
from sctom.rewards.loop import start
from sctom.rewards.reading.abstention import Abstentions
from sctom.rewards.selfaware import is_idk_response
from sctom.rewards.templates import check_template, fill

AbstentionDetector = Callable[[Sequence[str], Sequence[str]], Sequence[bool | None]]
"""Completions and their questions -> whether each abstains; None where it cannot tell."""

TEMPLATE = """\
Below are a question and a reply. Does the reply abstain, that is: does it end without any answer,
because it says that it does not know, that nobody can know, or that it will not say? A reply that
says it is unsure and still gives an answer does not abstain. It does not matter whether an answer
is right.

Question: {{prompt}}

Reply: {{response}}

Write one word, ABSTAINS or ANSWERS."""

_WORDS = {"ABSTAINS": True, "ANSWERS": False}


@dataclass(frozen=True)
class LabelledAnswer:
    """A completion, and what a person says of it."""

    completion: str
    abstains: bool
    question: str = ""
    place: str = ""
    """Where it is from, for the reader."""


@dataclass(frozen=True)
class Agreement:
    """How often two ways to find abstentions say the same."""

    both: int = 0
    first_only: int = 0
    second_only: int = 0
    neither: int = 0
    unread: int = 0
    """Answers of which one of them could not tell; they are in no other count."""

    @property
    def answers(self) -> int:
        """Those of which both could tell."""
        return self.both + self.first_only + self.second_only + self.neither

    @property
    def agreement(self) -> float | None:
        """The share on which they say the same."""
        return _share(self.both + self.neither, self.answers)

    @property
    def kappa(self) -> float | None:
        """Cohen's kappa (Educational and Psychological Measurement 20, 1960).

            (p - e) / (1 - e),    p = agreement,    e = p expected by chance from how often each
                                                    finds an abstention

        None where both say one thing only, and the same, for then e = 1.
        """
        n, first, second = self.answers, self.both + self.first_only, self.both + self.second_only
        chance = first * second + (n - first) * (n - second)  # e n^2
        return _share((self.both + self.neither) * n - chance, n * n - chance)

    @property
    def precision(self) -> float | None:
        """Where the first is the label: abstentions among what the second finds."""
        return _share(self.both, self.both + self.second_only)

    @property
    def recall(self) -> float | None:
        """Where the first is the label: what the second finds among the abstentions."""
        return _share(self.both, self.both + self.first_only)

    @property
    def f1(self) -> float | None:
        """Where the first is the label: the harmonic mean of the two."""
        return _share(2 * self.both, 2 * self.both + self.first_only + self.second_only)


@dataclass(frozen=True)
class Disagreement:
    """An answer on which a detector does not say what the label does."""

    answer: LabelledAnswer
    says: dict[str, bool | None]
    """Detector -> what it says."""


@dataclass(frozen=True)
class Audit:
    """What `audit` found."""

    against_label: dict[str, Agreement]
    """Detector -> the label (first) and it (second)."""
    between: dict[tuple[str, str], Agreement]
    """Of every two detectors."""
    disagreements: list[Disagreement]

    def table(self) -> str:
        """The confusion of each detector with the label, and what follows, in Markdown."""
        names = "found | missed | false alarms | passed | unread | precision | recall | F1 | kappa"
        lines = [f"| detector | {names} |", "|---|" + "---:|" * 9]
        for name, found in self.against_label.items():
            counts = (found.both, found.first_only, found.second_only, found.neither, found.unread)
            shares = (found.precision, found.recall, found.f1, found.kappa)
            cells = [*map(str, counts), *("-" if s is None else f"{s:.2f}" for s in shares)]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        return "\n".join(lines)

    def agreements(self) -> str:
        """How far any two detectors agree, in Markdown."""
        names = "detectors | agreement | kappa | only the first | only the second"
        lines = [f"| {names} |", "|---|" + "---:|" * 4]
        for (first, second), found in self.between.items():
            shares = ["-" if s is None else f"{s:.2f}" for s in (found.agreement, found.kappa)]
            counts = f"{found.first_only} | {found.second_only}"
            lines.append(f"| {first}, {second} | {' | '.join(shares)} | {counts} |")
        return "\n".join(lines)


def audit(answers: Sequence[LabelledAnswer], detectors: Mapping[str, AbstentionDetector]) -> Audit:
    """Compare detectors of abstentions with labels, and with each other.

    Args:
        answers: labelled by a person; a sample of what the detectors are used on.
        detectors: by name; `by_patterns`, `by_strict`, `by_judge(...)` or any other.

    Raises:
        ValueError: there are no answers, or a detector does not say something of each.

    >>> answers = [LabelledAnswer("I don't know.", True), LabelledAnswer("Hawaii cannot.", False)]
    >>> found = audit(answers, {"pattern": by_patterns, "strict": by_strict})
    >>> found.against_label["pattern"].precision, found.against_label["strict"].precision
    (0.5, 1.0)
    >>> [wrong.answer.completion for wrong in found.disagreements]
    ['Hawaii cannot.']
    """
    if not answers:
        raise ValueError("there are no labelled answers to audit detectors on; give at least one")
    completions, questions = [a.completion for a in answers], [a.question for a in answers]
    label: list[bool | None] = [answer.abstains for answer in answers]
    says: dict[str, list[bool | None]] = {}
    for name, detector in detectors.items():
        says[name] = list(detector(completions, questions))
        _check(name, says[name], len(answers))
    rows = [{name: said[row] for name, said in says.items()} for row in range(len(answers))]
    return Audit(
        against_label={name: _compare(label, said) for name, said in says.items()},
        between={pair: _compare(*(says[name] for name in pair)) for pair in combinations(says, 2)},
        disagreements=[
            Disagreement(answer, row)
            for answer, row in zip(answers, rows, strict=True)
            if any(said != answer.abstains for said in row.values())
        ],
    )


def by_patterns(completions: Sequence[str], questions: Sequence[str]) -> list[bool | None]:
    """The 19 patterns of `SelfAware`, as substrings."""
    return [is_idk_response(text) for text in completions]


def by_strict(completions: Sequence[str], questions: Sequence[str]) -> list[bool | None]:
    """The final stance, as `SelfAwareStrict` reads it; it knows neither label nor answer."""
    pairs = zip(completions, questions, strict=True)
    return [_ALL.read(text, question).stance == "abstained" for text, question in pairs]


def by_judge(judge: Judge, template: str = TEMPLATE) -> AbstentionDetector:
    """A detector that asks a model, all answers at once, one reply to each.

    The last ABSTAINS or ANSWERS of a reply counts; one without either is None.

    Args:
        judge: whom to ask, such as `sctom.rewards.judge.ChatEndpoint`.
        template: with {{prompt}}, the question, and {{response}}, the completion.

    Raises:
        RewardError: the template cannot be used.
        RemoteError: of the detector, when the judge does not reply.
    """
    check_template(template, "template", ("prompt", "response"))

    async def ask(completion: str, question: str) -> bool | None:
        asked = fill(template, prompt=question, response=completion)
        (reply,) = await judge.replies([{"role": "user", "content": asked}], 1)
        place = {word: reply.upper().rfind(word) for word in _WORDS}
        last = max(place, key=lambda word: place[word])
        return _WORDS[last] if place[last] >= 0 else None

    async def ask_all(completions: Sequence[str], questions: Sequence[str]) -> list[bool | None]:
        pairs = zip(completions, questions, strict=True)
        return await asyncio.gather(*(ask(completion, question) for completion, question in pairs))

    def detector(completions: Sequence[str], questions: Sequence[str]) -> list[bool | None]:
        said: list[bool | None] = start(ask_all(completions, questions)).result()
        return said

    return detector


_ALL = Abstentions()


def _compare(first: Sequence[bool | None], second: Sequence[bool | None]) -> Agreement:
    pairs = list(zip(first, second, strict=True))
    return Agreement(
        both=pairs.count((True, True)),
        first_only=pairs.count((True, False)),
        second_only=pairs.count((False, True)),
        neither=pairs.count((False, False)),
        unread=sum(None in pair for pair in pairs),
    )


def _check(name: str, said: Sequence[object], answers: int) -> None:
    if len(said) != answers:
        raise ValueError(f"detector {name!r} says something of {len(said)} answers, not {answers}")
    for place, value in enumerate(said):
        if value is not None and not isinstance(value, bool):
            found = f"said {value!r} of answer {place}"
            raise ValueError(f"detector {name!r} {found}; expected True, False or None")


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
