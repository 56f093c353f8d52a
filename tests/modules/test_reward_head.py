from __future__ import annotations

import pytest
import torch

from sctom.modules import Backbone
from sctom.modules.backbone import trainable
from sctom.modules.reward_head import (
    HEAD_FILE,
    RewardModel,
    check_saved,
    load_reward_model,
    saved_backbone,
)
from sctom.rollout.causal import hidden_states
from tests.conftest import make_tiny_model

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


def test_it_knows_the_place_whatever_the_ids_are(backbone):
    """Padding is 0, and so are tokens of the answers here, the last of them too."""
    model = made(backbone)
    pairs = [([5, 6], [0, 0, 0]), ([5, 6], [0]), ([7], [8, 0])]
    alone = torch.cat([model.padded_scores([pair]) for pair in pairs])
    assert len(set(alone.tolist())) == 3
    for scores in (
        model.scores(pairs),
        model.padded_scores(pairs),
        model.padded_scores(pairs, side="left"),
    ):
        assert torch.allclose(scores, alone, atol=1e-5)


def test_a_model_that_cannot_be_packed_gives_padded_scores(tiny_model):
    eager = Backbone(str(tiny_model), attention="eager").load_model()
    model = RewardModel(eager)
    torch.nn.init.normal_(model.head.weight)
    assert torch.equal(model.scores(PAIRS), model.padded_scores(PAIRS))


def test_checkpointed_activations_give_the_same_gradient(tiny_model, backbone):
    saving = Backbone(str(tiny_model), lora_rank=backbone.lora_rank, gradient_checkpointing=True)
    plain, recomputed = made(backbone).train(), made(saving).train()
    ours = gradients(recomputed, recomputed.scores(PAIRS))
    theirs = gradients(plain, plain.scores(PAIRS))
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        assert torch.allclose(gradient, theirs[name], atol=1e-6), name


def test_the_head_is_trained_and_the_one_for_tokens_is_not(tmp_path):
    folder = make_tiny_model(tmp_path / "untied", tie_word_embeddings=False)
    model = RewardModel(Backbone(str(folder)).load_model())
    names = {name for name, _ in trainable(model)}
    assert "head.weight" in names and "model.lm_head.weight" not in names
    model.scores(PAIRS).sum().backward()
    assert all(parameter.grad is not None for _, parameter in trainable(model))


def test_the_embedding_is_trained_where_it_is_both(tiny_model):
    names = {name for name, _ in trainable(RewardModel(Backbone(str(tiny_model)).load_model()))}
    assert "model.model.embed_tokens.weight" in names


def test_scores_are_float32_under_autocast(backbone):
    model = made(backbone)
    model.head.weight.data.copy_(1 + torch.arange(16.0) / 4096)  # all 1 in bfloat16
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        scores = model.scores(PAIRS)
        model.head.weight.data.fill_(1.0)
        rounded = model.scores(PAIRS)
    assert scores.dtype == torch.float32 and not torch.equal(scores, rounded)


# ---- the saved model --------------------------------------------------------------------------


def test_what_the_base_is_loaded_with_is_kept(tiny_model, tmp_path):
    plain = Backbone(str(tiny_model), lora_rank=2)
    four_bits = Backbone(
        str(tiny_model),
        lora_rank=2,
        dtype="bfloat16",
        quantization="nf4",
        double_quantization=False,
        compute_dtype="float16",
    )
    RewardModel(plain.load_model()).save(plain.load_tokenizer(), tmp_path, four_bits)
    found = saved_backbone(tmp_path)
    assert (found.path, found.adapter) == (str(tiny_model), str(tmp_path))
    assert (found.quantization, found.double_quantization) == ("nf4", False)
    assert (found.dtype, found.compute_dtype) == ("bfloat16", "float16")


def test_a_quantised_base_is_quantised_again(tiny_model, tmp_path):
    pytest.importorskip("bitsandbytes")
    backbone = Backbone(str(tiny_model), lora_rank=2, quantization="nf4", compute_dtype="float32")
    model = made(backbone).eval()
    model.save(backbone.load_tokenizer(), tmp_path, backbone)
    loaded, _ = load_reward_model(tmp_path)
    with torch.no_grad():
        assert torch.equal(loaded.scores(PAIRS), model.scores(PAIRS))
    plain = made(Backbone(str(tiny_model), lora_rank=2)).eval()
    assert not torch.allclose(plain.scores(PAIRS), model.scores(PAIRS), atol=1e-3)


def test_other_scores_than_before_are_told(backbone, tmp_path):
    model = made(backbone)
    model.save(backbone.load_tokenizer(), tmp_path, backbone)
    check_saved(model.train(), tmp_path, PAIRS)
    assert model.training
    model.head.weight.data[0, 0] += 1e-3
    with pytest.raises(ValueError, match=r"does not hold .* scores answer 0"):
        check_saved(model, tmp_path, PAIRS)


def test_a_changed_base_is_told(tmp_path):
    base = make_tiny_model(tmp_path / "base")
    backbone = Backbone(str(base), lora_rank=2)
    model = made(backbone)
    model.save(backbone.load_tokenizer(), tmp_path / "saved", backbone)
    make_tiny_model(base, seed=1)
    with pytest.raises(ValueError, match="base model has changed on disk"):
        check_saved(model, tmp_path / "saved", PAIRS)


def test_a_language_model_is_no_reward_model(tiny_model):
    with pytest.raises(FileNotFoundError, match=r"no reward_head.* \(it is a LlamaForCausalLM\);"):
        load_reward_model(tiny_model)


def test_a_classifier_of_transformers_is_no_reward_model(tiny_model, tmp_path):
    from transformers import LlamaConfig, LlamaForSequenceClassification

    config = LlamaConfig.from_pretrained(tiny_model, num_labels=1)
    LlamaForSequenceClassification(config).save_pretrained(tmp_path)
    said = "LlamaForSequenceClassification, whose head is of another make"
    with pytest.raises(FileNotFoundError, match=said):
        load_reward_model(tmp_path)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        load_reward_model(tmp_path / "modle")


def test_a_head_cut_short_is_told(backbone, tmp_path):
    made(backbone).save(backbone.load_tokenizer(), tmp_path, backbone)
    file = tmp_path / HEAD_FILE
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"reward_head\.safetensors cannot be read"):
        load_reward_model(tmp_path)


def test_a_folder_without_a_trained_head_is_refused(backbone, tmp_path):
    made(backbone).save(backbone.load_tokenizer(), tmp_path, backbone)
    (tmp_path / HEAD_FILE).unlink()
    with pytest.raises(FileNotFoundError, match="no reward model with a trained head"):
        load_reward_model(tmp_path)
