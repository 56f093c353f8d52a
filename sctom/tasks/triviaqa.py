"""TriviaQA without documents: what does the model know by heart?

Source: Joshi et al., "TriviaQA" (arXiv 1705.03551), mandarjoshi90/triviaqa; data: its own JSON
files, or the configurations rc.nocontext and unfiltered.nocontext of the hub's
`mandarjoshi/trivia_qa` as JSONL.
"""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from sctom.readers import DataError, Row, check_is_file
from sctom.seeds import permutation
from sctom.tasks.answers import said, short_answer
from sctom.tasks.code import read_packed
from sctom.tasks.evaluation_base import Scored, Task, abstains, asked, judged_of, known, share
from sctom.writers import Prepared, sha256

SYSTEM_PROMPT = (
    "Answer the question with nothing but the name, the date, the number or the few words that it "
    "asks for."
)
"""Our wording; TriviaQA has none, as it comes from the time of models made for one task."""

VALID_ROWS = 500
"""Of the training file."""

_SPACES = dict.fromkeys(map(ord, string.punctuation + "\u2018\u2019\u00b4`"), " ")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_HOLD_OUT, _SHUFFLE = range(2)
_WHERE = (
    "Get unfiltered-web-dev.json from https://nlp.cs.washington.edu/triviaqa, or the hub's data "
    "set mandarjoshi/trivia_qa (unfiltered.nocontext) as JSONL, and name it with --source."
)


def normalise_answer(text: str) -> str:
    """An answer as TriviaQA's own evaluation compares it.

    Lower case; punctuation and underscores become spaces (in SQuAD's evaluation punctuation is
    taken out, so that "U.S." is "us" there and "u s" here); without a, an, the; single spaces.

    >>> normalise_answer("The U.S.A."), normalise_answer("Sunset_Blvd.")
    ('u s', 'sunset blvd')
    """
    spaced = text.lower().translate(_SPACES)
    return " ".join(_ARTICLES.sub(" ", spaced).split())


def f1(answer: str, alias: str) -> float:
    """The F1 of the words of two normalised answers, each word as often as it is there.

    >>> f1("west sunset boulevard", "sunset boulevard")  # 2 of 3, 2 of 2: 2 * 2 / (3 + 2)
    0.8
    """
    answer_words, alias_words = answer.split(), alias.split()
    common = sum((Counter(answer_words) & Counter(alias_words)).values())
    return 2 * common / (len(answer_words) + len(alias_words)) if common else 0.0


def triviaqa_row(row: Row, place: str) -> Row:
    """A question as messages, with the columns of `TriviaQa`.

    `aliases` are the normalised forms of all accepted answers. One that is nothing but articles and
    punctuation is left out, as an empty answer would match it.

    Args:
        row: of the hub ("question", "question_id", "answer") or of the source's own files
            ("Question", "QuestionId", "Answer").
        place: where it is from, for errors.

    Raises:
        DataError: the row has another form, or no answer, as in the test set.
    """
    own = "Question" in row
    names = ("Question", "QuestionId", "Answer") if own else ("question", "question_id", "answer")
    for column, kind in zip(names, (str, str, dict), strict=True):
        if not isinstance(row.get(column), kind):
            found = f"{column}={row[column]!r:.60}" if column in row else f"the keys {sorted(row)}"
            raise DataError(f"{place} must have {column}, a {kind.__name__}; found {found}")
    question, number, answer = (row[name] for name in names)
    keys = ("Value", "Aliases", "NormalizedAliases", "HumanAnswers")
    if not own:
        keys = ("value", "aliases", "normalized_aliases", "human_answers")
    value = answer.get(keys[0])
    lists = [answer.get(key) or [] for key in keys[1:]]
    texts = [value, *(text for texts in lists for text in texts)]
    if not isinstance(value, str) or not all(isinstance(text, str) for text in texts):
        raise DataError(f"{place}: the answer must have {keys[0]}, a text, and lists of texts")
    if not any(lists):
        hint = "the test set has none; take the training or the validation set"
        raise DataError(f"{place}: the answer has no aliases; {hint}")
    return {
        "messages": [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": question.strip()},
        ],
        "answer": value.strip(),
        "aliases": [text for text in dict.fromkeys(map(normalise_answer, texts)) if text],
        "id": f"triviaqa-{number}",
    }


def read_triviaqa(path: str | Path) -> Iterator[tuple[str, Row]]:
    """The rows of the source, each with its place: JSON as its own files are, or JSONL.

    Raises:
        FileNotFoundError: there is no such file; the message says where to get it.
        DataError: it has another form.
    """
    try:
        path = check_is_file(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error} {_WHERE}") from error
    if path.suffix != ".json":
        yield from ((f"{path}:{line}", row) for line, row in enumerate(read_packed(path), start=1))
        return
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path} is not valid JSON ({error}). {_WHERE}") from error
    rows = content.get("Data") if isinstance(content, dict) else None
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        found = f"the keys {sorted(content)}" if isinstance(content, dict) else "no object"
        raise DataError(f'{path} must hold a list "Data" of objects but has {found}. {_WHERE}')
    yield from ((f"{path}: Data[{index}]", row) for index, row in enumerate(rows))


def prepare_triviaqa(
    source: str | Path,
    *,
    train: str | Path | None = None,
    seed: int = 0,
    valid_rows: int = VALID_ROWS,
) -> Prepared:
    """TriviaQA in the messages format.

    Args:
        source: the validation set, which becomes test.jsonl: the answers of the test set are not
            public.
        train: the training set, which becomes train.jsonl and valid.jsonl; or None.
        seed: of which rows are for validation, and of the order of the training rows.
        valid_rows: how many.

    Raises:
        FileNotFoundError: a file is missing.
        DataError: a row has another form, two have one id, or there are too few.
    """
    paths = [Path(source), *([Path(train)] if train is not None else [])]
    read = [_rows(path) for path in paths]
    files = {"test.jsonl": read[0][0]}
    notes = [note for _, notes in read for note in notes]
    if train is not None:
        rows, tested = read[1][0], {asked(row) for row in files["test.jsonl"]}
        kept = [row for row in rows if asked(row) not in tested]
        if len(kept) < len(rows):
            shared = len(rows) - len(kept)
            notes.append(f"questions of {train} left out, as test.jsonl has them: {shared:,}")
        if len(kept) <= valid_rows:
            raise DataError(f"{train} has {len(kept)} rows; {valid_rows} are to be held out")
        order = permutation(len(kept), seed, _HOLD_OUT)
        learnt = [kept[place] for place in sorted(order[valid_rows:].tolist())]
        files = {
            "train.jsonl": [learnt[place] for place in permutation(len(learnt), seed, _SHUFFLE)],
            "valid.jsonl": [kept[place] for place in sorted(order[:valid_rows].tolist())],
            **files,
        }
    notes.append("test.jsonl is the validation set: the answers of the test set are not public.")
    manifest = {
        "set": "triviaqa",
        "seed": seed,
        "licence": "see the source: the questions belong to the trivia sites they are from",
        "sources": [{"file": path.name, "sha256": sha256(path.read_bytes())} for path in paths],
    }
    counts = {
        name: {"aliases": sum(len(row["aliases"]) for row in rows)} for name, rows in files.items()
    }
    return Prepared(files, counts=counts, manifest=manifest, notes=notes)


def _rows(path: Path) -> tuple[list[Row], list[str]]:
    """The rows of a file that can be answered, and a note about the others."""
    rows: dict[str, Row] = {}
    for place, row in read_triviaqa(path):
        made = triviaqa_row(row, place)
        if made["id"] in rows:
            raise DataError(f"{place}: the question_id {made['id'][9:]} is there twice")
        rows[made["id"]] = made
    kept = [row for row in rows.values() if row["aliases"]]
    if not kept:
        raise DataError(f"{path} has no question whose answer is more than an article")
    lost = len(rows) - len(kept)
    note = f"rows of {path} left out, as their answer is nothing but an article: {lost}"
    return kept, [note] if lost else []


class TriviaQa(Task):
    """TriviaQA: the answer against all aliases.

    A completion is right when its short answer, normalised, equals an alias: the exact match of the
    official evaluation, which compares the whole completion instead (`exact_match_official`).
    Chatty models say the answer in a sentence, which neither sees; `contains` is the share of the
    completions that have an alias somewhere in whole words. It rises with length, so look at both.

    Metrics beside those of `Task`, whose accuracy is the exact match: exact_match_official,
    contains, and f1, that of the words of the short answer with the best alias (0 where the
    completion abstains).

    >>> row = {"aliases": ["nile", "river nile"], "messages": [{"role": "user", "content": "?"}]}
    >>> scores = [TriviaQa().score(row, text) for text in ("The Nile.", "It flows as the Nile.")]
    >>> [(one.correct, one.details["contains"]) for one in scores]
    [(True, True), (False, True)]
    """

    name = "triviaqa"
    samples = ("sctom:tasks/triviaqa.jsonl",)
    columns: ClassVar[Mapping[str, type | tuple[type, ...]]] = {"aliases": list}

    def check(self, row: Row, place: str) -> Row:
        """A row, with at least one alias, all normalised."""
        super().check(row, place)
        aliases: list[Any] = row["aliases"]
        if not aliases:
            raise DataError(f"{place}: aliases is empty, so no completion could be right")
        for alias in aliases:
            if not isinstance(alias, str) or not alias or normalise_answer(alias) != alias:
                hint = "expected texts as `sctom.prepare triviaqa` writes them"
                raise DataError(f"{place}: aliases holds {alias!r:.60}; {hint}")
        return row

    def extract(self, text: str) -> str | None:
        """The answer in short, None for an abstention."""
        return None if abstains(text) else short_answer(text)

    def score(self, row: Row, text: str) -> Scored:
        """Judge one completion."""
        aliases = row["aliases"]
        extracted = short_answer(text)
        answer = normalise_answer(extracted or "")
        correct = answer in aliases
        abstained = not correct and abstains(text, asked(row), aliases)
        whole = f" {normalise_answer(said(text))} "
        details = {
            **known(row),
            "official": normalise_answer(text) in aliases,
            "contains": any(f" {alias} " in whole for alias in aliases),
            "f1": 0.0 if abstained else max(f1(answer, alias) for alias in aliases),
        }
        return Scored(correct, abstained, None if abstained else extracted, details)

    def metrics(self, scored: Sequence[Scored]) -> dict[str, float]:
        """Those of `Task`, and exact_match_official, contains and f1."""
        details = [one.details for one in judged_of(scored)]
        return super().metrics(scored) | {
            "exact_match_official": share(one["official"] for one in details),
            "contains": share(one["contains"] for one in details),
            "f1": sum(one["f1"] for one in details) / len(details),
        }
