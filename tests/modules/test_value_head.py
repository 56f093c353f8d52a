from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sctom.losses
from sctom.modules import Backbone
from sctom.modules.backbone import trainable
from sctom.modules.metrics import Means
from sctom.modules.scoring import Scorer, collate
from sctom.modules.value_head import (
    HEAD_FILE,
    ValueHead,
    check_value_init,
    make_value_head,
    save_value_head,
    value_part,
)
from sctom.objectives import GRPO, PPO, Totals
from sctom.rollout.causal import causal_model, hidden_states
from sctom.rollout.sharing import why_plain
from tests.modules.test_scoring import CPU, TEMPERATURE, gap, make_model, make_rows


def trained_head(model: nn.Module, **settings) -> ValueHead:
    """A head that is not 0."""
    head = make_value_head(PPO(**settings), model)
    generator = torch.Generator().manual_seed(4)
    head.weight.data = torch.randn(head.weight.shape, generator=generator) / 10
    head.bias.data.fill_(0.3)
    return head


# ---- the head ------------------------------------------------------------------------------------


def test_a_value_by_hand_and_its_gradient():
    head = ValueHead(2)
    head.load_state_dict({"weight": torch.tensor([0.5, -1.0]), "bias": torch.tensor([0.25])})
    hidden = torch.tensor([[2.0, 1.0], [0.0, 3.0]], requires_grad=True)
    values = head(hidden)
    assert values.tolist() == [0.25, -2.75]  # 1 - 1 + 0.25, 0 - 3 + 0.25
    (values * torch.tensor([1.0, 10.0])).sum().backward()
    assert head.weight.grad.tolist() == [2.0, 31.0]  # 1 x [2, 1] + 10 x [0, 3]
    assert head.bias.grad.tolist() == [11.0]
    assert hidden.grad is None  # the policy is not moved by its values


def test_the_gradient_goes_on_where_that_is_asked_for():
    head = ValueHead(2, trains_policy=True)
    head.weight.data = torch.tensor([0.5, -1.0])
    hidden = torch.ones(1, 2, requires_grad=True)
    head(hidden).sum().backward()
    assert hidden.grad.tolist() == [[0.5, -1.0]]


def test_it_computes_in_float32_whatever_the_model_is_in():
    head = ValueHead(64)
    head.weight.data = torch.full((64,), 1 / 3)
    hidden = torch.ones(1, 64, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = head(hidden)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(64 / 3, rel=1e-6)  # 21.375 in bfloat16


def test_only_ppo_has_one(tiny_model):
    model = Backbone(str(tiny_model)).load_model()
    assert make_value_head(GRPO(), model) is None
    head = make_value_head(PPO(), model)
    assert head.weight.shape == (16,) and not head.weight.any() and not head.bias.any()


# ---- values and log-probabilities of one pass ----------------------------------------------------


def values_by_hand(model: nn.Module, batch, head: ValueHead) -> Tensor:
    """Of the unchanged model on one sequence at a time [N]."""
    found = []
    for prompt, completion in batch.sequences:
        states = hidden_states(model, input_ids=torch.tensor([prompt + completion]))[0]
        found.append(head(states[len(prompt) - 1 : -1]))  # what the tokens are predicted from
    return torch.cat(found)


@pytest.mark.parametrize(
    ("kind", "adapter", "packs", "alone"),
    [
        ("llama", "full", True, True),
        ("qwen2", "lora", True, True),
        ("granite", "full", True, False),  # scales its logits
        ("llama", "head", True, False),  # an adapter on the head
        ("gemma2", "full", False, False),  # caps its logits
        ("linear", "full", False, None),
    ],
)
def test_values_are_those_of_the_plain_model(kind, adapter, packs, alone):
    model = make_model(kind, adapter)
    plain, batch, scorer = copy.deepcopy(model), collate(make_rows(), CPU), Scorer(TEMPERATURE)
    head = trained_head(model, value_trains_policy=True)
    logps, entropy, values = scorer.with_values(model, batch, head)
    assert (why_plain(model, 20) is None) == packs
    if alone is not None:
        assert list(scorer._head_alone.values()) == [alone]
    expected = values_by_hand(plain, batch, head)
    torch.testing.assert_close(values[batch.real], expected, rtol=1e-4, atol=1e-5)
    without = scorer.values(model, batch, head)
    torch.testing.assert_close(without[batch.real], expected, rtol=1e-4, atol=1e-5)
    alike = Scorer(TEMPERATURE)(model, batch)
    assert torch.equal(logps, alike[0]) and torch.equal(entropy, alike[1])
    # and the gradient of both at once
    weights = torch.linspace(-1, 1, len(expected))
    named = [p for _, p in trainable(model)]
    ours = torch.autograd.grad((weights * values[batch.real]).sum(), named, allow_unused=True)
    theirs = torch.autograd.grad(
        (weights * expected).sum(), [p for _, p in trainable(plain)], allow_unused=True
    )
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b.norm() > 1e-4:
            assert gap(a, b) < 1e-4


def test_no_hook_stays_behind():
    model, batch = make_model("granite"), collate(make_rows(), CPU)
    Scorer(TEMPERATURE).with_values(model, batch, trained_head(model))
    assert not causal_model(model).get_decoder()._forward_hooks


# ---- the value loss ------------------------------------------------------------------------------


def test_the_part_of_the_loss_by_hand():
    # two rows of a step of 8 tokens; clip 0.2
    #   row 1: V 0.5, V_old 0,   R 1: clipped 0.2 -> max(0.25, 0.64) / 2 = 0.32    no gradient
    #          V 0.9, V_old 1,   R 0: within the clip -> 0.81 / 2 = 0.405           gradient 0.9
    #   row 2: V 2,   V_old 0,   R 1: clipped 0.2 -> max(1, 0.64) / 2 = 0.5         gradient 1
    #          padding
    # share of the loss: weight 0.5 x (0.32 + 0.405 + 0.5) / 8; two of the step's three rows
    values = torch.tensor([[0.5, 0.9], [2.0, 7.0]], requires_grad=True)
    batch: Any = SimpleNamespace(
        old_values=torch.tensor([[0.0, 1.0], [0.0, 0.0]]),
        returns=torch.tensor([[1.0, 0.0], [1.0, 0.0]]),
        mask=torch.tensor([[1.0, 1.0], [1.0, 0.0]]),
    )
    module: Any = SimpleNamespace(objective=PPO(), bound=PPO().bind(sctom.losses))
    means = Means()
    part = value_part(module, values, batch, Totals(8.0, 3.0, 9), means)
    assert part.item() == pytest.approx(0.5 * (0.32 + 0.405 + 0.5) / 8)
    part.backward()
    expected = torch.tensor([[0.0, 0.9], [1.0, 0.0]]) * 0.5 / 8
    torch.testing.assert_close(values.grad, expected)
    assert means.result() == pytest.approx(
        {"value_loss": (0.32 + 0.405 + 0.5) / 8 / (2 / 3), "values/clip_ratio": 1 / 3}
    )


def test_settings_of_the_value_loss():
    values = torch.tensor([[0.5]])
    batch: Any = SimpleNamespace(
        old_values=torch.zeros(1, 1), returns=torch.ones(1, 1), mask=torch.ones(1, 1)
    )
    for changed, expected in (
        ({"value_weight": 2.0}, 2 * 0.32),
        ({"value_clip": 0.4}, 0.5 * 0.36 / 2),  # (0.4 - 1)^2
        ({"value_clip": float("inf")}, 0.5 * 0.25 / 2),
    ):
        objective = replace(PPO(), **changed)
        module: Any = SimpleNamespace(objective=objective, bound=objective.bind(sctom.losses))
        part = value_part(module, values, batch, Totals(1.0, 1.0, 1), Means())
        assert part.item() == pytest.approx(expected)


# ---- files ---------------------------------------------------------------------------------------


def test_a_saved_head_goes_on(tiny_model, tmp_path):
    model = Backbone(str(tiny_model)).load_model()
    head = trained_head(model)
    save_value_head(head, tmp_path)
    again = make_value_head(PPO(value_init=str(tmp_path)), model)
    assert torch.equal(again.weight, head.weight) and torch.equal(again.bias, head.bias)


def test_a_head_that_is_not_there_is_told_before_weights_load(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"value_init: .*value_head.safetensors is not the"):
        check_value_init(PPO(value_init=str(tmp_path)))
    (tmp_path / HEAD_FILE).write_bytes(b"half")
    with pytest.raises(ValueError, match=r"cannot be read .* it is incomplete"):
        check_value_init(PPO(value_init=str(tmp_path)))
    check_value_init(PPO())
    check_value_init(GRPO())


def test_a_head_of_another_model_is_refused(tiny_model, tmp_path: Path):
    save_value_head(ValueHead(5), tmp_path)
    with pytest.raises(ValueError, match="of 5 numbers, but those of this one have 16; name the"):
        make_value_head(PPO(value_init=str(tmp_path)), Backbone(str(tiny_model)).load_model())


def test_a_model_without_a_decoder_is_refused():
    class Whole(nn.Module):
        def get_decoder(self):
            return self

    with pytest.raises(ValueError, match="Whole names no decoder whose hidden states"):
        make_value_head(PPO(), Whole())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"gamma": 1.5}, "model.objective.gamma must be from 0 to 1 but is 1.5"),
        ({"lam": -0.1}, "model.objective.lam must be from 0 to 1 but is -0.1"),
        ({"value_clip": 0.0}, "model.objective.value_clip must be above 0 but is 0.0"),
        ({"value_weight": -1.0}, "model.objective.value_weight must be 0 or a positive number"),
        ({"value_lr_factor": -1.0}, "model.objective.value_lr_factor must be 0 or a positive"),
    ],
)
def test_numbers_out_of_bounds_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        PPO(**changed)
