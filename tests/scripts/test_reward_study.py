from __future__ import annotations

import doctest
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import reward_study
import reward_tables
from reward_pictures import draw_grades
from reward_study import jobs_for, prepare

from sctom.preferences import GRADES, read_preferences
from sctom.readers import read_jsonl

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "learned_rewards.md"


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture
def small(monkeypatch):
    """Studies of few pairs."""
    few = {"train.jsonl": 80, "valid.jsonl": 8, "test.jsonl": 40}
    made = reward_study.prepare_graded
    monkeypatch.setattr(reward_study, "CONFLICTING_PAIRS", few)
    monkeypatch.setattr(
        reward_study,
        "prepare_graded",
        lambda world, **settings: made(world, **{"pairs": few, **settings}),
    )


def score(job, better) -> None:
    """Pretend that a job has run: `better` says of the number of a pair whether it is right."""
    for trained in job.needs:
        trained.result.parent.mkdir(parents=True, exist_ok=True)
        trained.result.touch()
        trained.stamp_file.write_text(json.dumps(trained.stamp))
    pairs = read_preferences(Path(job.stamp["command"][job.stamp["command"].index("--pairs") + 1]))
    rows = [
        {
            "line": number + 1,
            "chosen": float(better(number)),
            "rejected": 0.5,
            "grade": None if pair.grade is None else GRADES[pair.grade],
            "is_safety": pair.is_safety,
        }
        for number, pair in enumerate(pairs)
    ]
    job.result.parent.mkdir(parents=True, exist_ok=True)
    job.result.write_text("".join(json.dumps(row) + "\n" for row in rows))
    job.stamp_file.write_text(json.dumps(job.stamp))
    share = sum(map(better, range(len(rows)))) / len(rows)
    numbers = {"pairs": len(rows), "accuracy": share, "accuracy_low": 0.1, "accuracy_high": 0.9}
    numbers |= {"ece": 0.1, "brier": 0.25, "length/pearson": 0.0}
    numbers |= {"score/std": 1.5, "score/bimodality": 0.6}
    metrics = {f"reward_model/{name}": value for name, value in numbers.items()}
    (job.folder / "evaluation.json").write_text(json.dumps({"metrics": metrics}))


def scoring_jobs(jobs):
    return [job for job in jobs if job.result.name == "scored.jsonl"]


def cells(table: str) -> dict[str, list[str]]:
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {row[0]: row[1:] for row in rows}


@pytest.mark.parametrize("module", [reward_study, reward_tables], ids=lambda m: m.__name__)
def test_doctests(module):
    failed, tried = doctest.testmod(module)
    assert tried and not failed


# pairs and runs -----------------------------------------------------------------------------------


def test_each_objective_has_pairs_of_its_own(small, tmp_path):
    prepare("conflicting", [], tmp_path)
    prepare("conflicting", [], tmp_path)  # may be given again
    mixed = read_preferences(tmp_path / "train.jsonl")
    halves = [read_preferences(tmp_path / f"train-{name}.jsonl") for name in ("helpful", "safe")]
    assert [{pair.is_safety for pair in half} for half in halves] == [{False}, {True}]
    assert [len(half) for half in halves] == [40, 40] and len(mixed) == 80


def test_long_pairs_of_hh_are_left_out_of_training_only(tmp_path):
    source = tmp_path / "hh.jsonl"
    dialogues = [
        [f"\n\nHuman: Question {n}?\n\nAssistant: {answer}" for answer in ("No.", "Yes. " + more)]
        for n in range(60)
        for more in ["word " * 400 * (n % 2)]
    ]
    source.write_text(
        "".join(json.dumps({"chosen": a, "rejected": b}) + "\n" for a, b in dialogues)
    )
    prepare("hh", [source], tmp_path / "data")
    rows = {
        name: read_jsonl(tmp_path / "data" / f"{name}.jsonl") for name in ("train", "valid", "test")
    }
    longest = {name: max(map(reward_study.characters, found)) for name, found in rows.items()}
    assert longest["train"] < 100 and longest["test"] > 2000
    assert [len(rows[name]) for name in ("valid", "test")] == [6, 12]
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_text())
    assert manifest["files"]["train.jsonl"]["rows"] == len(rows["train"]) < 42


def test_the_runs_of_a_study(small, tmp_path):
    prepare("graded", [], tmp_path / "graded" / "data")
    jobs = jobs_for("graded", [1, 2], tmp_path)
    assert [job.name for job in jobs[:2]] == ["graded none seed-1", "graded none seed-1: test"]
    assert len(jobs) == 2 * 3 * 2  # seeds, margins, and scoring after training
    first, scored = jobs[:2]
    assert first.iterations == 2  # 80 pairs, 64 at a time
    assert scored.needs == [first]
    (command,) = first.commands
    assert Path(command[command.index("--config") + 1]).is_file()
    assert command[-2:] == ["--data.margin", "none"]
    margins = [job.commands[0][-1] for job in jobs if "sctom.fit" in job.commands[0]]
    assert margins == ["none", "small", "large"] * 2


# tables -------------------------------------------------------------------------------------------


def test_the_table_of_margins(small, tmp_path):
    data = tmp_path / "graded" / "data"
    prepare("graded", [], data)
    jobs = jobs_for("graded", [1, 2], tmp_path)
    for job in scoring_jobs(jobs):
        margin, seed = job.folder.parts[-3:-1]
        step = {"none": 2, "small": 1, "large": 1}[margin]  # every second pair right, or all
        wrong = {0} if (margin, seed) == ("large", "seed-2") else set()
        score(job, lambda n, step=step, wrong=wrong: n % step == 0 and n not in wrong)
    tables, numbers = reward_study.tables("graded", jobs, data)
    rows = cells(tables["margins"])
    assert list(rows) == [*reversed(GRADES), "all"]
    # 20 of 40; 40 of 40; 40 and 39 of 40
    assert rows["all"][0] == "40"
    assert rows["all"][2:5] == ["50.0% (50.0 to 50.0)", "100.0% (100.0 to 100.0)", rows["all"][4]]
    assert rows["all"][4] == "98.8% (97.5 to 100.0)"
    assert rows["better"][5:] == ["66.9%", "67.3%", "67.5%"]
    assert cells(tables["changes"])["all"] == ["50.0 (50.0 to 50.0)", "48.8 (47.5 to 50.0)"]
    assert cells(tables["scores"])["bimodality of the scores"] == ["0.60"] * 3
    assert sum(numbers["pairs"][grade] for grade in GRADES) == 40
    draw_grades(numbers["margins"], numbers["pairs"], tmp_path / "margins.png")
    assert (tmp_path / "margins.png").stat().st_size > 5000


def test_the_table_of_two_aims(small, tmp_path):
    data = tmp_path / "conflicting" / "data"
    prepare("conflicting", [], data)
    pairs = read_preferences(data / "test.jsonl")
    jobs = jobs_for("conflicting", [1], tmp_path)
    right = {
        "mixed": lambda n: False,
        "helpful": lambda n: not pairs[n].is_safety,  # each of the two knows its own pairs
        "safe": lambda n: bool(pairs[n].is_safety),
    }
    for job in scoring_jobs(jobs):
        score(job, right[job.folder.parts[-3]])
    tables, numbers = reward_study.tables("conflicting", jobs, data)
    rows = cells(tables["conflicting"])
    assert rows["mixed model"] == ["0.0%"] * 4
    assert rows["helpful model"] == ["100.0%", "0.0%", "0.0%", "50.0%"]
    assert rows["safe model"] == ["0.0%", "100.0%", "100.0%", "50.0%"]
    assert rows["two models and the rule"] == ["100.0%"] * 4
    # without tags safety decides below 0.15 only, and no score of 0, 0.5 or 1 is: sigma(0) = 0.5
    assert rows["the rule without tags"] == rows["helpful model"]
    flipped = sum(pair.columns["flipped"] for pair in pairs)
    assert numbers["utility"]["all"] == pytest.approx(1 - flipped / 40)


def test_the_rule_on_scores_by_hand():
    # pair 0: sigma(2) and sigma(1) are above 0.15, so helpfulness; pair 1 is tagged, so safety
    # pair 2: sigma(-3) = 0.047 is below, sigma(0) is not: safety -3 against helpfulness 4
    helpful = [{"chosen": 5.0, "rejected": 6.0}, {"chosen": 1.0, "rejected": 2.0}]
    helpful = [row | {"is_safety": tag} for row, tag in zip(helpful, (False, True), strict=True)]
    helpful.append({"chosen": 9.0, "rejected": 4.0, "is_safety": False})
    safe = [{"chosen": 2.0, "rejected": 1.0}, {"chosen": 0.5, "rejected": -7.0}]
    safe.append({"chosen": -3.0, "rejected": 0.0})
    rows = reward_tables.by_rule(helpful, safe)
    assert [(row["chosen"], row["rejected"]) for row in rows] == [
        (5.0, 6.0),
        (0.5, -7.0),
        (-3.0, 4.0),
    ]
    untagged = reward_tables.by_rule(helpful, safe, tagged=False)[1]
    assert (untagged["chosen"], untagged["rejected"]) == (1.0, -7.0)  # sigma(-7) is below anyway


def test_the_test_pairs_of_hh_are_scored_by_what_was_best_on_validation(tmp_path):
    data = tmp_path / "hh" / "data"
    data.mkdir(parents=True)
    row = {"prompt": "Why?", "chosen": "because so", "rejected": "no idea", "is_safety": True}
    for name in ("train", "valid", "test"):
        (data / f"{name}.jsonl").write_text((json.dumps(row) + "\n") * 8)
    jobs = jobs_for("hh", [1], tmp_path, epochs=(1, 2))
    assert [job.iterations for job in jobs if not job.needs] == [1, 2]
    one, two = scoring_jobs(jobs)
    score(one, lambda n: n < 5)
    score(two, lambda n: n < 6)
    (test,) = reward_study.best_epochs(jobs)
    assert test.folder == tmp_path / "hh" / "epochs-2" / "seed-1" / "test"
    score(test, lambda n: n < 4)
    tables, numbers = reward_study.tables("hh", [*jobs, test], data)
    rows = cells(tables["hh"])
    assert rows["epochs-2 seed-1 test"][:2] == ["8", "50.0% [10.0%, 90.0%]"]
    assert rows["words alone, test"][1].startswith("100.0%")
    assert len(numbers) == 3


def test_the_report_goes_into_the_page(small, tmp_path, monkeypatch, capsys):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / PAGE.name).write_text("<!-- table: conflicting -->\n<!-- end -->\n")
    prepare("conflicting", [], tmp_path / "conflicting" / "data")
    for job in scoring_jobs(jobs_for("conflicting", [1], tmp_path)):
        score(job, lambda n: True)
    options = ["--report", "--seeds", "1", "--out", str(tmp_path), "--docs", str(docs)]
    monkeypatch.setattr(sys, "argv", ["reward_study.py", "conflicting", *options])
    reward_study.main()
    assert "| mixed model | 100.0% |" in capsys.readouterr().out
    assert "| mixed model | 100.0% |" in (docs / PAGE.name).read_text()
    numbers = json.loads((tmp_path / "conflicting" / "results.json").read_text())
    assert numbers["accuracy"]["mixed model"]["all"] == [1.0]


def test_hh_needs_its_file(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["reward_study.py", "hh"])
    with pytest.raises(SystemExit):
        reward_study.main()
    assert "hh needs --source" in capsys.readouterr().err


# the page -----------------------------------------------------------------------------------------


def test_the_examples_of_the_page():
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert tried and not failed


def test_the_page_has_a_place_for_every_table():
    text = PAGE.read_text()
    for name in ("margins", "changes", "scores", "conflicting", "hh"):
        assert f"<!-- table: {name} -->\n" in text
    assert text.count("<!-- end -->") == 5
