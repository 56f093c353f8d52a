from __future__ import annotations

from rich.console import Console

from sctom.iterate.evaluating import means
from sctom.iterate.page import page
from sctom.iterate.report import learning_columns, learning_rows, rounds_table, score_columns

SELECTED = {
    "kept": 40,
    "means": {part: {"reward": n, "judge": n / 10} for part, n in
              (("all", 1.0), ("random", 2.0), ("kept", 3.0))},
}  # fmt: skip


def a_round(number: int) -> dict:
    accuracy = {"accuracy": 0.75, "low": 0.6, "high": 0.85, "pairs": 30.0, "better": 1.0}
    return {
        "round": number,
        "labelled": {"pairs": 100, "negligible": 0.25},
        "accuracy": {
            "helpfulness": {"all": accuracy, f"round {number}": accuracy},
            "safety": {"all": {"pairs": 3.0}},
        },
        "selected": SELECTED,
        "sampled": {"curve": [{"n": 1, "max": 0.1, "median": 0.1}, {"n": 2, "max": 0.4,
                                                                   "median": 0.1}]},
    }  # fmt: skip


NUMBERS = {
    "rewards": ["helpfulness", "safety"],
    "judges": ["judge"],
    "rounds": [a_round(1), a_round(2)],
    "models": {
        "base": {"judge": {"all": -0.5}, "safety": {"all": 9.0, "safety": 0.125}},
        "V1 <i>": {"judge": {"all": 0.25, "safety": 1.0}},
    },
    "students": {"small": {"judge": {"all": 0.375}}},
    "seconds": {"1/collect": 2.0, "2/collect": 3.0, "1/reward_safety": 4.0, "2/sft": None},
}


def test_each_reward_model_is_asked_about_its_own_prompts():
    assert score_columns(NUMBERS) == [
        ("helpfulness model", "helpfulness", "helpfulness"),
        ("safety model", "safety", "safety"),
        ("judge, all", "judge", "all"),
        ("judge, helpfulness", "judge", "helpfulness"),
        ("judge, safety", "judge", "safety"),
    ]
    one = {**NUMBERS, "rewards": ["reward"]}
    assert score_columns(one) == [("reward model", "reward", "all"), ("judge, all", "judge", "all")]


def test_what_a_round_learned_from():
    row = learning_rows(NUMBERS)[0]
    assert row == ["1", "100", "25%", "75%", "-", "40", "+0.100", "+0.200", "+0.300"]
    assert len(row) == len(learning_columns(NUMBERS))
    # without a judge it is the learned reward
    assert learning_rows({**NUMBERS, "judges": []})[0][-3:] == ["+1.000", "+2.000", "+3.000"]


def test_the_tables_hold_every_model():
    console = Console(width=200, record=True, file=None)
    console.print(rounds_table(NUMBERS))
    said = console.export_text()
    assert "reward models of round 2" in said
    for text in ("base", "+0.125", "-0.500", "V1 <i>", "small", "+0.375"):
        assert text in said


def test_the_page_needs_nothing_beside_it():
    text = page(NUMBERS)
    assert text.count("<svg") == 3 and "http-equiv" not in text
    assert "V1 &lt;i&gt;" in text and "V1 <i>" not in text
    assert "<td>collect</td><td>5</td>" in text  # 2 and 3 seconds
    assert "<td>all</td><td>9</td>" in text
    assert page(NUMBERS) == text


def test_means_leave_out_what_has_no_value():
    scores = [{"judge": [1.0, None]}, {"judge": [None, None]}]
    assert means(scores, [False, True]) == {"judge": {"all": 1.0, "helpfulness": 1.0}}
