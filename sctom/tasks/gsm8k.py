"""GSM8K's files to training files: grade-school mathematics with a number as the answer."""

from __future__ import annotations

import re
from pathlib import Path

from sctom.readers import DataError, Row, check_is_file, read_jsonl
from sctom.seeds import permutation
from sctom.writers import Prepared, sha256

SYSTEM_PROMPT = (
    "Solve the problem. Think first, between <think> and </think>. After that give the answer as a "
    "number in \\boxed{}."
)
"""What the rewards read: `think_format_reward` the tags, `accuracy_reward` the box. Our wording."""

VALID_ROWS = 500
"""Of the training file: GSM8K has no validation split of its own."""

_GOLD = re.compile(r"####\s*(-?[\d,]+(?:\.\d+)?)\s*\Z")
_HOLD_OUT, _SHUFFLE = range(2)
_WHERE = (
    "Get grade_school_math/data/{name} from https://github.com/openai/grade-school-math (MIT) "
    "and name its folder with --source."
)
FILES = ("gsm8k_train.jsonl", "gsm8k_test.jsonl")
_OWN_NAMES = {"gsm8k_train.jsonl": "train.jsonl", "gsm8k_test.jsonl": "test.jsonl"}


def gsm8k_row(row: Row, place: str, name: str) -> Row:
    r"""A problem as messages, with its gold number in the column `solution`.

    `answer` is the reference's whole text, `solution` the number behind its "####" without the
    commas that group its digits: math-verify reads "1,200" as two numbers in some places.

    Args:
        row: {"question", "answer"}.
        place: "file:line", for errors.
        name: id of the new row.

    Raises:
        DataError: a text is missing, or the answer does not end in "#### number".

    >>> made = gsm8k_row({"question": "40 * 30?", "answer": "It is\n#### 1,200"}, "x.jsonl:1", "x")
    >>> made["solution"], made["messages"][1]
    ('1200', {'role': 'user', 'content': '40 * 30?'})
    """
    texts = [row.get(key) for key in ("question", "answer")]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise DataError(f"{place} must have the texts question and answer, found {sorted(row)}")
    question, answer = row["question"], row["answer"]
    gold = _GOLD.search(answer)
    if gold is None:
        raise DataError(f"{place}: the answer must end in '#### number', found {answer[-40:]!r}")
    messages = [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": question.strip()},
    ]
    return {
        "messages": messages,
        "solution": gold[1].replace(",", ""),
        "answer": answer,
        "id": name,
    }


def prepare_gsm8k(source: str | Path, *, seed: int = 0, valid_rows: int = VALID_ROWS) -> Prepared:
    """GSM8K's two files in the messages format, with validation rows out of the training file.

    Args:
        source: folder with gsm8k_train.jsonl and gsm8k_test.jsonl, or train.jsonl and test.jsonl as
            the repository names them.
        seed: of which rows are for validation, and of the order of the training rows.
        valid_rows: how many.

    Raises:
        FileNotFoundError: a file is missing.
        DataError: a row has another form, or there are too few.
    """
    paths = [_found(Path(source), name) for name in FILES]
    train, test = (
        [
            gsm8k_row(row, f"{path}:{line}", f"gsm8k-{kind}-{line}")
            for line, row in enumerate(read_jsonl(path), start=1)
        ]
        for path, kind in zip(paths, ("train", "test"), strict=True)
    )
    if len(train) <= valid_rows:
        raise DataError(f"{paths[0]} has {len(train)} rows; {valid_rows} are to be held out")
    order = permutation(len(train), seed, _HOLD_OUT)
    held = sorted(order[:valid_rows].tolist())
    kept = [train[place] for place in sorted(order[valid_rows:].tolist())]
    manifest = {
        "set": "gsm8k",
        "seed": seed,
        "licence": "MIT",
        "sources": [{"file": path.name, "sha256": sha256(path.read_bytes())} for path in paths],
    }
    files = {
        "train.jsonl": [kept[place] for place in permutation(len(kept), seed, _SHUFFLE)],
        "valid.jsonl": [train[place] for place in held],
        "test.jsonl": test,
    }
    note = f"valid.jsonl holds {valid_rows} rows of the training file; test.jsonl is the test file."
    return Prepared(files, counts={name: {} for name in files}, manifest=manifest, notes=[note])


def _found(folder: Path, name: str) -> Path:
    other = folder / _OWN_NAMES[name]
    if other.is_file() and not (folder / name).is_file():
        return other
    try:
        return check_is_file(folder / name)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error} {_WHERE.format(name=_OWN_NAMES[name])}") from error
