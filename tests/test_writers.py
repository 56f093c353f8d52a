from __future__ import annotations

import hashlib
import json

import pytest

from sctom.readers import DataError, read_jsonl
from sctom.writers import Prepared, write

ROWS = [{"text": "모름\u2028"}, {"text": "b"}]
PREPARED = Prepared(
    files={"train.jsonl": ROWS, "leaks.jsonl": []},
    counts={"train.jsonl": {"words": 2}},
    manifest={"set": "made up"},
    notes=[],
)


def test_files_and_manifest(tmp_path):
    folder = tmp_path / "new" / "folder"
    write(PREPARED, folder)
    assert read_jsonl(folder / "train.jsonl") == ROWS
    assert (folder / "leaks.jsonl").read_bytes() == b""
    content = (folder / "train.jsonl").read_bytes()
    assert json.loads((folder / "manifest.json").read_text()) == {
        "set": "made up",
        "files": {
            "train.jsonl": {
                "rows": 2,
                "words": 2,
                "sha256": hashlib.sha256(content).hexdigest(),
            },
            "leaks.jsonl": {"rows": 0, "sha256": hashlib.sha256(b"").hexdigest()},
        },
    }


def test_the_same_bytes_are_left_alone(tmp_path):
    write(PREPARED, tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    (tmp_path / "manifest.json").unlink()  # as after an interruption
    write(PREPARED, tmp_path)
    after = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert before.pop("manifest.json") < after.pop("manifest.json")
    assert before == after


@pytest.mark.parametrize("name", ["notes.txt", "train.jsonl"])
def test_other_contents_need_force(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(DataError, match=rf"holds other contents already \({name}\); choose ano"):
        write(PREPARED, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    write(PREPARED, tmp_path, force=True)
    assert len(read_jsonl(tmp_path / "train.jsonl")) == 2
    assert name == "train.jsonl" or (tmp_path / name).read_text() == "mine"


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(DataError, match="is a file; expected a folder"):
        write(PREPARED, tmp_path / "out")
