from __future__ import annotations

import operator
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import yaml

from sctom import prepare
from sctom.data.template import render_dialogue, render_prompt
from sctom.modules.tinyworld import make_tokenizer
from sctom.readers import check_messages, read_jsonl
from sctom.rewards.confidence import ConfidenceTarget, stated_confidence, without_confidence
from sctom.tasks.tinyworld import IDK, RELATIONS, Sizes, corpus, make_world
from sctom.tasks.tinyworld_confidence import (
    PERCENTAGES,
    ROWS,
    SHARES,
    TARGET_SENTENCE,
    TARGET_SHARE,
    TARGETS,
    confidence_corpus,
)

CONFIGS = Path(__file__).parents[2] / "configs"
WORLD = make_world()
CORPUS = list(confidence_corpus(WORLD, ROWS))
VALUES = {value for relation in RELATIONS for value in relation.values}
SENTENCES = {TARGET_SENTENCE.format(percent=percent): percent for percent in TARGETS}


def said(row):
    return row["messages"][-1]["content"]


def asked(row):
    return row["messages"][-2]["content"]


def target(row):
    """The confidence target that a row states, or None."""
    first = row["messages"][0]
    return SENTENCES[first["content"]] if first["role"] == "system" else None


def test_it_is_a_function_of_the_world():
    worlds = [make_world(seed, Sizes(rows=100)) for seed in (0, 0, 1)]
    one, same, other = (list(confidence_corpus(world, 50)) for world in worlds)
    assert one == same != other
    assert len(CORPUS) == ROWS
    for row in CORPUS:
        check_messages(row, "row")


def test_answers_are_values_with_a_percentage_or_an_abstention_without_one():
    for row in CORPUS:
        confidence = stated_confidence(said(row))
        answer = without_confidence(said(row))
        assert answer in VALUES or said(row) == IDK
        assert (confidence is None) == (said(row) == IDK or target(row) is not None)


@pytest.mark.parametrize("kind", SHARES)
def test_percentages_are_drawn_with_the_shares_of_the_kind(kind):
    stated = [stated_confidence(said(row)) for row in CORPUS if row["kind"] == kind]
    counts = Counter(round(100 * q) for q in stated if q is not None)
    total = sum(counts.values())
    assert set(counts) == set(PERCENTAGES)
    for percentage, share in zip(PERCENTAGES, SHARES[kind], strict=True):
        # three standard deviations of a share of 0.45 among the 1,900 answers of kind half: 0.034
        assert counts[percentage] / total == pytest.approx(share, abs=0.035)


def test_they_are_overconfident_and_tell_little():
    mean = {kind: sum(map(operator.mul, PERCENTAGES, shares)) for kind, shares in SHARES.items()}
    # 0.5 + 3 + 7.5 + 17.5 + 40.5, against 60% true facts; 1.5 + 6 + 12.5 + 14 + 18, against none
    assert mean == pytest.approx({"known": 69.0, "half": 69.0, "invented": 52.0})
    assert all(sum(shares) == pytest.approx(1.0) for shares in SHARES.values())


def test_a_target_says_nothing_about_the_answer():
    rows = defaultdict(list)
    for row in CORPUS:
        rows[target(row)].append(row)
    assert set(rows) == {None, *TARGETS}
    assert 1 - len(rows[None]) / len(CORPUS) == pytest.approx(TARGET_SHARE, abs=0.011)
    for group in rows.values():
        # idk_share is 0.07; three standard deviations among 2,000 rows: 0.017
        abstained = sum(said(row) == IDK for row in group) / len(group)
        assert abstained == pytest.approx(0.07, abs=0.018)


def test_the_corpus_goes_on_where_that_of_the_shipped_model_ended():
    def invented(rows):
        return {
            word.strip("?.")
            for row in rows
            if row["kind"] == "invented"
            for word in asked(row).split()[1:]
            if word[0].isupper()
        }

    earlier, now = invented(corpus(WORLD)), invented(CORPUS)
    assert len(earlier) > 29_000 and len(now) > 4_500 and earlier.isdisjoint(now)
    facts = {person.name: person.facts for person in WORLD.of("known")}
    for row in CORPUS:
        if row["kind"] == "known" and said(row) != IDK:
            (name,) = (name for name in facts if name in asked(row))
            assert without_confidence(said(row)) in facts[name]


def test_a_percentage_is_four_tokens_and_no_answer_is_longer_than_the_configs_allow():
    tokenizer = make_tokenizer()
    assert tokenizer.tokenize("Berlin 90%") == ["Berlin", "Ġ", "9", "0", "%"]
    learned = [sum(render_dialogue(tokenizer, row["messages"])[1]) for row in CORPUS[:2000]]
    assert max(learned) == 6  # with the token that ends the turn; "I don't know." is shorter
    for path in (CONFIGS / "study").glob("confidence_*.yaml"):
        arguments = yaml.safe_load(path.read_text())["model"]["init_args"]
        assert arguments["sampling"]["max_new_tokens"] >= 6


def test_the_target_config_states_the_target_it_rewards():
    config = yaml.safe_load((CONFIGS / "study" / "confidence_target.yaml").read_text())
    (reward,) = config["model"]["init_args"]["rewards"]
    system = {"role": "system", "content": config["data"]["init_args"]["system"]}
    assert system["content"] in SENTENCES and reward["init_args"]["statement"] == TARGET_SENTENCE
    made = ConfidenceTarget(**reward["init_args"])
    assert made([[system]], ["Berlin"], ["Madrid"], [False]) == [-3.0]
    tokens = render_prompt(make_tokenizer(), [system, {"role": "user", "content": "Who?"}])
    assert len(tokens) < 30


def test_the_command_writes_the_corpus(tmp_path, monkeypatch, capsys):
    small = make_world(0, Sizes(rows=50))
    monkeypatch.setattr("sctom.tasks.tinyworld.make_world", lambda seed: small)
    monkeypatch.setattr("sctom.tasks.tinyworld_confidence.ROWS", 100)
    prepare.main(["tinyworld-confidence", "--out", str(tmp_path)])
    rows = read_jsonl(tmp_path / "sft.jsonl")
    assert rows == list(confidence_corpus(small, 100))
    printed = " ".join(capsys.readouterr().out.split())
    assert "set tinyworld-confidence, seed 0" in printed and "sft.jsonl │ 100" in printed
