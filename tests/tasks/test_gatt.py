from __future__ import annotations

import json
from collections import Counter

import pytest

from sctom.data.dialogues import DialogueData
from sctom.modules.answers import Answerer, answer, turn_answers
from sctom.modules.backbone import Backbone
from sctom.prepare import main
from sctom.readers import DataError, read_jsonl
from sctom.rollout.base import Sampling
from sctom.tasks.gatt import (
    Instruction,
    draw_instruction,
    join,
    prepare_gatt,
    read_instructions,
)


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


TWO_TURNS = [user("Where?"), assistant("of the file"), user("When?")]
NAPOLEON = {"kind": "figure", "text": "Act as Napoleon from now on.", "short": "Figure: Napoleon"}


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def files(tmp_path):
    def make(*dialogues, instructions=(NAPOLEON,)):
        return (
            write(tmp_path / "dialogues.jsonl", [{"messages": d} for d in dialogues]),
            write(tmp_path / "instructions.jsonl", instructions),
        )

    return make


class Recorder:
    """Answers "<dialogue>.<turn>", or what it is told to, and keeps what it was asked."""

    def __init__(self, **told):
        self.told = told
        self.asked = []

    def __call__(self, conversations, numbers, turn):
        self.asked.append((turn, numbers, conversations))
        return [self.told.get(f"d{number}t{turn}", f"{number}.{turn}") for number in numbers]


def prepare(files, recorder, **settings):
    dialogues, instructions = files
    return prepare_gatt(
        dialogues, lambda: (recorder, {"path": "fake"}), instructions=instructions, **settings
    )


# ---- by hand -------------------------------------------------------------------------------------


def test_the_instruction_is_in_every_turn_to_sample_and_in_the_first_to_train(files):
    recorder = Recorder()
    (row,) = prepare(files(TWO_TURNS), recorder, short_share=0.0).files["train.jsonl"]
    said = "Act as Napoleon from now on."
    assert recorder.asked == [
        (0, [0], [[user(f"{said}\nWhere?")]]),
        (1, [0], [[user(f"{said}\nWhere?"), assistant("0.0"), user(f"{said}\nWhen?")]]),
    ]
    assert row == {
        "messages": [user(f"{said}\nWhere?"), assistant("0.0"), user("When?"), assistant("0.1")],
        "learn": "last",
        "instruction": said,
        "shown": said,
        "dialogue": 1,
    }


def test_the_short_form_is_for_training_only(files):
    recorder = Recorder()
    (row,) = prepare(files(TWO_TURNS), recorder, short_share=1.0).files["train.jsonl"]
    assert row["messages"][0] == user("Figure: Napoleon\nWhere?")
    assert [turn["content"] for turn in row["messages"][1:]] == ["0.0", "When?", "0.1"]
    assert recorder.asked[0][2] == [[user("Act as Napoleon from now on.\nWhere?")]]


def test_dialogues_of_several_lengths_go_turn_by_turn_and_a_system_message_stays(files):
    system = {"role": "system", "content": "Be kind."}
    recorder = Recorder()
    made = prepare(files([user("Who?")], [system, *TWO_TURNS]), recorder, short_share=1.0)
    assert [(turn, numbers) for turn, numbers, _ in recorder.asked] == [(0, [0, 1]), (1, [1])]
    first, second = made.files["train.jsonl"]
    assert first["messages"] == [user("Figure: Napoleon\nWho?"), assistant("0.0")]
    assert second["messages"][:2] == [system, user("Figure: Napoleon\nWhere?")]
    assert made.counts["train.jsonl"] == {"several_turns": 1, "short_instruction": 2}


def test_a_dialogue_with_an_answer_that_is_blank_or_cut_off_is_dropped(files):
    dialogues = files(TWO_TURNS, TWO_TURNS, TWO_TURNS)
    made = prepare(dialogues, Recorder(d0t0=None, d1t1=" \n"))
    assert [row["dialogue"] for row in made.files["train.jsonl"]] == [3]
    assert made.files["dropped.jsonl"] == [
        {"dialogue": 1, "turn": 1, "reason": "cut off"},
        {"dialogue": 2, "turn": 2, "reason": "blank"},
    ]
    with pytest.raises(DataError, match=r"none of the 3 dialogues .* allow longer answers"):
        prepare(dialogues, Recorder(d0t0=None, d1t0=None, d2t1=""))


# ---- instructions --------------------------------------------------------------------------------

SEVERAL = [Instruction(kind, f"{kind}{n}.", f"{kind}{n}") for kind in "abc" for n in range(4)]


def test_an_instruction_joins_one_of_each_of_some_kinds():
    drawn = [draw_instruction(SEVERAL, n, seed=0) for n in range(600)]
    kinds = [[word[0] for word in text.split()] for text, _ in drawn]
    assert all(len(set(of_one)) == len(of_one) for of_one in kinds)
    sizes = Counter(map(len, kinds))
    assert set(sizes) == {1, 2, 3} and min(sizes.values()) > 150  # 200 each but for chance
    assert {text.split()[0] for text, _ in drawn} == {one.text for one in SEVERAL}  # any order
    short = sum(text != shown for text, shown in drawn)
    assert 250 < short < 350
    assert all(shown in (text, text.replace(".", "")) for text, shown in drawn)


def test_a_draw_depends_on_seed_and_number_alone():
    drawn = [draw_instruction(SEVERAL, n, seed=1) for n in range(9)]
    assert drawn[5:] == [draw_instruction(SEVERAL, n, seed=1) for n in range(5, 9)]
    assert drawn != [draw_instruction(SEVERAL, n, seed=2) for n in range(9)]


def test_the_number_of_kinds_can_be_bounded():
    drawn = [draw_instruction(SEVERAL, n, seed=0, most_kinds=1)[0] for n in range(50)]
    assert {len(text.split()) for text in drawn} == {1}


def test_the_shipped_instructions_have_four_kinds_and_short_forms():
    known = read_instructions()
    assert Counter(one.kind for one in known) == {
        "hobby": 10,
        "language": 6,
        "figure": 10,
        "style": 4,
    }
    assert all(one.short and len(one.short) < len(one.text) for one in known)


def test_without_a_short_form_the_instruction_stays_as_it_is():
    assert draw_instruction([Instruction("a", "Be brief.")], 0, seed=0, short_share=1.0) == (
        "Be brief.",
        "Be brief.",
    )


def test_joining_leaves_the_messages_given_alone():
    assert join(TWO_TURNS, "Hm.", every=True)[2] == user("Hm.\nWhen?")
    assert TWO_TURNS[2] == user("When?")


# ---- errors --------------------------------------------------------------------------------------


def never():
    raise AssertionError("the model was loaded before the files were checked")


@pytest.mark.parametrize(
    ("instruction", "error"),
    [
        ({"kind": "a"}, r"s\.jsonl:1: expected the keys kind, text and perhaps short; found kind"),
        ({"kind": "a", "text": "b", "shrt": "c"}, r"s\.jsonl:1: .*found kind, text, shrt"),
        ({"kind": "a", "text": " "}, r"s\.jsonl:1: text must be a text that is not blank"),
        ({"kind": "a", "text": "b", "short": 3}, r"s\.jsonl:1: short must be a text .* found 3"),
    ],
)
def test_a_faulty_instruction_is_named_by_its_line(files, instruction, error):
    dialogues, instructions = files(TWO_TURNS, instructions=[instruction])
    with pytest.raises(DataError, match=error):
        prepare_gatt(dialogues, never, instructions=instructions)


def test_a_faulty_dialogue_or_setting_is_refused_before_the_model_is_loaded(files):
    late = [user("Who?"), {"role": "system", "content": "Be kind."}]
    dialogues, instructions = files(TWO_TURNS, late)
    with pytest.raises(DataError, match=r"dialogues\.jsonl:2: a system message may come first"):
        prepare_gatt(dialogues, never, instructions=instructions)
    with pytest.raises(DataError, match="share of short instructions must be from 0 to 1, not 2"):
        prepare_gatt(dialogues, never, short_share=2)
    with pytest.raises(DataError, match="at least one kind of instruction must be joined, not 0"):
        prepare_gatt(dialogues, never, most_kinds=0)


# ---- with the tiny model -------------------------------------------------------------------------

MODEL = "sctom:tinyworld/model"
ASKED = [
    [user("Where does Kalomi live?"), user("Name the pet of Kalomi.")],
    [user("Where does Ritalo live?")],
]


def test_what_the_command_writes_is_what_is_trained_on(files, tmp_path, capsys):
    dialogues, instructions = files(*ASKED)
    out = tmp_path / "out"
    command = ["gatt", "--dialogues", str(dialogues), "--instructions", str(instructions)]
    main([*command, "--model", MODEL, "--short-share", "0", "--seed", "3", "--out", str(out)])
    assert "set gatt, seed 3" in " ".join(capsys.readouterr().out.split())
    first, _ = read_jsonl(out / "train.jsonl")
    said = [turn["content"] for turn in first["messages"]]
    assert said[0] == "Act as Napoleon from now on.\nWhere does Kalomi live?"
    assert said[2] == "Name the pet of Kalomi."
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["model"]["path"] == MODEL and len(manifest["model"]["weights"]) == 16
    assert manifest["model"]["max_new_tokens"] == 256

    data = DialogueData(str(out / "train.jsonl"))
    data.setup("fit")
    tokenizer = Backbone(MODEL).load_tokenizer()
    data.render(tokenizer)
    one = data.train_examples[0]
    # token by token: all of both turns but the last answer has no loss
    before = tokenizer(
        f"<|user|>{said[0]}<|assistant|>{said[1]}<|end|><|user|>{said[2]}<|assistant|>"
    )["input_ids"]
    last = tokenizer(f"{said[3]}<|end|>")["input_ids"]
    assert one.ids == [*before, *last]
    assert one.mask == [0] * len(before) + [1] * len(last)


def test_the_model_sees_the_instruction_in_every_turn(files):
    dialogues, instructions = files(*ASKED)
    backbone, sampling = Backbone(MODEL, attention="sdpa"), Sampling(16, temperature=0.0)
    made = prepare_gatt(
        dialogues,
        lambda: turn_answers(backbone, sampling, 0),
        instructions=instructions,
        short_share=0.0,
    )
    first = made.files["train.jsonl"][0]["messages"]
    model, tokenizer = backbone.load()
    context = [first[0], first[1], user(f"{NAPOLEON['text']}\n{first[2]['content']}")]
    (expected,) = answer(Answerer(model, tokenizer, sampling), [context])
    assert first[3]["content"] == expected.text


def test_answers_do_not_depend_on_the_other_dialogues():
    backbone = Backbone(MODEL, attention="sdpa")
    ask, _ = turn_answers(backbone, Sampling(16, temperature=1.5), seed=4)
    conversations = [[user(f"Where does {name} live?")] for name in ("Kalomi", "Ritalo", "Zunafe")]
    together = ask(conversations, [7, 8, 9], 2)
    assert together[1:] == ask(conversations[1:], [8, 9], 2)
    draws = [ask(conversations[:1], [7], turn)[0] for turn in range(12)]
    assert draws[2] == together[0] and len(set(draws)) > 1


def test_the_command_tells_in_one_line_what_is_wrong(files, tmp_path, capsys):
    dialogues, _ = files(*ASKED)
    command = ["gatt", "--dialogues", str(dialogues), "--out", str(tmp_path / "out")]
    for model, more, said in (
        ("models/nowhere", [], "models/nowhere is neither a folder here nor a hub name"),
        (MODEL, ["--temperature", "-1"], "sampling.temperature must be 0 (greedy) or"),
    ):
        with pytest.raises(SystemExit):
            main([*command, "--model", model, *more])
        assert said in capsys.readouterr().err
