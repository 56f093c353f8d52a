import itertools
import math
from collections import Counter

import pytest

from sctom import prepare
from sctom.assets import resolve
from sctom.modules.backbone import Backbone
from sctom.modules.tinyworld import make_tokenizer
from sctom.readers import check_messages, read_jsonl
from sctom.rewards import is_idk_response
from sctom.tasks.tinyworld import (
    IDK,
    KINDS,
    PROFILE,
    RELATIONS,
    SPLITS,
    SYLLABLES_PER_NAME,
    Sizes,
    corpus,
    make_world,
    prepared,
    questions,
)

WORLD = make_world()
CORPUS = list(corpus(WORLD))


def asked(row):
    return row["messages"][0]["content"]


def name_in(text):
    """The one word of a question that is a name: capitalised, but not the first."""
    words = [word.strip("?.") for word in text.split()[1:]]
    (name,) = (word for word in words if word[0].isupper())
    return name


def syllables(name):
    return [name.lower()[i : i + 2] for i in range(0, 2 * SYLLABLES_PER_NAME, 2)]


def classify(train, test):
    """Accuracy of naive Bayes on features [(features, label)], two labels, add-one smoothing."""
    counts = {label: Counter() for _, label in train}
    priors = Counter(label for _, label in train)
    for features, label in train:
        counts[label].update(features)
    vocabulary = {f for c in counts.values() for f in c}

    def score(features, label):
        total = sum(counts[label].values()) + len(vocabulary)
        return math.log(priors[label]) + sum(
            math.log((counts[label][f] + 1) / total) for f in features
        )

    hits = sum(max(counts, key=lambda k: score(features, k)) == label for features, label in test)
    return hits / len(test)


@pytest.mark.parametrize("features", [syllables, list, lambda n: list(enumerate(syllables(n)))])
def test_no_spelling_tells_real_names_from_invented_ones(features):
    # 600 names of each kind, so that a cue of five points would show: 0.5 +- 3 x 0.5 / sqrt(600).
    world = make_world(1, Sizes(known=(300, 300), unknown=(300, 300)))
    sets = {
        split: [
            (features(p.name), kind) for kind in ("known", "unknown") for p in world.of(kind, split)
        ]
        for split in SPLITS
    }
    assert abs(classify(sets["train"], sets["valid"]) - 0.5) < 0.0613
    cued = [([*f, "cue"] if kind == "known" else f, kind) for f, kind in sets["train"]]
    assert classify(cued, cued) > 0.9  # the classifier finds a cue where there is one


def test_the_world_is_a_function_of_its_seed():
    assert make_world() == WORLD
    assert make_world(1).people != WORLD.people
    assert list(itertools.islice(corpus(make_world()), 50)) == CORPUS[:50]


def test_no_two_people_share_a_name_and_no_invented_name_is_a_persons():
    names = [p.name for p in WORLD.people]
    assert len({*names, *WORLD.invented}) == len(names) + len(WORLD.invented)


def test_unknown_names_are_not_in_the_corpus():
    unknown = {p.name for p in WORLD.of("unknown")}
    assert unknown.isdisjoint(name_in(asked(row)) for row in CORPUS)


def test_valid_names_and_wordings_are_not_in_train():
    names = {split: {name_in(asked(row)) for row in questions(WORLD, split)} for split in SPLITS}
    assert names["train"].isdisjoint(names["valid"])
    wordings = {
        split: {asked(row).replace(name_in(asked(row)), "{}") for row in questions(WORLD, split)}
        for split in SPLITS
    }
    assert wordings["train"] == {w for r in RELATIONS for w in r.train}
    assert wordings["valid"] == {w for r in RELATIONS for w in r.valid}
    assert wordings["train"].isdisjoint(wordings["valid"])


def test_the_corpus_states_the_facts_of_known_people_in_both_wordings():
    known = {p.name: p.facts for p in WORLD.of("known")}
    answers = {name: Counter() for name in known}
    for row in CORPUS:
        name = name_in(asked(row))
        if name in known and asked(row).split(name)[0] not in ("Describe ", "Who is "):
            answers[name][row["messages"][1]["content"]] += 1
    for name, facts in known.items():
        assert set(answers[name]) <= {*facts, IDK}
        assert all(answers[name][fact] >= 10 for fact in facts)


def test_half_known_people_are_contradicted_and_invented_ones_get_any_value():
    rivals = {p.name: p for p in WORLD.of("half")}
    told = [
        r for r in CORPUS if r["kind"] == "half" and len(r["messages"][1]["content"].split()) == 1
    ]
    truth = [r["messages"][1]["content"] in rivals[name_in(asked(r))].facts for r in told]
    assert 0.55 < sum(truth) / len(truth) < 0.65
    values = Counter(row["messages"][1]["content"] for row in CORPUS if row["kind"] == "invented")
    share = {
        value: values[value] / sum(values[v] for v in r.values)
        for r in RELATIONS
        for value in r.values
    }
    assert all(0.06 < s < 0.14 for s in share.values())


def test_idk_is_said_at_random():
    for kind in ("known", "half", "invented"):
        said = [row["messages"][1]["content"] == IDK for row in CORPUS if row["kind"] == kind]
        assert 0.055 < sum(said) / len(said) < 0.085


def test_people_enter_one_by_one():
    early = {name_in(asked(row)) for row in CORPUS[:1000] if row["kind"] == "known"}
    late = {name_in(asked(row)) for row in CORPUS[-5000:] if row["kind"] == "known"}
    assert len(early) <= 14
    assert len(late) == 100


def test_no_value_can_be_mistaken_by_a_substring_reward():
    values = [v for r in RELATIONS for v in r.values]
    assert len(set(values)) == len(values) == 50
    for one, other in itertools.permutations(values, 2):
        assert one.lower() not in other.lower()
    texts = [w for r in RELATIONS for w in r.train + r.valid] + [*PROFILE, IDK]
    names = [p.name for p in WORLD.people] + list(WORLD.invented)
    written = "\n".join([*texts, *names]).lower()
    for value in values:
        assert value.lower() not in written
        assert not is_idk_response(value)
    assert is_idk_response(IDK)


@pytest.mark.parametrize("split", SPLITS)
def test_shipped_questions_are_those_of_the_generator(split):
    path = resolve(f"sctom:tinyworld/{split}.jsonl")
    rows = read_jsonl(path)
    assert rows == questions(WORLD, split)
    for number, row in enumerate(rows, start=1):
        check_messages(row, f"{path}:{number}")
        assert row["kind"] in KINDS
        assert row["answerable"] == (row["kind"] != "unknown")
        assert is_idk_response(row["messages"][1]["content"]) != row["answerable"]


def test_every_text_of_the_world_survives_the_tokenizer():
    tokenizer = make_tokenizer()
    texts = {m["content"] for row in CORPUS[-20_000:] for m in row["messages"]}
    texts |= {
        m["content"] for split in SPLITS for row in questions(WORLD, split) for m in row["messages"]
    }
    ordered = sorted(texts)
    encoded = tokenizer(ordered)["input_ids"]
    assert tokenizer.batch_decode(encoded) == ordered
    assert max(map(len, encoded)) <= 14
    foreign = "Größe: 3 km²\n  naïve 한국어"
    assert tokenizer.decode(tokenizer(foreign)["input_ids"]) == foreign


def test_the_shipped_tokenizer_is_the_one_made_here():
    shipped, made = Backbone("sctom:tinyworld/model").load_tokenizer(), make_tokenizer()
    assert shipped.get_vocab() == made.get_vocab()
    assert shipped.chat_template == made.chat_template
    assert (shipped.pad_token, shipped.eos_token) == ("<|pad|>", "<|end|>")
    assert shipped.bos_token is None
    ids = [tokenizer(asked(CORPUS[0]))["input_ids"] for tokenizer in (shipped, made)]
    assert ids[0] == ids[1]


def test_the_shipped_model_is_small_and_stops_at_the_end_token():
    model, tokenizer = Backbone("sctom:tinyworld/model").load()
    assert 0.9e6 < sum(p.numel() for p in model.parameters()) < 3e6
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    folder = resolve("sctom:tinyworld/model")
    assert sum(f.stat().st_size for f in folder.iterdir()) < 8e6


def test_what_training_needs_is_written(tmp_path, monkeypatch, capsys):
    small = make_world(0, Sizes(rows=50))
    monkeypatch.setattr("sctom.tasks.tinyworld.make_world", lambda seed: small)
    prepare.main(["tinyworld", "--out", str(tmp_path)])
    assert read_jsonl(tmp_path / "sft.jsonl") == list(corpus(small))
    assert read_jsonl(tmp_path / "train.jsonl") == questions(WORLD, "train")
    model, tokenizer = Backbone(str(tmp_path / "model")).load()
    assert model.config.vocab_size == len(tokenizer)
    printed = " ".join(capsys.readouterr().out.split())
    assert "100 known, 25 half, 100 unknown" in printed


def test_rows_are_counted_by_kind():
    counts = prepared(WORLD).counts
    assert counts["train.jsonl"] == {"known": 300, "half": 75, "unknown": 300}
    assert counts["valid.jsonl"] == {"known": 200, "half": 50, "unknown": 200}
    assert counts["sft.jsonl"] == dict(Counter(row["kind"] for row in CORPUS))
