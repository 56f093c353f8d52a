from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from sctom.assets import resolve
from sctom.callbacks import checkpoint
from sctom.callbacks.checkpoint import publish, settle
from sctom.merge import Merged, main, merge, report
from sctom.modules import Backbone
from sctom.modules.backbone import save_backbone
from sctom.modules.merge import Difference, MergeError, merge_adapter, next_logps, probe

WORLD = "sctom:tinyworld/model"


@pytest.fixture(scope="module")
def adapter(tmp_path_factory) -> Path:
    """An adapter with some effect on every layer, saved as a run saves it."""
    backbone = Backbone(WORLD, lora_rank=4, lora_alpha=8)
    model, tokenizer = backbone.load()
    folder = tmp_path_factory.mktemp("adapter") / "model"
    save_backbone(as_if_trained(model), tokenizer, folder)
    return folder


def as_if_trained(model):
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_" in name and parameter.abs().max() == 0:  # it has no effect so far
            torch.nn.init.normal_(parameter, std=0.02)
    return model


def untied(folder: Path) -> Path:
    """The shipped model with its shared weight written twice."""
    shutil.copytree(resolve(WORLD), folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.config.tie_word_embeddings = False
    model.save_pretrained(folder)
    return folder


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_merged_computes_what_base_and_adapter_do(adapter, tmp_path):
    merged = merge(adapter, tmp_path / "out")
    assert files(tmp_path) == {"out"}  # nothing is left beside it
    assert files(tmp_path / "out") >= {"config.json", "model.safetensors", "tokenizer.json"}
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    together = Backbone(WORLD, adapter=str(adapter)).load_model()
    torch.testing.assert_close(next_logps(model), next_logps(together), rtol=1e-4, atol=1e-4)
    with together.disable_adapter():
        assert (next_logps(model) - next_logps(together)).abs().max() > 0.1
    assert merged.adapter.largest > 0.1 > 1e-4 > merged.merging.largest
    assert merged.dtype == "float32" and merged.rounding.largest == 0.0


def test_a_weight_by_hand(adapter, tmp_path):
    merge(adapter, tmp_path / "out")
    name = "model.layers.0.self_attn.q_proj"
    together = Backbone(WORLD, adapter=str(adapter)).load_model()
    layer = together.get_submodule(f"base_model.model.{name}")
    a, b = (part["default"].weight for part in (layer.lora_A, layer.lora_B))
    expected = layer.base_layer.weight + 8 / 4 * b @ a  # W + alpha / r * B A
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(model.get_submodule(name).weight, expected)


def test_tokenizer_and_template_stand_beside_it(adapter, tmp_path):
    merge(adapter, tmp_path / "out")
    messages = [{"role": "user", "content": "Where?"}]
    texts = [
        AutoTokenizer.from_pretrained(folder).apply_chat_template(messages, tokenize=False)
        for folder in (tmp_path / "out", resolve(WORLD))
    ]
    assert texts[0] == texts[1]


def test_the_base_tokenizer_where_the_adapter_has_none(adapter, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(adapter / name, bare)
    merge(bare, tmp_path / "out")
    assert "tokenizer.json" in files(tmp_path / "out")


def test_bfloat16_rounds_weights_and_nothing_else(adapter, tmp_path):
    merged = merge(adapter, tmp_path / "out", dtype="bfloat16")
    out = tmp_path / "out"
    model = AutoModelForCausalLM.from_pretrained(out, attn_implementation="eager")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    together = Backbone(WORLD, adapter=str(adapter)).load_model()
    gap = (next_logps(model) - next_logps(together)).abs().max()
    assert 0 < merged.rounding.largest < 1
    assert abs(float(gap) - merged.rounding.largest) < 1e-3


def test_an_adapter_trained_on_4bit_weights(tmp_path):
    pytest.importorskip("bitsandbytes")
    model, tokenizer = Backbone(WORLD, lora_rank=4, quantization="nf4").load()
    save_backbone(as_if_trained(model), tokenizer, tmp_path / "model")
    with pytest.raises(MergeError, match=r"not merged into 4-bit weights.*-m sctom\.merge --adap"):
        merge_adapter(model)
    merge(tmp_path / "model", tmp_path / "out")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert "quantization_config" not in json.loads((tmp_path / "out/config.json").read_text())
    assert {p.dtype for p in plain.parameters()} == {torch.float32}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("targets", [["embed_tokens"], ["lm_head"], ["embed_tokens", "lm_head"]])
@pytest.mark.filterwarnings(
    "ignore:Model has .tie_word_embeddings=True", "ignore:Setting .save_emb"
)
def test_adapted_embeddings(tmp_path, targets, tied):
    """Where embeddings and head are one weight, each gets its own and what was added to it."""
    base = resolve(WORLD) if tied else untied(tmp_path / "base")
    model, tokenizer = Backbone(str(base), lora_rank=4, lora_targets=targets).load()
    save_backbone(as_if_trained(model), tokenizer, tmp_path / "model")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Model has .tie_word_embeddings=True")
        merged = merge(tmp_path / "model", tmp_path / "out")
    assert merged.adapter.largest > 1e-3 > merged.merging.largest
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(next_logps(plain), next_logps(model), rtol=1e-4, atol=1e-4)
    changed = (plain.model.embed_tokens.weight, plain.lm_head.weight)
    original = AutoModelForCausalLM.from_pretrained(base)
    for name, weight in zip(("embed_tokens", "lm_head"), changed, strict=True):
        before = (original.model if name == "embed_tokens" else original).get_submodule(name).weight
        assert torch.equal(weight, before) == (name not in targets)


def test_without_an_adapter(tiny_model):
    with pytest.raises(MergeError, match="LlamaForCausalLM has no adapter"):
        merge_adapter(Backbone(str(tiny_model)).load_model())


# ---- what is refused, with nothing written -------------------------------------------------------


def test_an_adapter_that_changes_nothing(tmp_path):
    model, tokenizer = Backbone(WORLD, lora_rank=4).load()
    save_backbone(model, tokenizer, tmp_path / "model")
    with pytest.raises(MergeError, match=r"model changes no weight of .*: it was not trained, or"):
        merge(tmp_path / "model", tmp_path / "out")
    assert files(tmp_path) == {"model"}


@pytest.mark.filterwarnings("ignore:Setting .save_emb")
def test_a_change_that_the_probe_does_not_see(tmp_path):
    """A token's embedding that was trained, where the probe has other tokens."""
    base = untied(tmp_path / "base")
    model, tokenizer = Backbone(str(base), lora_rank=4, lora_targets=["embed_tokens"]).load()
    token = (set(range(563)) - set(probe(563).flatten().tolist())).pop()
    (change,) = (p for name, p in model.named_parameters() if "lora_embedding_A" in name)
    change.data[:, token] = 1.0
    save_backbone(model, tokenizer, tmp_path / "model")
    assert merge(tmp_path / "model", tmp_path / "out").adapter.largest == 0.0
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    original = AutoModelForCausalLM.from_pretrained(base)
    differs = (plain.model.embed_tokens.weight != original.model.embed_tokens.weight).any(1)
    assert differs.nonzero().flatten().tolist() == [token]


def test_out_that_exists(adapter, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(MergeError, match="exists; choose another folder, or pass --force"):
        merge(adapter, out)
    (out / "thesis.txt").write_text("months of work")
    (out / "config.json").write_text("{}")
    with pytest.raises(MergeError, match="holds no model, so it is not replaced"):
        merge(adapter, out, force=True)
    assert files(out) == {"thesis.txt", "config.json"}


def test_force_replaces_a_model(adapter, tmp_path):
    out = shutil.copytree(resolve(WORLD), tmp_path / "out")
    (out / "old.txt").touch()
    merge(adapter, out, force=True)
    assert "old.txt" not in files(out) and "model.safetensors" in files(out)
    assert files(tmp_path) == {"out"}


def test_force_leaves_a_folder_with_more_than_a_model(adapter, tmp_path):
    out = shutil.copytree(resolve(WORLD), tmp_path / "out")
    (out / "checkpoint-100").mkdir()
    with pytest.raises(MergeError, match=r"also the folder checkpoint-100, so it is not replaced"):
        merge(adapter, out, force=True)
    assert (out / "checkpoint-100").is_dir()


@pytest.mark.parametrize("there", [True, False])
def test_out_that_is_a_link(adapter, tmp_path, there):
    target = tmp_path / "target"
    if there:
        shutil.copytree(resolve(WORLD), target)
    (tmp_path / "out").symlink_to(target)
    with pytest.raises(MergeError, match="is a symbolic link; give the folder that it points to"):
        merge(adapter, tmp_path / "out", force=True)
    assert (tmp_path / "out").is_symlink() and target.exists() == there


@pytest.fixture
def nested(adapter, tmp_path) -> dict[str, Path]:
    """Base and adapter inside a folder that looks like a model, and a link to the adapter."""
    parts = {"whole": shutil.copytree(resolve(WORLD), tmp_path / "whole")}
    parts["adapter"] = shutil.copytree(adapter, parts["whole"] / "checkpoint-100")
    parts["base"] = shutil.copytree(resolve(WORLD), parts["whole"] / "base")
    parts["below"] = parts["adapter"] / "merged" / "here"
    parts["link"] = tmp_path / "link"
    parts["link"].symlink_to(parts["adapter"])
    return parts


@pytest.mark.parametrize(
    ("source", "base", "out", "problem"),
    [
        ("adapter", WORLD, "adapter", "is what would be merged"),
        ("elsewhere", "base", "base", "is what would be merged"),
        ("adapter", WORLD, "whole", r"holds .*/checkpoint-100, which would be merged"),
        ("link", WORLD, "whole", r"holds .*/checkpoint-100, which would be merged"),
        ("elsewhere", "base", "whole", r"holds .*/base, which would be merged"),
        ("adapter", WORLD, "below", r"lies inside .*/checkpoint-100, which would be merged"),
        ("elsewhere", "whole", "below", r"lies inside .*/whole, which would be merged"),
    ],
)
def test_what_is_merged_is_not_overwritten(adapter, nested, tmp_path, source, base, out, problem):
    places = nested | {"elsewhere": adapter}
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(MergeError, match=f"{problem}; choose another folder"):
        merge(places[source], places[out], base=str(places.get(base, base)), force=True)
    assert sorted(tmp_path.rglob("*")) == before


def test_files_that_are_links_into_out(adapter, tmp_path):
    out = shutil.copytree(resolve(WORLD), tmp_path / "out")
    shutil.move(shutil.copytree(adapter, tmp_path / "model") / "adapter_model.safetensors", out)
    link = tmp_path / "model" / "adapter_model.safetensors"
    link.symlink_to(out / "adapter_model.safetensors")
    with pytest.raises(MergeError, match=r"holds .*model, which would be merged"):
        merge(tmp_path / "model", out, force=True)
    assert link.exists()


def test_missing_folders(adapter, tmp_path):
    with pytest.raises(FileNotFoundError, match="give the folder of an adapter"):
        merge(tmp_path / "no", tmp_path / "out")
    with pytest.raises(FileNotFoundError, match="neither a folder here nor a hub name"):
        merge(adapter, tmp_path / "out", base=str(tmp_path / "nothing"))
    other = shutil.copytree(adapter, tmp_path / "other")
    config = json.loads((other / "adapter_config.json").read_text())
    for named, kind, message in (
        (None, MergeError, "names no base model; pass --base"),
        (["x"], MergeError, "names no base model; pass --base"),
        ("models/gone", FileNotFoundError, r"the base models/gone, which .*/other/adapter_config"),
        ("owner/gone", FileNotFoundError, r"pass the folder of the unquantised base as --base"),
        (str(tmp_path), FileNotFoundError, r"pass the folder of the unquantised base as --base"),
    ):
        (other / "adapter_config.json").write_text(
            json.dumps(config | {"base_model_name_or_path": named})
        )
        with pytest.raises(kind, match=message):
            merge(other, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_merge_that_came_out_wrong(adapter, tmp_path, monkeypatch):
    def spoiled(model):
        merged = merge_adapter(model)
        merged.lm_head.weight.data *= 1.01
        return merged

    monkeypatch.setattr("sctom.merge.merge_adapter", spoiled)
    with pytest.raises(MergeError, match="merged and unmerged log-probabilities differ"):
        merge(adapter, tmp_path / "out")
    assert files(tmp_path) == set()


def test_a_file_that_came_out_wrong(adapter, tmp_path, monkeypatch):
    def spoiled(model, tokenizer, folder):
        model.lm_head.weight.data *= 1.01
        save_backbone(model, tokenizer, folder)

    monkeypatch.setattr("sctom.merge.save_backbone", spoiled)
    with pytest.raises(MergeError, match="what was written computes something else"):
        merge(adapter, tmp_path / "out")
    assert files(tmp_path) == set()


# ---- a kill while a folder is replaced -----------------------------------------------------------


class KilledError(Exception):
    pass


@pytest.fixture
def kill_at(monkeypatch):
    """From the call with that number on, neither renaming nor removing is possible."""

    def arm(number: int) -> None:
        calls = [0]

        def dying(original):
            def call(*args, **kwargs):
                calls[0] += 1
                if calls[0] >= number:
                    raise KilledError
                return original(*args, **kwargs)

            return call

        monkeypatch.setattr(checkpoint.os, "replace", dying(os.replace))
        monkeypatch.setattr(checkpoint.shutil, "rmtree", dying(shutil.rmtree))

    return arm


def folder_of(path: Path, content: str) -> Path:
    path.mkdir()
    (path / "which.txt").write_text(content)
    return path


@pytest.mark.parametrize("number", range(1, 8))
def test_a_folder_is_never_lost(tmp_path, kill_at, monkeypatch, number):
    final = folder_of(tmp_path / "final", "old")
    with monkeypatch.context(), contextlib.suppress(KilledError):
        kill_at(number)
        publish(folder_of(tmp_path / "temporary", "new"), final)
    monkeypatch.undo()
    held = {path.read_text() for path in tmp_path.rglob("which.txt")}
    assert "new" in held
    complete = final.is_dir() and (final / "which.txt").read_text()
    assert complete or held == {"old", "new"}  # without its name nothing is removed
    settle(final)
    waiting = tmp_path / "temporary"  # before its first renaming it is an unfinished folder
    assert (final / "which.txt").read_text() == ("old" if waiting.exists() else "new")
    assert files(tmp_path) - {"temporary"} == {"final"}
    assert not settle(final)


def test_what_a_kill_left_does_not_come_back_later(tmp_path):
    folder_of(tmp_path / ".final.sctom-new", "stale")
    folder_of(tmp_path / ".final.sctom-old", "older")
    publish(folder_of(tmp_path / "temporary", "new"), tmp_path / "final")
    assert not settle(tmp_path / "final") and files(tmp_path) == {"final"}
    assert (tmp_path / "final" / "which.txt").read_text() == "new"


def test_a_merge_finds_what_an_earlier_one_left(adapter, tmp_path, capsys):
    shutil.copytree(resolve(WORLD), tmp_path / ".out.sctom-new")
    folder_of(tmp_path / ".out.sctom-old", "old")
    with pytest.raises(MergeError, match="exists; choose another folder, or pass --force"):
        merge(adapter, tmp_path / "out")
    assert files(tmp_path) == {"out"} and "model.safetensors" in files(tmp_path / "out")
    assert (
        "out: finished replacing it, which an earlier merge was killed at"
        in capsys.readouterr().out
    )


# ---- the command ---------------------------------------------------------------------------------


def test_command(adapter, tmp_path, capsys):
    options = ["--adapter", str(adapter), "--out", str(tmp_path / "out"), "--base", WORLD]
    main(options)
    said = capsys.readouterr().out
    assert f"{tmp_path / 'out'}: {WORLD} with its adapter merged, in float32" in said
    with pytest.raises(SystemExit):
        main(options)
    assert "error: --out" in capsys.readouterr().err


def test_command_is_all_that_is_heard(adapter):
    """PEFT imports bitsandbytes, which would tell of a kernel that it does not find."""
    options = ["--adapter", str(adapter), "--out", str(adapter)]
    done = subprocess.run(
        [sys.executable, "-m", "sctom.merge", *options],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
    )
    expected = f"error: --out {adapter} is what would be merged; choose another folder\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", expected)


def test_report_says_when_rounding_hides_the_adapter():
    small, large = Difference(0.01, 0.001), Difference(0.1, 0.01)
    told = report(Merged("base", "bfloat16", small, Difference(0, 0), large), Path("out"))
    assert "rounding hides the adapter: pass --dtype float32" in told
    told = report(Merged("base", "bfloat16", large, Difference(0, 0), small), Path("out"))
    assert "hides" not in told


def test_the_probe_is_spread_over_the_vocabulary():
    ids = probe(100)
    assert ids.shape == (2, 16) and len(ids.unique()) > 25
    assert 0 <= ids.min() < 10 and 90 <= ids.max() < 100
