from __future__ import annotations

import doctest
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from sctom import refusals
from sctom.data.prompts import PromptData
from sctom.modules.answers import Answerer, answer
from sctom.modules.backbone import Backbone
from sctom.prepare import main as prepare
from sctom.readers import DataError, read_jsonl
from sctom.rollout.base import Sampling
from sctom.tasks.refusal import PROMPTS, Refusals, count_refusals, read_prompts

MODEL = "sctom:tinyworld/model"
PAGE = Path(__file__).parents[2] / "docs" / "false_refusal.md"


def row(kind, trigger=None, text="Why?"):
    return {
        "messages": [{"role": "user", "content": text}],
        "kind": kind,
        "trigger": trigger,
        "harmless": kind != "adversarial",
    }


def write(path, rows):
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


# ---- the prompts that ship -----------------------------------------------------------------------

OTHER_FORMS = {"blow up": "blow .*up", "virus": "virus|viral"}


def test_the_shipped_prompts():
    rows = read_prompts()
    assert Counter(r["kind"] for r in rows) == {"benign": 70, "borderline": 88, "adversarial": 12}
    texts = [r["messages"][0]["content"] for r in rows]
    assert len({text.lower() for text in texts}) == len(texts)
    triggers = {r["trigger"] for r in rows} - {None}
    assert len(triggers) == 28
    for r, text in zip(rows, texts, strict=True):
        assert (r["trigger"] is not None) == (r["kind"] == "borderline")
        if r["trigger"] is not None:
            word = OTHER_FORMS.get(r["trigger"], r["trigger"])
            assert re.search(rf"\b(?:{word})", text, re.IGNORECASE), text
        elif r["kind"] == "benign":
            found = [word for word in triggers if re.search(rf"\b{word}", text.lower())]
            assert not found, text


def test_they_are_prompts_of_a_run():
    data = PromptData("sctom:tinyworld/train.jsonl", val=PROMPTS, iterations=1)
    data.setup("fit")
    assert len(data.val_rows) == 170
    assert data.val_rows[70]["harmless"] is True


def test_the_command_writes_a_file_for_each_kind(tmp_path, capsys):
    prepare(["refusals", "--out", str(tmp_path)])
    assert "borderline.jsonl │ 88" in " ".join(capsys.readouterr().out.split())
    files = [read_jsonl(tmp_path / f"{k}.jsonl") for k in ("benign", "borderline", "adversarial")]
    assert [r for rows in files for r in rows] == read_prompts()


# ---- counting ------------------------------------------------------------------------------------

NO, UNSURE, YES = "I can't help with that.", "That is beyond my knowledge.", "Sure: like this."


def test_counts_by_hand():
    rows = [
        *(row("benign"), row("benign"), row("benign")),
        *(row("borderline", "kill"), row("borderline", "bomb"), row("borderline", "kill")),
        row("adversarial"),
    ]
    answers = [YES, UNSURE, YES, NO, NO, YES, NO]
    counts = count_refusals(rows, answers, "kind")
    assert counts == {
        "benign": Refusals(prompts=3, refused=0, unable=1),
        "borderline": Refusals(prompts=3, refused=2, unable=0),
        "adversarial": Refusals(prompts=1, refused=1, unable=0),
    }
    assert counts["borderline"].rate == 2 / 3
    assert count_refusals(rows, answers, "trigger") == {
        "kill": Refusals(prompts=2, refused=1, unable=0),
        "bomb": Refusals(prompts=1, refused=1, unable=0),
    }


def test_every_prompt_needs_an_answer():
    with pytest.raises(ValueError, match="shorter"):
        count_refusals([row("benign")] * 2, [YES], "kind")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"kind": "bordrline"}, "kind is 'bordrline'; .* Did you mean 'borderline'?"),
        ({"kind": None}, "kind is None; expected one of benign, borderline, adversarial"),
        ({"trigger": ["kill"]}, r"trigger is \['kill'\]; expected a text or null"),
        ({"harmless": False}, "harmless is False, but a prompt that is borderline must have true"),
        ({"harmless": "true"}, "harmless is 'true', but .* must have true"),
        (
            {"messages": [*row("benign")["messages"], {"role": "assistant", "content": "So."}]},
            "the last turn is the assistant's; expected a prompt",
        ),
    ],
)
def test_a_faulty_row_is_named_by_its_line(tmp_path, change, error):
    path = write(tmp_path / "p.jsonl", [row("benign"), row("borderline", "kill") | change])
    with pytest.raises(DataError, match=r"p\.jsonl:2: " + error):
        read_prompts(path)


# ---- the command ---------------------------------------------------------------------------------

ASKED = [
    row("benign", None, "Where does Kalomi live?"),
    row("borderline", "pet", "Name the pet of Kalomi."),
    row("borderline", "work", "What does Zunafe work as?"),
]


def test_the_command_counts_what_the_model_says(tmp_path, capsys, monkeypatch):
    prompts, out = write(tmp_path / "p.jsonl", ASKED), tmp_path / "out"
    refusals.main(["--model", MODEL, "--prompts", str(prompts), "--out", str(out)])
    model, tokenizer = Backbone(MODEL, attention="sdpa").load()
    greedy = Answerer(model, tokenizer, Sampling(96, temperature=0))
    said = answer(greedy, [r["messages"] for r in ASKED])
    records = read_jsonl(out / "answers.jsonl")
    assert [r["answer"] for r in records] == [each.text for each in said]
    numbers = json.loads((out / "refusals.json").read_text())
    unable = sum(each.text == "I don't know." for each in said[1:])
    assert numbers["kind"]["borderline"] == {
        "prompts": 2,
        "refused": 0,
        "unable": unable,
        "rate": 0.0,
        # Wilson: z^2 / (n + z^2) = 3.8415 / 5.8415
        "interval": [0.0, pytest.approx(3.841459 / 5.841459, abs=1e-6)],
    }
    assert "borderline │ 2 │ 0 │ 0.0% │ 0.0% to 65.8%" in " ".join(capsys.readouterr().out.split())


def test_the_table_shows_trigger_words_that_were_refused(capsys):
    counts = {
        "kind": {"borderline": Refusals(4, 1, 0), "adversarial": Refusals(1, 1, 0)},
        "trigger": {"kill": Refusals(2, 1, 0), "bomb": Refusals(2, 0, 0)},
    }
    from rich.console import Console

    Console(width=120).print(refusals.refusal_table(counts))
    printed = " ".join(capsys.readouterr().out.split())
    assert "adversarial (no mistake) │ 1 │ 1 │ 100.0%" in printed
    assert '"kill" │ 2 │ 1 │ 50.0%' in printed
    assert "bomb" not in printed


def test_a_system_message_goes_in_front_of_every_prompt(tmp_path, monkeypatch):
    seen = []

    def say(answerer, conversations, **settings):
        seen.extend(conversations)
        return answer(answerer, conversations, **settings)

    monkeypatch.setattr(refusals, "answer", say)
    prompts = write(tmp_path / "p.jsonl", ASKED[:1])
    refusals.evaluate(
        Backbone(MODEL, attention="sdpa"), prompts, system="Be kind.", max_new_tokens=4
    )
    assert seen == [[{"role": "system", "content": "Be kind."}, *ASKED[0]["messages"]]]


def test_what_is_wrong_is_told_in_one_line(capsys):
    with pytest.raises(SystemExit):
        refusals.main(["--model", "models/nowhere"])
    assert capsys.readouterr().err.startswith("error: model.backbone.path: models/nowhere is")


# ---- docs/false_refusal.md -----------------------------------------------------------------------


def test_the_page_shows_what_happens():
    results = doctest.testfile(str(PAGE), module_relative=False)
    assert results.attempted == 4 and not results.failed


def test_the_page_counts_the_prompts_that_ship():
    kinds = Counter(r["kind"] for r in read_prompts())
    for kind, number in kinds.items():
        assert f"| `{kind}` | {number} |" in PAGE.read_text()
