from __future__ import annotations

import numpy as np
import pytest
import torch

from sctom.batch import Prompt
from sctom.modules import Backbone
from sctom.modules.backbone import stop_ids
from sctom.rollout import LocalSampler, Sampling
from sctom.rollout.causal import pad
from sctom.rollout.draw import draw, kept_probabilities, next_tokens
from sctom.seeds import keys_for

STOP = frozenset({2})


def prompts(*lengths: int) -> list[Prompt]:
    return [Prompt(i, [1, 4, *range(7, 7 + n), 2], [], {}) for i, n in enumerate(lengths)]


def sample(model, chosen, *, group_size=3, sampling=None, rows=256, address=(5, 0)):
    return LocalSampler(rows).sample(
        model,
        chosen,
        group_size=group_size,
        sampling=sampling or Sampling(max_new_tokens=10),
        stop_ids=STOP,
        address=address,
    )


@pytest.fixture(scope="module")
def model(tiny_model):
    return Backbone(str(tiny_model)).load_model()


def test_the_same_tokens_whatever_the_batch(model):
    chosen = prompts(2, 7, 4, 1)
    together = sample(model, chosen)
    alone = [s for p in chosen for s in sample(model, [p])]
    small = sample(model, chosen[::-1], rows=3)
    reordered = [s for i in range(len(chosen)) for s in small[(3 - i) * 3 : (3 - i) * 3 + 3]]
    for a, b, c in zip(together, alone, reordered, strict=True):
        assert a.ids == b.ids == c.ids
        assert a.truncated == b.truncated == c.truncated
        torch.testing.assert_close(a.logps, b.logps, rtol=1e-4, atol=1e-5)


def test_a_larger_group_extends_a_smaller_one(model):
    few, many = sample(model, prompts(3), group_size=2), sample(model, prompts(3), group_size=6)
    assert [s.ids for s in few] == [s.ids for s in many[:2]]


def test_other_addresses_give_other_draws(model):
    first = sample(model, prompts(3), group_size=8, address=(5, 0))
    again = sample(model, prompts(3), group_size=8, address=(5, 0))
    other = sample(model, prompts(3), group_size=8, address=(5, 1))
    assert [s.ids for s in first] == [s.ids for s in again]
    assert [s.ids for s in first] != [s.ids for s in other]
    assert len({tuple(s.ids) for s in first}) > 1


def test_the_stop_token_is_kept_and_ends_a_completion(model):
    samples = sample(model, prompts(1, 2, 3), group_size=16, sampling=Sampling(max_new_tokens=6))
    assert {s.truncated for s in samples} == {True, False}
    for s in samples:
        assert 2 not in s.ids[:-1]
        assert (s.ids[-1] == 2) == (not s.truncated)
        assert len(s.ids) == len(s.logps) <= 6
        assert s.truncated == (len(s.ids) == 6 and s.ids[-1] != 2)


def test_a_stop_token_at_the_limit_is_no_truncation(model):
    longest = Sampling(max_new_tokens=10)
    ended = [
        s for s in sample(model, prompts(2), group_size=16, sampling=longest) if not s.truncated
    ]
    length = len(ended[0].ids)
    same = sample(model, prompts(2), group_size=16, sampling=Sampling(max_new_tokens=length))
    (match,) = [s for s in same if s.ids == ended[0].ids][:1]
    assert not match.truncated


def test_greedy_takes_the_most_likely_token(model):
    (s,) = sample(
        model, prompts(3), group_size=1, sampling=Sampling(max_new_tokens=4, temperature=0.0)
    )
    ids = torch.tensor([prompts(3)[0].ids + s.ids])
    logits = model(input_ids=ids).logits[0]
    first = len(prompts(3)[0].ids) - 1
    assert s.ids == logits[first : first + len(s.ids)].argmax(-1).tolist()


def test_frequencies_follow_the_distribution():
    probabilities = torch.tensor([[0.5, 0.2, 0.0, 0.3]]).expand(20_000, 4)
    uniform = torch.from_numpy((np.arange(20_000) + 0.5) / 20_000)
    counts = torch.bincount(draw(probabilities, uniform), minlength=4) / 20_000
    torch.testing.assert_close(counts, probabilities[0], rtol=0, atol=1e-4)


def test_draw_never_picks_a_token_without_mass():
    edge = torch.tensor([0.999999999999, 1e-12], dtype=torch.float64)
    picked = draw(torch.tensor([[0.7, 0.3, 0.0], [0.0, 0.4, 0.6]]), edge)
    assert picked.tolist() == [1, 1]


# softmax of log p is p: p = (0.5, 0.3, 0.15, 0.05)
LOGITS = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
KEYS = keys_for(1, np.arange(50))


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, [0.5, 0.3, 0.15, 0.05]),
        ({"top_k": 2}, [0.5, 0.3, 0, 0]),
        ({"top_p": 0.8}, [0.5, 0.3, 0, 0]),  # mass ahead of the third token is 0.8, not below 0.8
        ({"top_p": 0.81}, [0.5, 0.3, 0.15, 0]),
        ({"top_p": 0.01}, [0.5, 0, 0, 0]),  # the most likely token always stays
        ({"min_p": 0.3}, [0.5, 0.3, 0.15, 0]),  # 0.3 * 0.5 = 0.15 is not below itself
        ({"min_p": 0.31}, [0.5, 0.3, 0, 0]),
        (
            {"top_k": 3, "top_p": 0.9},
            [0.5, 0.3, 0.15, 0],
        ),  # of 0.95 kept, 0.9 * 0.95 = 0.855 is needed; 0.8 is short
    ],
)
def test_kept_probabilities(settings, kept):
    result = kept_probabilities(LOGITS.softmax(-1), Sampling(**settings))
    torch.testing.assert_close(
        result, torch.tensor([kept], dtype=torch.float32), rtol=1e-5, atol=1e-6
    )


def test_temperature_divides_the_logits():
    # p^2 normalised: 0.25, 0.09, 0.0225, 0.0025 over 0.365
    expected = torch.tensor([[0.25, 0.09, 0.0225, 0.0025]]) / 0.365
    tokens, logps = next_tokens(LOGITS.expand(50, 4), KEYS, 0, Sampling(temperature=0.5))
    assert set(tokens.tolist()) == {0, 1, 2, 3}
    torch.testing.assert_close(logps.exp(), expected[0, tokens])


def test_greedy_is_scored_at_temperature_one():
    tokens, logps = next_tokens(LOGITS.expand(50, 4), KEYS, 0, Sampling(temperature=0.0))
    assert tokens.tolist() == [0] * 50
    torch.testing.assert_close(logps.exp(), torch.full((50,), 0.5))


@pytest.mark.parametrize("vocabulary", [1, 63, 64, 65, 1000])
def test_draw_is_the_first_token_above_the_target(vocabulary):
    generator = torch.Generator().manual_seed(vocabulary)
    mass = torch.rand(300, vocabulary, generator=generator) ** 4
    mass[:, 1:] *= torch.rand(300, vocabulary - 1, generator=generator) > 0.4
    uniform = torch.rand(300, dtype=torch.float64, generator=generator)
    uniform[:2] = torch.tensor([2.0**-53, 1.0 - 2.0**-53])
    ends = mass.double().cumsum(-1)
    expected = (ends > uniform[:, None] * ends[:, -1:]).int().argmax(-1)
    tokens = draw(mass, uniform)
    assert torch.equal(tokens[2:], expected[2:])
    assert (mass[torch.arange(300), tokens] > 0).all()
    assert tokens[0] == 0 and (mass[1, tokens[1] + 1 :] == 0).all()


def test_numbers_that_are_none_are_not_hidden():
    _, logps = next_tokens(torch.full((50, 70), torch.nan), KEYS, 0, Sampling())
    assert logps.isnan().all()


@pytest.mark.parametrize(
    "settings",
    [
        {"max_new_tokens": 0},
        {"temperature": -1.0},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"min_p": 1.0},
        {"temperature": float("nan")},
    ],
)
def test_impossible_settings_are_refused(settings):
    (name,) = settings
    with pytest.raises(ValueError, match=f"sampling.{name} must be"):
        Sampling(**settings)


def test_stop_ids_unite_generation_config_and_tokenizer(tiny_model):
    model, tokenizer = Backbone(str(tiny_model)).load()
    model.generation_config.eos_token_id = [5, 6]
    assert stop_ids(model, tokenizer) == {5, 6, 2}
    model.generation_config.eos_token_id = None
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="names an end-of-sequence token"):
        stop_ids(model, tokenizer)


def test_padding_comes_from_lengths_even_where_pad_is_a_real_token():
    ids, mask, positions = pad([[0, 0, 3], [0]], 0, side="right")
    assert ids.tolist() == [[0, 0, 3], [0, 0, 0]]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert positions.tolist() == [[0, 1, 2], [0, 0, 0]]
    with pytest.raises(ValueError, match="side"):
        pad([[1]], 0, side="up")


def test_a_prompt_without_tokens_is_refused(tiny_model):
    from sctom.modules import Backbone

    with pytest.raises(ValueError, match="prompt 7 has no tokens"):
        LocalSampler().sample(
            Backbone(str(tiny_model)).load_model(),
            [Prompt(7, [], [])],
            group_size=2,
            sampling=Sampling(max_new_tokens=2),
            stop_ids=frozenset(),
            address=(0,),
        )


def test_weights_that_are_not_finite_end_sampling(tiny_model):
    from sctom.modules import Backbone

    model = Backbone(str(tiny_model)).load_model()
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="token 1 of a completion is not finite"):
        LocalSampler().sample(
            model,
            [Prompt(0, [4, 5], [])],
            group_size=2,
            sampling=Sampling(max_new_tokens=2),
            stop_ids=frozenset(),
            address=(0,),
        )


@pytest.mark.filterwarnings("ignore")  # transformers' own, about kernels that are not installed
def test_a_model_that_keeps_a_state_is_refused_by_name():
    from transformers import AutoModelForCausalLM, MambaConfig

    config = MambaConfig(
        vocab_size=31, hidden_size=16, num_hidden_layers=1, bos_token_id=1, eos_token_id=2
    )
    with pytest.raises(ValueError, match="MambaForCausalLM keeps a state"):
        LocalSampler().sample(
            AutoModelForCausalLM.from_config(config).eval(),
            [Prompt(0, [4, 5], [])],
            group_size=2,
            sampling=Sampling(max_new_tokens=2),
            stop_ids=frozenset(),
            address=(0,),
        )
