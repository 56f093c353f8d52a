from __future__ import annotations

from collections import Counter
from contextlib import nullcontext

import pytest
import torch

from sctom.rollout import LocalSampler, Sampling, decode, drawn, local
from sctom.rollout.sharing import why_plain
from tests.rollout.oracle import ADDRESS, FAMILIES, STOP, check, make, prompts, sample, with_adapter

LENGTHS = (9, 1, 17, 5)


@pytest.fixture(scope="module")
def llama():
    return make("llama")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_token_is_that_of_the_model_and_the_address(family):
    model, chosen = make(family), prompts(*LENGTHS)
    assert why_plain(model, 40) is None
    samples = sample(model, chosen)
    assert len({len(s.ids) for s in samples}) > 1  # rows end at different times
    check(model, chosen, samples)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3"])
@pytest.mark.parametrize("settings", [{}, {"use_rslora": True}, {"use_dora": True}])
def test_adapters_on_and_off(family, settings):
    settings = {"fan_in_fan_out": True, **settings} if family == "gpt2" else settings
    model, chosen = with_adapter(make(family), **settings), prompts(6, 3)
    seen = []
    for context in (nullcontext(), model.disable_adapter()):
        with context:
            samples = sample(model, chosen)
            check(model, chosen, samples)
            seen.append([s.ids for s in samples])
    assert seen[0] != seen[1]


@pytest.mark.parametrize("merge", [True, False])
def test_without_copies_of_the_weights_as_well(merge):
    model, chosen = with_adapter(make("qwen2")), prompts(4, 8)
    check(model, chosen, sample(model, chosen, merge=merge))


@pytest.mark.parametrize(
    ("lengths", "group_size", "limit"),
    [((6,), 1, 10), ((1,), 5, 1), ((1, 1), 3, 9), ((3, 12), 1, 7), ((4, 4, 4), 7, 30)],
)
def test_shapes_at_the_edge(llama, lengths, group_size, limit):
    chosen = prompts(*lengths)
    samples = sample(llama, chosen, group_size=group_size, sampling=Sampling(max_new_tokens=limit))
    check(llama, chosen, samples, group_size=group_size)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_log_probabilities_are_at_the_temperature(llama, temperature):
    chosen, sampling = prompts(5, 2), Sampling(max_new_tokens=12, temperature=temperature)
    samples = sample(llama, chosen, sampling=sampling)
    check(llama, chosen, samples, temperature=temperature)


@pytest.mark.parametrize("settings", [{"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.2}])
def test_a_cut_distribution_is_scored_on_full_support(llama, settings):
    chosen = prompts(5, 2)
    samples = sample(llama, chosen, sampling=Sampling(max_new_tokens=12, **settings))
    for number, s in enumerate(samples):
        ids = chosen[number // 4].ids + s.ids
        logits = llama(input_ids=torch.tensor([ids])).logits[0, -len(s.ids) - 1 : -1]
        found = logits.log_softmax(-1).gather(1, torch.tensor(s.ids)[:, None])[:, 0]
        torch.testing.assert_close(s.logps, found, rtol=0, atol=1e-5)
        if "top_k" in settings:
            assert (logits.topk(3).indices == torch.tensor(s.ids)[:, None]).any(1).all()


def test_bfloat16_is_scored_with_a_head_in_float32():
    for adapted in (False, True):
        model = make("llama").bfloat16()
        model = with_adapter(model) if adapted else model
        chosen = prompts(6, 11)
        samples = sample(model, chosen)
        causal = model.get_base_model() if adapted else model
        for number, s in enumerate(samples):
            ids = torch.tensor([chosen[number // 4].ids + s.ids])
            hidden = causal.model(input_ids=ids).last_hidden_state[0, -len(s.ids) - 1 : -1]
            scores = (hidden.float() @ causal.lm_head.weight.float().T).log_softmax(-1)
            found = scores.gather(1, torch.tensor(s.ids)[:, None])[:, 0]
            assert (found - s.logps).abs().mean() < 0.03  # logits have a spread of about 2


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_autocast_changes_little(family):
    model, chosen = make(family), prompts(6, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        samples = sample(model, chosen)
    check(model, chosen, samples, within=0.2)


def test_room_follows_the_rows_that_go_on(llama, monkeypatch):
    seen = []
    run = decode.run_packed

    def look(causal, ids, positions, layout, **others):
        if isinstance(layout, decode._Rows):
            kept = layout.layer(0, ids, ids)
            assert len(ids) == decode.padded_rows(len(layout._slots))
            seen.append(
                (
                    len(layout._slots),
                    *kept.prompt_key.shape[::2],
                    kept.key.shape[0] // (2 * kept.prompt_key.shape[0]),
                )
            )
        return run(causal, ids, positions, layout, **others)

    monkeypatch.setattr(decode, "run_packed", look)
    samples = sample(llama, prompts(9, 1, 17, 5), sampling=Sampling(max_new_tokens=20))
    for step, (rows, groups, longest, slots) in enumerate(seen, 1):
        open_ = [i // 4 for i, s in enumerate(samples) if len(s.ids) > step]
        assert rows == len(open_) and groups == len(set(open_))
        assert slots == max(Counter(open_).values())
        assert longest == max((9, 1, 17, 5)[number] for number in open_)
    assert seen[-1] < seen[0]


def test_few_different_numbers_of_rows():
    sizes = {decode.padded_rows(rows) for rows in range(1, 257)}
    assert len(sizes) <= 28
    assert all(
        rows <= decode.padded_rows(rows) <= max(rows + 1, rows * 5 / 4) for rows in range(1, 257)
    )


def test_the_same_whatever_is_done_at_once(llama, monkeypatch):
    chosen = prompts(9, 1, 17, 5, 2)
    together = sample(llama, chosen)
    monkeypatch.setattr(decode, "_PREFILL_TOKENS", 10)
    monkeypatch.setattr(decode, "_CHUNK", 3)
    monkeypatch.setattr(drawn, "_CHUNK", 3)
    assert [s.ids for s in sample(llama, chosen)] == [s.ids for s in together]
    assert [s.ids for s in sample(llama, chosen, rows=8)] == [s.ids for s in together]
    assert [s.ids for s in sample(llama, chosen, rows=1)] == [s.ids for s in together]


def test_again_gives_the_same_bits(llama):
    first, again = sample(llama, prompts(*LENGTHS)), sample(llama, prompts(*LENGTHS))
    assert all(torch.equal(a.logps, b.logps) for a, b in zip(first, again, strict=True))
    with torch.inference_mode():
        inside = sample(llama, prompts(*LENGTHS))
    assert all(torch.equal(a.logps, b.logps) for a, b in zip(first, inside, strict=True))


def test_the_plain_loop_draws_the_same(llama, monkeypatch):
    packed = sample(llama, prompts(*LENGTHS))
    monkeypatch.setattr(local, "shares_prefixes", lambda *_: False)
    plain = sample(llama, prompts(*LENGTHS))
    assert [s.ids for s in packed] == [s.ids for s in plain]
    check(llama, prompts(*LENGTHS), plain)


def test_a_model_without_layouts_is_sampled_plainly_with_one_notice(capsys):
    model, chosen = make("llama", attn_implementation="eager"), prompts(3, 6)
    model.set_attn_implementation("eager")
    samples = sample(model, chosen) + sample(model, chosen)
    check(model, chosen, samples[:8])
    assert capsys.readouterr().out.count("runs on padded rows") == 1


def test_sequence_frequencies_fit_their_exact_probabilities():
    model, (prompt,) = make("qwen2", vocab_size=14), prompts(4)
    prompt.ids[:] = [3, 9, 1, 12]
    rows = 6000
    samples = LocalSampler(rows).sample(
        model,
        [prompt],
        group_size=rows,
        sampling=Sampling(max_new_tokens=2),
        stop_ids=STOP,
        address=ADDRESS,
    )
    exact = {}
    first = model(input_ids=torch.tensor([prompt.ids])).logits[0, -1].softmax(-1).tolist()
    for a in range(14):
        if a in STOP:
            exact[(a,)] = first[a]
            continue
        second = model(input_ids=torch.tensor([[*prompt.ids, a]])).logits[0, -1].softmax(-1)
        exact |= {(a, b): first[a] * p for b, p in enumerate(second.tolist())}
    counts = Counter(tuple(s.ids) for s in samples)
    often = {k: p * rows for k, p in exact.items() if p * rows >= 5}
    cells = [(counts[k], e) for k, e in often.items()]
    cells.append((rows - sum(c for c, _ in cells), rows - sum(e for _, e in cells)))
    statistic, freedom = sum((c - e) ** 2 / e for c, e in cells), len(cells) - 1
    assert freedom > 60
    assert freedom - 3.3 * (2 * freedom) ** 0.5 < statistic < freedom + 3.3 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("plain", [False, True])
def test_prompts_are_handed_out_when_their_group_is_complete(llama, monkeypatch, plain):
    if plain:
        monkeypatch.setattr(local, "shares_prefixes", lambda *_: False)
    chosen, seen = prompts(9, 1, 17, 5), {}

    def finished(number, samples):
        assert number not in seen
        seen[number] = samples

    samples = sample(llama, chosen, group_size=2, finished=finished)
    assert sorted(seen) == [0, 1, 2, 3] and list(seen) != [0, 1, 2, 3]
    assert [s for number in range(4) for s in seen[number]] == samples


def test_sampling_goes_on_after_a_prompt_is_handed_out(llama, monkeypatch):
    passes = []
    run = decode.run_packed
    monkeypatch.setattr(decode, "run_packed", lambda *a, **k: passes.append(1) or run(*a, **k))
    before = []
    sample(
        llama, prompts(9, 1, 17, 5), group_size=2, finished=lambda *_: before.append(len(passes))
    )
    assert before[0] < before[-1] == len(passes)


def test_no_prompts_no_samples(llama):
    assert sample(llama, []) == []
