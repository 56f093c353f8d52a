from __future__ import annotations

import pytest
import torch

from sctom.modules import Backbone
from sctom.modules.reward_head import HEAD_FILE, RewardModel, load_reward_model
from sctom.rollout.causal import hidden_states

PAIRS = [
    ([5, 6, 7, 8], [9, 10, 11]),
    ([5, 6, 7, 8], [12]),
    ([6, 5], [7, 8, 9, 10, 11, 12]),
    ([6, 5], [4, 4]),
]


@pytest.fixture(params=[0, 4], ids=["all weights", "LoRA"])
def backbone(request, tiny_model) -> Backbone:
    return Backbone(str(tiny_model), lora_rank=request.param)


def made(backbone: Backbone) -> RewardModel:
    torch.manual_seed(0)
    model = RewardModel(backbone.load_model())
    torch.nn.init.normal_(model.head.weight)
    for name, parameter in model.model.named_parameters():
        if "lora_B" in name:  # a new adapter changes nothing
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def gradients(model: RewardModel, scores: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    (scores * torch.tensor([1.0, -1.0, 0.5, 2.0])).sum().backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def test_packed_and_padded_scores_are_equal_in_value_and_gradient(backbone):
    model = made(backbone)
    packed, right = model.scores(PAIRS), model.padded_scores(PAIRS)
    left = model.padded_scores(PAIRS, side="left")
    assert torch.allclose(packed, right, atol=1e-5) and torch.allclose(left, right, atol=1e-5)
    ours, theirs = gradients(model, model.scores(PAIRS)), gradients(model, right)
    assert ours.keys() == theirs.keys() and "head.weight" in ours
    for name, gradient in ours.items():
        assert torch.allclose(gradient, theirs[name], atol=1e-5, rtol=1e-4), name


def test_the_score_is_that_of_the_last_token(backbone):
    """w . h of the last token of each sequence run alone, whatever stands beside it."""
    model = made(backbone)
    for (prompt, answer), score in zip(PAIRS, model.scores(PAIRS).detach(), strict=True):
        ids = torch.tensor([[*prompt, *answer]])
        hidden = hidden_states(model.model, input_ids=ids)[0, -1]
        assert float(score) == pytest.approx(
            float(hidden.detach() @ model.head.weight[0].detach()), abs=1e-4
        )


def test_a_saved_model_gives_the_same_scores(backbone, tmp_path):
    model = made(backbone).eval()
    model.save(backbone.load_tokenizer(), tmp_path, backbone)
    loaded, tokenizer = load_reward_model(tmp_path)
    assert tokenizer.chat_template
    with torch.no_grad():
        assert torch.equal(loaded.scores(PAIRS), model.scores(PAIRS))
    assert not any(p.requires_grad for p in loaded.parameters())


def test_a_folder_without_a_trained_head_is_refused(backbone, tmp_path):
    made(backbone).save(backbone.load_tokenizer(), tmp_path, backbone)
    (tmp_path / HEAD_FILE).unlink()
    with pytest.raises(FileNotFoundError, match="no reward model with a trained head"):
        load_reward_model(tmp_path)
