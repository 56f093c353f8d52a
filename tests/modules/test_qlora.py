from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

pytest.importorskip("bitsandbytes", reason="4-bit weights need bitsandbytes")

from sctom.assets import resolve
from sctom.callbacks.checkpoint import checkpoints
from sctom.fit import build, fit
from sctom.modules import Backbone, quantize
from sctom.modules.backbone import fingerprint, trainable
from sctom.modules.quantize import dequantised, layers_4bit
from sctom.modules.reference import make_reference

ROOT = Path(__file__).parents[2]
WORLD = "sctom:tinyworld/model"
CPU = torch.device("cpu")


def nf4(path: str = WORLD, **settings) -> torch.nn.Module:
    settings = {"lora_rank": 4, "quantization": "nf4", "compute_dtype": "float32", **settings}
    return Backbone(path, **settings).load_model(CPU)


def plain_name(name: str) -> str:
    """The name of an adapted layer in the model without adapters."""
    return name.removeprefix("base_model.model.").removesuffix(".base_layer")


@pytest.fixture(scope="module")
def plain():
    return Backbone(WORLD).load_model(CPU)


@pytest.fixture(scope="module")
def packed():
    return nf4()


@pytest.fixture(scope="module")
def questions() -> torch.Tensor:
    """Token ids [8, L] of questions of one length."""
    from sctom.data.template import render_prompt
    from sctom.readers import read_jsonl

    tokenizer = Backbone(WORLD).load_tokenizer()
    rows = list(read_jsonl(resolve("sctom:tinyworld/valid.jsonl")))[:60]
    ids = [render_prompt(tokenizer, row["messages"][:-1]) for row in rows]
    length = max({len(row) for row in ids}, key=lambda n: sum(len(row) == n for row in ids))
    return torch.tensor([row for row in ids if len(row) == length][:8])


# ---- what is quantised ---------------------------------------------------------------------------


def test_every_linear_layer_but_the_head(packed):
    names = {plain_name(name) for name, _ in layers_4bit(packed)}
    parts = {
        "self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"),
        "mlp": ("gate_proj", "up_proj", "down_proj"),
    }
    assert names == {
        f"model.layers.{layer}.{block}.{part}"
        for layer in (0, 1)
        for block, group in parts.items()
        for part in group
    }
    assert type(packed.get_output_embeddings()) is torch.nn.Linear


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_are_float32_and_the_rest_as_asked(dtype):
    model = nf4(dtype=dtype)
    trained = {name for name, _ in trainable(model)}
    assert len(trained) == 2 * 14 and all("lora_" in name for name in trained)
    for name, parameter in model.named_parameters():
        if name in trained:
            assert parameter.dtype == torch.float32
        elif parameter.dtype != torch.uint8:
            assert parameter.dtype == getattr(torch, dtype)  # norms, embeddings and head


def test_codes_are_the_nearest_of_nf4(plain):
    """A block's largest weight is its scale; the others go to the nearest of sixteen values."""
    model = nf4(double_quantization=False)
    name, layer = next(layers_4bit(model))
    weight = plain.get_submodule(plain_name(name)).weight
    blocks = weight.reshape(-1, 64)
    scales = blocks.abs().amax(1, keepdim=True)
    table = layer.weight.quant_state.code
    assert len(table) == 16 and table.min() == -1 and table.max() == 1 and 0 in table
    nearest = ((blocks / scales).unsqueeze(-1) - table).abs().argmin(-1)
    expected = (table[nearest] * scales).view_as(weight)
    torch.testing.assert_close(dequantised(layer.weight, torch.float32), expected)


@pytest.mark.parametrize(
    ("double", "per_weight"), [(False, 1 / 2 + 4 / 64), (True, 1 / 2 + 1 / 64 + 4 / (64 * 256))]
)
def test_memory_by_hand(double, per_weight):
    memory = quantize.memory_4bit(nf4(double_quantization=double))
    assert memory.layers == 14
    assert memory.weights == 2 * (4 * 160 * 160 + 3 * 160 * 768)
    # a layer's last group of 256 scales is not full, and its offset takes four bytes
    assert memory.bytes_per_weight == pytest.approx(per_weight, rel=2e-4)
    assert f"{per_weight:.3f} bytes each" in str(memory)


def test_a_model_without_4bit_weights_has_no_such_memory(plain):
    assert quantize.memory_4bit(plain) is None


def test_the_run_is_told(capsys):
    nf4(compute_dtype="bfloat16")
    assert (
        "quantization: nf4 (942,080 weights in 14 layers, 0.46 MiB, 0.516 bytes each; "
        "computes in bfloat16)\n" in capsys.readouterr().out
    )


# ---- the numbers ---------------------------------------------------------------------------------


def test_rounding_is_that_of_nf4(packed, plain, questions):
    for name, layer in layers_4bit(packed):
        weight = plain.get_submodule(plain_name(name)).weight
        error = (dequantised(layer.weight, torch.float32) - weight).norm() / weight.norm()
        assert 0.08 < error < 0.11, name  # 0.09 for a normal distribution
    with torch.no_grad():
        exact, rounded = (model(questions).logits[:, -1] for model in (plain, packed))
    relative = (exact - rounded).norm() / exact.norm()
    assert 0.005 < relative < 0.1
    kl = torch.nn.functional.kl_div(
        rounded.log_softmax(-1), exact.log_softmax(-1), reduction="batchmean", log_target=True
    )
    assert 1e-6 < kl < 0.02


def test_a_layer_multiplies_by_what_it_holds(packed):
    """Layers whose width is a multiple of 64 (768) and others (160); also the gradient."""
    widths = set()
    torch.manual_seed(0)
    for _, layer in layers_4bit(packed):
        widths.add(layer.in_features % 64)
        weight = dequantised(layer.weight, torch.float32)
        x = torch.randn(3, layer.in_features, requires_grad=True)
        out = layer(x)
        torch.testing.assert_close(out, x @ weight.T, rtol=1e-4, atol=1e-5)
        upstream = torch.randn_like(out)
        out.backward(upstream)
        torch.testing.assert_close(x.grad, upstream @ weight, rtol=1e-4, atol=1e-5)
    assert widths == {0, 32}


@pytest.mark.parametrize("rows", [64, 3])  # with 3 rows of 160 the last block is not full
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dequantised_is_right_for_rows_that_are_no_blocks(rows, dtype):
    from bitsandbytes.nn import Params4bit

    torch.manual_seed(0)
    weight = torch.randn(rows, 160)
    stored = Params4bit(weight.clone(), quant_type="nf4", compress_statistics=False).to("cpu")
    error = (dequantised(stored, dtype).float() - weight).norm() / weight.norm()
    assert error < 0.11


def test_a_ragged_layer_adds_its_bias_and_keeps_the_dtype():
    from bitsandbytes.nn import Linear4bit

    layer = Linear4bit(160, 8, bias=True, compute_dtype=torch.float32, quant_type="nf4").to("cpu")
    quantize.make_exact_on_cpu(torch.nn.Sequential(layer))
    assert isinstance(layer, Linear4bit) and type(layer) is not Linear4bit
    x = torch.randn(2, 160, dtype=torch.bfloat16)
    expected = x.float() @ dequantised(layer.weight, torch.float32).T + layer.bias
    assert layer(x).dtype == torch.bfloat16
    torch.testing.assert_close(layer(x), expected.bfloat16())


def test_sampling_leaves_the_weights_alone(questions):
    """bitsandbytes would repack them in place, in evaluation mode, on some CPUs."""
    model = nf4()
    before = fingerprint(model.named_parameters())
    with torch.no_grad():
        model.eval()(questions)
    assert fingerprint(model.named_parameters()) == before
    assert not any(layer.support_avx512bf16_for_cpu for _, layer in layers_4bit(model))


def test_checkpointed_gradients_are_the_same(questions):
    gradients = []
    for checkpointing in (False, True):
        model = nf4(gradient_checkpointing=checkpointing).train()
        assert model.base_model.model.model.gradient_checkpointing is checkpointing
        model(questions).logits.logsumexp(-1).mean().backward()
        gradients.append({name: p.grad for name, p in trainable(model)})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-5, atol=1e-7)
    assert max(float(g.abs().max()) for g in gradients[0].values()) > 1e-4


# ---- telling models apart ------------------------------------------------------------------------


def test_fingerprint_sees_codes_and_scales(packed, tmp_path):
    assert fingerprint(nf4().named_parameters()) == fingerprint(packed.named_parameters())
    other = nf4(double_quantization=False)
    assert fingerprint(other.named_parameters()) != fingerprint(packed.named_parameters())
    doubled = Backbone(WORLD).load_model(CPU)
    for name, parameter in doubled.named_parameters():
        if "_proj" in name:
            parameter.data *= 2  # the same codes, twice the scales
    doubled.save_pretrained(tmp_path / "doubled")
    twice = nf4(str(tmp_path / "doubled"))
    codes = zip(layers_4bit(packed), layers_4bit(twice), strict=True)
    assert all(torch.equal(a.weight.data, b.weight.data) for (_, a), (_, b) in codes)
    assert fingerprint(twice.named_parameters()) != fingerprint(packed.named_parameters())


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora_rank": 4, "compute_dtype": "bfloat16"}, "nothing is quantised; set quantization"),
        ({"lora_rank": 4, "quantization": "int8"}, "quantization must be one of nf4 but is 'int8'"),
        (
            {"lora_rank": 4, "quantization": "nf4", "compute_dtype": "float64"},
            "compute_dtype must be one of float32, bfloat16, float16 but is 'float64'",
        ),
        ({"dtype": "half"}, "dtype must be one of float32, bfloat16, float16 but is 'half'"),
    ],
)
def test_settings_that_do_not_go_together(settings, message):
    with pytest.raises(ValueError, match=message):
        Backbone(WORLD, **settings)


def test_4bit_weights_are_not_trained(monkeypatch):
    def loaded(*args, **kwargs):
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", loaded)
    backbone = Backbone(WORLD, quantization="nf4")
    for check in (backbone.check_paths, backbone.load_model):
        with pytest.raises(
            ValueError, match=r"weights are to be trained .* set lora_rank, or drop"
        ):
            check()
    backbone.check_paths(frozen=True)


def test_a_run_that_would_train_them_is_refused_before_its_folder_is_made(tmp_path):
    with pytest.raises(ValueError, match=r"weights are to be trained .* set lora_rank, or drop"):
        backbone = "--model.backbone.init_args"
        train(tmp_path / "run", 1, f"{backbone}.lora_rank=0", f"{backbone}.lora_dropout=0")
    assert not (tmp_path / "run").exists()


def test_4bit_weights_as_they_are(questions, packed):
    frozen = Backbone(WORLD, quantization="nf4", compute_dtype="float32").load_model(
        CPU, frozen=True
    )
    assert not any(p.requires_grad for p in frozen.parameters())
    with torch.no_grad(), packed.disable_adapter():
        assert torch.equal(frozen(questions).logits, packed(questions).logits)


def test_a_quantised_model_as_reference(questions):
    """It is never trained, so it needs no adapters; the policy here trains all its weights."""
    policy, path = Backbone(WORLD), Backbone(WORLD, quantization="nf4")
    model = policy.load_model(CPU)
    reference = make_reference("model", model, policy, path)
    with reference.scoring() as scored:
        assert len(list(layers_4bit(scored))) == 14
        gap = (scored(questions).logits - model(questions).logits).abs().max()
    assert 1e-3 < gap < 10 and not any(p.requires_grad for p in scored.parameters())


def test_without_bitsandbytes(monkeypatch):
    monkeypatch.setattr(quantize, "find_spec", lambda name: None)
    backbone = Backbone(WORLD, lora_rank=4, quantization="nf4")
    for check in (backbone.check_paths, backbone.load_model):
        with pytest.raises(RuntimeError, match=r"needs bitsandbytes, .* pip install bitsandbytes"):
            check()
    Backbone(WORLD, lora_rank=4).load_model(CPU)  # needs none


def test_a_run_with_a_quantised_reference(tmp_path):
    options = {
        "reference": "model",
        "reference_model.class_path": "Backbone",
        "reference_model.init_args.path": WORLD,
        "reference_model.init_args.quantization": "nf4",
    }
    cli = train(
        tmp_path / "run", 1, *(part for k, v in options.items() for part in (f"--model.{k}", v))
    )
    assert cli.model.last_metrics["kl"] >= 0


def test_weights_that_are_quantised_already(tmp_path):
    folder = shutil.copytree(resolve(WORLD), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="quantised already; give the model they were made from"):
        Backbone(str(folder), lora_rank=4).load_model(CPU)


# ---- devices and dtypes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requested", "device", "capability", "chosen"),
    [
        (None, "cpu", None, "float32"),
        (None, "cuda:0", (8, 0), "bfloat16"),
        (None, "cuda:0", (7, 5), "float32"),
        ("float16", "cuda:0", (7, 5), "float16"),
        ("bfloat16", "cpu", None, "bfloat16"),
    ],
)
def test_compute_dtype(monkeypatch, requested, device, capability, chosen):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert quantize.choose_compute_dtype(requested, torch.device(device)) == chosen


def test_weights_are_quantised_where_they_will_be_used(monkeypatch):
    device = torch.device("cuda", 1)
    options = quantize.loading_options(double=True, compute_dtype="bfloat16", device=device)
    assert options["device_map"] == {"": device}
    config = options["quantization_config"]
    assert config.load_in_4bit and config.bnb_4bit_quant_type == "nf4"
    assert config.bnb_4bit_use_double_quant and config.bnb_4bit_compute_dtype == torch.bfloat16
    assert quantize.default_device() == torch.device("cpu") or torch.cuda.is_available()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert quantize.default_device() == device


def test_coarsest_dtype(packed):
    assert quantize.coarsest_dtype(packed) == torch.float32
    assert quantize.coarsest_dtype(nf4(compute_dtype="bfloat16")) == torch.bfloat16
    assert quantize.coarsest_dtype(nf4(dtype="float16")) == torch.float16


def test_bitsandbytes_is_neither_loaded_nor_heard_where_nothing_is_quantised():
    script = (
        "import sys, sctom.fit\n"
        "assert 'bitsandbytes' not in sys.modules\n"
        "from sctom.modules import Backbone\n"
        f"Backbone({WORLD!r}, lora_rank=2).load_model()\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "4bit" not in done.stderr and "kernels" not in done.stderr


# ---- training ------------------------------------------------------------------------------------


def train(folder: Path, iterations: int, *options: str):
    """configs/tiny/qlora.yaml for some iterations, by the functions of the command line."""
    argv = ["fit", "--config", str(ROOT / "configs/tiny/qlora.yaml"), "--run_dir", str(folder)]
    argv += ["--data.iterations", str(iterations), "--data.val_limit", "4", *options]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", argv)
        cli = build()
    fit(cli)
    return cli


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of four iterations, as the command line leaves it."""
    folder = tmp_path_factory.mktemp("qlora") / "whole"
    return train(folder, 4), folder


def saved(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(checkpoints(folder)[-1][1], weights_only=True)["state_dict"]


def test_adapters_learn_and_the_weights_below_do_not(whole, packed):
    cli, folder = whole
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in metrics if "loss" in line]
    assert len(losses) == 4 and all(torch.isfinite(torch.tensor(losses)))
    assert cli.trainer.global_step == 16  # 4 iterations x 2 passes x 2 minibatches
    start = Backbone(WORLD, lora_rank=8, quantization="nf4").load_model(CPU)
    before = dict(trainable(start))
    assert all(
        not torch.equal(parameter, before[name]) for name, parameter in trainable(cli.model.model)
    )
    for (_, a), (_, b) in zip(layers_4bit(start), layers_4bit(cli.model.model), strict=True):
        values = [dequantised(layer.weight, torch.float32) for layer in (a, b)]
        assert torch.equal(*values)


def test_a_checkpoint_holds_the_adapters_only(whole):
    cli, folder = whole
    names = {f"model.{name}" for name, _ in trainable(cli.model.model)}
    state = saved(folder)
    assert state.keys() == names
    assert all(value.dtype == torch.float32 for value in state.values())


def test_the_adapter_reloads(whole, questions):
    cli, folder = whole
    assert {"adapter_model.safetensors", "adapter_config.json", "tokenizer.json"} <= {
        path.name for path in (folder / "model").iterdir()
    }
    again = nf4(adapter=str(folder / "model"), lora_rank=0)
    with torch.no_grad():
        torch.testing.assert_close(
            again(questions).logits, cli.model.model.eval()(questions).logits, rtol=0, atol=0
        )
    assert {name for name, _ in trainable(again)} == {n for n, _ in trainable(cli.model.model)}


def test_two_parts_equal_one_run_bit_for_bit(whole, tmp_path):
    train(tmp_path / "parts", 2)
    train(tmp_path / "parts", 4, "--resume", "must")
    expected, found = saved(whole[1]), saved(tmp_path / "parts")
    assert expected.keys() == found.keys() and len(expected) > 0
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def test_a_run_does_not_go_on_with_other_scales(whole, tmp_path):
    folder = shutil.copytree(whole[1], tmp_path / "run")
    with pytest.raises(ValueError, match=r"longer those that the config loads|of another model"):
        train(
            folder, 5, "--resume", "must", "--model.backbone.init_args.double_quantization", "false"
        )
