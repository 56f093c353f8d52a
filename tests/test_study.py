"""The study of the tiny world: its data, its runs and its tables."""

from __future__ import annotations

import doctest
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import study_pictures
import study_runs
import study_tables
import study_variants
import tinyworld_study
from rich.console import Console
from study_results import Run
from study_runs import Job, Runner, jobs_for
from study_tables import budgets, fill, judges, overview, price, stated, training
from study_variants import SHARES, VARIANTS, Variant, balanced, chosen

from sctom.assets import resolve
from sctom.callbacks.curves import before_and_after
from sctom.readers import read_jsonl
from sctom.tasks.tinyworld import IDK

ROOT = Path(__file__).parents[1]
TRAIN = "sctom:tinyworld/train.jsonl"


@pytest.mark.parametrize("module", [study_variants, study_tables], ids=lambda m: m.__name__)
def test_doctests(module):
    failed, tried = doctest.testmod(module)
    assert tried and not failed


# ---- variants ------------------------------------------------------------------------------------


def test_names_are_unique_and_starting_points_come_first():
    names = [variant.name for variant in VARIANTS]
    assert len(names) == len(set(names))
    assert not set(names) & {variant.family for variant in VARIANTS}
    for place, variant in enumerate(VARIANTS):
        assert variant.after is None or variant.after in names[:place]


def test_a_length_in_the_options_wins():
    quickstart, keep, resample = (next(iter(chosen([n]))) for n in ("g8", "keep", "resample"))
    assert [v.iterations for v in (quickstart, keep, resample)] == [60, 120, 60]


def test_an_unknown_name():
    with pytest.raises(ValueError, match="no variant or family g9; there are"):
        chosen(["g8", "g9"])


def test_shares_of_the_same_number_of_distinct_questions():
    rows = read_jsonl(resolve(TRAIN))
    # 375 answerable questions / (1 - 58/2198) = 385.2
    # 385 * 58/2198 = 10.2 and 385 * 944/3032 = 119.9 are unanswerable
    expected = {
        "share-3": {"unknown": 10, "half": 75, "known": 300},
        "share-31": {"unknown": 120, "half": 53, "known": 212},
    }
    for name, share in SHARES.items():
        part = balanced(rows, *share)
        kinds = [row["kind"] for row in part]
        assert {kind: kinds.count(kind) for kind in expected[name]} == expected[name]
        assert len({row["messages"][0]["content"] for row in part}) == 385
        assert part == balanced(rows, *share)
        places = [rows.index(row) for row in part]
        assert places == sorted(places)


def test_a_share_for_which_there_are_not_enough_questions():
    rows = read_jsonl(resolve(TRAIN))
    with pytest.raises(ValueError, match=r"385 questions of kind unknown are needed .* are 300"):
        balanced(rows, 1, 1)


# ---- tables --------------------------------------------------------------------------------------


def made_up(
    folder: Path,
    after: dict[str, float],
    *,
    rewards=(0.0, 0.5),
    tokens=1000.0,
    completions=(),
) -> Run:
    """The folder of a run of one iteration for each reward but the first."""
    folder.mkdir(parents=True)
    before = dict.fromkeys(after, 0.25)
    evaluations = [
        {
            "iteration": n,
            "completions": 8,
            "metrics": {**(after if n else before), "reward": reward},
        }
        for n, reward in enumerate(rewards)
    ]
    metrics = [
        {"iteration": n, "num_tokens": tokens * n, "frac_reward_zero_std": 0.25}
        for n in range(1, len(rewards))
    ]
    (folder / "table.json").write_text(json.dumps(before_and_after(evaluations)))
    for name, records in (("evaluations", evaluations), ("metrics", metrics)):
        lines = [json.dumps(record) + "\n" for record in records]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    (folder / "config.yaml").write_text(f"data: {{init_args: {{train: '{TRAIN}'}}}}\n")
    (folder / "completions").mkdir()
    keys = ("prompt_index", "sample", "completion", "advantage")
    records = [dict(zip(keys, each, strict=True)) | {"reward": -0.5} for each in completions]
    lines = [json.dumps(record) + "\n" for record in records]
    (folder / "completions" / "iteration-000001.jsonl").write_text("".join(lines))
    return Run(folder)


def test_the_overview(tmp_path):
    seeds = [
        made_up(tmp_path / str(f1), {"abstention_f1": f1, "accuracy_known": 1.0, "over_refusal": 0})
        for f1 in (0.5, 0.6, 0.7)
    ]
    table = overview({"g2": seeds[:1], "g8": seeds}).splitlines()
    assert table[0] == (
        "|  | seeds | abstention F1 | over-refusal | over-refusal on half known "
        "| accuracy on known | accuracy on half known | hallucination |"
    )
    assert table[2:] == [
        "| *before training* |  | 25.0% | 25.0% | - | 25.0% | - | - |",
        "| g8: groups of 8, scaled (the quickstart) | 3 "
        "| 60.0% (50.0-70.0) | 0.0% | - | 100.0% | - | - |",
        "| g2: pairs, scaled | 1 | 50.0% | 0.0% | - | 100.0% | - | - |",
    ]


def test_the_training(tmp_path):
    rows = read_jsonl(resolve(TRAIN))
    first = {}
    for index, row in enumerate(rows):
        first.setdefault(row["kind"], (index, row["messages"][-1]["content"]))
    index, right = first["half"]
    # abstained - wrong: 0.5 and 0.3, mean 0.4;  right - wrong: 1.0 and 0.8, twice, mean 0.9
    said = [
        (index, 0, right, 0.6),
        (index, 1, IDK, 0.1),
        (index, 2, "no", -0.4),
        (index, 3, "?", -0.2),
    ]
    said += [(index, 0, right, 0.0), (index, 1, right, 0.0)]  # the same question again: a new group
    said += [(first["known"][0], n, text, 0.0) for n, text in enumerate([IDK, first["known"][1]])]
    said += [(first["unknown"][0], n, text, 1 - n) for n, text in enumerate([IDK, "Berlin"])]
    run = made_up(tmp_path / "run", {}, completions=said)
    assert run.worth() == pytest.approx(0.4 / 0.9)
    table = training({"g2": [run], "strict": [run]}, ["groups"]).splitlines()
    # signal, worth; half known: right 3 of 6, abstained 1 of 6; known, unknown: abstained 1 of 2
    assert table[2:] == ["| g2: pairs, scaled | 75% | 0.44 | 50.0% | 16.7% | 50.0% | 50.0% |"]


def test_the_price_and_the_judges(tmp_path):
    rows = read_jsonl(resolve(TRAIN))
    half = next(i for i, row in enumerate(rows) if row["kind"] == "half")
    known = next(i for i, row in enumerate(rows) if row["kind"] == "known")
    unknown = next(i for i, row in enumerate(rows) if row["kind"] == "unknown")
    said = [(half, 0, IDK, 0), (half, 1, "no", 0), (known, 0, IDK, 0), (unknown, 0, IDK, 0)]
    cheap = made_up(tmp_path / "cheap" / "seed-1", {}, completions=said)
    said[0] = (half, 0, rows[half]["messages"][-1]["content"], 0)
    dear = made_up(tmp_path / "dear" / "seed-1", {}, completions=said)
    table = price({"g2-none-cheap": [cheap], "g2-none-dear": [dear]}).splitlines()
    assert table[2:] == ["| pairs, not scaled | -50.0 | +50.0 | +0.0 | +0.0 |"]
    # the made-up reward is -0.5 throughout: that of abstaining where there is an answer, twice here
    assert judges({"strict": [cheap]}).splitlines()[2:] == ["| strict, seed 1 | 4 | 2 |"]


def test_the_stated_confidence(tmp_path):
    run = made_up(tmp_path / "run", {}, rewards=[0.0] * 31)
    for place, metrics in enumerate(run.metrics):
        metrics |= {"brier/brier_score": 0.5 - 0.01 * place, "brier/stated": 1.0}
    # 0.5 - 0.01 * (0 + 14) / 2 = 0.43 and 0.5 - 0.01 * (15 + 29) / 2 = 0.28
    table = stated({"brier": [run], "g8": [made_up(tmp_path / "other", {})]}).splitlines()
    assert table[2:] == ["| brier: `Brier` | 0.430 | 0.280 | 100.0% |"]


def test_the_budgets(tmp_path):
    # keep: 3 updates of 1000 tokens; resample: 2 updates of 2000. Equal updates: 2. Tokens: 3000.
    rewards = (0.0, 0.3, 0.6, 0.9)
    keep = [made_up(tmp_path / "keep" / f"seed-{n}", {}, rewards=rewards) for n in (1, 2)]
    other = made_up(tmp_path / "resample" / "seed-2", {}, rewards=(0.0, 0.4, 1.0), tokens=2000.0)
    table = budgets({"keep": keep, "resample": [other]}, ("keep", "resample"))
    head, _, *lines = table.splitlines()
    assert head == "| validation reward | keep | resample | resample - keep, seed by seed |"
    assert lines == [
        "| at 1 updates | 0.200 | 0.267 | +0.067 |",
        "| at 1 updates | 0.400 | 0.600 | +0.200 |",
        "| at 2 updates | 0.600 | 1.000 | +0.400 |",
        "| at 1 thousand tokens | 0.300 | 0.200 | -0.100 |",
        "| at 2 thousand tokens | 0.600 | 0.400 | -0.200 |",
        "| at 3 thousand tokens | 0.900 | 0.700 | -0.200 |",
        "| tokens per update | 1000 | 2000 |  |",
    ]
    assert budgets({"keep": keep}, ("keep", "resample")) == ""


def test_tables_between_their_markers():
    page = "a\n<!-- table: x -->\nold\n<!-- end -->\nb\n"
    filled = fill(page, {"x": "| new |\n"})
    assert filled == "a\n<!-- table: x -->\n\n| new |\n\n<!-- end -->\nb\n"
    assert fill(filled, {"x": "| new |\n"}) == filled
    with pytest.raises(ValueError, match="no place for the table y: write <!-- table: y -->"):
        fill(page, {"y": ""})


def test_the_page_has_a_place_for_every_table_and_the_pictures_are_drawn(tmp_path):
    results = {
        name: [made_up(tmp_path / name / str(seed), {"abstention_f1": 0.5}) for seed in (1, 2)]
        for name in ("g8", *tinyworld_study.BUDGETS["from the start"])
    }
    page = tmp_path / "study.md"
    page.write_text((ROOT / "docs" / "study.md").read_text())
    tinyworld_study.write_report(results, tmp_path)
    assert "| g8: groups of 8, scaled (the quickstart) | 2 | 50.0% |" in page.read_text()
    assert "| keep: keep |" not in page.read_text()
    for name in ("study", "resample"):
        assert (tmp_path / "img" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    study_pictures.draw_budgets({}, tinyworld_study.BUDGETS, tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


# ---- runs ----------------------------------------------------------------------------------------


def job(folder: Path, code: str, *, needs=(), name=None, stamp=1) -> Job:
    """A job that runs a line of Python; its result is the file that `code` writes as R."""
    result = folder / "result"
    program = f"import pathlib, sys; R = pathlib.Path({str(result)!r}); {code}"
    commands = [["-c", program, "sctom.fit"]]
    return Job(name or folder.name, commands, folder, result, 0, list(needs), {"stamp": stamp})


WRITE = "R.parent.mkdir(exist_ok=True); R.write_text('x'); print(*sys.argv)"


@pytest.fixture
def console() -> Console:
    return Console(quiet=True)


def test_finished_runs_are_not_repeated(tmp_path, console):
    first = job(tmp_path / "a", WRITE)
    Runner(1, console).run([first])
    assert first.done() and first.log.read_text().endswith("--resume fresh\n")
    again = job(tmp_path / "a", "raise SystemExit('run again')")
    runner = Runner(1, console)
    runner.run([again])
    assert not runner.failed
    changed = job(tmp_path / "a", WRITE, stamp=2)
    assert not changed.done()
    Runner(1, console).run([changed])
    assert changed.done() and not first.done()


def test_a_killed_run_goes_on_and_a_complete_one_without_result_starts_anew(tmp_path, console):
    broken = job(
        tmp_path / "a", "R.parent.mkdir(); (R.parent / 'metrics.jsonl').write_text('{}\\n')"
    )
    broken.iterations = 2
    Runner(1, console).run([broken])
    assert broken.iteration() == 1 and not broken.done()
    for iterations, resume in ((2, "auto"), (1, "fresh")):
        again = job(tmp_path / "a", "print(*sys.argv)")
        again.iterations = iterations
        Runner(1, console).run([again])
        assert again.log.read_text().endswith(f"--resume {resume}\n")


def test_failures_are_told_with_the_end_of_their_log(tmp_path, console):
    bad = job(tmp_path / "bad", "[print(i) for i in range(99)]; raise SystemExit('it broke')")
    after = job(tmp_path / "after", WRITE, needs=[bad])
    empty = job(tmp_path / "empty", "print('nothing')")
    good = job(tmp_path / "good", WRITE)
    runner = Runner(2, console)
    runner.run([bad, after, empty, good])
    assert runner.failed.keys() == {"bad", "after", "empty"}
    assert runner.failed["bad"].startswith("exit code 1; the end of")
    assert runner.failed["bad"].endswith("97\n98\nit broke")
    assert "\n50\n" not in runner.failed["bad"]
    assert runner.failed["after"] == "not run, because bad failed"
    assert "it left no" in runner.failed["empty"]
    assert good.done()


def test_a_run_waits_for_what_it_starts_from_and_no_more_run_than_allowed(tmp_path, console):
    write = "import time; time.sleep(0.3); R.parent.mkdir(); R.write_text(str(time.time()))"
    first = job(tmp_path / "first", write)
    second = job(tmp_path / "second", write, needs=[first])
    third = job(tmp_path / "third", write, needs=[second])
    runner = Runner(2, console)
    most = 0
    start = runner._start

    def counted(started):
        nonlocal most
        start(started)
        most = max(most, len(runner.running))

    runner._start = counted
    runner.run([third, job(tmp_path / "a", write), job(tmp_path / "b", write), second, first])
    times = [float(each.result.read_text()) for each in (first, second, third)]
    assert times == sorted(times) and most == 2 and not runner.failed


def test_an_interrupt_ends_the_children(tmp_path, console, monkeypatch):
    runner, children = Runner(2, console), []

    def interrupt(seconds):
        children[:] = [running.process for running in runner.running]
        raise KeyboardInterrupt

    clock = SimpleNamespace(sleep=interrupt, monotonic=time.monotonic)
    monkeypatch.setattr(study_runs, "time", clock)
    endless = "import signal; signal.pause()"
    with pytest.raises(KeyboardInterrupt):
        runner.run([job(tmp_path / name, endless) for name in "abc"])
    assert len(children) == 2 and all(child.returncode == -15 for child in children)


def test_commands_and_what_they_depend_on(tmp_path):
    variants = [
        Variant("first", "f", "", ("--data.train", "{out}/x")),
        Variant("second", "f", "", ("--model.backbone.path", "{out}/first/seed-{seed}/model"),
                after="first"),
    ]  # fmt: skip
    jobs = {each.name: each for each in jobs_for(variants, [1, 2], tmp_path)}
    assert list(jobs) == ["first seed 1", "second seed 1", "first seed 2", "second seed 2"]
    second = jobs["second seed 2"]
    assert second.commands[0][-1] == f"{tmp_path}/first/seed-2/model"
    assert second.needs == [jobs["first seed 2"]] and second.iterations == 60
    assert second.stamp["needs"] == [jobs["first seed 2"].stamp]
    assert "group_size: 8" in second.stamp["config"]


def test_the_whole_command_in_short(tmp_path, monkeypatch, capsys):
    began = time.monotonic()
    arguments = ["--quick", "--only", "g2", "--seeds", "1", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["tinyworld_study.py", *arguments])
    monkeypatch.chdir(ROOT)
    for said in ("g2 seed 1: finished in", "1 of 1 are finished already"):
        with pytest.raises(SystemExit) as leaving:
            tinyworld_study.main()
        printed = capsys.readouterr().out
        assert leaving.value.code == 0 and said in printed
        assert "| g2: pairs, scaled | 1 |" in printed
    assert (tmp_path / "g2" / "seed-1" / "model").is_dir()
    assert "starting a new run" in (tmp_path / "g2" / "seed-1.log").read_text()
    assert time.monotonic() - began < 60
