from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st

from sctom.modules.detector_audit import (
    TEMPLATE,
    Agreement,
    LabelledAnswer,
    audit,
    by_judge,
    by_patterns,
    by_strict,
)
from sctom.rewards.base import RewardError
from sctom.rewards.judge import JudgeError, Message

ROOT = Path(__file__).parents[2]


def always(*said: object):
    """A detector that says this, whatever the answers."""
    return lambda completions, questions: list(said)


def labelled(*labels: bool) -> list[LabelledAnswer]:
    return [LabelledAnswer(f"answer {place}", label) for place, label in enumerate(labels)]


class Replies:
    """A judge with a reply for every completion."""

    def __init__(self, replies: dict[str, str]) -> None:
        self.of = replies
        self.asked: list[str] = []

    async def replies(self, messages: Sequence[Message], count: int) -> list[str]:
        (message,) = messages
        self.asked.append(message["content"])
        (found,) = [reply for text, reply in self.of.items() if text in message["content"]]
        if not found:
            raise JudgeError("no reply")
        return [found] * count


# agreement ----------------------------------------------------------------------------------------


def test_agreement_by_hand() -> None:
    found = Agreement(both=20, first_only=5, second_only=10, neither=15)
    # 35 of 50 alike; by chance 25/50 x 30/50 + 25/50 x 20/50 = 1/2; (.7 - .5) / (1 - .5)
    assert found.agreement == pytest.approx(0.7)
    assert found.kappa == pytest.approx(0.4)
    assert found.precision == pytest.approx(20 / 30)
    assert found.recall == pytest.approx(20 / 25)
    assert found.f1 == pytest.approx(40 / 55)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_agreement_is_sklearns(rows: list[tuple[bool, bool]]) -> None:
    label, said = [row[0] for row in rows], [row[1] for row in rows]
    found = audit(labelled(*label), {"it": always(*said)}).against_label["it"]
    matrix = sklearn.metrics.confusion_matrix(label, said, labels=[False, True]).tolist()
    assert matrix == [[found.neither, found.second_only], [found.first_only, found.both]]
    if len({*label, *said}) == 2:
        assert found.kappa == pytest.approx(sklearn.metrics.cohen_kappa_score(label, said))
    else:
        assert found.kappa is None
    theirs = sklearn.metrics.precision_recall_fscore_support(
        label, said, average="binary", zero_division=float("nan")
    )[:3]
    for ours, value in zip((found.precision, found.recall, found.f1), theirs, strict=True):
        assert ours is None if value != value else ours == pytest.approx(value)


def test_nothing_read_has_no_share() -> None:
    found = audit(labelled(True), {"silent": always(None)}).against_label["silent"]
    assert (found.unread, found.answers) == (1, 0)
    shares = (found.agreement, found.kappa, found.precision, found.recall, found.f1)
    assert shares == (None,) * 5


# the audit ----------------------------------------------------------------------------------------


def test_three_detectors_by_hand() -> None:
    answers = labelled(True, True, False, False, True)
    found = audit(
        answers,
        {
            "pattern": always(True, False, True, False, True),
            "strict": always(True, True, False, False, True),
            "judge": always(True, None, False, False, False),
        },
    )
    assert found.against_label == {
        "pattern": Agreement(both=2, first_only=1, second_only=1, neither=1),
        "strict": Agreement(both=3, neither=2),
        "judge": Agreement(both=1, first_only=1, neither=2, unread=1),
    }
    assert found.between == {
        ("pattern", "strict"): Agreement(both=2, first_only=1, second_only=1, neither=1),
        ("pattern", "judge"): Agreement(both=1, first_only=2, neither=1, unread=1),
        ("strict", "judge"): Agreement(both=1, first_only=1, neither=2, unread=1),
    }
    assert [wrong.answer for wrong in found.disagreements] == [answers[1], answers[2], answers[4]]
    assert found.disagreements[0].says == {"pattern": False, "strict": True, "judge": None}


def test_the_tables_say_it() -> None:
    answers = labelled(True, True, False)
    found = audit(answers, {"a": always(True, False, False), "b": always(False, False, None)})
    assert found.table().splitlines()[2:] == [
        "| a | 1 | 1 | 0 | 1 | 0 | 1.00 | 0.50 | 0.67 | 0.40 |",  # (2/3 - 4/9) / (5/9)
        "| b | 0 | 2 | 0 | 0 | 1 | - | 0.00 | 0.00 | 0.00 |",
    ]
    # of the two that both read, a finds one and b none: alike by chance in one half
    assert found.agreements().splitlines()[2:] == ["| a, b | 0.50 | 0.00 | 1 | 0 |"]
    for table in (found.table(), found.agreements()):
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="there are no labelled answers"):
        audit([], {"pattern": by_patterns})
    with pytest.raises(ValueError, match="'short' says something of 1 answers, not 2"):
        audit(labelled(True, False), {"short": always(True)})
    with pytest.raises(ValueError, match="'odd' said 'yes' of answer 1; expected True, False"):
        audit(labelled(True, False), {"odd": always(True, "yes")})


# detectors ----------------------------------------------------------------------------------------


def cases() -> list[LabelledAnswer]:
    """The awkward completions, whose values for the strict reward a person has set."""
    path = ROOT / "tests" / "rewards" / "awkward.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    abstention = {True: -0.5, False: 1.0}
    return [
        LabelledAnswer(
            row["completion"], row["strict"] == abstention[row["answerable"]], row["question"]
        )
        for row in rows
    ]


def test_the_page_has_the_audit_of_the_awkward_completions() -> None:
    found = audit(cases(), {"pattern": by_patterns, "strict": by_strict})
    page = (ROOT / "docs" / "awareness_metrics.md").read_text(encoding="utf-8")
    assert f"\n{found.table()}\n" in page
    (wrong,) = [d.answer for d in found.disagreements if d.says["strict"] != d.answer.abstains]
    assert f'"{wrong.completion}", where that is the accepted answer' in page


def test_detectors_know_the_question() -> None:
    said, asked = ["I don't know."] * 2, ["Who?", "Which song is called I don't know?"]
    assert by_patterns(said, asked) == [True, True]
    question = "Complete: Socrates said I know that I know nothing or I don't know?"
    assert by_strict(["I don't know"], ["Who?"]) == [True]
    assert by_strict(["Socrates said: I don't know"], [question]) == [False]


def test_a_judge_is_asked_once_for_each_answer() -> None:
    judge = Replies(
        {
            "No idea": "It gives nothing. ABSTAINS",
            "Seoul, perhaps": "It does not say ABSTAINS: **Answers**.",
            "Busan": "Hard to say.",
        }
    )
    detector = by_judge(judge)
    said = ["No idea", "Seoul, perhaps", "Busan"]
    assert detector(said, ["Capital {{response}}?"] * 3) == [True, False, None]
    assert len(judge.asked) == 3
    assert all(text.count("Capital {{response}}?") == 1 for text in judge.asked)
    assert judge.asked[0].startswith(TEMPLATE[:60])


def test_a_judge_that_fails_is_no_verdict() -> None:
    with pytest.raises(JudgeError, match="no reply"):
        by_judge(Replies({"Busan": ""}))(["Busan"], ["Capital?"])
    with pytest.raises(RewardError, match="unknown placeholder"):
        by_judge(Replies({}), "Does {{reply}} abstain?")
    with pytest.raises(ValueError, match="shorter"):
        by_judge(Replies({}))(["Busan"], [])
