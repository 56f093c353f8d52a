from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AutoModelForCausalLM

from sctom.rollout.attention import (
    UnsupportedAttentionError,
    let_layouts_attend,
    run_packed,
)
from sctom.rollout.packing import Packed, pack
from tests.rollout.test_sharing import tiny

SEQUENCES = [
    ([5, 6, 7], [8, 9, 10, 11]),
    ([5, 6], [7, 9]),  # a prefix of the other prompt
    ([5, 6, 7], [12]),
    ([4], [3]),  # alone, and of one token each
    ([5, 6, 7], [8, 9]),
]
HEADS = [(2, 2), (4, 2), (4, 1)]
SCALES = [0.5, 0.1]


class Attending(nn.Module):
    """As much of an attention module as the function looks at."""

    layer_idx = 0
    is_causal = True

    def __init__(self, heads: int = 4, shared: int = 2) -> None:
        super().__init__()
        self.num_key_value_groups = heads // shared


def may_attend(sequences, *, whole: bool, tail: int = 0) -> Tensor:
    """[N, N] True where one token of the packed row sees another, token by token.

    A token sees those that stand in front of it in one sequence that both are part of, and itself.
    """
    views: list[list[int]] = []
    order = dict.fromkeys(tuple(prefix) for prefix, _ in sequences)
    for prefix in order:
        seen: list[int] = []
        for _ in prefix:
            seen = [*seen, len(views)]
            views.append(seen)
        behind = [len(continuation) for other, continuation in sequences if tuple(other) == prefix]
        for length in sorted(behind, reverse=True):  # as they lie in the row
            mine = seen
            for _ in range(length - (not whole)):
                mine = [*mine, len(views)]
                views.append(mine)
    allowed = torch.zeros(len(views) + tail, len(views) + tail, dtype=torch.bool)
    for i, view in enumerate(views):
        allowed[i, view] = True
    return allowed


def brute_force(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, scale: float) -> Tensor:
    """[N, H, D]: a softmax over the whole row, in float64."""
    query, key, value = (t.double() for t in (query, key, value))
    times = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(times, 1) for t in (key, value))
    scores = torch.einsum("nhd,mhd->hnm", query, key) * scale
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    return torch.einsum("hnm,mhd->nhd", weights.nan_to_num(0.0), value)


def random_inputs(row: Packed, heads: tuple[int, int], dtype=torch.float64) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = [(len(row.ids), h, 4) for h in (heads[0], heads[1], heads[1])]
    return [torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


# ---- the attention of a layout -------------------------------------------------------------------


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 3e-2)],
    ids=["float64", "float32", "bfloat16"],
)
def test_a_layout_is_a_masked_softmax(whole, multiple, heads, scale, dtype, tolerance):
    row = pack(SEQUENCES, whole=whole, multiple=multiple)
    inputs = random_inputs(row, heads, dtype)
    attended = row.attend(0, *inputs, scale=scale, dropout=0.0)
    assert attended.dtype == dtype
    exact = [t.detach().double().requires_grad_() for t in inputs]
    allowed = may_attend(SEQUENCES, whole=whole, tail=row.tail)
    expected = brute_force(*exact, allowed, scale)
    torch.testing.assert_close(attended.double(), expected, rtol=0, atol=tolerance)
    weights = torch.randn(expected.shape, dtype=torch.float64)
    ours = torch.autograd.grad((attended * weights.to(dtype)).sum(), inputs)
    theirs = torch.autograd.grad((expected * weights).sum(), exact)
    for a, b in zip(ours, theirs, strict=True):
        assert float((a.double() - b).norm() / b.norm()) < tolerance


@pytest.mark.parametrize("heads", [(2, 2), (2, 1)], ids=str)
def test_gradients_of_a_layout(heads):
    row = pack([([5, 6], [7, 8, 9]), ([5, 6], [9, 9]), ([4], [3])], multiple=4)
    inputs = random_inputs(row, heads)
    assert torch.autograd.gradcheck(lambda *t: row.attend(0, *t, scale=0.5, dropout=0.0), inputs)


def test_continuations_do_not_see_each_other():
    row = pack(SEQUENCES, whole=True)
    query, key, value = (t.detach() for t in random_inputs(row, (2, 2)))
    attended = row.attend(0, query, key, value, scale=0.5, dropout=0.0)
    spoilt = value.clone()
    spoilt[3:7] = float("nan")  # the first continuation of the first prompt
    again = row.attend(0, query, key, spoilt, scale=0.5, dropout=0.0)
    assert bool(again[3:7].isnan().all())
    others = [*range(3), *range(7, len(row.ids))]
    assert torch.equal(again[others], attended[others])


def test_dropout_of_weights():
    row = pack(SEQUENCES)
    query, key, value = (t.detach() for t in random_inputs(row, (2, 2)))
    value = torch.ones_like(value)  # so that what comes out is the sum of the weights

    def summed(seed: int, dropout: float) -> Tensor:
        torch.manual_seed(seed)
        return row.attend(0, query, key, value, scale=0.5, dropout=dropout)

    assert torch.equal(summed(0, 0.4), summed(0, 0.4))
    assert not torch.equal(summed(0, 0.4), summed(1, 0.4))
    torch.testing.assert_close(summed(0, 0.0), torch.ones_like(value))
    mean = torch.stack([summed(seed, 0.4) for seed in range(400)]).mean((0, 2))
    # a weight w becomes w / 0.6 or 0: at most sqrt(0.4 / 0.6 / (400 * 4)) = 0.02 from its mean
    torch.testing.assert_close(mean, torch.ones_like(mean), rtol=0, atol=0.1)


# ---- the function that models call ---------------------------------------------------------------


@pytest.fixture(scope="module")
def ours():
    let_layouts_attend(tiny("llama"))
    return AttentionInterface()["sctom_sdpa"]


def heads_first(inputs: list[Tensor]) -> list[Tensor]:
    return [t.detach().float().transpose(0, 1).unsqueeze(0) for t in inputs]


def test_the_function_gives_the_layout_what_a_model_gives_it(ours):
    row = pack(SEQUENCES)
    inputs = random_inputs(row, (4, 2))
    allowed = may_attend(SEQUENCES, whole=False)
    for given, scale in (({}, 0.5), ({"scaling": 0.1}, 0.1)):  # 0.5 = 1 / sqrt(4)
        attended, weights = ours(Attending(), *heads_first(inputs), None, layout=row, **given)
        expected = brute_force(*inputs, allowed, scale)[None].float()
        torch.testing.assert_close(attended, expected, rtol=0, atol=1e-5)
        assert attended.shape == (1, len(row.ids), 4, 4) and weights is None


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"softcap": 30.0}, "softcap"),
        ({"softcap": 0.0}, "softcap"),  # 0 may mean something
        ({"s_aux": torch.zeros(4)}, "s_aux"),
        ({"head_mask": torch.ones(4), "bias": 1.0}, "bias, head_mask"),
        ({"chunk_size": 8, "softcap": None, "use_cache": True}, "chunk_size"),
    ],
)
def test_what_a_layout_does_not_compute_is_refused_by_name(ours, given, named):
    row = pack(SEQUENCES)
    inputs = heads_first(random_inputs(row, (4, 2)))
    with pytest.raises(UnsupportedAttentionError, match=f"Attending gives its attention {named}, "):
        ours(Attending(), *inputs, None, layout=row, **given)


def test_arguments_without_meaning_are_let_pass(ours):
    row = pack(SEQUENCES)
    inputs = heads_first(random_inputs(row, (4, 2)))
    plain, _ = ours(Attending(), *inputs, None, layout=row)
    unused = {"position_ids": row.positions, "use_cache": False, "softcap": None, "is_causal": True}
    again, _ = ours(Attending(), *inputs, torch.zeros(1, 1, 1, 1), layout=row, **unused)
    assert torch.equal(again, plain)


def test_a_window_is_refused_where_a_sequence_is_longer(ours):
    row = pack(SEQUENCES)  # the longest has 7 tokens
    inputs = heads_first(random_inputs(row, (4, 2)))
    plain, _ = ours(Attending(), *inputs, None, layout=row)
    wide, _ = ours(Attending(), *inputs, None, layout=row, sliding_window=7)
    assert torch.equal(wide, plain)
    with pytest.raises(
        UnsupportedAttentionError, match=r"last 6 tokens only, but .* has 7"
    ) as info:
        ours(Attending(), *inputs, None, layout=row, sliding_window=6)
    assert info.value.window == 6


@pytest.mark.parametrize("masked", [False, True])
def test_without_a_layout_nothing_is_changed(ours, masked):
    inputs = heads_first(random_inputs(pack(SEQUENCES), (4, 2)))
    length = inputs[0].shape[2]
    mask = torch.ones(1, 1, length, length, dtype=torch.bool).tril() if masked else None
    sdpa = AttentionInterface()["sdpa"]
    given = {"scaling": 0.3, "dropout": 0.2}
    results = []
    for function in (ours, sdpa):
        torch.manual_seed(0)
        results.append(function(Attending(), *inputs, mask, **given)[0])
    assert torch.equal(*results)


# ---- models --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral", "gemma3", "gpt2"])
def test_padded_rows_are_bit_equal_to_those_of_the_model_as_it_was(kind):
    model = tiny(kind)
    exchanged = copy.deepcopy(model)
    assert let_layouts_attend(exchanged) is None
    assert let_layouts_attend(exchanged) is None  # again
    torch.manual_seed(0)
    ids = torch.randint(3, 31, (2, 24))  # longer than the windows
    mask = torch.ones_like(ids)
    mask[0, 18:] = 0
    mask[1, :5] = 0
    for given in ({}, {"attention_mask": mask}):
        logits = [m(input_ids=ids, **given).logits for m in (model, exchanged)]
        keep = given.get("attention_mask", torch.ones_like(ids)).bool()
        assert torch.equal(logits[0][keep], logits[1][keep])
    answers = [
        m.generate(ids[:, :6], max_new_tokens=4, do_sample=False, pad_token_id=0)
        for m in (model, exchanged)
    ]
    assert torch.equal(*answers)


def test_a_packed_row_does_not_fill_a_cache():
    model = tiny("llama")
    let_layouts_attend(model)
    row = pack(SEQUENCES)
    with torch.no_grad():
        assert run_packed(model, row.ids, row.positions, row).past_key_values is None


@pytest.mark.parametrize("adapters", [False, True])
def test_a_saved_model_knows_nothing_of_layouts(tmp_path, adapters):
    from peft import LoraConfig, PeftModel, get_peft_model

    base = tiny("llama")
    base.save_pretrained(tmp_path / "base")
    lora = LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    model = get_peft_model(base, lora).eval() if adapters else base
    ids = torch.tensor([[5, 6, 7, 8]])
    before = model(input_ids=ids).logits
    assert let_layouts_attend(model) is None
    model.save_pretrained(tmp_path / "saved")
    for file in (tmp_path / "saved").glob("*.json"):
        assert "sctom" not in json.dumps(json.loads(file.read_text())), file.name
    if adapters:
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
        again = PeftModel.from_pretrained(again, tmp_path / "saved")
    else:
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert again.config._attn_implementation == "sdpa"
    assert torch.equal(again.eval()(input_ids=ids).logits, before)


def test_a_merged_model_saves_alike(tmp_path):
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(
        tiny("llama"), LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM")
    )
    assert let_layouts_attend(model) is None
    model.merge_and_unload().save_pretrained(tmp_path)
    assert "sctom" not in (tmp_path / "config.json").read_text()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config._attn_implementation == "sdpa"


def test_a_copy_of_a_model_attends_alike():
    model = tiny("llama")
    let_layouts_attend(model)
    row = pack(SEQUENCES)
    with torch.no_grad():
        first, second = (
            run_packed(m, row.ids, row.positions, row).logits for m in (model, copy.deepcopy(model))
        )
    assert torch.equal(first, second)
