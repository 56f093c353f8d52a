import json
from itertools import chain

import pytest

from sctom.data.dialogues import Dialogue, DialogueData, count, dialogue_loader
from sctom.modules.backbone import Backbone
from sctom.tasks.tinyworld import dialogue

# Row i: i + 2 ids, of which the last 1 + i % 3 are learned.
ROWS = [
    Dialogue([100 * i + k for k in range(i + 2)], [0] * (i + 1 - i % 3) + [1] * (1 + i % 3))
    for i in range(2, 12)
]


def first_ids(batches):
    return [[row.ids[0] // 100 for row in batch.dialogues] for batch in batches]


def test_what_is_learned_begins_at_the_first_place_of_the_mask():
    one = Dialogue([7, 8, 9, 10, 11], [0, 1, 0, 1, 1])
    assert (one.start, one.learned, one.tokens) == (1, [1, 3, 4], 3)


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
        total = sum(count(batch.dialogues) for batch in batches)
        assert [batch.step_tokens for batch in batches] == [total, total]


@pytest.fixture
def tokenizer():
    return Backbone("sctom:tinyworld/model").load_tokenizer()


def write_rows(path, rows, **columns):
    path.write_text("".join(json.dumps({"messages": m, **columns}) + "\n" for m in rows))
    return str(path)


def learned_text(tokenizer, dialogue):
    return tokenizer.decode([dialogue.ids[place] for place in dialogue.learned])


def test_files_become_batches(tmp_path, tokenizer):
    train = write_rows(tmp_path / "t.jsonl", [dialogue("Who is Kalomi?", "Berlin")] * 3)
    data = DialogueData(train, val=train, batch_size=2, val_batch=2)
    data.setup("fit")
    data.render(tokenizer)
    assert [len(batch.dialogues) for batch in data.train_dataloader()] == [2, 1]
    batches = list(data.val_dataloader())
    assert [len(batch.dialogues) for batch in batches] == [2, 1]
    assert learned_text(tokenizer, batches[0].dialogues[1]) == "Berlin<|end|>"
    assert [batch.step_tokens for batch in batches] == [4, 2]


TURNS = [*dialogue("Where does Kalomi live?", "Berlin"), *dialogue("And Ritalo?", "Lisbon")]


@pytest.mark.parametrize(
    ("columns", "learned"),
    [
        ({}, "Berlin<|end|>Lisbon<|end|>"),
        ({"learn": "all"}, "Berlin<|end|>Lisbon<|end|>"),
        ({"learn": "last"}, "Lisbon<|end|>"),
    ],
)
def test_a_row_says_which_turns_are_learned(tmp_path, tokenizer, columns, learned):
    data = DialogueData(write_rows(tmp_path / "t.jsonl", [TURNS], **columns))
    data.setup("fit")
    data.render(tokenizer)
    (one,) = data.train_examples
    assert learned_text(tokenizer, one) == learned
    said = "<|user|>Where does Kalomi live?<|assistant|>Berlin<|end|>"
    said += "<|user|>And Ritalo?<|assistant|>Lisbon<|end|>"
    assert tokenizer.decode(one.ids) == said


@pytest.mark.parametrize(
    ("learn", "hint"), [("lats", r" Did you mean 'last'\?"), (None, "$"), (["last"], "$")]
)
def test_another_word_for_what_is_learned_is_an_error(tmp_path, learn, hint):
    data = DialogueData(write_rows(tmp_path / "t.jsonl", [TURNS], learn=learn))
    with pytest.raises(
        ValueError, match=r"t\.jsonl:1: learn is .*expected one of all, last\." + hint
    ):
        data.setup("fit")


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
