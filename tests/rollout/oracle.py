from __future__ import annotations

import numpy as np
import torch

from sctom.batch import Prompt
from sctom.rollout import LocalSampler, Sampling
from sctom.seeds import keys_for, uniforms

STOP = frozenset({2, 5, 11})
ADDRESS = (5, 0)
FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma", "gemma3", "gpt2")
SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
}


def make(family: str, seed: int = 0, **settings) -> torch.nn.Module:
    """A random model whose weights are large enough for its distributions to be uneven."""
    import transformers as hf

    sizes = {**SIZES, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 2}
    kinds = {
        "llama": (hf.LlamaConfig, hf.LlamaForCausalLM, {}),
        "qwen2": (hf.Qwen2Config, hf.Qwen2ForCausalLM, {"tie_word_embeddings": True}),
        "qwen3": (hf.Qwen3Config, hf.Qwen3ForCausalLM, {}),
        "mistral": (hf.MistralConfig, hf.MistralForCausalLM, {"sliding_window": 64}),
        "gemma": (hf.GemmaConfig, hf.GemmaForCausalLM, {"num_key_value_heads": 1}),
        "gemma3": (hf.Gemma3TextConfig, hf.Gemma3ForCausalLM, {"sliding_window": 64}),
        "gpt2": (hf.GPT2Config, hf.GPT2LMHeadModel, {}),
    }
    config, model, own = kinds[family]
    if family == "gpt2":
        sizes = {"vocab_size": 40, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = model(config(**{**sizes, **own, **settings}))
        for parameter in made.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.25)
    return made.eval()


def prompts(*lengths: int) -> list[Prompt]:
    """Prompts of these lengths, numbered from 3."""
    return [
        Prompt(i + 3, [(7 * i + 3 * j) % 29 + 6 for j in range(n)], [], {})
        for i, n in enumerate(lengths)
    ]


def sample(model, chosen, *, group_size=4, sampling=None, rows=256, merge=None, **others):
    return LocalSampler(rows, merge).sample(
        model,
        chosen,
        group_size=group_size,
        sampling=sampling or Sampling(max_new_tokens=12),
        stop_ids=STOP,
        address=ADDRESS,
        **others,
    )


@torch.no_grad()
def check(model, chosen, samples, *, group_size=4, temperature=1.0, within=1e-5):
    """Each completion against the model run on it alone, without cache, padding or sampler.

    Its log-probabilities are those of the model, and each token is the one whose share of the
    cumulative distribution holds the uniform of its address.
    """
    assert len(samples) == len(chosen) * group_size
    for number, s in enumerate(samples):
        prompt = chosen[number // group_size]
        logits = model(input_ids=torch.tensor([prompt.ids + s.ids])).logits[0].double()
        scores = torch.log_softmax(logits[len(prompt.ids) - 1 : -1] / temperature, -1)
        ids = torch.tensor(s.ids)
        found = scores.gather(1, ids[:, None])[:, 0]
        assert (found - s.logps).abs().max() < within
        keys = keys_for(*ADDRESS, prompt.index, number % group_size)
        uniform = torch.tensor([uniforms(keys, t)[0] for t in range(len(s.ids))])
        ends = scores.exp().cumsum(-1).gather(1, ids[:, None])[:, 0]
        assert (uniform < ends + within).all() and (uniform > ends - found.exp() - within).all()


def with_adapter(model, **settings):
    """LoRA on all linear layers that changes what the model says."""
    from peft import LoraConfig, get_peft_model

    settings = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", **settings}
    with torch.random.fork_rng():
        torch.manual_seed(3)
        adapted = get_peft_model(model, LoraConfig(**settings))
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name or "lora_magnitude" in name:
                parameter.data += 0.1 * torch.randn(parameter.shape)
    return adapted.eval()


def bits(model) -> dict[str, np.ndarray]:
    return {name: t.detach().float().numpy().copy() for name, t in model.state_dict().items()}
