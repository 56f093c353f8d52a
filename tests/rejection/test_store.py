from __future__ import annotations

import pytest

from sctom.rejection.store import Folder, RunFolderError, Samples, begin


def lines(prompts):
    return [{"prompt": prompt, "sample": i} for prompt in prompts for i in range(2)]


def test_what_a_kill_cut_short_is_dropped_back_to_whole_chunks(tmp_path):
    samples = Samples(tmp_path / "samples.jsonl", 2)
    assert samples.rewind(2, 5) == 0
    samples.append(lines(range(3)))
    with samples.path.open("ab") as file:
        file.write(b'{"prompt": 3, "sam')
    assert samples.rewind(2, 5) == 2  # of three prompts and a half, one chunk of two
    assert [group[0]["prompt"] for group in samples] == [0, 1]
    samples.append(lines([2, 3]))
    samples.append(lines([4]))
    assert samples.rewind(2, 5) == 5  # the last chunk is shorter, and complete
    assert [group[1]["prompt"] for group in samples] == [0, 1, 2, 3, 4]


def folder(path, **config):
    return Folder(path, {"samples": 4, "run_dir": str(path), **config}, {"prompts": "abc"})


def test_a_run_is_gone_on_with_only_if_it_is_the_same(tmp_path):
    path = tmp_path / "run"
    assert not folder(path).open("error")
    with pytest.raises(RunFolderError, match="--resume auto"):
        folder(path).open("error")
    assert not folder(path).open("auto")
    with pytest.raises(RunFolderError, match="samples was 4 and is 8 now"):
        folder(path, samples=8).open("auto")
    assert not folder(path, run_dir="elsewhere", chunk=3).open("auto")  # these change nothing
    with pytest.raises(RunFolderError, match="prompts was 'abc' and is 'abd' now"):
        Folder(path, {"samples": 4}, {"prompts": "abd"}).open("auto")


def test_must_and_fresh(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(RunFolderError, match="holds no run to go on with"):
        folder(path).open("must")
    folder(path).open("error")
    assert not folder(path).open("must")
    assert begin(str(path), "auto") == path and path.exists()
    assert begin(str(path), "fresh") == path and not path.exists()
    assert (tmp_path / "run.old-1" / "manifest.json").exists()
    assert begin(str(path), "fresh") == path  # nothing to set aside


def test_a_finished_run_must_be_as_it_was_left(tmp_path):
    path = tmp_path / "run"
    folder(path).open("error")
    (path / "kept.jsonl").write_text("{}\n")
    folder(path).finish(["kept.jsonl"])
    assert folder(path).open("auto")
    (path / "kept.jsonl").write_text("{ }\n")
    with pytest.raises(RunFolderError, match=r"kept.jsonl is not what this run wrote"):
        folder(path).open("auto")


def test_a_folder_of_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RunFolderError, match="holds other files"):
        folder(tmp_path).open("auto")
