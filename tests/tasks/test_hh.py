from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path

import pytest

from sctom.preferences import pair_of
from sctom.readers import DataError
from sctom.tasks.hh import REASONS, prepare_hh, turns

DATA = Path(os.environ.get("SCTOM_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))
SPLITS = ("train.jsonl", "valid.jsonl", "test.jsonl")
HARMLESS = DATA / "hh_harmless_base_train.jsonl.gz"
needs_data = pytest.mark.skipif(
    not HARMLESS.is_file(), reason=f"no {HARMLESS.name} in the folder named by SCTOM_DATA"
)


def said(*texts):
    """A dialogue of which the person says the first text and the assistant the next."""
    names = [("Human", "Assistant")[place % 2] for place in range(len(texts))]
    return "".join(f"\n\n{name}: {text}" for name, text in zip(names, texts, strict=True))


def row(prompt, chosen="Yes.", rejected="No."):
    return {"chosen": said(*prompt, chosen), "rejected": said(*prompt, rejected)}


GOOD = [row([f"Is {n} prime?"]) for n in range(18)] + [
    row(["Is 3 prime?", "Yes.", f"Why? {n}"]) for n in range(2)
]
BAD = {
    "diverging": {"chosen": said("Hi", "A"), "rejected": said("Ho", "B")},
    "out_of_turn": {key: "\n\nHuman: Hi\n\nHuman: " + key for key in ("chosen", "rejected")},
    "empty": {"chosen": said("Hi", "A"), "rejected": "\n\nHuman: Hi\n\nAssistant:"},
    "identical": row(["Hi"], "Same. ", "Same."),
    "repeated": GOOD[0],
}


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.fixture
def source(tmp_path):
    return write(tmp_path / "harmless-base" / "train.jsonl.gz", [*GOOD, *BAD.values()])


def test_turns_keep_marks_that_are_no_turns():
    text = "\n\nHuman: Say\nHuman: hello\n\nAssistant:hello\n\nHumans: all"
    expected = [("user", "Say\nHuman: hello"), ("assistant", "hello\n\nHumans: all")]
    assert [(turn["role"], turn["content"]) for turn in turns(text, "x:1")] == expected


@pytest.mark.parametrize("text", ["", "Human: Hi", "Hi\n\nAssistant: Hello"])
def test_a_text_without_marks_is_an_error(text):
    with pytest.raises(DataError, match=r"x:1: expected a dialogue with"):
        turns(text, "x:1")


def test_rows_that_are_no_pair_are_dropped_by_name(source):
    prepared = prepare_hh([source])
    assert tuple(BAD) == REASONS
    lines = [(row["reason"], row["line"]) for row in prepared.files["dropped.jsonl"]]
    assert lines == [(reason, 21 + place) for place, reason in enumerate(REASONS)]
    assert prepared.manifest["dropped"] == dict.fromkeys(REASONS, 1)
    assert prepared.notes[0].startswith("5 of 25 rows are no pair (1 diverging, 1 out_of_turn")


def test_pairs_are_read_as_preferences(source):
    files = prepare_hh([source]).files
    rows = [row for name in SPLITS for row in files[name]]
    pairs = {pair.columns["pair_id"]: pair for pair in (pair_of(row, "x:1") for row in rows)}
    assert len(pairs) == 20
    last = pairs["hh-harmless-base-train-20"]
    assert [turn["role"] for turn in last.prompt] == ["user", "assistant", "user"]
    assert (last.prompt[-1]["content"], last.chosen, last.rejected) == ("Why? 1", "Yes.", "No.")
    assert all(pair.is_safety and pair.source == "harmless-base" for pair in pairs.values())


def test_prompts_to_sample_from(source):
    files = prepare_hh([source]).files
    prompts = files["prompts.jsonl"]
    asked = [str(row["messages"]) for row in prompts]
    assert set(asked) == {str(row["prompt"]) for row in files["train.jsonl"]}
    assert len(asked) == len(set(asked)) and prompts[0]["is_safety"] is True


def test_conversations_stay_together_by_seed(source):
    made = [prepare_hh([source], seed=seed).files for seed in range(8)]
    assert made[0] == prepare_hh([source], seed=0).files != made[1]
    for files in made:
        openings = [{row["prompt"][0]["content"] for row in files[name]} for name in SPLITS]
        assert sum(map(len, openings)) == len(set.union(*openings)) == 18
        # 20 pairs, 18 conversations, one of them of three pairs
        assert 2 <= len(files["valid.jsonl"]) <= 4 <= len(files["test.jsonl"]) <= 6


def test_several_files_and_what_their_names_say(tmp_path):
    paths = [
        write(tmp_path / "helpful-base" / "train.jsonl", GOOD[:6]),
        write(tmp_path / "mine.jsonl", GOOD[4:10]),
    ]
    prepared = prepare_hh(paths, valid_share=0.2)
    rows = [row for name in SPLITS for row in prepared.files[name]]
    assert sorted(row["pair_id"] for row in rows)[5:7] == [
        "hh-helpful-base-train-6",
        "hh-mine-mine-3",
    ]
    assert {(row["source"], row.get("is_safety")) for row in rows} == {
        ("helpful-base", False),
        ("mine", None),
    }
    assert [row["reason"] for row in prepared.files["dropped.jsonl"]] == ["repeated"] * 2
    assert prepared.notes[1:] == [
        "helpful-base: is_safety is false, by the name",
        "mine: has no is_safety, by the name",
    ]


def test_what_cannot_be_prepared_is_refused(tmp_path, source):
    with pytest.raises(FileNotFoundError, match="anthropics/hh-rlhf"):
        prepare_hh([tmp_path / "no.jsonl"])
    red = write(tmp_path / "red.jsonl", [{"transcript": "\n\nHuman: Hi"}])
    with pytest.raises(DataError, match=re.escape(f"{red}:1 must have the texts chosen and")):
        prepare_hh([red])
    with pytest.raises(DataError, match=r"2 pairs are too few: nothing is left for valid\.jsonl"):
        prepare_hh([write(tmp_path / "two.jsonl", GOOD[:2])])
    with pytest.raises(DataError, match=r"below 1 together: 0\.5 and 0\.5"):
        prepare_hh([source], valid_share=0.5, test_share=0.5)


@needs_data
def test_the_real_file():
    prepared = prepare_hh([HARMLESS])
    names = (*SPLITS, "dropped.jsonl")
    assert sum(len(prepared.files[name]) for name in names) == 2000
    assert prepared.manifest["dropped"] == {
        "diverging": 4,
        "out_of_turn": 4,
        "empty": 4,
        "identical": 0,
        "repeated": 0,
    }
    for name in names[:3]:
        assert all(pair_of(row, "x:1").is_safety for row in prepared.files[name])
    prompts = [{str(row["prompt"]) for row in prepared.files[name]} for name in names[:3]]
    assert sum(map(len, prompts)) == len(set.union(*prompts))
