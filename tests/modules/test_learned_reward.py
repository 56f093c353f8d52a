from __future__ import annotations

import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from sctom.data.pairs import render_pair
from sctom.modules import Backbone, LearnedReward, learned_reward
from sctom.modules.reward_head import HEAD_FILE, RewardModel
from sctom.preferences import Pair
from sctom.rewards import Failure, RewardError
from sctom.rollout.causal import hidden_states

ASKED = [{"role": "user", "content": "what is the colour of one ?"}]
TURNS = [*ASKED, {"role": "assistant", "content": "red"}, {"role": "user", "content": "is the ?"}]
PROMPTS = [ASKED, ASKED, TURNS, TURNS, ASKED]
TEXTS = ["red", "", "i don't know .", "blue", "the colour of one is green"]


def make_reward_model(backbone: Backbone, folder: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    model = RewardModel(backbone.load_model())
    torch.nn.init.normal_(model.head.weight)
    for name, parameter in model.model.named_parameters():
        if "lora_B" in name:  # a new adapter changes nothing
            torch.nn.init.normal_(parameter, std=0.1)
    model.save(backbone.load_tokenizer(), folder, backbone)
    return folder


@pytest.fixture(scope="module")
def folders(tiny_model, tmp_path_factory) -> list[Path]:
    """Two reward models: an adapter, and all weights."""
    return [
        make_reward_model(
            Backbone(str(tiny_model), lora_rank=rank), tmp_path_factory.mktemp("reward"), rank
        )
        for rank in (4, 0)
    ]


@pytest.fixture
def reward(folders) -> LearnedReward:
    return LearnedReward(str(folders[0]))


def messages(texts: list[str]) -> list[list[dict[str, str]]]:
    return [[{"role": "assistant", "content": text}] for text in texts]


@pytest.mark.parametrize("number", [0, 1], ids=["LoRA", "all weights"])
def test_the_score_is_the_heads_for_the_token_that_ends_the_answer(folders, number):
    """w . h of <|im_end|>, of each prompt and answer run alone; also where the answer is empty."""
    reward = LearnedReward(str(folders[number]))
    found = reward(PROMPTS, messages(TEXTS))
    model, tokenizer = reward._model()
    for prompt, text, score in zip(PROMPTS, TEXTS, found, strict=True):
        said = "".join(f"<|im_start|> {m['role']} {m['content']} <|im_end|> " for m in prompt)
        said += f"<|im_start|> assistant {text} <|im_end|>"
        ids = torch.tensor([tokenizer(said)["input_ids"]])
        assert tokenizer.decode(ids[0, -1]) == "<|im_end|>"
        hidden = hidden_states(model.model, input_ids=ids)[0, -1]
        assert score == pytest.approx(float(hidden @ model.head.weight[0]), abs=1e-4)
    assert len({round(score, 3) for score in found}) == len(TEXTS)


def test_it_reads_what_training_read(reward, monkeypatch):
    """The tokens of a pair's answers in PreferenceData."""
    seen = []
    monkeypatch.setattr(
        RewardModel, "scores", lambda self, rows: seen.extend(rows) or torch.zeros(len(rows))
    )
    reward([TURNS, TURNS], ["blue", "i don't know ."])
    pair = render_pair(
        reward._model()[1], Pair(TURNS, "blue", "i don't know ."), margin=0, place="x:1"
    )
    assert sorted(seen) == sorted([(pair.prompt, pair.chosen), (pair.prompt, pair.rejected)])


def test_a_score_does_not_depend_on_what_is_scored_together(folders, reward):
    together = reward(PROMPTS, TEXTS)
    alone = [reward([p], [t])[0] for p, t in zip(PROMPTS, TEXTS, strict=True)]
    small = LearnedReward(str(folders[0]), batch_tokens=12)(PROMPTS[::-1], TEXTS[::-1])[::-1]
    assert together == pytest.approx(alone, abs=1e-5)
    assert together == pytest.approx(small, abs=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # the run's precision
        assert reward(PROMPTS, TEXTS) == together


def test_a_prompt_is_run_once_for_its_completions(folders, monkeypatch):
    calls = []
    scores = RewardModel.scores

    def noted(self, rows):
        calls.append([len(prompt) for prompt, _ in rows])
        return scores(self, rows)

    monkeypatch.setattr(RewardModel, "scores", noted)
    # prompts of 12 and 22 tokens, answers of 2, 1, 5, 2 and 7, whose last tokens do not count:
    # 22 + 4 + 1 = 27, and 12 + 6 + 1 + 0 = 19
    LearnedReward(str(folders[0]), batch_tokens=27)(PROMPTS, TEXTS)
    assert calls == [[22, 22], [12, 12, 12]]


def test_the_sigmoid_of_the_score(folders, reward):
    raw = reward(PROMPTS, TEXTS)
    chances = LearnedReward(str(folders[0]), sigmoid=True)(PROMPTS, TEXTS)
    assert chances == pytest.approx([1 / (1 + math.exp(-score)) for score in raw])


def test_a_text_as_the_prompt_is_a_turn_of_the_user(reward):
    assert reward([ASKED[0]["content"]], ["red"]) == reward([ASKED], ["red"])


def test_it_is_loaded_once_and_trains_nothing(reward, monkeypatch):
    loaded, load = [], learned_reward.load_reward_model
    gate = threading.Barrier(3)

    def slowly(*arguments):
        loaded.append(arguments)
        return load(*arguments)

    def call(number):
        gate.wait(10)
        assert torch.is_grad_enabled()
        return reward(PROMPTS, TEXTS)

    monkeypatch.setattr(learned_reward, "load_reward_model", slowly)
    with ThreadPoolExecutor(3) as threads:
        first, *others = threads.map(call, range(3))
    assert others == [first, first] and len(loaded) == 1
    model, _ = reward._model()
    assert not model.training and not any(p.requires_grad for p in model.parameters())
    assert model.head.weight.dtype == torch.float32


def test_what_is_too_long_is_a_failure_of_its_completion(folders, reward):
    long, short = reward([ASKED, ASKED], ["red " * 200, "red"])
    assert [short] == reward([ASKED], ["red"])
    assert str(long).startswith("prompt and completion: 213 tokens, but the limit is 128")
    (failed,) = LearnedReward(str(folders[0]), max_tokens=13)([ASKED], ["red"])
    assert isinstance(failed, Failure) and "14 tokens, but the limit is 13" in str(failed)
    with pytest.raises(RewardError, match=r"batch_tokens must be at least 1, not 0"):
        LearnedReward("x", batch_tokens=0)


def test_a_conversation_that_cannot_be_rendered_is_a_failure(reward):
    (failed,) = reward([[{"role": "assistant", "content": "I am not asked"}]], ["red"])
    assert isinstance(failed, Failure)


def test_the_folder_is_checked_before_a_run(folders, tmp_path, tiny_model):
    for folder in folders:
        LearnedReward(str(folder)).check()
    with pytest.raises(RewardError, match=r"'learned_reward': .* \(there is no such folder\)"):
        LearnedReward(str(tmp_path / "nothing")).check()
    with pytest.raises(RewardError, match=HEAD_FILE):
        LearnedReward(str(tiny_model)).check()
    moved = make_reward_model(Backbone(str(tiny_model), lora_rank=4), tmp_path / "moved", 0)
    about = json.loads((moved / "reward_model.json").read_text())
    (moved / "reward_model.json").write_text(json.dumps(about | {"base": "models/nothing-here"}))
    with pytest.raises(RewardError, match="models/nothing-here is neither a folder"):
        LearnedReward(str(moved)).check()


def test_what_it_says_about_itself(folders, tiny_model):
    adapter, whole = (LearnedReward(str(f)).describe() for f in folders)
    assert adapter[0].startswith(f"learned_reward: scores of {folders[0]} (adapter of {tiny_model}")
    assert f"{folders[1]} (all weights; head " in whole[0]
    assert adapter[0][-13:] != whole[0][-13:]  # the heads' hashes
