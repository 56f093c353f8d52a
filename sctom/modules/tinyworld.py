"""The tokenizer of the invented world, and the untrained model that learns it."""

from __future__ import annotations

from typing import Any

from sctom.tasks.tinyworld import CONSONANTS, IDK, PROFILE, RELATIONS, VOWELS

SPECIAL = ("<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def make_tokenizer() -> Any:
    """A transformers tokenizer for this world: a token per word, and per syllable of a name.

    Byte-level BPE whose only merges make syllables; words are in the vocabulary whole. Every text
    can be encoded, what is not of this world byte by byte, and decodes to itself.

    >>> make_tokenizer().tokenize("Where does Kalomi live?")
    ['Where', 'Ġdoes', 'ĠKa', 'lo', 'mi', 'Ġlive', '?']
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    space = "Ġ"
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    firsts = [(space, c.upper()) for c in CONSONANTS]
    firsts += [(space + c.upper(), v) for c in CONSONANTS for v in VOWELS]
    merges = firsts + [(c, v) for c in CONSONANTS for v in VOWELS]
    texts = [wording for r in RELATIONS for wording in r.train + r.valid] + [*PROFILE, IDK]
    texts += [start + value for r in RELATIONS for value in r.values for start in ("", " ")]
    words = {word for text in texts for word, _ in splitter.pre_tokenize_str(text.format(""))}
    alphabet = sorted(splitter.alphabet())
    pieces = dict.fromkeys([*SPECIAL, *alphabet, *map("".join, merges), *sorted(words)])
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=SPECIAL[0],
        eos_token=SPECIAL[-1],
        additional_special_tokens=list(SPECIAL[1:-1]),
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def make_model(tokenizer: Any, seed: int = 0) -> Any:
    """An untrained Llama of a million weights: two layers with wide MLPs, where facts are kept."""
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed

    set_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=160,
        intermediate_size=768,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)
