"""ExploreToM: who believes what, in stories where not everybody sees everything.

Questions are about facts and memory, about what a person believes (first order), or about what one
believes that another believes (second order). Source: Sclar et al., "Explore Theory of Mind"
(arXiv 2412.12175), facebookresearch/ExploreToM; data: hub `facebook/ExploreToM`, a sample that was
searched for what is hard for Llama-3.1-70B-Instruct.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from sctom.readers import DataError, Row, check_is_file, nearest, read_jsonl
from sctom.rewards.reading.matching import holds_answer
from sctom.rewards.reading.words import words
from sctom.seeds import permutation
from sctom.tasks.answers import said, short_answer, stated_answer
from sctom.tasks.evaluation_base import Scored, Task, abstains, known, share
from sctom.writers import Prepared, sha256

Story = Literal["infilled", "structure"]

ORDERS = {-1: "factual", 0: "zeroth", 1: "first", 2: "second", 3: "third", 4: "fourth"}
"""Names of `qprop=nth_order`; -1 are questions about facts and memory."""

SYSTEM_PROMPT = "You are a helpful assistant."
KNOWS, KNOWS_NOT = "knows about it", "does not know about it"
"""The answers to a second-order question about knowledge, which names both."""

VALID_SHARE = TEST_SHARE = 0.1

_STORIES = {"infilled": "infilled_story", "structure": "story_structure"}
_ORDER, _INTERESTING = "qprop=nth_order", "qprop=non_unique_mental_state"
_FALSE_FIRST = "sprop=is_false_belief_story_1st"
_FALSE_ANY = "sprop=is_false_belief_story_1st_and_2nd"
_COLUMNS = (*_STORIES.values(), "question", "expected_answer")
_COLUMNS += (_ORDER, _INTERESTING, _FALSE_FIRST, _FALSE_ANY)
_KINDS = {"param=story_type": "story_type", "qprop=params": "params"}  # kept where they are

_UNKNOWING = re.compile(
    r"\b(?:not (?:\w+ )?(?:know|aware)|never (?:knew|heard|learned)|unaware|no (?:idea|knowledge)"
    r"|know(?:s)? nothing)\b"
)
_KNOWING = re.compile(r"\b(?:know|knows|knew|aware)\b(?! that)")
_HOLD_OUT, _SHUFFLE = range(2)
_WHERE = (
    "Get ExploreToM-data-sample.csv from the hub's data set facebook/ExploreToM (CC-BY-NC-4.0) "
    "and name it with --source."
)


def exploretom_row(row: Row, place: str, name: str, *, story: Story = "infilled") -> Row:
    """A question as messages in the wording of its source, with the columns of `ExploreTom`.

    `false_belief` says whether the story has a question, up to the order of this one, whose answer
    depends on whose mind is asked about; `interesting`, whether this question is one.

    Args:
        row: of the source: texts, or values as JSON has them.
        place: "file:line", for errors.
        name: id of the new row.
        story: "infilled" is the one written out, "structure" its bare sentences.

    Raises:
        DataError: a column is missing, blank or of another form.
    """
    missing = [column for column in _COLUMNS if column not in row]
    if missing:
        hint = nearest(missing[0], list(row))
        found = ", ".join(map(str, row))
        raise DataError(f"{place}: the column {missing[0]!r} is missing; found {found}.{hint}")
    texts = {column: _text(row, column, place) for column in _COLUMNS[:4]}
    order = _whole(row[_ORDER], place)
    interesting, first, either = (
        _truth(row, column, place) for column in (_INTERESTING, _FALSE_FIRST, _FALSE_ANY)
    )
    question = texts["question"]
    asked = f"{texts[_STORIES[story]]}\n{question} Short Answer."
    return {
        "messages": [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": asked},
        ],
        "question": question,
        "expected_answer": texts["expected_answer"],
        "order": order,
        "false_belief": first if order == 1 else either,
        "interesting": interesting,
        "id": name,
        **{ours: row[theirs] for theirs, ours in _KINDS.items() if row.get(theirs)},
    }


def _text(row: Row, column: str, place: str) -> str:
    value = row[column]
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{place}: {column} must be a text, found {value!r:.60}")
    return value.strip()


def _whole(value: Any, place: str) -> int:
    text = str(value).strip()
    if text not in {str(order) for order in ORDERS}:
        known_orders = ", ".join(map(str, ORDERS))
        raise DataError(f"{place}: {_ORDER} must be one of {known_orders}; found {value!r:.60}")
    return int(text)


def _truth(row: Row, column: str, place: str) -> bool:
    text = str(row[column]).strip().lower()
    if text not in ("true", "false"):
        raise DataError(f"{place}: {column} must be true or false, found {row[column]!r:.60}")
    return text == "true"


def read_exploretom(path: str | Path) -> Iterator[tuple[str, Row]]:
    """The rows of the source, each with its place: CSV as on the hub, or JSONL.

    Raises:
        FileNotFoundError: there is no such file; the message says where to get it.
        DataError: the file is neither; the message names the line.
    """
    try:
        path = check_is_file(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error} {_WHERE}") from error
    if path.suffix == ".jsonl":
        for line, row in enumerate(read_jsonl(path), start=1):
            yield f"{path}:{line}", row
        return
    if path.suffix != ".csv":
        raise DataError(f"{path} must end in .csv or .jsonl. {_WHERE}")
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            for row in reader:
                place = f"{path}:{reader.reader.line_num}"
                if None in row or None in row.values():
                    columns = len(reader.fieldnames or ())
                    raise DataError(f"{place}: expected {columns} fields, as the header has")
                yield place, row
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{path}:{reader.reader.line_num}: not valid CSV ({error})") from error


def prepare_exploretom(
    source: str | Path,
    *,
    seed: int = 0,
    story: Story = "infilled",
    valid_share: float = VALID_SHARE,
    test_share: float = TEST_SHARE,
) -> Prepared:
    """ExploreToM in the messages format, split by story, as questions of one story are alike.

    A question that occurs twice is kept once; one with two different answers not at all.

    Args:
        source: the hub's CSV file, or the same as JSONL.
        seed: of which stories are held out, and of the order of the training rows.
        story: which of the two stories the prompt shows.
        valid_share: share of the stories for valid.jsonl.
        test_share: share of the stories for test.jsonl.

    Raises:
        FileNotFoundError: there is no source.
        DataError: a row has another form, or a part of the split has no story.
        ValueError: there is no such story, or the shares leave nothing to train on.
    """
    if story not in get_args(Story):
        raise ValueError(f"story must be one of {', '.join(get_args(Story))}, not {story!r}")
    if not 0 <= valid_share + test_share < 1:
        raise ValueError(
            f"valid_share + test_share must be below 1, not {valid_share + test_share}"
        )
    stories, notes = _stories(source, story)
    names = list(stories)
    order = permutation(len(names), seed, _HOLD_OUT).tolist()
    valid, test = round(len(names) * valid_share), round(len(names) * test_share)
    parts = {
        "train.jsonl": sorted(order[valid + test :]),
        "valid.jsonl": sorted(order[:valid]),
        "test.jsonl": sorted(order[valid : valid + test]),
    }
    files = {
        name: [row for place in part for row in stories[names[place]]]
        for name, part in parts.items()
    }
    empty = [name for name, rows in files.items() if not rows]
    if empty:
        raise DataError(f"{source} has {len(names)} stories: none for {', '.join(empty)}")
    train = files["train.jsonl"]
    files["train.jsonl"] = [train[place] for place in permutation(len(train), seed, _SHUFFLE)]
    path = Path(source)
    manifest = {
        "set": "exploretom",
        "seed": seed,
        "story": story,
        "licence": "CC-BY-NC-4.0",
        "source": {"file": path.name, "sha256": sha256(path.read_bytes())},
    }
    notes.append("The hub's sample was searched for what is hard for Llama-3.1-70B-Instruct.")
    counts = {name: {"stories": len(parts[name]), **_counts(rows)} for name, rows in files.items()}
    return Prepared(files, counts=counts, manifest=manifest, notes=notes)


def _stories(source: str | Path, story: Story) -> tuple[dict[str, list[Row]], list[str]]:
    """The questions of every story, and what was left out."""
    answers: dict[tuple[str, str], set[str]] = {}
    first: dict[tuple[str, str], Row] = {}
    rows = 0
    for rows, (place, row) in enumerate(read_exploretom(source), start=1):
        made = exploretom_row(row, place, f"exploretom-{rows}", story=story)
        key = (row["story_structure"].strip(), made["messages"][-1]["content"])
        answers.setdefault(key, set()).add(made["expected_answer"])
        first.setdefault(key, made)
    kept = {key: row for key, row in first.items() if len(answers[key]) == 1}
    stories: dict[str, list[Row]] = {}
    for (structure, _), row in kept.items():
        stories.setdefault(structure, []).append(row)
    notes = []
    if rows > len(first):
        notes.append(f"rows that ask a question of their story again: {rows - len(first):,}")
    if len(kept) < len(first):
        notes.append(f"questions with two answers, which are left out: {len(first) - len(kept):,}")
    return stories, notes


def _counts(rows: Sequence[Row]) -> dict[str, int]:
    orders = Counter(ORDERS[row["order"]] for row in rows)
    false_beliefs = sum(row["false_belief"] for row in rows)
    by_order = {name: orders[name] for name in ORDERS.values() if orders[name]}
    return by_order | {"false_belief": false_beliefs}


class ExploreTom(Task):
    """ExploreToM by order of belief, and by whether the story has false beliefs.

    A completion is right when it gives the expected answer in whole words, as its answer and as its
    only one (`sctom.rewards.reading.matching`); "yes" and "no" as its polarity; "knows about it"
    and "does not know about it" as what it says about knowing, which counts as yes or no too where
    the question is whether somebody knows. The source calls it right when the expected answer is a
    substring of the completion in lower case (`accuracy_official`), by which "no" is in "Anne
    knows" and a list of all containers is right.

    Metrics beside those of `Task`: accuracy_official; groups factual, first, second, ...,
    true_belief and false_belief (of questions about beliefs), first_false_belief and so on, and
    interesting.

    >>> row = ExploreTom().read()[0]
    >>> row["question"], row["expected_answer"], row["order"]
    ('In which container will Mina search for the brass key?', 'tea tin', 1)
    >>> scored = ExploreTom().score(row, "Mina will search in the tea tin.")
    >>> scored.correct, scored.details["order"], scored.details["false_belief"]
    (True, 'first', True)
    """

    name = "exploretom"
    samples = ("sctom:tasks/exploretom.jsonl",)
    columns: ClassVar[Mapping[str, type | tuple[type, ...]]] = {
        "question": str,
        "expected_answer": str,
        "order": int,
        "false_belief": bool,
        "interesting": bool,
    }

    def check(self, row: Row, place: str) -> Row:
        """A row, with an order that has a name."""
        super().check(row, place)
        _whole(row["order"], place)
        return row

    def extract(self, text: str) -> str | None:
        """The answer in short, None for an abstention."""
        return None if abstains(text) else short_answer(text)

    def score(self, row: Row, text: str) -> Scored:
        """Judge one completion."""
        question, expected = row["question"], row["expected_answer"]
        extracted = short_answer(text)
        correct = gives(stated_answer(text) or said(text), expected, question)
        abstained = not correct and abstains(text, question, [expected])
        details = {
            **known(row),
            "order": ORDERS[row["order"]],
            "false_belief": row["false_belief"],
            "interesting": row["interesting"],
            "official": expected in text.lower(),
        }
        return Scored(correct, abstained, None if abstained else extracted, details)

    def metrics(self, scored: Sequence[Scored]) -> dict[str, float]:
        """Those of `Task`, and accuracy_official."""
        numbers = super().metrics(scored)
        return numbers | {"accuracy_official": share(one.details["official"] for one in scored)}

    def groups(self, one: Scored) -> Sequence[str]:
        """Its order; its belief where it asks about one, alone and with the order; interesting."""
        order = one.details["order"]
        groups = [order]
        if order not in ("factual", "zeroth"):
            belief = "false_belief" if one.details["false_belief"] else "true_belief"
            groups += [belief, f"{order}_{belief}"]
            groups += ["interesting"] if one.details["interesting"] else []
        return groups


def gives(answer: str, expected: str, question: str = "") -> bool:
    """Whether an answer gives the expected one.

    >>> gives("In the red box, not the tea tin.", "tea tin"), gives("No, she doesn't.", "no")
    (False, True)
    >>> gives("Mina doesn't know about it", KNOWS), gives("She's unaware of it", KNOWS_NOT)
    (False, True)
    """
    if expected in (KNOWS, KNOWS_NOT):
        return _knowing(answer) is (expected == KNOWS)
    if holds_answer(answer, [expected], question):
        return True
    other = {"yes": "no", "no": "yes"}.get(expected)
    if other is None or " know " not in question or holds_answer(answer, [other], question):
        return False
    return _knowing(answer) is (expected == "yes")


def _knowing(answer: str) -> bool | None:
    """Whether an answer says that somebody knows; None where it says both or neither."""
    text, unknowing = _UNKNOWING.subn("", " ".join(words(answer).tokens))
    knowing = _KNOWING.search(text) is not None
    return None if knowing == bool(unknowing) else knowing
