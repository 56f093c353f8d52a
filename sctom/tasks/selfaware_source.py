"""SelfAware.json to SC-TOM's training files, in its three variants."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from sctom.readers import DataError, Row, check_is_file
from sctom.seeds import permutation
from sctom.tasks.selfaware import label_leaks, prompt_row
from sctom.writers import Prepared, sha256

Variant = Literal["original", "v2", "v3"]

SYSTEM_PROMPT = "You are a helpful assistant. Read the following carefully and provide your answer."

IDK_SENTENCE = "I don't know the answer to that question."
"""The reference answer of unanswerable questions, except in the training rows of v3."""

MATCHED_WORDINGS = (
    "I don't know.",
    "I do not know the answer to this one.",
    "I cannot say, because nobody can.",
    "I can't answer that with any confidence.",
    "I'm not able to tell.",
    "I am unable to answer this question.",
    "I'm uncertain, so I would rather not guess.",
    "I'm unsure about that.",
    "There is no definitive answer to this question.",
    "That is beyond my knowledge.",
)
"""Half of v3's wordings: each matches one of the 19 patterns of the reward."""

UNMATCHED_WORDINGS = (
    "The answer is unknown.",
    "Nobody can say for certain.",
    "It is impossible to tell.",
    "I have no idea.",
    "We simply do not know.",
    "This has never been established.",
    "There is not enough information to answer that.",
    "No one has found out yet.",
    "That question has no known answer.",
    "Any answer would be a guess.",
)
"""The other half: abstentions that none of the 19 patterns matches."""

_MATCHED_SHARE = 58 / 110
"""Of v3's abstentions, those in a wording that matches."""

_ANSWERABLE_PER_IDK = 19
"""v2 and v3 keep one unanswerable question for 19 answerable ones: 5%, 110 for 2,088."""

_QUESTIONS = {"answerable": 2337, "unanswerable": 1032}
_HELD_OUT = {"answerable": 249, "unanswerable": 88}
_HELD_OUT_SHARE = 0.1

_HOLD_OUT, _THIN, _SHUFFLE = range(3)
"""What a draw is for: the second part of its address, after the seed."""

_WHERE = (
    "Get data/SelfAware.json from https://github.com/yinzhangyue/SelfAware (CC-BY-SA-4.0) "
    "and name it with --source."
)


def read_selfaware(path: str | Path) -> list[Row]:
    """The questions of SelfAware.json, checked.

    Raises:
        FileNotFoundError: there is no such file; the message says where to get it.
        DataError: the file has another form, or two questions have one id.
    """
    try:
        path = check_is_file(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error} {_WHERE}") from error
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path} is not valid JSON ({error}). {_WHERE}") from error
    questions = content.get("example") if isinstance(content, dict) else None
    if not isinstance(questions, list) or not questions:
        found = f"the keys {sorted(content)}" if isinstance(content, dict) else "no object"
        raise DataError(f'{path} must hold a list "example" but has {found}. {_WHERE}')
    for index, question in enumerate(questions):
        _check_question(question, f"{path}: example[{index}]")
    number, times = Counter(question["question_id"] for question in questions).most_common(1)[0]
    if times > 1:
        raise DataError(f"{path}: {times} questions have the question_id {number}; expected one")
    return questions


def _check_question(question: Any, place: str) -> None:
    expected = {"question_id": int, "question": str, "answerable": bool, "source": str}
    keys = {*expected, "answer"}
    if not isinstance(question, dict) or not keys <= set(question):
        found = sorted(question) if isinstance(question, dict) else type(question).__name__
        raise DataError(f"{place} must have the keys {sorted(keys)}, found {found}")
    for key, kind in expected.items():
        if not isinstance(question[key], kind):
            raise DataError(f"{place}: {key} must be {kind.__name__}, found {question[key]!r:.60}")
    answers = question["answer"]
    if not question["answerable"]:
        if answers is not None:
            hint = "expected null, because the question is unanswerable"
            raise DataError(f"{place}: answer is {answers!r:.60}; {hint}")
    elif not _are_answers(answers):
        hint = "expected a list of answers, none of them blank"
        raise DataError(f"{place}: answer is {answers!r:.60}; {hint}")


def _are_answers(answers: Any) -> bool:
    if not isinstance(answers, list) or not answers:
        return False
    return all(isinstance(text, str) and text.strip() for text in answers)


def prepare_selfaware(
    source: str | Path, *, variant: Variant, seed: int = 0, allow_other_counts: bool = False
) -> Prepared:
    """SelfAware in one of SC-TOM's three variants.

    original: 3,032 training rows, 944 of them unanswerable. v2: all 2,088 answerable ones and 110
    unanswerable. v3: the rows of v2 with the 110 abstentions in 20 wordings, so that 58 match the
    reward's patterns and 52 do not. Held out are 249 answerable and 88 unanswerable questions, the
    same in all variants, and valid and test are both these. The counts are SC-TOM's; which
    questions, and which wordings, it does not publish: those are ours.

    Args:
        source: SelfAware.json.
        variant: "original", "v2" or "v3".
        seed: of which questions are held out and kept, and of the order of the rows.
        allow_other_counts: go on when the file has other numbers of questions, holding out 10% of
            each class.

    Raises:
        FileNotFoundError: there is no source.
        DataError: the source has another form or other counts, or too few questions.
        ValueError: there is no such variant.
    """
    if variant not in get_args(Variant):
        raise ValueError(f"variant must be one of {', '.join(get_args(Variant))}, not {variant!r}")
    questions = read_selfaware(source)
    held_counts = _held_out_counts(questions, source, allow_other_counts)
    repeated = _repeated_questions(questions)
    train, held_out = _split(questions, held_counts, repeated, seed)
    if variant != "original":
        train = _thin(train, seed)
    train = [train[place] for place in permutation(len(train), seed, _SHUFFLE, 0)]
    held_out = [held_out[place] for place in permutation(len(held_out), seed, _SHUFFLE, 1)]
    answers = [_first_answer(question) for question in train]
    if variant == "v3":
        _reword(answers, train)
    held_rows = [_row(question, _first_answer(question)) for question in held_out]
    files = {
        "train.jsonl": [_row(*pair) for pair in zip(train, answers, strict=True)],
        "valid.jsonl": held_rows,
        "test.jsonl": held_rows,
    }
    prompts = {
        name: [prompt_row(row, f"{name}:{line}") for line, row in enumerate(rows, start=1)]
        for name, rows in files.items()
    }
    leaks = [leak for name, rows in prompts.items() for leak in _leaks(name, rows)]
    manifest = {
        "set": "selfaware",
        "variant": variant,
        "seed": seed,
        "licence": "CC-BY-SA-4.0",
        "source": {"file": Path(source).name, "sha256": sha256(Path(source).read_bytes())},
        "repeated_questions": sorted(question["question_id"] for question in repeated),
    }
    return Prepared(
        files={**files, "label_leaks.jsonl": leaks},
        counts={name: _counts(rows) for name, rows in prompts.items()},
        manifest=manifest,
        notes=_notes(prompts, leaks, repeated),
    )


def _held_out_counts(
    questions: Sequence[Row], source: str | Path, allow_other_counts: bool
) -> dict[str, int]:
    answerable = sum(question["answerable"] for question in questions)
    found = {"answerable": answerable, "unanswerable": len(questions) - answerable}
    if found == _QUESTIONS:
        return _HELD_OUT
    if not allow_other_counts:
        hint = "pass --allow-other-counts to hold out 10% of each class instead"
        raise DataError(f"{source} holds {_words(found)}; expected {_words(_QUESTIONS)}; {hint}")
    return {name: round(count * _HELD_OUT_SHARE) for name, count in found.items()}


def _words(counts: dict[str, int]) -> str:
    return " and ".join(f"{count:,} {name}" for name, count in counts.items()) + " questions"


def question_key(text: str) -> str:
    """A question without case, spaces and punctuation: two with the same key are the same question.

    >>> question_key("In space ?") == question_key("in Space?")
    True
    """
    return "".join(character for character in text.casefold() if character.isalnum())


def _repeated_questions(questions: Sequence[Row]) -> list[Row]:
    counts = Counter(question_key(question["question"]) for question in questions)
    return [question for question in questions if counts[question_key(question["question"])] > 1]


def _split(
    questions: Sequence[Row], held_counts: dict[str, int], repeated: Sequence[Row], seed: int
) -> tuple[list[Row], list[Row]]:
    """Training and held-out questions. A question that occurs twice is never held out."""
    stay = {question["question_id"] for question in repeated}
    held: set[int] = set()
    for index, (name, count) in enumerate(held_counts.items()):
        candidates = [
            question["question_id"]
            for question in questions
            if question["answerable"] == (name == "answerable")
            and question["question_id"] not in stay
        ]
        order = permutation(len(candidates), seed, _HOLD_OUT, index)
        held.update(candidates[place] for place in order[:count])
    held_out = [question for question in questions if question["question_id"] in held]
    train = [question for question in questions if question["question_id"] not in held]
    if not held_out:
        counts = _words(held_counts)
        raise DataError(
            f"10% of these {len(questions)} questions are {counts} to hold out; add some"
        )
    return train, held_out


def _thin(train: Sequence[Row], seed: int) -> list[Row]:
    """All answerable questions, and one unanswerable for 19 of them."""
    unanswerable = [question for question in train if not question["answerable"]]
    count = round((len(train) - len(unanswerable)) / _ANSWERABLE_PER_IDK)
    if count > len(unanswerable):
        found = f"{len(unanswerable)} are left after the held-out ones"
        raise DataError(f"v2 and v3 train on {count} unanswerable questions, but {found}")
    order = permutation(len(unanswerable), seed, _THIN)
    kept = {unanswerable[place]["question_id"] for place in order[:count]}
    return [q for q in train if q["answerable"] or q["question_id"] in kept]


def _first_answer(question: Row) -> str:
    return question["answer"][0] if question["answerable"] else IDK_SENTENCE


def _reword(answers: list[str], questions: Sequence[Row]) -> None:
    """Give v3's abstentions their wordings, in turn, in place.

    The questions are in random order already, so the first 58 of 110 may take the matched ones.
    """
    places = [place for place, question in enumerate(questions) if not question["answerable"]]
    matched = round(len(places) * _MATCHED_SHARE)
    for turn, place in enumerate(places):
        wordings = MATCHED_WORDINGS if turn < matched else UNMATCHED_WORDINGS
        answers[place] = wordings[turn % len(wordings)]


def _row(question: Row, answer: str) -> Row:
    return {
        "messages": [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": question["question"]},
            {"role": "assistant", "content": answer},
        ],
        "answerable": question["answerable"],
        "answers": question["answer"] or [],
        "id": f"selfaware-{question['question_id']}",
        "source": question["source"],
    }


def _counts(prompts: Sequence[Row]) -> dict[str, int]:
    answerable = sum(row["answerable"] for row in prompts)
    return {
        "answerable": answerable,
        "unanswerable": len(prompts) - answerable,
        "idk_by_pattern": sum(row["is_unanswerable"] for row in prompts),
        "label_leaks": len(label_leaks(prompts)),
    }


def _leaks(name: str, prompts: Sequence[Row]) -> list[Row]:
    """The rows of a file whose two labels disagree, with their lines."""
    columns = ("line", "id", "expected_answer", "answerable", "is_unanswerable")
    numbered = [{**row, "line": line} for line, row in enumerate(prompts, start=1)]
    return [{"file": name, **{key: leak[key] for key in columns}} for leak in label_leaks(numbered)]


def _notes(
    prompts: dict[str, list[Row]], leaks: Sequence[Row], repeated: Sequence[Row]
) -> list[str]:
    train = prompts["train.jsonl"]
    idk = sum(row["is_unanswerable"] for row in train)
    notes = [
        f"valid.jsonl and test.jsonl hold the same {len(prompts['test.jsonl'])} rows, as in "
        "SC-TOM: a checkpoint chosen on valid has been chosen on test.",
        f"{idk:,} of {len(train):,} training rows ({idk / len(train):.1%}) are unanswerable to the "
        "reward, which goes by the wording of the reference answer.",
    ]
    if leaks:
        notes.append(
            f"{len(leaks)} rows are labelled one way and worded the other (label_leaks.jsonl): on "
            "these the reward asks for that very sentence, and any other abstention costs."
        )
    if repeated:
        texts = {question_key(question["question"]): question["question"] for question in repeated}
        notes.append(
            f"{len(repeated)} rows of the source share their question with another; they are all "
            f"kept out of valid and test: {' '.join(texts.values())}"
        )
    return notes
