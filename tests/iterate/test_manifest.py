from __future__ import annotations

import json
from pathlib import Path

import pytest

from sctom.iterate.manifest import Manifest, ManifestError, Stage


class Copy:
    """A stage that copies its input, with a word of its config behind it."""

    def __init__(self, source: Path, word: str = "x", name: str = "1/copy") -> None:
        self.source = source
        self.word = word
        self.name = name
        self.runs = 0

    def stage(self) -> Stage:
        config = {"word": self.word, "deep": {"number": 1}}
        return Stage(self.name, config, [str(self.source)], ["out.txt"], self.run)

    def run(self, folder: Path) -> None:
        self.runs += 1
        (folder / "out.txt").write_text(self.source.read_text() + self.word)


@pytest.fixture
def source(tmp_path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("in")
    return path


@pytest.fixture
def run_dir(tmp_path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def test_a_finished_stage_is_not_done_again(run_dir, source):
    copy = Copy(source)
    assert Manifest(run_dir).do(copy.stage())
    assert not Manifest(run_dir).do(copy.stage())
    assert copy.runs == 1
    entry = json.loads((run_dir / "manifest.json").read_text())["stages"]["1/copy"]
    # echo -n in | sha256sum; echo -n inx | sha256sum
    assert entry["inputs"][str(source)][:8] == "58296753"
    assert entry["outputs"]["out.txt"][:8] == "39c0cab2"


def test_an_unfinished_stage_is_gone_on_with(run_dir, source):
    copy = Copy(source)
    stage = copy.stage()

    def fails(folder: Path) -> None:
        (folder / "half.txt").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Manifest(run_dir).do(Stage(stage.name, stage.config, stage.inputs, stage.outputs, fails))
    assert Manifest(run_dir).stages["1/copy"]["outputs"] is None
    assert Manifest(run_dir).do(stage)
    assert (run_dir / "rounds" / "1" / "copy" / "half.txt").exists()  # its folder was left alone


def test_another_config_is_refused_by_the_name_of_the_setting(run_dir, source):
    Manifest(run_dir).do(Copy(source).stage())
    with pytest.raises(ManifestError, match=r"1/copy was begun with word: 'x', which is 'y' now"):
        Manifest(run_dir).do(Copy(source, "y").stage())


def test_another_input_is_refused_by_its_name(run_dir, source):
    Manifest(run_dir).do(Copy(source).stage())
    source.write_text("other")
    with pytest.raises(ManifestError, match=r"begun with another .*in.txt \(sha256 58296753"):
        Manifest(run_dir).do(Copy(source).stage())


def test_an_unfinished_stage_does_not_mix_two_inputs(run_dir, source):
    stage = Copy(source).stage()

    def fails(folder: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Manifest(run_dir).do(Stage(stage.name, stage.config, stage.inputs, stage.outputs, fails))
    source.write_text("other")
    with pytest.raises(ManifestError, match="begun with another"):
        Manifest(run_dir).do(stage)


def test_a_changed_output_is_refused_by_its_name(run_dir, source):
    Manifest(run_dir).do(Copy(source).stage())
    output = run_dir / "rounds" / "1" / "copy" / "out.txt"
    output.write_text("touched")
    with pytest.raises(ManifestError, match=r"out.txt is not what stage 1/copy made"):
        Manifest(run_dir).do(Copy(source).stage())
    output.unlink()
    with pytest.raises(ManifestError, match=r"out.txt is not what .* nothing now"):
        Manifest(run_dir).do(Copy(source).stage())


def test_deleting_its_folder_does_a_stage_again(run_dir, source):
    copy = Copy(source)
    Manifest(run_dir).do(copy.stage())
    before = Manifest(run_dir).digest()
    output = run_dir / "rounds" / "1" / "copy" / "out.txt"
    output.unlink()
    output.parent.rmdir()
    assert Manifest(run_dir).do(copy.stage())
    assert copy.runs == 2 and Manifest(run_dir).digest() == before


def test_an_input_that_was_awaited_may_come(run_dir, tmp_path):
    copy = Copy(tmp_path / "later.txt")
    with pytest.raises(FileNotFoundError):
        Manifest(run_dir).do(copy.stage())
    copy.source.write_text("there")
    assert Manifest(run_dir).do(copy.stage())


def test_a_stage_that_leaves_out_an_output_is_a_fault(run_dir, source):
    stage = Copy(source).stage()
    lacking = Stage(stage.name, stage.config, stage.inputs, ["else.txt"], stage.run)
    with pytest.raises(ManifestError, match=r"was to hold else.txt"):
        Manifest(run_dir).do(lacking)


def test_a_folder_is_hashed_by_its_files(run_dir, source):
    def model(folder: Path, number: int) -> None:
        (folder / "model" / "inner").mkdir(parents=True, exist_ok=True)
        (folder / "model" / "inner" / "weights").write_text(str(number))
        (folder / "model" / "README.md").write_text(f"written at {number}")

    def made(number: int, name: str) -> str:
        run = lambda folder: model(folder, number)  # noqa: E731
        Manifest(run_dir).do(Stage(name, {}, [], ["model"], run))
        return Manifest(run_dir).stages[name]["outputs"]["model"]

    assert made(1, "a") == made(1, "b") != made(2, "c")
    (run_dir / "rounds" / "a" / "model" / "README.md").write_text("read by people only")
    assert not Manifest(run_dir).do(Stage("a", {}, [], ["model"], lambda folder: None))


def test_the_order_of_the_layers_of_an_adapter_says_nothing(run_dir):
    def made(name: str, *layers: str) -> str:
        def run(folder: Path) -> None:
            (folder / "model").mkdir()
            settings = {"r": 8, "target_modules": layers}
            (folder / "model" / "adapter_config.json").write_text(json.dumps(settings))

        Manifest(run_dir).do(Stage(name, {}, [], ["model"], run))
        return Manifest(run_dir).stages[name]["outputs"]["model"]

    assert made("a", "q_proj", "v_proj") == made("b", "v_proj", "q_proj") != made("c", "q_proj")


def test_a_run_may_move(tmp_path, source):
    """Paths in the run are kept as paths from its folder."""
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        Manifest(folder).do(Copy(source).stage())
        inner = folder / "rounds" / "1" / "copy" / "out.txt"
        second = Copy(inner, name="2/copy").stage()
        config = {**second.config, "path": str(inner)}
        Manifest(folder).do(Stage("2/copy", config, second.inputs, second.outputs, second.run))
    one, two = ((tmp_path / name / "manifest.json").read_text() for name in ("one", "two"))
    without = [json.loads(text)["stages"] for text in (one, two)]
    for stages in without:
        for entry in stages.values():
            del entry["seconds"]
    assert without[0] == without[1]
    assert "RUN/rounds/1/copy/out.txt" in one


def test_a_manifest_that_is_none(run_dir):
    (run_dir / "manifest.json").write_text("{}")
    with pytest.raises(ManifestError, match="no manifest of a run"):
        Manifest(run_dir)
