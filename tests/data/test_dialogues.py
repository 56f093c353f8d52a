import json
from itertools import chain

import pytest
import torch

from sctom.data.dialogues import Dialogue, DialogueData, collate, dialogue_loader
from sctom.modules.backbone import Backbone
from sctom.tasks.tinyworld import dialogue

# Row i: i + 2 ids, of which the last 1 + i % 3 are learned.
ROWS = [
    Dialogue([100 * i + k for k in range(i + 2)], [0] * (i + 1 - i % 3) + [1] * (1 + i % 3))
    for i in range(2, 12)
]


def first_ids(batches):
    return [[int(row[0]) // 100 for row in batch.input_ids] for batch in batches]


def test_sources_point_one_before_the_targets():
    batch = collate([Dialogue([7, 8, 9, 10, 11], [0, 1, 0, 1, 1]), Dialogue([5, 6], [0, 1])], 4)
    assert batch.input_ids.tolist() == [[7, 8, 9, 10, 11], [5, 6, 0, 0, 0]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]
    assert batch.targets.tolist() == [[8, 10, 11], [6, 0, 0]]
    assert batch.sources.tolist() == [[0, 2, 3], [0, 0, 0]]
    assert batch.mask.tolist() == [[1, 1, 1], [1, 0, 0]]


def test_each_epoch_shows_every_dialogue_once_in_its_own_order():
    loader = dialogue_loader(ROWS, 4, seed=3)
    epochs = [first_ids(loader), first_ids(loader)]
    assert [len(batch) for batch in epochs[0]] == [4, 4, 2]
    flat = [list(chain(*epoch)) for epoch in epochs]
    assert flat[0] != flat[1]
    assert sorted(flat[0]) == sorted(flat[1]) == list(range(2, 12))
    assert first_ids(dialogue_loader(ROWS, 4, seed=3)) == epochs[0]


def test_without_seed_the_order_is_that_of_the_file():
    assert list(chain(*first_ids(dialogue_loader(ROWS, 4, seed=None)))) == list(range(2, 12))


def test_a_window_puts_similar_lengths_together():
    loader = dialogue_loader(ROWS, 2, seed=3, window=5)
    batches = first_ids(loader)
    assert sorted(map(tuple, batches)) == [(2, 3), (4, 5), (6, 7), (8, 9), (10, 11)]
    assert batches != sorted(batches)


def test_a_loader_goes_on_where_it_was_saved():
    whole = dialogue_loader(ROWS, 4, seed=3)
    expected = first_ids(whole) + first_ids(whole)
    started = dialogue_loader(ROWS, 4, seed=3)
    stream = iter(started)
    seen = first_ids([next(stream), next(stream)])
    resumed = dialogue_loader(ROWS, 4, seed=3)
    resumed.load_state_dict(started.state_dict())
    assert seen + first_ids(resumed) + first_ids(resumed) == expected


def test_step_tokens_count_the_whole_optimiser_step():
    # Learned tokens of rows 2 to 11: 3 1 2 3, 1 2 3 1, 2 3. A step has two batches of two rows.
    loader = dialogue_loader(ROWS, 2, seed=None, accumulate=2)
    assert [batch.step_tokens for batch in loader] == [9, 9, 7, 7, 5]


def test_two_ranks_share_a_step():
    ranks = [list(dialogue_loader(ROWS[:9], 2, seed=None, rank=r, world_size=2)) for r in range(2)]
    # Nine dialogues: the ninth cannot be shared.
    assert first_ids(ranks[0]) == [[2, 4], [6, 8]]
    assert first_ids(ranks[1]) == [[3, 5], [7, 9]]
    for batches in zip(*ranks, strict=True):
        total = sum(int(batch.mask.sum()) for batch in batches)
        assert [batch.step_tokens for batch in batches] == [total, total]


@pytest.fixture
def tokenizer():
    return Backbone("sctom:tinyworld/model").load_tokenizer()


def write_rows(path, rows):
    path.write_text("".join(json.dumps({"messages": m}) + "\n" for m in rows))
    return str(path)


def test_files_become_batches(tmp_path, tokenizer):
    train = write_rows(tmp_path / "t.jsonl", [dialogue("Who is Kalomi?", "Berlin")] * 3)
    data = DialogueData(train, val=train, batch_size=2, val_batch=2)
    data.setup("fit")
    data.render(tokenizer)
    assert [len(batch.mask) for batch in data.train_dataloader()] == [2, 1]
    batches = list(data.val_dataloader())
    assert [len(batch.mask) for batch in batches] == [2, 1]
    kept = batches[0].targets[batches[0].mask.bool()]
    assert tokenizer.decode(kept) == "Berlin<|end|>" * 2
    assert torch.equal(batches[0].attention_mask, torch.ones_like(batches[0].input_ids))


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        (
            [dialogue("Who?", "Berlin"), dialogue("Who is Kalomi?" * 9, "x")],
            r":2: \d+ tokens, .* 20;",
        ),
        ([[{"role": "user", "content": "Who?"}]], ":1: a dialogue needs a turn of the assistant"),
    ],
)
def test_errors_name_file_and_line(tmp_path, tokenizer, rows, error):
    data = DialogueData(write_rows(tmp_path / "t.jsonl", rows), max_tokens=20)
    data.setup("fit")
    with pytest.raises(ValueError, match=r"t\.jsonl" + error):
        data.render(tokenizer)


def test_settings_below_one_are_refused():
    with pytest.raises(ValueError, match=r"data\.batch_size must be at least 1 but is 0"):
        DialogueData("x.jsonl", batch_size=0)
