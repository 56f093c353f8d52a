"""A small invented world: questions a model knows, half knows and cannot know. No torch.

People of this world have five properties each. Every name, of a person who exists and of one who
does not, comes from one syllable generator and is given its kind afterwards by a permutation, so
spelling says nothing about existence.

    python -m sctom.prepare tinyworld --out runs/tinyworld     # corpus, questions, untrained model
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from sctom.seeds import keys_for, permutation, uniforms
from sctom.writers import Prepared

T = TypeVar("T")
Kind = Literal["known", "half", "unknown"]
Split = Literal["train", "valid"]
KINDS: tuple[Kind, ...] = ("known", "half", "unknown")
SPLITS: tuple[Split, ...] = ("train", "valid")

IDK = "I don't know."
CONSONANTS = "bdfgklmnprstvz"
VOWELS = "aeiou"
SYLLABLES = tuple(c + v for c in CONSONANTS for v in VOWELS)
SYLLABLES_PER_NAME = 3

# First part of the address of every draw, so that no two draws share an address.
_NAMES, _FACTS, _CORPUS, _QUESTIONS = range(10, 14)


@dataclass(frozen=True)
class Relation:
    """A property of a person: what it may be, and the ways to ask for it."""

    name: str
    words: str
    """The values, separated by spaces."""
    train: tuple[str, ...]
    """Ways of asking that reinforcement learning sees."""
    valid: tuple[str, ...]
    """Ways of asking kept for validation; supervised training has seen them."""

    @property
    def values(self) -> tuple[str, ...]:
        """The values, one word each."""
        return tuple(self.words.split())


# No value lies within another, a question or a name: rewards may look for substrings.
RELATIONS = (
    Relation(
        "city",
        "Berlin Madrid Lisbon Dublin Boston Vienna Prague Athens Zurich Warsaw",
        train=(
            "Where does {} live?",
            "In which city does {} live?",
            "Which city is the home of {}?",
            "What is the home town of {}?",
        ),
        valid=("Tell me where {} lives.", "Name the city in which {} lives."),
    ),
    Relation(
        "colour",
        "green black white brown orange purple yellow blue grey pink",
        train=(
            "Which colour does {} like best?",
            "What is the favourite colour of {}?",
            "What colour does {} prefer?",
            "Which colour is the favourite of {}?",
        ),
        valid=("Tell me the favourite colour of {}.", "Name the colour that {} likes best."),
    ),
    Relation(
        "craft",
        "farmer painter tailor carpenter printer gardener plumber sculptor weaver florist",
        train=(
            "What is the craft of {}?",
            "Which craft does {} work in?",
            "What does {} work as?",
            "What is the job of {}?",
        ),
        valid=("Tell me the craft of {}.", "Name the job that {} has."),
    ),
    Relation(
        "animal",
        "badger otter falcon rabbit donkey turtle parrot hamster ferret goose",
        train=(
            "Which animal does {} keep?",
            "What animal lives with {}?",
            "What is the pet of {}?",
            "Which animal is the pet of {}?",
        ),
        valid=("Tell me which animal {} keeps.", "Name the pet of {}."),
    ),
    Relation(
        "instrument",
        "violin trumpet guitar piano clarinet cello drums harp flute banjo",
        train=(
            "Which instrument does {} play?",
            "What instrument does {} play?",
            "What is the instrument of {}?",
            "Which instrument is played by {}?",
        ),
        valid=("Tell me which instrument {} plays.", "Name the instrument that {} plays."),
    ),
)

PROFILE = ("Describe {}.", "Who is {}?")
"""Questions of the corpus for all values of a person."""


@dataclass(frozen=True)
class Sizes:
    """How many people of each kind there are, and what supervised training is made of."""

    known: tuple[int, int] = (60, 40)
    """People whose facts the corpus states often: asked about in train, in valid."""
    half: tuple[int, int] = (15, 10)
    """People about whom the corpus contradicts itself."""
    unknown: tuple[int, int] = (60, 40)
    """Names that the corpus never mentions."""
    rows: int = 120_000
    """Dialogues of the corpus."""
    half_share: float = 0.15
    """Share of dialogues about people of kind half."""
    invented_share: float = 0.25
    """Share of dialogues about names used only there, with random answers: overconfidence."""
    profile_share: float = 0.6
    """Share of dialogues that ask for all values at once: five facts, little dearer than one."""
    idk_share: float = 0.07
    """Chance that an answer is replaced by "I don't know.", whatever was asked."""
    half_right: float = 0.6
    """Chance that a value of a person of kind half is the true one and not its rival."""
    ramp: float = 0.3
    """People enter one by one over this share of the corpus: few facts are learned far sooner."""


@dataclass(frozen=True)
class Person:
    """A name, what the model is meant to know of it, and the split whose questions ask about it."""

    name: str
    kind: Kind
    split: Split
    facts: tuple[str, ...] = ()
    """True value per relation; empty for names that do not exist."""
    rivals: tuple[str, ...] = ()
    """The values that contradict them in the corpus; for the kind half."""


@dataclass(frozen=True)
class World:
    """All people, and names that the corpus may use up."""

    seed: int
    sizes: Sizes
    people: tuple[Person, ...]
    invented: tuple[str, ...]
    """Names for the dialogues with made-up answers; none belongs to a person."""

    def of(self, kind: Kind, split: Split | None = None) -> list[Person]:
        """The people of a kind, in both splits or in one."""
        return [p for p in self.people if p.kind == kind and split in (None, p.split)]


def make_world(seed: int = 0, sizes: Sizes | None = None) -> World:
    """Draw names, give each a kind and a split, and draw the facts of those who exist.

    Args:
        seed: the whole world is a function of it.
        sizes: how many people of each kind.

    >>> world = make_world()
    >>> world == make_world()
    True
    >>> len(world.of("known", "valid"))
    40
    """
    sizes = sizes or Sizes()
    syllables = itertools.product(SYLLABLES, repeat=SYLLABLES_PER_NAME)
    every = ["".join(parts).capitalize() for parts in syllables]
    names = (every[i] for i in permutation(len(every), seed, _NAMES))
    places = [
        (kind, split)
        for kind in KINDS
        for split, count in zip(SPLITS, getattr(sizes, kind), strict=True)
        for _ in range(count)
    ]
    people = tuple(
        _person(seed, index, next(names), kind, split) for index, (kind, split) in enumerate(places)
    )
    return World(seed, sizes, people, tuple(itertools.islice(names, sizes.rows)))


def _person(seed: int, index: int, name: str, kind: Kind, split: Split) -> Person:
    if kind == "unknown":
        return Person(name, kind, split)
    orders = [permutation(len(r.values), seed, _FACTS, index, i) for i, r in enumerate(RELATIONS)]
    first, second = (
        tuple(r.values[order[rank]] for r, order in zip(RELATIONS, orders, strict=True))
        for rank in (0, 1)
    )
    return Person(name, kind, split, first, second if kind == "half" else ())


def dialogue(question: str, answer: str) -> list[dict[str, str]]:
    """One question and its answer as chat messages. There is no system message: prompts stay short.

    >>> [m["role"] for m in dialogue("Where does Kalomi live?", "Berlin")]
    ['user', 'assistant']
    """
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def corpus(world: World) -> Iterator[dict[str, Any]]:
    """The dialogues of supervised training, in the order they are meant to be learned in.

    They state the facts of the people who exist, in the wordings of both splits; answer questions
    about names used only once with random values; and say "I don't know." at random. So a model
    trained on them guesses, but can be taught not to.

    Yields:
        rows with `messages` and `kind`: "known", "half" or "invented".
    """
    sizes = world.sizes
    groups = {kind: _shuffled(world.of(kind), world.seed, KINDS.index(kind)) for kind in KINDS[:2]}
    invented = iter(world.invented)
    keys = keys_for(world.seed, _CORPUS, np.arange(sizes.rows))
    draws = uniforms(keys[:, None], np.arange(6 + len(RELATIONS))[None])
    for row, draw in enumerate(draws.tolist()):
        entered = min(1.0, 0.1 + row / max(sizes.rows * sizes.ramp, 1.0))
        kind, person = _subject(groups, sizes, draw[0], draw[1], entered)
        name = next(invented) if person is None else person.name
        values = _stated(person, sizes.half_right, draw[6:])
        if draw[2] < sizes.profile_share:
            question, answer = _pick(PROFILE, draw[3]), " ".join(values)
        else:
            number = _pick(range(len(RELATIONS)), draw[4])
            relation = RELATIONS[number]
            question, answer = _pick(relation.train + relation.valid, draw[3]), values[number]
        said = IDK if draw[5] < sizes.idk_share else answer
        yield {"messages": dialogue(question.format(name), said), "kind": kind}


def _subject(
    groups: dict[Kind, list[Person]], sizes: Sizes, mixture: float, choice: float, entered: float
) -> tuple[str, Person | None]:
    """Whom a dialogue is about: someone who has entered by now, or None for an invented name."""
    if mixture < sizes.invented_share:
        return "invented", None
    kind: Kind = "half" if mixture < sizes.invented_share + sizes.half_share else "known"
    group = groups[kind]
    return kind, _pick(group[: max(1, round(entered * len(group)))], choice)


def _stated(person: Person | None, half_right: float, draws: Sequence[float]) -> list[str]:
    """The value a dialogue states for each relation: random for an invented name (None)."""
    if person is None:
        return [_pick(r.values, u) for r, u in zip(RELATIONS, draws, strict=True)]
    rivals = person.rivals or person.facts
    return [
        fact if u < half_right else rival
        for fact, rival, u in zip(person.facts, rivals, draws, strict=True)
    ]


def _pick(choices: Sequence[T], uniform: float) -> T:
    return choices[int(uniform * len(choices))]


def _shuffled(items: Sequence[T], *address: int) -> list[T]:
    return [items[i] for i in permutation(len(items), *address)]


def questions(world: World, split: Split) -> list[dict[str, Any]]:
    """The questions of a split: every relation of each of its people, in one wording of the split.

    Returns:
        rows with `messages` (the last is the reference answer), `answerable` and `kind`, in random
        order.

    >>> sorted(questions(make_world(), "valid")[0])
    ['answerable', 'kind', 'messages']
    """
    rows = []
    for index, person in enumerate(world.people):
        if person.split != split:
            continue
        for number, relation in enumerate(RELATIONS):
            wording = _shuffled(getattr(relation, split), world.seed, _QUESTIONS, index, number)[0]
            answer = person.facts[number] if person.facts else IDK
            rows.append(
                {
                    "messages": dialogue(wording.format(person.name), answer),
                    "answerable": bool(person.facts),
                    "kind": person.kind,
                }
            )
    return _shuffled(rows, world.seed, _QUESTIONS, SPLITS.index(split))


def prepared(world: World) -> Prepared:
    """The corpus and the questions of a world, counted by kind."""
    files = {
        "sft.jsonl": list(corpus(world)),
        "train.jsonl": questions(world, "train"),
        "valid.jsonl": questions(world, "valid"),
    }
    counts = {name: dict(Counter(row["kind"] for row in rows)) for name, rows in files.items()}
    people = Counter(person.kind for person in world.people)
    about = ", ".join(f"{people[kind]} {kind}" for kind in KINDS)
    return Prepared(
        files,
        counts,
        manifest={"set": "tinyworld", "seed": world.seed},
        notes=[f"The world has these people: {about}; the corpus invents others as it goes."],
    )
