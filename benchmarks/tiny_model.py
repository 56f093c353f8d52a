"""A model small enough to measure in seconds: random weights, a tokenizer of its own, no download.

The tokenizer is trained on the sources of Python's standard library, which are on every machine.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
EOS, PAD = 2, 3
LARGEST_TOKENIZER = 8192
"""A larger vocabulary has ids that no text is made of; they are drawn and decode to nothing."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a Qwen2-like model; the defaults make about 13 million parameters.

    Args:
        vocabulary: ids, V.
        hidden: width of the residual stream.
        inner: width of the MLP.
        layers: number of layers.
        heads: query heads.
        kv_heads: key and value heads.
        positions: longest sequence.
    """

    vocabulary: int = 8192
    hidden: int = 384
    inner: int = 1024
    layers: int = 6
    heads: int = 6
    kv_heads: int = 2
    positions: int = 4096


def sources(limit: int) -> Iterator[str]:
    """Texts of the first modules of the standard library that are pure ASCII."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    texts = (file.read_bytes() for file in files[:limit])
    return (text.decode("ascii") for text in texts if text.isascii())


@lru_cache(maxsize=1)
def corpus(limit: int = 60) -> str:
    """The text that prompts are cut from."""
    return "\n".join(sources(limit))


def make_tokenizer(folder: Path, vocabulary: int, *, files: int = 400) -> None:
    """Train a byte-level BPE tokenizer with a chat template and save it.

    Args:
        folder: where it is saved.
        vocabulary: number of its tokens.
        files: modules of the standard library it is trained on.
    """
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sources(files), trainer)
    untyped: Any = transformers
    fast = untyped.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=SPECIAL[1],
        eos_token=SPECIAL[EOS],
        pad_token=SPECIAL[PAD],
        unk_token=SPECIAL[0],
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


def make_model(folder: Path, shape: Shape, *, seed: int = 0, files: int = 400) -> None:
    """Save a random model of this shape, and a tokenizer for it.

    Args:
        folder: where both are saved.
        shape: sizes of the model.
        seed: of its weights.
        files: see `make_tokenizer`.
    """
    import torch
    import transformers

    untyped: Any = transformers
    make_tokenizer(folder, min(shape.vocabulary, LARGEST_TOKENIZER), files=files)
    special = {"bos_token_id": 1, "eos_token_id": EOS, "pad_token_id": PAD}
    config = untyped.Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.positions,
        tie_word_embeddings=True,
        **special,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = untyped.Qwen2ForCausalLM(config)
    model.generation_config = untyped.GenerationConfig(**special)
    model.save_pretrained(folder)
