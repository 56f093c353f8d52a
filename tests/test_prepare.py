from __future__ import annotations

import json
import subprocess
import sys

import pytest

from sctom.preferences import read_preferences
from sctom.prepare import main
from sctom.readers import check_messages, read_jsonl
from sctom.tasks.exploretom import ExploreTom
from sctom.tasks.triviaqa import TriviaQa


@pytest.fixture
def source(tmp_path):
    questions = [
        {
            "question_id": number,
            "question": f"Question {number}?",
            "answer": ["yes"] if number <= 95 else None,
            "answerable": number <= 95,
            "source": "made up",
        }
        for number in range(1, 116)
    ]
    path = tmp_path / "SelfAware.json"
    path.write_text(json.dumps({"example": questions}))
    return path


def command(source, out, *more):
    return ["selfaware", "--source", str(source), "--variant", "v3", "--out", str(out), *more]


def failure(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code != 0
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


def test_the_command_writes_and_reports(source, tmp_path, capsys):
    out = tmp_path / "out"
    main(command(source, out, "--allow-other-counts", "--seed", "3"))
    # 95 and 20 questions: 10 (round half to even: 9.5) and 2 held out; 85 / 19 = 4.47 kept
    for name, rows in [("train.jsonl", 85 + 4), ("valid.jsonl", 12), ("test.jsonl", 12)]:
        read = read_jsonl(out / name)
        assert len(read) == rows
        for line, row in enumerate(read, start=1):
            check_messages(row, f"{name}:{line}")
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["variant"], manifest["seed"]) == ("v3", 3)
    assert manifest["files"]["train.jsonl"]["label_leaks"] == 2
    assert len(read_jsonl(out / "label_leaks.jsonl")) == 2
    printed = " ".join(capsys.readouterr().out.split())
    assert "set selfaware, variant v3, seed 3" in printed
    assert "train.jsonl │ 89 │ 85 │ 4 │ 2 │ 2 │" in printed
    assert "valid.jsonl and test.jsonl hold the same 12 rows" in printed
    assert "2 of 89 training rows (2.2%) are unanswerable to the reward" in printed
    assert "2 rows are labelled one way and worded the other (label_leaks.jsonl)" in printed


def test_twice_is_fine_and_another_seed_needs_force(source, tmp_path, capsys):
    out = tmp_path / "out"
    main(command(source, out, "--allow-other-counts"))
    main(command(source, out, "--allow-other-counts"))
    capsys.readouterr()
    changed = command(source, out, "--allow-other-counts", "--seed", "1")
    assert "holds other contents already (label_leaks.jsonl, manifest.json, test.jsonl, " in (
        failure(capsys, changed)
    )
    assert json.loads((out / "manifest.json").read_text())["seed"] == 0
    main([*changed, "--force"])
    assert json.loads((out / "manifest.json").read_text())["seed"] == 1


def test_errors_are_one_line(source, tmp_path, capsys):
    out = tmp_path / "out"
    missing = failure(capsys, command(tmp_path / "SelfAware.jsn", out))
    assert missing.startswith(f"error: {tmp_path / 'SelfAware.jsn'} does not exist. Did you mean")
    assert "https://github.com/yinzhangyue/SelfAware" in missing
    counts = failure(capsys, command(source, out))
    assert "holds 95 answerable and 20 unanswerable questions; expected 2,337" in counts
    assert counts.count("\n") == missing.count("\n") == 1
    assert not out.exists()


def test_usage_errors(source, tmp_path, capsys):
    assert "required: NAME" in failure(capsys, [])
    assert "invalid choice: 'selfawre'" in failure(capsys, ["selfawre"])
    bad = ["selfaware", "--source", str(source), "--out", str(tmp_path), "--variant", "v4"]
    assert "choose from" in failure(capsys, bad)


def test_gsm8k_mbpp_and_humaneval(tmp_path, capsys):
    answers = [json.dumps({"question": f"{n}?", "answer": f"#### {n}"}) + "\n" for n in range(502)]
    (tmp_path / "gsm8k_train.jsonl").write_text("".join(answers))
    (tmp_path / "gsm8k_test.jsonl").write_text(answers[0])
    main(["gsm8k", "--source", str(tmp_path), "--out", str(tmp_path / "gsm8k"), "--seed", "5"])
    row = {"text": "Do.", "code": "", "test_list": ["assert f(1) == 1"] * 3, "test_setup_code": ""}
    rows = [json.dumps({"task_id": number} | row) + "\n" for number in (11, 511, 601, 602)]
    (tmp_path / "mbpp.jsonl").write_text("".join(rows))
    source = ["--source", str(tmp_path / "mbpp.jsonl"), "--out", str(tmp_path / "mbpp")]
    main(["mbpp", *source, "--shown-tests", "2"])
    names = ("prompt", "entry_point", "canonical_solution", "test")
    (tmp_path / "he.jsonl").write_text(json.dumps({"task_id": 0} | dict.fromkeys(names, "x")))
    out = tmp_path / "humaneval"
    main(["humaneval", "--source", str(tmp_path / "he.jsonl"), "--out", str(out)])
    printed = " ".join(capsys.readouterr().out.split())
    for line in ("train.jsonl │ 2 │", "valid.jsonl │ 500 │", "train.jsonl │ 2 │ 0 │"):
        assert line in printed
    assert json.loads((tmp_path / "gsm8k" / "manifest.json").read_text())["seed"] == 5
    assert json.loads((tmp_path / "mbpp" / "manifest.json").read_text())["shown_tests"] == 2
    assert [path.name for path in sorted(out.iterdir())] == ["manifest.json", "test.jsonl"]
    (valid,) = read_jsonl(tmp_path / "mbpp" / "valid.jsonl")
    assert valid["messages"][0]["content"].count("assert f(1)") == 2


def test_exploretom_and_triviaqa(tmp_path, capsys):
    story = {
        "qprop=nth_order": 1,
        "qprop=non_unique_mental_state": True,
        "sprop=is_false_belief_story_1st": True,
        "sprop=is_false_belief_story_1st_and_2nd": True,
        "question": "Where?",
        "expected_answer": "tin",
    }
    stories = [story | {"story_structure": f"{n}.", "infilled_story": f"A {n}."} for n in range(10)]
    (tmp_path / "tom.jsonl").write_text("".join(json.dumps(row) + "\n" for row in stories))
    out = tmp_path / "tom"
    source = ["--source", str(tmp_path / "tom.jsonl"), "--out", str(out), "--seed", "2"]
    main(["exploretom", *source, "--story", "structure"])
    for name, rows in [("train.jsonl", 8), ("valid.jsonl", 1), ("test.jsonl", 1)]:
        read = ExploreTom().read(out / name)
        assert len(read) == rows
        assert not any("A " in row["messages"][-1]["content"] for row in read)
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["seed"], manifest["story"]) == (2, "structure")
    answer = {"value": "Nile", "aliases": ["Nile", "The Nile"]}
    for name, numbers in (("dev", range(3)), ("train", range(2, 510))):
        asked = [{"question": f"{n}?", "question_id": str(n), "answer": answer} for n in numbers]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    source = ["--source", str(tmp_path / "dev.jsonl"), "--out", str(tmp_path / "trivia")]
    main(["triviaqa", *source, "--train", str(tmp_path / "train.jsonl")])
    for name, rows in [("train.jsonl", 7), ("valid.jsonl", 500), ("test.jsonl", 3)]:
        assert len(TriviaQa().read(tmp_path / "trivia" / name)) == rows
    printed = " ".join(capsys.readouterr().out.split())
    assert "train.jsonl │ 8 │ 8 │ 8 │ 8 │" in printed
    assert "as test.jsonl has them: 1" in printed


def test_it_is_a_module_to_run():
    arguments = [sys.executable, "-m", "sctom.prepare", "selfaware", "--help"]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert "--allow-other-counts" in ended.stdout


def test_hh(tmp_path, capsys):
    asked = "\n\nHuman: Is {} prime?\n\nAssistant: "
    rows = [{"chosen": asked.format(n) + "Yes", "rejected": asked.format(n)} for n in range(20)]
    for row in rows[1:]:
        row["rejected"] += "No"
    for name, part in (("helpful.jsonl", rows[:9]), ("harmless.jsonl", rows[9:])):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in part))
    sources = [str(tmp_path / name) for name in ("helpful.jsonl", "harmless.jsonl")]
    shares = ["--valid-share", "0.2", "--test-share", "0.3"]
    main(["hh", "--source", *sources, "--out", str(tmp_path / "hh"), *shares])
    names = ("train.jsonl", "valid.jsonl", "test.jsonl")
    pairs = [read_preferences(tmp_path / "hh" / name) for name in names]
    assert [len(part) for part in pairs] == [9, 4, 6]  # of 19: round(3.8), round(5.7)
    assert sorted(pair.is_safety for part in pairs for pair in part) == [False] * 8 + [True] * 11
    printed = " ".join(capsys.readouterr().out.split())
    assert "1 of 20 rows are no pair (1 empty): dropped.jsonl" in printed
    assert "expected a share from 0 to 1, found 20" in failure(
        capsys, ["hh", "--source", *sources, "--out", str(tmp_path / "x"), "--test-share", "20"]
    )


def test_graded_and_conflicting(tmp_path, capsys):
    main(["graded", "--out", str(tmp_path / "graded"), "--seed", "4", "--stated"])
    main(["conflicting", "--out", str(tmp_path / "both"), "--overlap", "0"])
    printed = capsys.readouterr().out
    assert "set graded, seed 4" in printed
    assert "set conflicting, seed 0" in printed
    first = read_preferences(tmp_path / "graded" / "test.jsonl")
    assert " ".join(first[0].columns["facts"]) in first[0].prompt[0]["content"]
    both = read_preferences(tmp_path / "both" / "train.jsonl")
    assert {(p.is_safety, p.prompt[0]["content"].split()[0]) for p in both} == {
        (False, "Describe"),
        (True, "Who"),
    }
