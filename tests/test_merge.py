from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from sctom.assets import resolve
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
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    folder = tmp_path_factory.mktemp("adapter") / "model"
    save_backbone(model, tokenizer, folder)
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
    save_backbone(model, tokenizer, tmp_path / "model")
    with pytest.raises(MergeError, match=r"not merged into 4-bit weights.*-m sctom\.merge --adap"):
        merge_adapter(model)
    merge(tmp_path / "model", tmp_path / "out")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert "quantization_config" not in json.loads((tmp_path / "out/config.json").read_text())
    assert {p.dtype for p in plain.parameters()} == {torch.float32}


def test_without_an_adapter(tiny_model):
    with pytest.raises(MergeError, match="LlamaForCausalLM has no adapter"):
        merge_adapter(Backbone(str(tiny_model)).load_model())


# ---- what is refused, with nothing written -------------------------------------------------------


def test_out_that_exists(adapter, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(MergeError, match="exists; choose another folder, or pass --force"):
        merge(adapter, out)
    (out / "thesis.txt").write_text("months of work")
    with pytest.raises(MergeError, match="holds no model, so it is not replaced"):
        merge(adapter, out, force=True)
    assert files(out) == {"thesis.txt"}


def test_force_replaces_a_model(adapter, tmp_path):
    out = shutil.copytree(resolve(WORLD), tmp_path / "out")
    (out / "old.txt").touch()
    merge(adapter, out, force=True)
    assert "old.txt" not in files(out) and "model.safetensors" in files(out)


@pytest.mark.parametrize("which", ["adapter", "base"])
def test_what_is_merged_is_not_overwritten(adapter, tmp_path, which):
    base = shutil.copytree(resolve(WORLD), tmp_path / "base")
    out = adapter if which == "adapter" else base
    before = files(out)
    with pytest.raises(MergeError, match="is what would be merged"):
        merge(adapter, out, base=str(base), force=True)
    assert files(out) == before


def test_missing_folders(adapter, tmp_path):
    with pytest.raises(FileNotFoundError, match="give the folder of an adapter"):
        merge(tmp_path / "no", tmp_path / "out")
    with pytest.raises(FileNotFoundError, match="neither a folder here nor a hub name"):
        merge(adapter, tmp_path / "out", base=str(tmp_path / "nothing"))
    nameless = shutil.copytree(adapter, tmp_path / "nameless")
    config = json.loads((nameless / "adapter_config.json").read_text())
    (nameless / "adapter_config.json").write_text(
        json.dumps(config | {"base_model_name_or_path": None})
    )
    with pytest.raises(MergeError, match="names no base model; pass --base"):
        merge(nameless, tmp_path / "out")
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


# ---- the command ---------------------------------------------------------------------------------


def test_command(adapter, tmp_path, capsys):
    options = ["--adapter", str(adapter), "--out", str(tmp_path / "out"), "--base", WORLD]
    main(options)
    said = capsys.readouterr().out
    assert f"{tmp_path / 'out'}: {WORLD} with its adapter merged, in float32" in said
    with pytest.raises(SystemExit):
        main(options)
    assert "error: --out" in capsys.readouterr().err


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
