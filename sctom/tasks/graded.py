"""Comparisons whose true utility is known: graded ones, and two objectives in conflict. No torch.

People of `sctom.tasks.tinyworld` are described by several of their properties, some true and some
false. An answer is worth the sum of what its statements are worth; who judges it sees that with
noise. So it is known which answer is better, by how much, and which labels are wrong.

    python -m sctom.prepare graded --out runs/graded
    python -m sctom.prepare conflicting --out runs/conflicting
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sctom.preferences import GRADES
from sctom.readers import Row
from sctom.seeds import keys_for, permutation, uniforms
from sctom.tasks.tinyworld import PROFILE, RELATIONS, World
from sctom.writers import Prepared

Facts = tuple[str, ...]
Objective = Literal["helpful", "safe"]

HELPFUL = (1.0, 0.9, 0.8, 0.7, 0.6)
"""What a true statement of each relation is worth; a false one is worth as much less than nothing.
No one of them settles which of two answers is better."""
SAFE = (-1.5, 0.0, -1.2, 0.0, 0.0)
"""The same where a person is to be protected: the truth about home and work, by which people can be
found, is what must not be told. The rest does not matter."""
WEIGHTS: dict[Objective, tuple[float, ...]] = {"helpful": HELPFUL, "safe": SAFE}

GRADE_EDGES = (1.0, 2.0, 3.5)
"""Gaps of utility from which a pair is slightly better, better and significantly better."""
NOISE = 1.0
"""t: a label is right with probability sigma(gap / t): 62% at a gap of 0.5, 97% at 3.5."""
SMALLEST_GAP = 0.05
"""Pairs that are closer are not asked about."""

PAIRS = {"train.jsonl": 4000, "valid.jsonl": 400, "test.jsonl": 2000}
"""Pairs of each file: even numbers, see `comparisons`."""
OVERLAP = 0.5

_TRUTHS = (0.1, 0.3, 0.5, 0.7, 0.9)  # chances that a statement is true, one for each answer
_FEWEST = 2  # statements of an answer
_PER_ANSWER = 2 + 2 * len(RELATIONS)
_VALUES = {value: place for place, relation in enumerate(RELATIONS) for value in relation.values}

# First part of the address of every draw; 10 to 14 are those of the invented world.
_PAIRS, _STATED, _SHUFFLE = range(15, 18)


@dataclass(frozen=True)
class Subject:
    """A person to be described."""

    name: str
    facts: Facts
    """The true value of each relation."""


def utility(facts: Sequence[str], answer: str, weights: Sequence[float] = HELPFUL) -> float:
    """What an answer is worth: the sum of +w for each true and -w for each false statement.

    The first value that the answer names of a relation is its statement; other words are worth
    nothing, so this can also score what a model writes.

    Args:
        facts: the true value of each relation.
        answer: the text.
        weights: w of each relation.

    >>> utility(("Berlin", "green", "farmer", "badger", "violin"), "Berlin is pink. Berlin!")
    0.1
    """
    stated: dict[int, str] = {}
    for word in answer.split():
        value = word.strip(".,;:!?")
        if value in _VALUES:
            stated.setdefault(_VALUES[value], value)
    worth = sum(weights[place] * (1 if facts[place] == v else -1) for place, v in stated.items())
    return round(worth, 6)  # sums of tenths, alike in every order


def grade_of(gap: float) -> str:
    """The word for a gap of utility, in those of `GRADES`.

    >>> [grade_of(gap) for gap in (0.5, -1.0, 3.5)]
    ['negligibly better', 'slightly better', 'significantly better']
    """
    return GRADES[sum(abs(gap) >= edge for edge in GRADE_EDGES)]


def comparisons(
    couples: Sequence[tuple[Subject, Subject]],
    count: int,
    *,
    address: tuple[int, ...],
    objective: Objective = "helpful",
    overlap: float = OVERLAP,
    stated: bool = False,
) -> list[Row]:
    """Pairs of answers about people, judged with noise.

    Every two answers are asked about twice, of two people who have no value in common, and state
    the values of one or the other: what is true of the first person is false of the second, so the
    second time the other answer is better, by the same gap. Hence nothing that is in the answers
    alone, neither a word nor a length, says which is better; that the prompt has it too is the only
    way to know.

    Args:
        couples: whom to ask about; the two of one couple have no value in common.
        count: number of pairs, even.
        address: of every draw.
        objective: by which of `WEIGHTS` they are judged.
        overlap: share of the pairs judged as "safe" whose prompt is worded as those judged as
            "helpful"; the others can be told apart by it.
        stated: begin the prompt with the facts, for models that do not know this world.

    Returns:
        rows for `sctom.preferences`, with `margin` (the true gap), `is_safety`, `source` (the
        objective), and the columns `facts`, `utility_chosen`, `utility_rejected` and `flipped`
        (true where noise made the worse answer the chosen one).

    >>> two = Subject("A", ("Berlin", "green", "farmer", "badger", "violin")), Subject(
    ...     "B", ("Madrid", "pink", "painter", "otter", "cello"))
    >>> for row in comparisons([two], 2, address=(3,)):
    ...     print(row["prompt"][0]["content"], row["chosen"], "|", row["rejected"], row["margin"])
    Describe A. badger cello | pink otter cello 2.3
    Describe B. pink otter cello | badger cello 2.3
    """
    weights = WEIGHTS[objective]
    rows: list[Row] = []
    for draw in _draws(address):
        if len(rows) >= count:
            break
        couple = couples[int(draw[0] * len(couples))]
        first, second = (_answer(couple, draw[start:]) for start in (5, 5 + _PER_ANSWER))
        gap = utility(couple[0].facts, first, weights) - utility(couple[0].facts, second, weights)
        if abs(gap) < SMALLEST_GAP:
            continue
        openly = objective == "helpful" or draw[1] < overlap
        wording = PROFILE[0] if openly else PROFILE[1]
        for subject, noise in zip(couple, draw[2:4], strict=True):
            row = _judged(subject, (first, second), weights, noise)
            prompt = _prompt(subject, wording, stated)
            rows.append({"prompt": prompt, **row, "source": objective})
    return [row | {"is_safety": objective == "safe"} for row in rows]


def _draws(address: tuple[int, ...]) -> Iterator[list[float]]:
    """The random numbers of one candidate after the other."""
    places = np.arange(5 + 2 * _PER_ANSWER)
    number = 0
    while True:
        keys = keys_for(*address, np.arange(number, number + 256))
        yield from uniforms(keys[:, None], places[None]).tolist()
        number += 256


def _answer(couple: tuple[Subject, Subject], draw: Sequence[float]) -> str:
    """Values of one person or the other, of some relations."""
    size = _FEWEST + int(draw[0] * (len(RELATIONS) + 1 - _FEWEST))
    truth = _TRUTHS[int(draw[1] * len(_TRUTHS))]
    ranks = draw[2 : 2 + len(RELATIONS)]
    chances = draw[2 + len(RELATIONS) : _PER_ANSWER]
    chosen = sorted(sorted(range(len(RELATIONS)), key=lambda place: ranks[place])[:size])
    return " ".join(couple[chances[place] >= truth].facts[place] for place in chosen)


def _judged(
    subject: Subject, answers: tuple[str, str], weights: Sequence[float], noise: float
) -> Row:
    """Which of two answers is chosen, and how sure."""
    values = {text: utility(subject.facts, text, weights) for text in answers}
    better, worse = sorted(answers, key=lambda text: -values[text])
    gap = values[better] - values[worse]
    flipped = noise >= 1 / (1 + math.exp(-gap / NOISE))
    chosen, rejected = (worse, better) if flipped else (better, worse)
    return {
        "chosen": chosen,
        "rejected": rejected,
        "grade": grade_of(gap),
        "margin": round(gap, 6),
        "facts": list(subject.facts),
        "utility_chosen": values[chosen],
        "utility_rejected": values[rejected],
        "flipped": flipped,
    }


def _prompt(subject: Subject, wording: str, stated: bool) -> list[dict[str, str]]:
    known = f"{subject.name}: {' '.join(subject.facts)}. " if stated else ""
    return [{"role": "user", "content": known + wording.format(subject.name)}]


def couples_of(world: World, name: str) -> list[tuple[Subject, Subject]]:
    """Couples of people that a model of the world knows, without a value in common.

    Args:
        world: whose people.
        name: of the file. People whom the world asks about in training are for train.jsonl, a
            quarter of the others for valid.jsonl and the rest for test.jsonl.

    Raises:
        ValueError: the world has too few people.
    """
    held = world.of("known", "valid")
    quarter = len(held) // 4
    parts = {"train.jsonl": world.of("known", "train"), "valid.jsonl": held[:quarter]}
    people = parts.get(name, held[quarter:])
    couples = [
        (Subject(first.name, first.facts), Subject(second.name, second.facts))
        for first, second in itertools.combinations(people, 2)
        if not set(first.facts) & set(second.facts)
    ]
    if not couples:
        raise ValueError(f"no two of the {len(people)} people for {name} differ in all values")
    return couples


def stated_couples(world: World, name: str, count: int) -> list[tuple[Subject, Subject]]:
    """Couples of invented people, for prompts that state the facts; other names for each file.

    Raises:
        ValueError: the world has too few names.
    """
    most = len(world.invented) // len(PAIRS)
    start = list(PAIRS).index(name) * most
    if 2 * count > most:
        raise ValueError(f"{name} needs {2 * count} names, but the world has {most} for a file")
    numbers = np.arange(start, start + count)[:, None]
    columns = []
    for place, relation in enumerate(RELATIONS):
        keys = keys_for(world.seed, _STATED, numbers, place, np.arange(len(relation.values))[None])
        orders = keys.argsort(axis=1, kind="stable")[:, :2].tolist()  # two that differ
        columns.append([[relation.values[index] for index in order] for order in orders])
    names = iter(world.invented[start:])
    made = []
    for values in zip(*columns, strict=True):  # of one couple: for each relation, of both
        one, other = (Subject(next(names), facts) for facts in zip(*values, strict=True))
        made.append((one, other))
    return made


def prepare_graded(
    world: World,
    *,
    seed: int = 0,
    objectives: Sequence[Objective] = ("helpful",),
    overlap: float = OVERLAP,
    stated: bool = False,
    pairs: Mapping[str, int] = PAIRS,
) -> Prepared:
    """Graded comparisons in three files, about different people in each.

    With both objectives, half of the pairs are judged by one and half by the other: true statements
    about home and work are for the one what they are against the other.

    Args:
        world: whose people are asked about.
        seed: of answers, labels and order.
        objectives: ("helpful",) or ("helpful", "safe").
        overlap: see `comparisons`.
        stated: the prompts state the facts, and are about invented people.
        pairs: file name -> how many pairs.

    Raises:
        ValueError: `overlap` is no share, or a number of pairs cannot be halved for each objective.
    """
    if not 0 <= overlap <= 1:
        raise ValueError(f"overlap must be from 0 to 1, not {overlap}")
    files: dict[str, list[Row]] = {}
    for file, (name, count) in enumerate(pairs.items()):
        each, rest = divmod(count, len(objectives))
        if rest or each % 2 or each < 2:
            step = 2 * len(objectives)
            raise ValueError(f"{name}: pairs must be a multiple of {step}, not {count}")
        couples = stated_couples(world, name, each // 2) if stated else couples_of(world, name)
        rows = [
            row
            for place, objective in enumerate(objectives)
            for row in comparisons(
                couples,
                each,
                address=(seed, _PAIRS, file, place),
                objective=objective,
                overlap=overlap,
                stated=stated,
            )
        ]
        kind = name.removesuffix(".jsonl")
        order = permutation(len(rows), seed, _SHUFFLE, file).tolist()
        files[name] = [rows[place] | {"pair_id": f"{kind}-{place}"} for place in order]
    manifest = {
        "set": "conflicting" if len(objectives) > 1 else "graded",
        "seed": seed,
        "world": world.seed,
        "stated": stated,
        "overlap": overlap,
        "weights": {objective: WEIGHTS[objective] for objective in objectives},
    }
    counts = {name: _counts(rows) for name, rows in files.items()}
    return Prepared(files, counts, manifest, _notes(files["test.jsonl"]))


def _counts(rows: Sequence[Row]) -> dict[str, int]:
    grades = Counter(row["grade"] for row in rows)
    return {grade: grades[grade] for grade in GRADES} | {
        "flipped": sum(row["flipped"] for row in rows)
    }


def _notes(rows: Sequence[Row]) -> list[str]:
    """How often the best possible model agrees with the labels of each grade."""
    shares = [
        1 - np.mean([row["flipped"] for row in rows if row["grade"] == grade] or [np.nan])
        for grade in GRADES
    ]
    listed = ", ".join(f"{g} {share:.1%}" for g, share in zip(GRADES, shares, strict=True))
    return [f"Labels of test.jsonl that the true utility agrees with: {listed}"]
