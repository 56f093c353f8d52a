from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from sctom.batch import Prompt, Row
from sctom.modules import Backbone
from sctom.modules.backbone import trainable
from sctom.modules.scoring import MicroBatch, Scorer, collate, pad_sequences
from sctom.rollout.attention import run_packed
from sctom.rollout.causal import causal_model, head, hidden_states
from sctom.rollout.packing import Packed, pack
from sctom.rollout.sharing import why_plain
from tests.rollout.test_sharing import tiny

CPU = torch.device("cpu")
TEMPERATURE = 0.8
PROMPTS = {
    0: [5, 6, 7, 8, 9, 10, 11],
    1: [5, 6, 7],  # the first three tokens of prompt 0
    2: [12],
    3: [5, 6, 7],  # the tokens of prompt 1
    4: [13, 14, 15, 16, 17],
}
COMPLETIONS = {0: [4, 1, 6, 2], 1: [3, 3, 1], 2: [5], 3: [2, 7], 4: [1]}
KINDS = ["llama", "llama-tied", "qwen2", "qwen3", "mistral", "gemma", "gemma3", "gpt2", "granite"]
ADAPTERS = {
    "full": None,
    "lora": {"target_modules": "all-linear"},
    "rslora": {"target_modules": "all-linear", "use_rslora": True},
    "dora": {"target_modules": "all-linear", "use_dora": True},
    "head": {"target_modules": ["q_proj", "lm_head"]},
}


def make_rows() -> list[Row]:
    """Groups of one to four rows with completions of one to seven tokens, shuffled."""
    generator = torch.Generator().manual_seed(0)
    rows = [
        Row(
            Prompt(number, PROMPTS[number], []),
            sample,
            torch.randint(3, 31, (length,), generator=generator).tolist(),
            "",
            False,
        )
        for number, lengths in COMPLETIONS.items()
        for sample, length in enumerate(lengths)
    ]
    return [rows[i] for i in torch.randperm(len(rows), generator=generator)]


def make_model(kind: str, adapter: str = "full", **settings) -> nn.Module:
    """A random model, with adapters that are not zero."""
    from peft import LoraConfig, get_peft_model

    model = tiny(kind, **settings)
    if (chosen := ADAPTERS[adapter]) is None:
        return model
    torch.manual_seed(1)
    return get_peft_model(
        model,
        LoraConfig(
            r=2,
            lora_alpha=3,
            task_type="CAUSAL_LM",
            init_lora_weights=False,
            fan_in_fan_out=kind == "gpt2",
            **chosen,
        ),
    ).eval()


Scores = tuple[Tensor, Tensor, dict[str, Tensor]]


def differentiate(model: nn.Module, logps: Tensor, entropy: Tensor) -> Scores:
    """Scores [N] of all completion tokens with the gradients of a weighted sum."""
    weights = torch.randn(len(logps), generator=torch.Generator().manual_seed(2))
    named = dict(trainable(model))
    loss = (weights.to(logps.dtype) * logps).sum()
    gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    found = {n: g for n, g in zip(named, gradients, strict=True) if g is not None}
    return logps.detach(), entropy.detach(), found


def by_hand(model: nn.Module, batch: MicroBatch) -> Scores:
    """The unchanged Hugging Face model on one sequence at a time."""
    logps, entropies = [], []
    for prompt, completion in batch.sequences:
        logits = model(input_ids=torch.tensor([prompt + completion]), use_cache=False).logits[0]
        shares = torch.log_softmax(logits[len(prompt) - 1 : -1] / TEMPERATURE, -1)
        logps.append(shares[range(len(completion)), completion])
        entropies.append(-(shares.exp() * shares).sum(-1))
    return differentiate(model, torch.cat(logps), torch.cat(entropies))


def packed(model: nn.Module, batch: MicroBatch) -> Scores:
    assert why_plain(model, 20) is None
    logps, entropy = Scorer(TEMPERATURE)(model, batch)
    assert not logps[~batch.real].any() and not entropy.requires_grad
    return differentiate(model, logps[batch.real], entropy[batch.real])


def padded(model: nn.Module, batch: MicroBatch) -> Scores:
    rows = pad_sequences(batch.sequences, CPU)
    logps, entropy = Scorer(TEMPERATURE).padded(model, rows, batch.targets)
    return differentiate(model, logps[batch.real], entropy[batch.real])


def gap(found: Tensor, expected: Tensor) -> float:
    """Norm of the difference, relative."""
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def joined(gradients: dict[str, Tensor]) -> Tensor:
    return torch.cat([g.flatten().double() for g in gradients.values()])


def assert_alike(found: Scores, expected: Scores, limit: float) -> None:
    """Scores within a limit, and gradients relative to their norm: of each parameter and of all."""
    for a, b in zip(found[:2], expected[:2], strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=0, atol=limit)
    assert found[2].keys() == expected[2].keys()
    assert expected[2]
    gaps = {name: gap(found[2][name], expected[2][name]) for name in expected[2]}
    worst = max(gaps, key=lambda name: gaps[name])
    assert gaps[worst] < limit, worst
    assert gap(joined(found[2]), joined(expected[2])) < limit


# ---- the same numbers as the plain model ---------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float32, 1e-5), (torch.float64, 1e-6)], ids=["float32", "float64"]
)
@pytest.mark.parametrize("adapter", ["full", "lora"])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_rows_score_as_the_plain_model(kind, adapter, dtype, limit):
    model = make_model(kind, adapter).to(dtype)  # norms compute in float32 all the same
    batch = collate(make_rows(), CPU)
    expected = by_hand(copy.deepcopy(model), batch)
    assert_alike(packed(model, batch), expected, limit)
    assert_alike(padded(model, batch), expected, limit)


@pytest.mark.parametrize("adapter", ["full", "lora"])
def test_all_that_differs_is_rounding(adapter):
    model = make_model("gpt2", adapter).double()  # in float64 throughout
    batch = collate(make_rows(), CPU)
    assert_alike(packed(model, batch), by_hand(copy.deepcopy(model), batch), 1e-13)


@pytest.mark.parametrize(
    ("kind", "adapter"),
    [("llama", "rslora"), ("llama", "dora"), ("llama", "head"), ("moe", "full")],
)
def test_other_models_score_as_the_plain_model(kind, adapter):
    model = make_model(kind, adapter)
    batch = collate(make_rows(), CPU)
    expected = by_hand(copy.deepcopy(model), batch)
    assert_alike(packed(model, batch), expected, 1e-5)
    assert_alike(padded(model, batch), expected, 1e-5)


@pytest.mark.parametrize("kind", ["mistral", "gemma3"])
def test_rows_longer_than_a_window_score_as_the_plain_model(kind, capsys):
    model = make_model(kind, sliding_window=8)
    scorer, reference = Scorer(TEMPERATURE), copy.deepcopy(model)
    rows = make_rows()
    short = [row for row in rows if len(row.prompt.ids + row.ids) <= 8]
    for some, notices in ((short, 0), (rows, 1), (short, 0)):
        batch = collate(some, CPU)
        logps, entropy = scorer(model, batch)
        ours = differentiate(model, logps[batch.real], entropy[batch.real])
        assert_alike(ours, by_hand(reference, batch), 1e-5)
        assert capsys.readouterr().out.count("runs on padded rows") == notices


@pytest.mark.parametrize("kind", ["gemma2", "linear", "chunked"])
def test_models_measured_out_score_as_the_plain_model(kind):
    model = make_model(kind)
    batch = collate(make_rows(), CPU)
    expected = by_hand(copy.deepcopy(model), batch)
    logps, entropy = Scorer(TEMPERATURE)(model, batch)
    assert why_plain(model, 20) is not None
    ours = differentiate(model, logps[batch.real], entropy[batch.real])
    assert_alike(ours, expected, 1e-5)


@pytest.mark.parametrize(
    ("kind", "adapter", "alone"),
    [("llama", "lora", True), ("granite", "full", False), ("llama", "head", False)],
)
def test_both_ways_of_the_head_were_scored(kind, adapter, alone):
    scorer = Scorer(TEMPERATURE)
    model = make_model(kind, adapter)
    scorer(model, collate(make_rows(), CPU))
    assert list(scorer._head_alone.values()) == [alone]


def test_each_model_is_looked_at_by_itself():
    policy, reference = make_model("llama"), make_model("granite")  # as reference: model has it
    batch, scorer = collate(make_rows(), CPU), Scorer(TEMPERATURE)
    scorer(policy, batch)
    after, _ = scorer(reference, batch)
    alone, _ = Scorer(TEMPERATURE)(reference, batch)
    assert torch.equal(after, alone)


def test_a_hook_on_the_head_takes_part():
    model, batch = make_model("llama"), collate(make_rows(), CPU)
    plain, _ = Scorer(TEMPERATURE)(model, batch)
    model.lm_head.register_forward_hook(lambda module, inputs, logits: logits * 0.5)
    halved, _ = Scorer(TEMPERATURE)(model, batch)
    doubled, _ = Scorer(TEMPERATURE * 2)(make_model("llama"), batch)
    assert not torch.allclose(plain, halved)
    torch.testing.assert_close(halved, doubled, rtol=1e-4, atol=1e-5)


def test_float32_is_as_near_to_float64_as_the_plain_model():
    model = make_model("llama")
    batch = collate(make_rows(), CPU)
    exact = by_hand(copy.deepcopy(model).double(), batch)
    plain = by_hand(copy.deepcopy(model), batch)
    ours = packed(model, batch)
    assert gap(ours[0], exact[0]) < 2 * gap(plain[0], exact[0])
    assert gap(joined(ours[2]), joined(exact[2])) < 2 * gap(joined(plain[2]), joined(exact[2]))


def test_the_order_of_the_rows_is_that_of_the_scores():
    model = make_model("qwen2")
    rows = make_rows()
    together, entropies = Scorer(TEMPERATURE)(model, collate(rows, CPU))
    for i, row in enumerate(rows):
        alone, entropy = Scorer(TEMPERATURE)(model, collate([row], CPU))
        n = len(row.ids)
        torch.testing.assert_close(together[i, :n], alone[0], rtol=0, atol=1e-5)
        torch.testing.assert_close(entropies[i, :n], entropy[0], rtol=0, atol=1e-5)


# ---- hidden states, for any head -----------------------------------------------------------------


def run_decoder(model: nn.Module, row: Packed) -> Tensor:
    decoder = causal_model(model).get_decoder()
    return run_packed(decoder, row.ids, row.positions, row).last_hidden_state[0]


@pytest.mark.parametrize("multiple", [1, 16])
def test_hidden_states_of_each_last_token(multiple):
    model = make_model("qwen3", "lora")
    sequences = [(row.prompt.ids, row.ids) for row in make_rows()]
    plain = copy.deepcopy(model)
    alone = [hidden_states(plain, input_ids=torch.tensor([p + c]))[0] for p, c in sequences]
    assert why_plain(model, 20) is None
    row = pack(sequences, whole=True, multiple=multiple)
    hidden = run_decoder(model, row)
    assert len(hidden) % multiple == 0 and bool(hidden.isfinite().all())
    ends = torch.stack([states[-1] for states in alone])
    torch.testing.assert_close(hidden[row.last], ends, rtol=0, atol=1e-5)
    # a value per sequence, as a reward model gives, reaches the weights alike
    direction = torch.linspace(-1, 1, ends.shape[1])
    named = [p for _, p in trainable(model)]
    theirs = torch.autograd.grad((ends @ direction).sum(), [p for _, p in trainable(plain)])
    ours = torch.autograd.grad((hidden[row.last] @ direction).sum(), named)
    for a, b in zip(ours, theirs, strict=True):
        assert gap(a, b) < 1e-5
    # and sources, through the head
    before = [states[len(p) - 1 : -1] for states, (p, _) in zip(alone, sequences, strict=True)]
    logits = head(model)(hidden[row.sources])
    torch.testing.assert_close(logits, head(plain)(torch.cat(before)), rtol=0, atol=1e-5)


# ---- how a run may be set up ---------------------------------------------------------------------


def set_adapters(model: nn.Module) -> nn.Module:
    """Take the zeros out of new adapters."""
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("rank", [0, 4])
def test_gradient_checkpointing_changes_nothing(tiny_model, monkeypatch, rank):
    runs = []
    attend = Packed.attend
    monkeypatch.setattr(Packed, "attend", lambda *a, **k: runs.append(0) or attend(*a, **k))
    batch = collate(small_rows(), CPU)
    results, counts = [], []
    for checkpointing in (False, True):
        backbone = Backbone(str(tiny_model), lora_rank=rank, gradient_checkpointing=checkpointing)
        model = set_adapters(backbone.load_model(CPU)).train()
        assert why_plain(model, 20) is None
        runs.clear()
        results.append(packed(model, batch))
        counts.append(len(runs))
    assert counts == [2, 4]  # two layers, run again in the backward pass
    assert_alike(results[1], results[0], 1e-6)


def small_rows() -> list[Row]:
    """`make_rows` within the vocabulary of the tiny model."""
    rows = make_rows()
    for row in rows:
        row.ids = [3 + token % 20 for token in row.ids]
    return rows


def coarse_errors(model: nn.Module, batch: MicroBatch, exact: Scores, run) -> tuple[float, float]:
    """Mean difference of log-probabilities, and relative difference of the gradient."""
    logps, _, gradients = run(model, batch)
    return float((logps.double() - exact[0]).abs().mean()), gap(joined(gradients), joined(exact[2]))


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("way", ["weights", "autocast"])
def test_bfloat16_is_as_near_to_float64_as_the_plain_model(tiny_model, way, rank):
    """Rounding differs from token to token, so that errors are compared and not values."""
    dtype = "bfloat16" if way == "weights" else "float32"
    model = set_adapters(Backbone(str(tiny_model), lora_rank=rank, dtype=dtype).load_model(CPU))
    batch = collate(small_rows(), CPU)
    exact = by_hand(copy.deepcopy(model).double(), batch)
    plain = copy.deepcopy(model)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=way == "autocast"):
        theirs = coarse_errors(plain, batch, exact, by_hand)
        ours = coarse_errors(model, batch, exact, packed)
    assert why_plain(model, 20) is None
    assert ours[0] > 1e-4  # it was coarse
    assert ours[0] < 1.5 * theirs[0] and ours[0] < 0.05
    assert ours[1] < 1.5 * theirs[1] and ours[1] < 0.1


@pytest.mark.parametrize("kind", ["lora", "attention"])
def test_dropout_is_drawn_in_training_only(tiny_model, kind):
    if kind == "lora":
        model = set_adapters(
            Backbone(str(tiny_model), lora_rank=4, lora_dropout=0.5).load_model(CPU)
        )
    else:
        model = make_model("llama", attention_dropout=0.3)
    batch = collate(small_rows(), CPU)
    expected = by_hand(copy.deepcopy(model), batch)

    def scored(seed: int) -> Scores:
        torch.manual_seed(seed)
        return packed(model, batch)

    model.eval()
    assert_alike(scored(0), expected, 1e-5)
    model.train()
    first, again, other = scored(0), scored(0), scored(1)
    assert model.training
    assert torch.equal(first[0], again[0])
    assert torch.equal(joined(first[2]), joined(again[2]))
    for a, b in ((first, expected), (first, other)):
        assert float((a[0] - b[0]).abs().mean()) > 1e-3
    model.eval()
    assert torch.equal(scored(0)[0], scored(1)[0])
