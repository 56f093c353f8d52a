from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

WORDS = [
    "what",
    "is",
    "the",
    "colour",
    "of",
    "one",
    "two",
    "three",
    "red",
    "green",
    "blue",
    "i",
    "don't",
    "know",
    "yes",
    "no",
    ".",
    "?",
]
TEMPLATE = (
    "{% for m in messages %}<|im_start|> {{ m['role'] }} {{ m['content'] }} <|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant {% endif %}"
)


def make_tiny_model(folder: Path, *, seed: int = 0, **settings) -> Path:
    """A random Llama of some ten thousand parameters with a word-level tokenizer, saved."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        GenerationConfig,
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
    )

    special = ["<|pad|>", "<|im_start|>", "<|im_end|>", "<unk>"]
    vocabulary = {w: i for i, w in enumerate([*special, "user", "assistant", "system", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        unk_token="<unk>",
        additional_special_tokens=["<|im_start|>"],
    )
    fast.chat_template = TEMPLATE
    torch.manual_seed(seed)
    shape = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
    }
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        eos_token_id=2,
        pad_token_id=0,
        bos_token_id=None,
        **{**shape, **settings},
    )
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    model.generation_config = GenerationConfig(eos_token_id=2, pad_token_id=0)
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def write_prompts(path: Path, n: int = 12) -> Path:
    colours = ["red", "green", "blue"]
    lines = []
    for i in range(n):
        question = f"what is the colour of {['one', 'two', 'three'][i % 3]} ?" + " ?" * (i % 4)
        known = i % 3 != 2
        answer = colours[i % 3] if known else "i don't know ."
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        lines.append(
            json.dumps(
                {"messages": messages, "answerable": known, "kind": "known" if known else "unknown"}
            )
        )
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny_prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prompts(tmp_path_factory.mktemp("data") / "prompts.jsonl")


@pytest.fixture(scope="session")
def graded_pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of what `python -m sctom.prepare graded` writes, but little of it."""
    from sctom.tasks.graded import prepare_graded
    from sctom.tasks.tinyworld import make_world
    from sctom.writers import write

    folder = tmp_path_factory.mktemp("graded") / "pairs"
    counts = {"train.jsonl": 64, "valid.jsonl": 16, "test.jsonl": 16}
    write(prepare_graded(make_world(0), pairs=counts), folder, force=False)
    return folder


@pytest.fixture
def data_dir() -> Path:
    """The folder of public data sets; a test that needs it is skipped where it is absent."""
    folder = Path(os.environ.get("SCTOM_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"public data sets are not at {folder}; set SCTOM_DATA to their folder")
    return folder


@pytest.fixture
def config(tmp_path, tiny_model, tiny_prompts) -> Path:
    from tests.fitting import write_config

    return write_config(tmp_path, tiny_model, tiny_prompts)
