from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sctom.assets import resolve
from sctom.merge import merge
from sctom.modules import Backbone
from sctom.modules.backbone import save_backbone, trainable

WORLD = "sctom:tinyworld/model"
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """An adapter with some effect, saved as a run saves it."""
    model, tokenizer = Backbone(WORLD, lora_rank=4).load()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    folder = tmp_path_factory.mktemp("adapter") / "model"
    save_backbone(model, tokenizer, folder)
    return folder


@pytest.fixture
def adapter(saved, tmp_path) -> Path:
    return shutil.copytree(saved, tmp_path / "adapter")


def rewrite(adapter: Path, change) -> None:
    """Write the weights again, as `change` has them."""
    save_file(change(load_file(adapter / WEIGHTS)), adapter / WEIGHTS)


def edit(adapter: Path, **settings) -> None:
    config = json.loads((adapter / CONFIG).read_text())
    (adapter / CONFIG).write_text(json.dumps(config | settings))


def load(adapter: Path) -> torch.nn.Module:
    return Backbone(WORLD, adapter=str(adapter)).load_model()


def refused(adapter: Path, message: str, kind: type[Exception] = ValueError) -> None:
    """Both ways in say the same, nothing else (warnings are errors), and write nothing."""
    with pytest.raises(kind, match=message):
        load(adapter)
    with pytest.raises(kind, match=message):
        merge(adapter, adapter.parent / "out", base=WORLD)
    assert {path.name for path in adapter.parent.iterdir()} == {"adapter"}


# ---- weights that are not the model's ------------------------------------------------------------


def test_every_weight_is_loaded(saved):
    stored = load_file(saved / WEIGHTS)
    found = {name.replace(".default", ""): p for name, p in trainable(load(saved))}
    assert found.keys() == stored.keys() and len(stored) == 28
    assert all(torch.equal(found[name], value) for name, value in stored.items())


def test_other_names(adapter):
    rewrite(adapter, lambda w: {n.replace("model.layers", "model.blocks"): t for n, t in w.items()})
    refused(
        adapter,
        r"adapter is not an adapter of this model; weights missing: 28, base_model\.model\.model"
        r"\.layers\.0\.\S+\.weight first; weights without a place in it: 28, base_model\.model"
        r"\.model\.blocks\.0\.\S+\.weight first; give the base it was trained on",
    )


def test_half_of_the_weights(adapter):
    rewrite(adapter, lambda w: {n: t for n, t in w.items() if ".layers.0." in n})
    refused(
        adapter,
        r"this model; weights missing: 14, base_model\.model\.model\.layers\.1\.\S+ first; give "
        r"the base it was trained on \(adapter_config\.json names it\), or copy the adapter again",
    )


def test_one_weight_too_many(adapter):
    rewrite(adapter, lambda w: w | {"base_model.model.extra.lora_A.weight": torch.ones(2)})
    refused(
        adapter, r"model; weights without a place in it: 1, base_model\.model\.extra\.lora_A\.w"
    )


def test_weights_of_another_shape(adapter):
    rewrite(adapter, lambda w: {n: t[:, :-1].contiguous() for n, t in w.items()})
    refused(adapter, r"is not an adapter of this model: size mismatch for base_model.*; give the b")


def test_a_module_that_was_not_saved(adapter):
    edit(adapter, modules_to_save=["model.norm"])
    refused(adapter, r"weights missing: 1, base_model\.model\.model\.norm\.weight first; give")


def test_frozen(saved):
    model = Backbone(WORLD, adapter=str(saved)).load_model(frozen=True)
    assert not any(p.requires_grad for p in model.parameters())
    assert torch.equal(
        model(torch.tensor([[5, 6]])).logits, load(saved)(torch.tensor([[5, 6]])).logits
    )


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["[]", "{}", "null"])
def test_a_config_of_something_else(adapter, content):
    (adapter / CONFIG).write_text(content)
    refused(adapter, r"adapter_config\.json has no peft_type, so it is not of an adapter")


def test_a_config_half_written(adapter):
    text = (adapter / CONFIG).read_text()
    (adapter / CONFIG).write_text(text[: len(text) // 2])
    refused(adapter, r"adapter_config\.json is not JSON: .*; write or copy it again")


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_weights_half_written(adapter, share):
    content = (adapter / WEIGHTS).read_bytes()
    (adapter / WEIGHTS).write_bytes(content[: int(len(content) * share)])
    refused(adapter, r"adapter_model\.safetensors cannot be read \(.*\); it is incomplete")


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_a_file_that_is_missing(adapter, name):
    (adapter / name).unlink()
    refused(adapter, rf"adapter/{name} is not there", FileNotFoundError)


def test_weights_of_the_model_half_written(tmp_path):
    folder = shutil.copytree(resolve(WORLD), tmp_path / "model")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100_000])
    for check in (Backbone(str(folder)).check_paths, Backbone(str(folder)).load_model):
        with pytest.raises(ValueError, match=r"model\.safetensors cannot be read .*incomplete"):
            check()


@pytest.mark.parametrize("kind", ["PROMPT_TUNING", "PREFIX_TUNING", "ADAPTION_PROMPT", "NO_SUCH"])
def test_adapters_that_are_not_in_layers(adapter, kind):
    edit(adapter, peft_type=kind)
    refused(adapter, f"is of a {kind} adapter, which is not in the model's layers")


def test_it_is_seen_before_a_run(adapter):
    (adapter / CONFIG).write_text("[]")
    with pytest.raises(ValueError, match="has no peft_type"):
        Backbone(WORLD, adapter=str(adapter)).check_paths()
