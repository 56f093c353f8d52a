from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from sctom.callbacks.common import (
    append_record,
    atomic_write,
    check_settings,
    log_text,
    printable,
    read_records,
    rewind_records,
    to_lines,
)


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "deep" / "file.txt"
    atomic_write(path, "old")

    def killed(source: Path, target: Path) -> None:
        assert source.read_bytes() == b"new"  # complete before it gets its name
        raise OSError("no more power")

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(OSError, match="no more power"):
        atomic_write(path, "new")
    assert path.read_text() == "old"


def test_a_write_reaches_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = []
    flush, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (events.append("fsync"), flush(handle)))
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append("rename"), replace(a, b)))
    atomic_write(tmp_path / "file.png", b"\x89PNG")
    assert events == ["fsync", "rename", "fsync"]
    assert [p.name for p in tmp_path.iterdir()] == ["file.png"]


def test_a_line_cut_short_is_left_out_but_another_broken_line_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    append_record(path, {"iteration": 1, "text": "é\n"})
    append_record(path, {"iteration": 2})
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert read_records(path) == [{"iteration": 1, "text": "é\n"}]
    path.write_bytes(b"{broken\n" + whole)
    with pytest.raises(ValueError, match=r"m\.jsonl:1 is not JSON"):
        read_records(path)


def test_rewinding_keeps_what_was_done_before_the_resumed_iteration(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    assert rewind_records(path, 5) == []
    assert not path.exists()
    path.write_text(to_lines([{"iteration": i} for i in (0, 1, 2, 3)]) + '{"iteration": 4, "lo')
    assert rewind_records(path, 2) == [{"iteration": 0}, {"iteration": 1}, {"iteration": 2}]
    assert path.read_text() == to_lines([{"iteration": i} for i in (0, 1, 2)])
    assert rewind_records(path, 0) == []
    assert path.read_text() == ""


def test_nan_is_never_written_as_json() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_lines([{"reward": float("nan")}])


def test_text_goes_to_tensorboard_only(tmp_path: Path) -> None:
    added = []
    board = TensorBoardLogger(tmp_path)
    board._experiment = SimpleNamespace(add_text=lambda *arguments: added.append(arguments))
    trainer = SimpleNamespace(loggers=[CSVLogger(tmp_path), board])
    log_text(trainer, "banner", "# not a heading\n<b>", 7)
    assert added == [("banner", "    # not a heading\n    <b>", 7)]


def test_printable_keeps_other_alphabets_and_shows_what_cannot_be_seen() -> None:
    assert printable("서울 café", 20) == "서울 café"
    assert printable("a\u202eb\t", 20) == "a\\u202eb\\t"


def test_a_setting_that_is_nan_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Bar\.seconds must be at least 0 but is nan"):
        check_settings("Bar", {"seconds": (float("nan"), 0)})
