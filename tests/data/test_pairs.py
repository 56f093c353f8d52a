import json
from itertools import chain

import pytest

from sctom.data.pairs import PairBatch, PreferenceData, TokenPair, pair_loader
from sctom.modules.backbone import Backbone
from sctom.preferences import GRADES
from sctom.readers import DataError

ASK = {"role": "user", "content": "Where does Kalomi live?"}
ROW = {"prompt": [ASK], "chosen": "Berlin", "rejected": "I don't know."}

# Pair i has i tokens, i - 2 of them in the prompt.
PAIRS = [TokenPair([i] * (i - 2), [1], [2]) for i in range(3, 13)]


@pytest.fixture
def tokenizer():
    return Backbone("sctom:tinyworld/model").load_tokenizer()


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def read(path, rows, **settings):
    data = PreferenceData(write_rows(path, rows), **settings)
    data.setup("fit")
    return data


def numbers(loader):
    return [[pair.tokens for pair in batch.pairs] for batch in loader]


def test_a_pair_is_its_prompt_once_and_two_answers(tmp_path, tokenizer):
    about = {"grade": "better", "source": "mine", "is_safety": True}
    earlier = [ASK, {"role": "assistant", "content": "Berlin"}, ASK]
    data = read(tmp_path / "p.jsonl", [{**ROW, **about}, {**ROW, "prompt": earlier}])
    data.render(tokenizer)
    pair, later = data.train_examples
    texts = [tokenizer.decode(ids) for ids in (pair.prompt, pair.chosen, pair.rejected)]
    asked = "<|user|>Where does Kalomi live?<|assistant|>"
    assert texts == [asked, "Berlin<|end|>", "I don't know.<|end|>"]
    # the whole rendered in one go has the same tokens
    whole = tokenizer(asked + "I don't know.<|end|>", add_special_tokens=False)["input_ids"]
    assert pair.prompt + pair.rejected == whole
    assert (pair.grade, pair.source, pair.is_safety, pair.tied) == (2, "mine", True, False)
    assert pair.place == f"{tmp_path / 'p.jsonl'}:1" and later.place.endswith(":2")
    assert tokenizer.decode(later.prompt) == f"{asked}Berlin<|end|>{asked}"
    assert tokenizer.decode(later.chosen) == "Berlin<|end|>"
    assert pair.prompt_key != later.prompt_key


def test_the_batch_keeps_the_answers_of_a_pair_together():
    pairs = [TokenPair([1], [2], [3], margin=0.5), TokenPair([4], [5], [6], tied=True)]
    batch = PairBatch(pairs, 2)
    assert batch.sequences == [([1], [2]), ([1], [3]), ([4], [5]), ([4], [6])]
    assert batch.margins.tolist() == [0.5, 0.0]
    assert batch.tied.tolist() == [False, True]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("none", [0, 0, 0, 0, 0]),
        ("small", [0, 1 / 3, 2 / 3, 1, 0]),
        ("large", [0, 1, 2, 3, 0]),
        ("column", [0.25, 1.25, 2.25, 3.25, 0]),
    ],
)
def test_margins_by_the_rule(tmp_path, tokenizer, rule, expected):
    rows = [{**ROW, "grade": word, "margin": i + 0.25} for i, word in enumerate(GRADES)]
    data = read(tmp_path / "p.jsonl", [*rows, {**ROW, "tied": True}], margin=rule)
    data.render(tokenizer)
    assert [pair.margin for pair in data.train_examples] == pytest.approx(expected)
    data.shuffle = False
    (batch,) = data.train_dataloader()
    assert batch.margins.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("rule", "row", "error"),
    [
        ("small", {}, r":2: data\.margin is small, but the row has no grade; add it \(one of negl"),
        ("large", {"margin": 1}, r":2: data\.margin is large, but the row has no grade"),
        ("column", {"grade": "better"}, r":2: data\.margin is column, but the row has no margin"),
        ("none", {"grade": "beter"}, r":2: grade is 'beter'"),
        ("none", {"chosen": " "}, r":2: chosen is an empty answer"),
    ],
)
def test_errors_of_reading_name_file_and_line(tmp_path, rule, row, error):
    good = {**ROW, "grade": "better", "margin": 1}
    paths = {
        "right": write_rows(tmp_path / "right.jsonl", [good]),
        "wrong": write_rows(tmp_path / "wrong.jsonl", [good, ROW | row]),
    }
    for train, val in (("wrong", "right"), ("right", "wrong")):
        data = PreferenceData(paths[train], val=paths[val], margin=rule)
        with pytest.raises(DataError, match=r"wrong\.jsonl" + error):
            data.setup("fit")


def test_a_long_answer_is_refused_and_named(tmp_path, tokenizer):
    rows = [ROW, {**ROW, "rejected": "I don't know." * 9}]
    data = read(tmp_path / "p.jsonl", rows, max_tokens=20)
    with pytest.raises(ValueError, match=r"p\.jsonl:2: prompt and rejected: \d+ tokens, .* 20;"):
        data.render(tokenizer)


def test_what_the_template_refuses_is_named(tmp_path, tokenizer):
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    data = read(tmp_path / "p.jsonl", [ROW])
    with pytest.raises(ValueError, match=r"p\.jsonl:1: messages\[1\]: the chat template ends"):
        data.render(tokenizer)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"batch_size": 0}, r"data\.batch_size must be at least 1 but is 0"),
        ({"margin": "big"}, r"data\.margin"),
    ],
)
def test_settings_out_of_range_are_refused(settings, error):
    with pytest.raises(ValueError, match=error):
        PreferenceData("x.jsonl", **settings)


def test_step_pairs_count_the_whole_optimiser_step():
    # Ten pairs in batches of 3, two batches to a step: 6 and 4.
    loader = pair_loader(PAIRS, 3, seed=None, accumulate=2)
    assert [batch.step_pairs for batch in loader] == [6, 6, 4, 4]
    for rank in range(2):
        loader = pair_loader(PAIRS, 2, seed=None, rank=rank, world_size=2)
        counts = [(len(batch.pairs), batch.step_pairs) for batch in loader]
        assert counts == [(2, 4), (2, 4), (1, 2)]


def test_a_window_puts_similar_lengths_together():
    batches = numbers(pair_loader(PAIRS, 2, seed=3, window=5))
    assert sorted(batches) == [[3, 4], [5, 6], [7, 8], [9, 10], [11, 12]]
    assert batches != sorted(batches)


def test_files_become_batches(tmp_path, tokenizer):
    path = write_rows(tmp_path / "p.jsonl", [ROW] * 5)
    data = PreferenceData(path, val=path, batch_size=2, val_batch=3)
    data.setup("fit")
    data.render(tokenizer)
    assert [len(batch.pairs) for batch in data.train_dataloader()] == [2, 2, 1]
    assert [len(batch.pairs) for batch in data.val_dataloader()] == [3, 2]
    places = [pair.place for batch in data.val_dataloader() for pair in batch.pairs]
    assert places == [f"{path}:{line}" for line in range(1, 6)]
    assert PreferenceData(path).val_dataloader() == []


def test_each_epoch_shows_every_pair_once_in_its_own_order():
    loader = pair_loader(PAIRS, 4, seed=3)
    first, second = (list(chain(*numbers(loader))) for _ in range(2))
    assert first != second and sorted(first) == sorted(second) == list(range(3, 13))
