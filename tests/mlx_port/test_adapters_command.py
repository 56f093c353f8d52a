"""What the command refuses, and that it then leaves everything as it was."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from sctom.mlx_port import adapters
from sctom.mlx_port.adapters import AdapterError, main, mlx_to_peft, peft_to_mlx, read_model
from tests.mlx_port.adapter_files import edit_config

Files = dict[str, bytes | str | None]


def everything(folder: Path) -> Files:
    """What a folder holds: the bytes of files, where links lead, None for folders."""

    def content(path: Path) -> bytes | str | None:
        if path.is_symlink():
            return os.readlink(path)
        return path.read_bytes() if path.is_file() else None

    return {str(path.relative_to(folder)): content(path) for path in folder.rglob("*")}


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit, match="1"):
        main([str(argument) for argument in arguments])
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["to-mlx", "{lora}", "{lora}", "--force"],
            "holds a PEFT adapter (adapter_model.safetensors)",
        ),
        (["to-mlx", "{lora}", "{file}"], "is a file; expected a folder"),
        (["to-mlx", "{none}", "{out}"], "adapter_config.json"),
        (["to-mlx", "{lora}", "{out}", "--write-config", "{new}"], "needs --model"),
        (
            ["to-mlx", "{lora}", "{out}", "--model", "{model}", "--write-config", "{file}"],
            "there already",
        ),
    ],
)
def test_command_refuses_and_writes_nothing(
    saved: Path,
    arguments: list[str],
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("mine")
    names = {"lora": saved / "lora", "model": saved / "model"}
    names |= {name: tmp_path / name for name in ("file", "out", "none", "new")}
    with pytest.raises(SystemExit, match="1"):
        main([argument.format(**names) for argument in arguments])
    assert expected in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "mine"
    assert len(list((saved / "lora").iterdir())) == 3  # PEFT writes a README.md too


CONFIG_PLACES = {
    "OUT's config": "out/adapter_config.json",
    "OUT's tensors": "out/adapters.safetensors",
    "by another name": "out/../out/adapter_config.json",
    "through a link": "link/adapter_config.json",
    "the source's config": "source/adapter_config.json",
    "the source's tensors": "source/adapter_model.safetensors",
    "OUT itself": "out",
    "a folder above OUT": ".",
    "below a file of OUT": "out/adapters.safetensors/c.json",
}


@pytest.mark.parametrize("out_exists", [False, True])
@pytest.mark.parametrize("name", list(CONFIG_PLACES))
def test_write_config_never_takes_a_file_of_the_adapter(
    saved: Path, name: str, out_exists: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    shutil.copytree(saved / "lora", source)
    (tmp_path / "link").symlink_to("out")
    if out_exists:
        peft_to_mlx(source, out)
    before = everything(tmp_path)
    place = tmp_path / CONFIG_PLACES[name]
    options = ["--model", saved / "model", "--write-config", place, "--force"]
    error = refused(capsys, "to-mlx", source, out, *options)
    assert "in the place of the adapter's own files; name another file" in error
    assert everything(tmp_path) == before


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("file/c.json", "file is a file; expected a folder to write to"),
        ("file/a/b/c.json", "file is a file; expected a folder to write to"),
        ("nowhere/c.json", "nowhere is a link that leads to no folder"),
        ("folder", "folder is not a regular file; name another file"),
        ("pipe", "pipe is not a regular file; name another file"),
    ],
)
def test_write_config_where_no_file_can_be(
    saved: Path, place: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "nowhere").symlink_to("absent")
    os.mkfifo(tmp_path / "pipe")
    before = everything(tmp_path)
    options = ["--model", saved / "model", "--write-config", tmp_path / place, "--force"]
    assert expected in refused(capsys, "to-mlx", saved / "lora", tmp_path / "out", *options)
    assert everything(tmp_path) == before


def test_write_config_needs_force_to_replace_a_link(saved: Path, tmp_path: Path) -> None:
    link, model = tmp_path / "config.json", read_model(saved / "model")
    link.symlink_to("absent")
    with pytest.raises(AdapterError, match="there already; name another file, or pass --force"):
        peft_to_mlx(saved / "lora", tmp_path / "out", model=model, write_config=link)
    peft_to_mlx(saved / "lora", tmp_path / "out", model=model, write_config=link, force=True)
    assert not link.is_symlink()
    assert json.loads(link.read_text())["rope_theta"] == 10000.0
    assert not (tmp_path / "absent").exists()


def test_write_config_into_a_new_folder_or_out_itself(saved: Path, tmp_path: Path) -> None:
    model = read_model(saved / "model")
    for number, place in enumerate(("new/deep/config.json", "1/config.json")):
        out = tmp_path / str(number)
        peft_to_mlx(saved / "lora", out, model=model, write_config=tmp_path / place)
        assert json.loads((tmp_path / place).read_text())["rope_theta"] == 10000.0
        assert {"adapter_config.json", "adapters.safetensors"} <= set(everything(out))
    written = {name for name, content in everything(tmp_path).items() if content is not None}
    pair = ("adapter_config.json", "adapters.safetensors")
    assert written == {f"{n}/{p}" for n in (0, 1) for p in pair} | {
        "new/deep/config.json",
        "1/config.json",
    }


def test_force_replaces_links_and_keeps_what_they_lead_to(saved: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    for name in ("adapter_config.json", "adapters.safetensors"):
        (tmp_path / name).write_text("mine")
        (out / name).symlink_to(tmp_path / name)
    peft_to_mlx(saved / "lora", out, force=True)
    for name in ("adapter_config.json", "adapters.safetensors"):
        assert (tmp_path / name).read_text() == "mine"
        assert not (out / name).is_symlink()
        assert (out / name).read_bytes() == (saved / "mlx-lora" / name).read_bytes()
    assert set(everything(out)) == {"adapter_config.json", "adapters.safetensors", "notes.txt"}


@pytest.mark.parametrize("target", ["absent", "out"])
def test_out_is_a_link_to_nothing(
    saved: Path, target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").symlink_to(target)  # "out" leads to itself
    for out in (tmp_path / "out", tmp_path / "out/deeper"):
        error = refused(capsys, "to-mlx", saved / "lora", out)
        assert "out is a link that leads to no folder; expected a folder to write to" in error
    assert everything(tmp_path) == {"out": target}


def test_a_folder_in_the_place_of_a_file_of_out(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peft_to_mlx(saved / "lora", tmp_path)
    (tmp_path / "adapters.safetensors").unlink()
    (tmp_path / "adapters.safetensors").mkdir()
    before = everything(tmp_path)
    error = refused(capsys, "to-mlx", saved / "lora", tmp_path, "--force")
    assert "adapters.safetensors is a folder, where a file is to be written" in error
    assert everything(tmp_path) == before


def test_a_full_disk_leaves_nothing(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_bytes

    def fail_on_the_config(path: Path, content: bytes) -> int:
        if path.name == "adapter_config.json":
            raise OSError(28, "No space left on device")
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", fail_on_the_config)
    model = read_model(saved / "model")
    with pytest.raises(OSError, match="No space left"):
        peft_to_mlx(
            saved / "lora", tmp_path / "a/out", model=model, write_config=tmp_path / "b/c.json"
        )
    assert everything(tmp_path) == {}
    shutil.copytree(saved / "mlx-dora", tmp_path / "out")
    before = everything(tmp_path)
    with pytest.raises(OSError, match="No space left"):
        peft_to_mlx(saved / "lora", tmp_path / "out", force=True)
    assert everything(tmp_path) == before


def test_an_interrupted_replacement_cannot_be_loaded(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Path(shutil.copytree(saved / "mlx-dora", tmp_path / "out"))

    def interrupt(old: Path, new: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(adapters.os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        peft_to_mlx(saved / "lora", out, force=True)
    assert set(everything(out)) == {"adapters.safetensors"}  # no config beside other tensors


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("", "--base-model is ''; expected a name or a folder"),
        (" ", "--base-model is ' '; expected a name or a folder"),
        ("org/\udcff", "org/\\udcff"),
    ],
)
def test_base_models_that_are_no_names(
    saved: Path, name: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    error = refused(capsys, "to-peft", saved / "mlx-lora", out, "--base-model", name)
    assert expected in error
    with pytest.raises(AdapterError, match="--base-model is 5"):
        mlx_to_peft(saved / "mlx-lora", out, base_model=5)  # type: ignore[arg-type]
    assert everything(tmp_path) == {}


def test_half_a_surrogate_pair_in_a_config(saved: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(saved / "lora", tmp_path / "source"))
    edit_config(source, base_model_name_or_path="org/\ud800")
    with pytest.raises(AdapterError, match=r"adapter_config\.json cannot be written: .*\\ud800"):
        peft_to_mlx(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_whose_name_is_no_text(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / os.fsdecode(b"out-\xff")
    try:
        out.mkdir()
    except OSError:
        pytest.skip("this file system refuses such names")
    main(["to-mlx", str(saved / "lora"), str(out)])
    assert "out-\\udcff: LoRA of rank 4" in capsys.readouterr().out


def test_articles(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=r"holds an MLX adapter \(adapters\.safetensors\)"):
        mlx_to_peft(saved / "mlx-lora", saved / "mlx-lora", base_model="x", force=True)
    source = Path(shutil.copytree(saved / "mlx-lora", tmp_path / "source"))
    shutil.copy(saved / "lora/adapter_model.safetensors", source / "adapters.safetensors")
    with pytest.raises(AdapterError, match="is not a key of an MLX adapter"):
        mlx_to_peft(source, tmp_path / "out", base_model="x")


def test_an_adapter_of_a_model_without_a_name(saved: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(saved / "lora", tmp_path / "source"))
    edit_config(source, base_model_name_or_path="")  # what PEFT writes for a model made in memory
    assert peft_to_mlx(source, tmp_path / "out").base is None
    assert "model" not in json.loads((tmp_path / "out/adapter_config.json").read_text())
