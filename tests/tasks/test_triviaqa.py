from __future__ import annotations

import gzip
import json
import math

import pytest

from sctom.readers import DataError, check_messages
from sctom.tasks.triviaqa import (
    SYSTEM_PROMPT,
    TriviaQa,
    f1,
    normalise_answer,
    prepare_triviaqa,
    triviaqa_row,
)

NILE = ["nile", "river nile"]
MASH = ["m s h", "mash"]

SCORES = [  # aliases, completion, right (our answer), the source's exact match, contains
    (NILE, "Nile", True, True, True),
    (NILE, "nile.", True, True, True),
    (NILE, "The Nile!", True, True, True),
    (NILE, "the river Nile", True, True, True),
    (NILE, "RIVER_NILE", True, True, True),
    (NILE, "'Nile'", True, True, True),
    (NILE, "\u2018Nile\u2019", True, True, True),
    (NILE, "**Nile**", True, True, True),
    (NILE, "\n The  Nile \n", True, True, True),
    (NILE, "It's the Nile.", True, False, True),
    (NILE, "The answer is Nile.", True, False, True),
    (NILE, "Answer: the Nile", True, False, True),
    (NILE, "Nile\nIt flows north.", True, False, True),
    (NILE, "<think>Congo?</think> Nile", True, False, True),
    (NILE, "\\boxed{Nile}", True, False, True),
    (NILE, "Cairo lies on the Nile.", False, False, True),
    (NILE, "Nile or Congo", False, False, True),
    (NILE, "Not the Nile", False, False, True),
    (NILE, "The Nile's delta", False, False, True),  # an apostrophe is a space
    (NILE, "Nile River", False, False, True),
    (NILE, "White Nile", False, False, True),
    (NILE, "Niles", False, False, False),
    (NILE, "juvenile", False, False, False),
    (NILE, "Ni le", False, False, False),
    (NILE, "Congo", False, False, False),
    (NILE, "Answer: Congo\nNot Nile", False, False, True),
    (NILE, "<think>Nile</think> Congo", False, False, False),
    (NILE, "<think>Nile", False, False, False),
    (NILE, "", False, False, False),
    (NILE, "...", False, False, False),
    (NILE, "the", False, False, False),
    (NILE, "I don't know.", False, False, False),
    (NILE, "I don't know if it is the Nile.", False, False, True),
    (["1969"], "1969", True, True, True),
    (["1969"], "In 1969", False, False, True),
    (["1969"], "20 July 1969.", False, False, True),
    (["1969"], "19690", False, False, False),
    (["4", "four"], "Four", True, True, True),
    (["4", "four"], "4 strings", False, False, True),
    (["4", "four"], "14", False, False, False),
    (["1 5 million"], "1.5 million", True, True, True),
    (["u s"], "the U.S.", True, True, True),
    (["u s"], "US", False, False, False),
    (["o neill"], "O'Neill", True, True, True),
    (["o neill"], "O\u2019Neill", True, True, True),
    (["o neill"], "O\u00b4Neill", True, True, True),
    (["o neill"], "ONeill", False, False, False),
    (MASH, "M*A*S*H", True, True, True),
    (MASH, "M.A.S.H.", True, True, True),
    (["caf\u00e9"], "Caf\u00e9", True, True, True),
    (["caf\u00e9"], "Cafe", False, False, False),  # accents are letters of their own
    (["theatre"], "the theatre", True, True, True),
    (["who"], "The Who", True, True, True),
    (["don t know"], "I don't know", False, False, True),
]


def row(aliases):
    return {"messages": [{"role": "user", "content": "Which river?"}], "aliases": aliases}


@pytest.mark.parametrize(("aliases", "text", "correct", "official", "contains"), SCORES)
def test_completions(aliases, text, correct, official, contains):
    scored = TriviaQa().score(row(aliases), text)
    details = scored.details
    assert (scored.correct, details["official"], details["contains"]) == (
        correct,
        official,
        contains,
    )


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("A Tale of the_Two  Cities!", "tale of two cities"),
        ("AC/DC", "ac dc"),
        ("a", ""),
        ("Anna", "anna"),
        ("100,000", "100 000"),
        ("``x''", "x"),
        ("na\u00efve\u00a0one", "na\u00efve one"),
        ("\u201cx\u201d", "\u201cx\u201d"),  # the source leaves these quotes
    ],
)
def test_answers_are_normalised_as_the_source_does(text, normal):
    assert normalise_answer(text) == normal


@pytest.mark.parametrize(
    ("answer", "alias", "value"),
    [
        ("a b c", "b c d", 2 * 2 / 6),
        ("b b", "b", 2 * 1 / 3),
        ("x", "y", 0.0),
        ("", "y", 0.0),
        ("nile", "nile", 1.0),
    ],
)
def test_f1(answer, alias, value):
    assert f1(answer, alias) == value


def test_metrics():
    task = TriviaQa()
    texts = ["The Nile.", "It's the Nile.", "the Blue Nile", "I don't know", "Don't ask", ""]
    numbers = task.metrics([task.score(row(NILE), text) for text in texts])
    assert numbers == {
        "n": 6,
        "not_judged": 0,
        "accuracy": 2 / 6,
        "abstained": 1 / 6,
        "no_answer": 1 / 6,
        "exact_match_official": 1 / 6,
        "contains": 3 / 6,
        # "blue nile" with "nile": 2 * 1 / 3, with "river nile": 2 * 1 / 4; an abstention has none
        "f1": pytest.approx((1 + 1 + 2 / 3) / 6),
    }
    assert all(not math.isnan(value) for value in numbers.values())


def hub(number, value="Nile", **changes):
    answer = {
        "value": value,
        "aliases": [value, f"River {value}"],
        "normalized_aliases": [value.lower()],
    }
    return {"question": f"{number}?", "question_id": f"tc_{number}", "answer": answer | changes}


def own(number, **changes):
    answer = {
        "Value": "The Nile",
        "Aliases": ["Nile"],
        "NormalizedAliases": ["nile"],
        "HumanAnswers": ["Nile river"],
    }
    return {"Question": f"{number}?", "QuestionId": f"qw_{number}", "Answer": answer | changes}


def test_a_row_of_the_hub():
    made = triviaqa_row(hub(7), "x.jsonl:1")
    assert check_messages(made, "x") == [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": "7?"},
    ]
    assert (made["answer"], made["aliases"], made["id"]) == ("Nile", NILE, "triviaqa-tc_7")
    assert TriviaQa().check(made, "x") is made


def test_a_row_of_its_own_files_with_what_people_answered():
    made = triviaqa_row(own(7), "x")
    assert (made["answer"], made["aliases"]) == ("The Nile", ["nile", "nile river"])
    assert made["id"] == "triviaqa-qw_7"


def test_an_alias_that_is_nothing_but_an_article_is_left_out():
    assert triviaqa_row(hub(1, "A", aliases=["The A", "ay"]), "x")["aliases"] == ["ay"]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (hub(1) | {"question": None}, "x:4 must have question, a str; found question=None"),
        ({"question": "?", "question_id": "1"}, "must have answer, a dict; found the keys"),
        (own(1) | {"QuestionId": 1}, "must have QuestionId, a str"),
        (hub(1, aliases=[3]), "x:4: the answer must have value, a text"),
        (hub(1) | {"answer": {"aliases": ["a"]}}, "the answer must have value"),
        (
            hub(1, "<unk>", aliases=[], normalized_aliases=[]),
            "the test set has none; take the training or the validation set",
        ),
    ],
)
def test_bad_rows(bad, why):
    with pytest.raises(DataError, match=why):
        triviaqa_row(bad, "x:4")


def jsonl(path, rows):
    content = "".join(json.dumps(one) + "\n" for one in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def test_three_forms_of_file_are_read(tmp_path):
    rows = [hub(n) for n in range(3)]
    plain = prepare_triviaqa(jsonl(tmp_path / "a.jsonl", rows))
    packed = prepare_triviaqa(jsonl(tmp_path / "a.jsonl.gz", rows))
    assert plain.files == packed.files
    assert list(plain.files) == ["test.jsonl"]
    assert plain.counts == {"test.jsonl": {"aliases": 6}}
    path = tmp_path / "unfiltered-web-dev.json"
    path.write_text(json.dumps({"Data": [own(1), own(2)], "Version": 1.0}))
    files = prepare_triviaqa(path).files
    assert [one["id"] for one in files["test.jsonl"]] == ["triviaqa-qw_1", "triviaqa-qw_2"]


def test_the_training_set_gives_two_files_without_the_questions_of_the_test(tmp_path):
    test = jsonl(tmp_path / "dev.jsonl", [hub(n) for n in range(5)])
    train = jsonl(tmp_path / "train.jsonl", [hub(n) for n in range(3, 30)])
    first, same, other = (
        prepare_triviaqa(test, train=train, seed=seed, valid_rows=6) for seed in (0, 0, 1)
    )
    assert first.files == same.files != other.files
    found = {name: {one["id"][12:] for one in rows} for name, rows in first.files.items()}
    assert [len(numbers) for numbers in found.values()] == [19, 6, 5]
    assert found["train.jsonl"] | found["valid.jsonl"] == {str(n) for n in range(5, 30)}
    assert f"questions of {train} left out, as test.jsonl has them: 2" in first.notes
    assert len(first.manifest["sources"]) == 2
    with pytest.raises(DataError, match="has 25 rows; 500 are to be held out"):
        prepare_triviaqa(test, train=train)


def test_rows_without_an_answer_are_left_out_and_told(tmp_path):
    article = hub(9, "The", aliases=["A"], normalized_aliases=[])
    prepared = prepare_triviaqa(jsonl(tmp_path / "a.jsonl", [hub(1), article]))
    assert [one["id"] for one in prepared.files["test.jsonl"]] == ["triviaqa-tc_1"]
    assert prepared.notes[0].endswith("left out, as their answer is nothing but an article: 1")
    with pytest.raises(DataError, match="has no question whose answer is more than an article"):
        prepare_triviaqa(jsonl(tmp_path / "b.jsonl", [article]))


def test_files_that_are_none(tmp_path):
    with pytest.raises(FileNotFoundError, match="mandarjoshi/trivia_qa"):
        prepare_triviaqa(tmp_path / "dev.jsonl")
    path = tmp_path / "a.json"
    for content, why in (
        ("{", r"a\.json is not valid JSON"),
        ('{"data": []}', r"must hold a list \"Data\" of objects but has the keys \['data'\]"),
        ("[]", "but has no object"),
        ('{"Data": [1]}', "of objects"),
        ('{"Data": [{"Question": "?"}]}', r"a\.json: Data\[0\] must have QuestionId"),
    ):
        path.write_text(content)
        with pytest.raises(DataError, match=why):
            prepare_triviaqa(path)
    with pytest.raises(DataError, match=r"b\.jsonl:2: the question_id tc_1 is there twice"):
        prepare_triviaqa(jsonl(tmp_path / "b.jsonl", [hub(1), hub(1)]))
    with pytest.raises(DataError, match=r"c\.jsonl:2 must have question"):
        prepare_triviaqa(jsonl(tmp_path / "c.jsonl", [hub(1), {"a": 1}]))


@pytest.mark.parametrize(
    ("aliases", "why"),
    [
        ([], "aliases is empty"),
        (["The Nile"], "aliases holds 'The Nile'; expected texts as `sctom.prepare triviaqa`"),
        ([""], "aliases holds ''"),
        ([7], "aliases holds 7"),
        ("nile", "aliases must be list, found 'nile'"),
    ],
)
def test_a_prepared_row_is_checked(aliases, why):
    with pytest.raises(DataError, match=f"x:1: {why}"):
        TriviaQa().check(row(aliases), "x:1")
