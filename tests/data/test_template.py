import pytest
from tokenizers.processors import TemplateProcessing

from sctom.data.template import check_length, render_dialogue, render_prompt
from sctom.modules.tinyworld import make_tokenizer
from sctom.tasks.tinyworld import IDK

SYSTEM = {"role": "system", "content": "Be brief."}
ASK = {"role": "user", "content": "Where does Kalomi live?"}
BERLIN = {"role": "assistant", "content": "Berlin"}
AGAIN = {"role": "user", "content": "Name the pet of Kalomi."}
DUNNO = {"role": "assistant", "content": IDK}

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# As Qwen3: what the assistant thought is dropped from all turns but the last.
FORGETFUL = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' }}"
    "{% if m.role == 'assistant' and loop.last %}{{ 'Hm. ' }}{% endif %}"
    "{{ m.content }}{% if m.role == 'assistant' %}{{ '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def tokenizer_with(template=None, special=()):
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
    if template is not None:
        tokenizer.chat_template = template
    return tokenizer


def learned(tokenizer, messages, **settings):
    """The stretches of text the mask is 1 on."""
    ids, mask = render_dialogue(tokenizer, messages, **settings)
    assert len(ids) == len(mask)
    assert set(mask) <= {0, 1}
    stretches, run = [], []
    for token, counts in zip([*ids, 0], [*mask, 0], strict=True):
        if counts:
            run.append(token)
        elif run:
            stretches.append(tokenizer.decode(run))
            run = []
    return stretches


def test_a_prompt_is_open_for_the_assistant():
    tokenizer = tokenizer_with()
    text = tokenizer.decode(render_prompt(tokenizer, [SYSTEM, ASK]))
    assert text == "<|system|>Be brief.<|user|>Where does Kalomi live?<|assistant|>"


def test_a_prompt_that_ends_with_the_assistant_is_refused():
    with pytest.raises(ValueError, match="drop that message, or use render_dialogue"):
        render_prompt(tokenizer_with(), [ASK, BERLIN])


def test_the_mask_holds_each_turn_of_the_assistant_and_its_end_token():
    messages = [SYSTEM, ASK, BERLIN, AGAIN, DUNNO]
    assert learned(tokenizer_with(), messages) == ["Berlin<|end|>", "I don't know.<|end|>"]


def test_of_the_last_turn_alone_nothing_before_it_is_learned():
    messages = [SYSTEM, ASK, BERLIN, AGAIN, DUNNO]
    assert learned(tokenizer_with(), messages, learn="last") == ["I don't know.<|end|>"]
    ids, mask = render_dialogue(tokenizer_with(), messages, learn="last")
    assert ids == render_dialogue(tokenizer_with(), messages)[0]
    assert mask == sorted(mask)  # zeros, then ones up to the end


def test_what_the_template_writes_after_the_end_token_is_not_learned():
    tokenizer = tokenizer_with(CHATML, special=["<|im_start|>", "<|im_end|>"])
    messages = [ASK, BERLIN, AGAIN, DUNNO]
    assert learned(tokenizer, messages) == ["Berlin<|im_end|>", "I don't know.<|im_end|>"]


def test_the_ids_are_those_of_the_template():
    tokenizer = tokenizer_with()
    messages = [SYSTEM, ASK, BERLIN, AGAIN, DUNNO]
    ids, _ = render_dialogue(tokenizer, messages)
    assert ids == tokenizer.apply_chat_template(messages, return_dict=False)


def test_a_dialogue_begins_with_its_prompt():
    tokenizer = tokenizer_with()
    prompt = render_prompt(tokenizer, [ASK])
    ids, mask = render_dialogue(tokenizer, [ASK, BERLIN])
    assert ids[: len(prompt)] == prompt
    assert mask == [0] * len(prompt) + [1, 1]


def test_a_question_after_the_last_answer_is_left_out():
    tokenizer = tokenizer_with()
    with_question, without = (
        render_dialogue(tokenizer, m) for m in ([ASK, BERLIN, AGAIN], [ASK, BERLIN])
    )
    assert with_question == without


def test_a_template_that_rewrites_earlier_turns_is_refused_by_turn():
    tokenizer = tokenizer_with(FORGETFUL)
    assert learned(tokenizer, [ASK, BERLIN]) == ["Hm. Berlin<|end|>"]
    with pytest.raises(ValueError, match=r"^messages\[3\]: the chat template .* differently"):
        render_dialogue(tokenizer, [ASK, BERLIN, AGAIN, DUNNO])
    last = learned(tokenizer, [ASK, BERLIN, AGAIN, DUNNO], learn="last")
    assert last == ["Hm. I don't know.<|end|>"]


def test_a_first_turn_that_nothing_predicts_is_refused():
    tokenizer = tokenizer_with()
    assert learned(tokenizer, [BERLIN, ASK, DUNNO], learn="last") == ["I don't know.<|end|>"]
    with pytest.raises(ValueError, match=r"^messages\[0\]: .* begin with a turn of the user"):
        render_dialogue(tokenizer, [BERLIN, ASK, DUNNO])


def test_a_template_without_an_end_token_is_refused():
    tokenizer = tokenizer_with(
        "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    )
    with pytest.raises(ValueError, match=r"messages\[1\]: .*never learn to stop"):
        render_dialogue(tokenizer, [ASK, BERLIN])


def test_a_dialogue_without_the_assistant_is_refused():
    with pytest.raises(ValueError, match="found the roles: system, user"):
        render_dialogue(tokenizer_with(), [SYSTEM, ASK])


def test_a_tokenizer_without_template_is_refused():
    tokenizer = make_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="has no chat template"):
        render_prompt(tokenizer, [ASK])


def test_a_doubled_bos_is_refused():
    template = "{{ bos_token }}" + make_tokenizer().chat_template
    tokenizer = tokenizer_with(template)
    tokenizer.add_special_tokens({"bos_token": "<|begin|>"})
    assert tokenizer.decode(render_prompt(tokenizer, [ASK])).count("<|begin|>") == 1
    tokenizer.chat_template = "{{ bos_token }}" + template
    with pytest.raises(ValueError, match=r"begin with two '<\|begin\|>'"):
        render_prompt(tokenizer, [ASK])
    with pytest.raises(ValueError, match="begin with two"):
        render_dialogue(tokenizer, [ASK, BERLIN])


def test_a_bos_of_the_tokenizer_is_not_added_to_that_of_the_template():
    tokenizer = tokenizer_with("{{ bos_token }}" + make_tokenizer().chat_template)
    tokenizer.add_special_tokens({"bos_token": "<|begin|>"})
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", tokenizer.bos_token_id)]
    )
    assert tokenizer("Who")["input_ids"][0] == tokenizer.bos_token_id
    assert render_prompt(tokenizer, [ASK]).count(tokenizer.bos_token_id) == 1


def test_a_long_prompt_is_an_error_that_names_it():
    check_length([1, 2, 3], 3, place="train.jsonl:17")
    with pytest.raises(ValueError, match=r"^train.jsonl:17: 3 tokens, but the limit is 2; "):
        check_length([1, 2, 3], 2, place="train.jsonl:17")
