"""MBPP's and HumanEval's files to training files: Python programs with tests."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sctom.readers import DataError, Row, check_is_file, read_jsonl
from sctom.rewards.code_tests import CannotJudge, mbpp_tests
from sctom.seeds import permutation
from sctom.writers import Prepared, sha256

SHOWN_TESTS = 1
"""Tests of MBPP that the prompt shows: one, for the name of the function and what it is given. The
paper's prompts show all three, so that a program which only tells them apart passes."""

ASK = "Answer with one ```python block that holds all of the program."

_SPLITS = {"test.jsonl": (11, 510), "valid.jsonl": (511, 600), "train.jsonl": (601, 974)}
"""The paper's split by task_id (arXiv 2108.07732); 1 to 10 are for few-shot prompts."""

_MBPP = "Get mbpp/mbpp.jsonl from https://github.com/google-research/google-research (CC-BY-4.0)"
_HUMANEVAL = "Get data/HumanEval.jsonl.gz from https://github.com/openai/human-eval (MIT)"


def mbpp_row(row: Row, place: str, *, shown_tests: int = SHOWN_TESTS) -> Row:
    r"""A problem of MBPP as messages, with the columns of `CodeReward`.

    The prompt is the task, "Your code should pass such tests:" with the first tests, and `ASK`.

    Args:
        row: task_id, text, code, test_list, test_setup_code.
        place: "file:line", for errors.
        shown_tests: tests that the prompt shows.

    Raises:
        DataError: the row has another form.

    >>> row = mbpp_row({"task_id": 602, "text": "Add two numbers.", "code": "def add(a, b): ...",
    ...     "test_list": ["assert add(1, 2) == 3"], "test_setup_code": ""}, "mbpp.jsonl:1")
    >>> row["messages"][0]["content"].split("\n")[:3]
    ['Add two numbers.', '', 'Your code should pass such tests:']
    """
    _check(row, place, {"text": str, "code": str, "test_list": list, "test_setup_code": str})
    number = _task_number(row, place)
    tests = row["test_list"]
    if not tests or not all(isinstance(test, str) for test in tests):
        raise DataError(f"{place}: test_list must be a list of texts, found {tests!r:.60}")
    tests = [_lines(test) for test in tests]
    shown = "\n".join(tests[:shown_tests])
    said = f"\n\nYour code should pass such tests:\n\n```python\n{shown}\n```" if shown else ""
    return {
        "messages": [{"role": "user", "content": f"{row['text'].strip()}{said}\n\n{ASK}"}],
        "test_list": tests,
        "test_setup_code": _lines(row["test_setup_code"]),
        "reference": _lines(row["code"]),
        "id": f"mbpp-{number}",
    }


def humaneval_row(row: Row, place: str) -> Row:
    """A problem of HumanEval as messages, with the columns of `CodeReward`.

    The prompt is "Complete this function:" with the problem's own prompt in a block, and `ASK`.

    Args:
        row: task_id, prompt, entry_point, canonical_solution, test.
        place: "file:line", for errors.

    Raises:
        DataError: the row has another form.
    """
    names = ("prompt", "entry_point", "canonical_solution", "test")
    _check(row, place, dict.fromkeys(names, str))
    number = _task_number(row, place)
    asked = f"Complete this function:\n\n```python\n{row['prompt'].strip()}\n```\n\n{ASK}"
    return {
        "messages": [{"role": "user", "content": asked}],
        "prompt": row["prompt"],
        "test": row["test"],
        "entry_point": row["entry_point"],
        "reference": row["canonical_solution"],
        "id": f"humaneval-{number}",
    }


def prepare_mbpp(source: str | Path, *, seed: int = 0, shown_tests: int = SHOWN_TESTS) -> Prepared:
    """MBPP in the split of its paper.

    Args:
        source: mbpp.jsonl.
        seed: of the order of the training rows.
        shown_tests: see `mbpp_row`.

    Raises:
        FileNotFoundError: there is no source.
        DataError: a row has another form, two have one number, or a part of the split has none.
    """
    path = _source(source, _MBPP)
    rows: dict[int, Row] = {}
    for line, row in enumerate(read_jsonl(path), start=1):
        number = _task_number(row, f"{path}:{line}")
        if number in rows:
            raise DataError(f"{path}:{line}: the task_id {number} is there twice")
        rows[number] = mbpp_row(row, f"{path}:{line}", shown_tests=shown_tests)
    files = {
        name: [rows[number] for number in sorted(rows) if first <= number <= last]
        for name, (first, last) in _SPLITS.items()
    }
    empty = [name for name, kept in files.items() if not kept]
    if empty:
        ranges = ", ".join(f"{name} {a} to {b}" for name, (a, b) in _SPLITS.items())
        raise DataError(f"{path} has no rows for {', '.join(empty)}; by task_id: {ranges}")
    train = files["train.jsonl"]
    files["train.jsonl"] = [train[place] for place in permutation(len(train), seed, 0)]
    refused = {name: _refused(kept) for name, kept in files.items()}
    notes = [f"The prompts show {shown_tests} of each problem's tests."]
    notes += [
        f"{name}: CodeReward does not judge {row}: {why}"
        for name, whys in refused.items()
        for row, why in whys.items()
    ]
    return Prepared(
        {name: files[name] for name in reversed(files)},
        counts={name: {"not_judged": len(refused[name])} for name in reversed(files)},
        manifest=_manifest("mbpp", path, "CC-BY-4.0", seed) | {"shown_tests": shown_tests},
        notes=notes,
    )


def _refused(rows: Sequence[Row]) -> dict[str, str]:
    """The rows whose tests the reward refuses, and why."""
    refused = {}
    for row in rows:
        try:
            mbpp_tests(row["test_list"], row["test_setup_code"])
        except CannotJudge as error:
            refused[row["id"]] = str(error)
    return refused


def prepare_humaneval(source: str | Path, *, seed: int = 0) -> Prepared:
    """HumanEval as test.jsonl: it is for evaluation only.

    Args:
        source: HumanEval.jsonl.gz, or unpacked.
        seed: for the manifest; nothing is drawn.

    Raises:
        FileNotFoundError: there is no source.
        DataError: a row has another form.
    """
    path = _source(source, _HUMANEVAL)
    rows = [
        humaneval_row(row, f"{path}:{line}") for line, row in enumerate(read_packed(path), start=1)
    ]
    notes = ["HumanEval is for evaluation: there is no train.jsonl."]
    manifest = _manifest("humaneval", path, "MIT", seed)
    return Prepared({"test.jsonl": rows}, counts={"test.jsonl": {}}, manifest=manifest, notes=notes)


def read_packed(path: Path) -> list[Row]:
    """The rows of a JSONL file that may be packed with gzip.

    Raises:
        DataError: it is not valid.
    """
    if path.suffix != ".gz":
        return read_jsonl(path)
    with tempfile.TemporaryDirectory() as folder:
        unpacked = Path(folder) / path.stem
        try:
            unpacked.write_bytes(gzip.decompress(path.read_bytes()))
        except (OSError, EOFError) as error:
            raise DataError(f"{path} is not packed with gzip ({error})") from error
        return read_jsonl(unpacked)


def _source(source: str | Path, where: str) -> Path:
    try:
        return check_is_file(source)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error} {where} and name it with --source.") from error


def _manifest(name: str, path: Path, licence: str, seed: int) -> dict[str, Any]:
    source = {"file": path.name, "sha256": sha256(path.read_bytes())}
    return {"set": name, "seed": seed, "licence": licence, "source": source}


def _check(row: Row, place: str, kinds: dict[str, type]) -> None:
    for name, kind in kinds.items():
        if not isinstance(row.get(name), kind):
            found = f"{name}={row[name]!r:.60}" if name in row else f"the keys {sorted(row)}"
            raise DataError(f"{place} must have {name}, a {kind.__name__}; found {found}")


def _task_number(row: Row, place: str) -> int:
    """The number of a task: 601 of 601, "601" and "mbpp/601"."""
    number = str(row.get("task_id", "")).rpartition("/")[2]
    if not number.isdecimal():
        raise DataError(f"{place}: task_id must be a number, found {row.get('task_id')!r:.60}")
    return int(number)


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n")
