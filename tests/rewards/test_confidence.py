from __future__ import annotations

import itertools
import math

import pytest

from sctom.rewards import RewardError, check_rewards, run_rewards
from sctom.rewards.confidence import Brier, ConfidenceTarget, LogScore, Ternary, target_statement

IDK = "I don't know."
GRID = [i / 1000 for i in range(1001)]
# completion, expected answer, unanswerable
CASES = [
    ("Seoul 90%", "Seoul", False),  # right
    ("Busan 90%", "Seoul", False),  # wrong
    ("Seoul", "Seoul", False),  # right, without a confidence
    ("Busan", "Seoul", False),  # wrong, without a confidence
    (IDK, "Seoul", False),  # abstained
    (IDK, IDK, True),  # abstained where nobody could know
    ("Napoleon 30%", IDK, True),  # answered there
    (f"{IDK} 20%", IDK, True),  # abstained, with a confidence
]
COMPLETIONS, EXPECTED, UNANSWERABLE = (list(column) for column in zip(*CASES, strict=True))
PROMPTS = [target_statement(0.75)] * len(CASES)
EVERY = [Brier, LogScore, Ternary, lambda **settings: ConfidenceTarget(target=0.75, **settings)]


def values(reward):
    columns = {"expected_answer": EXPECTED, "is_unanswerable": UNANSWERABLE}
    ids = [[1]] * len(CASES)
    return run_rewards([reward], PROMPTS, COMPLETIONS, ids, columns).values[reward.name]


# --- values ---------------------------------------------------------------------------------------


def test_brier_with_the_weights_of_rlcr():
    assert values(Brier()) == pytest.approx(
        [
            1.495,  # 0.5 x 1 + 0.5 (1 - (1 - 0.9)^2) + 0.5 = 0.5 + 0.5 x 0.99 + 0.5
            0.595,  # 0.5 x 0 + 0.5 (1 - (0 - 0.9)^2) + 0.5 = 0 + 0.5 x 0.19 + 0.5
            0.0,  # missing, right or not
            0.0,
            1.0,  # wrong with confidence 0: 0 + 0.5 x 1 + 0.5
            1.0,
            0.955,  # 0 + 0.5 (1 - 0.3^2) + 0.5 = 0.5 x 0.91 + 0.5
            0.98,  # wrong with confidence 0.2: 0.5 (1 - 0.04) + 0.5
        ]
    )


def test_every_setting_of_brier():
    mine = Brier(
        correct_weight=2.0, brier_weight=3.0, format_weight=0.25, missing=-7.0, abstained=0.5
    )
    # right: 2 + 3 x 0.99 + 0.25 = 5.22;  wrong: 3 x 0.19 + 0.25 = 0.82;  at 0.3: 3 x 0.91 + 0.25
    assert values(mine) == pytest.approx([5.22, 0.82, -7.0, -7.0, 0.5, 0.5, 2.98, 0.5])


def test_log_score_with_the_numbers_of_rewarding_doubt():
    # s_min = ln(0.001) / 2 = -3.453878, s_max = ln(0.999) = -0.001001, their distance 3.452877
    assert values(LogScore()) == pytest.approx(
        [
            12.197755,  # ln 0.9 = -0.105361: 10 ((3.453878 - 0.105361) / 3.452877 + 0.25)
            3.334299,  # ln 0.1 = -2.302585: 10 (3.453878 - 2.302585) / 3.452877
            -30.0,  # missing: -3 x 10
            -30.0,
            10.0,  # wrong with confidence 0, clipped to 0.001: ln 0.999 is s_max
            10.0,
            8.969918,  # ln 0.7 = -0.356675: 10 (3.453878 - 0.356675) / 3.452877
            9.356647,  # wrong with confidence 0.2: ln 0.8 = -0.223144
        ],
        abs=1e-5,
    )


def test_log_score_is_clipped_at_both_ends():
    reward = LogScore(scale=1.0, correct_bonus=0.0)
    # wrong and certain: (ln 0.001 - ln 0.001 / 2) / 3.452877 = -3.453878 / 3.452877
    assert reward.value(0.0, 1.0) == pytest.approx(-1.00029, abs=1e-5)
    assert reward.value(1.0, 0.0) == reward.value(0.0, 1.0)
    assert reward.value(1.0, 1.0) == reward.value(0.0, 0.0) == 1.0
    assert reward.value(1.0, 0.9995) == 1.0 and reward.value(1.0, 0.998) < 1.0


def test_every_setting_of_log_score():
    mine = LogScore(scale=2.0, correct_bonus=1.0, clip=0.1, missing=-5.0, abstained=0.5)
    # s_min = ln(0.1) / 2 = -1.151293, s_max = ln 0.9 = -0.105361, their distance 1.045932
    right = 2 * (1 + 1)  # 0.9 is the largest confidence: s = s_max
    wrong = 2 * -1.151293 / 1.045932  # s = ln 0.1
    guess = 2 * (1.151293 - 0.356675) / 1.045932  # s = ln 0.7
    assert values(mine) == pytest.approx([right, wrong, -5.0, -5.0, 0.5, 0.5, guess, 0.5], abs=1e-5)
    assert LogScore(scale=2.0).missing == -6.0


def test_ternary():
    # right, wrong, right, wrong, abstained, abstained, answered where nobody could know, abstained
    assert values(Ternary()) == [1.0, -1.0, 1.0, -1.0, 0.0, 0.0, -1.0, 0.0]
    mine = Ternary(correct=2.0, abstained=0.25, wrong=-3.0, unanswerable_abstained=1.0)
    assert values(mine) == [2.0, -3.0, 2.0, -3.0, 0.25, 1.0, -3.0, 1.0]


def test_confidence_target():
    # a wrong answer costs 0.75 / 0.25 = 3
    assert values(ConfidenceTarget(target=0.75)) == [1.0, -3.0, 1.0, -3.0, 0.0, 0.0, -3.0, 0.0]
    mine = ConfidenceTarget(target=0.75, unanswerable_abstained=1.0)
    assert values(mine) == [1.0, -3.0, 1.0, -3.0, 0.0, 1.0, -3.0, 1.0]


def test_confidence_targets_from_the_data():
    targets = [0.0, 0.5, 0.9]
    prompts = [target_statement(target) for target in targets]
    columns = {
        "expected_answer": ["Seoul"] * 3,
        "is_unanswerable": [False] * 3,
        "confidence_target": targets,
    }
    results = run_rewards([ConfidenceTarget()], prompts, ["Busan"] * 3, [[1]] * 3, columns)
    # 0 / 1, 0.5 / 0.5, 0.9 / 0.1
    assert results.values["confidence_target"] == pytest.approx([0.0, -1.0, -9.0])


# --- what is best ---------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.0, 0.1, 0.37, 0.5, 0.75, 0.999, 1.0])
@pytest.mark.parametrize(
    "reward",
    [Brier(), Brier(correct_weight=0.0, brier_weight=2.0), LogScore(), LogScore(correct_bonus=3.0)],
)
def test_the_expected_score_is_largest_at_the_true_probability(reward, p):
    expected = [p * reward.value(1.0, q) + (1 - p) * reward.value(0.0, q) for q in GRID]
    best = [q for q, value in zip(GRID, expected, strict=True) if value >= max(expected) - 1e-12]
    # what lies within the clip of 0 or 1 is scored alike
    clip = reward.floor if isinstance(reward, LogScore) else 0.0
    assert p in best and all(abs(q - p) <= clip + 1e-9 for q in best)


def calibrated(reward, p):
    return p * reward.value(1.0, p) + (1 - p) * reward.value(0.0, p)


def test_brier_rewards_being_right_unless_its_weight_is_larger():
    def rises(reward):
        best = [calibrated(reward, p) for p in GRID]
        return all(later >= earlier for earlier, later in itertools.pairwise(best))

    assert rises(Brier())  # 0.5 p + 0.5 (1 - p + p^2) + 0.5 = 1 + 0.5 p^2
    assert calibrated(Brier(), 0.6) == pytest.approx(1.18)
    assert not rises(Brier(brier_weight=0.6))


def test_log_score_rewards_being_surely_wrong_up_to_a_probability():
    surely_wrong = LogScore().value(0.0, 0.0)
    better = [p for p in GRID[1:] if calibrated(LogScore(), p) > surely_wrong]
    # 0.25 p > (H(p) + s_max) / 3.452877: at 0.703 0.175750 against 0.607301 / 3.452877 = 0.175883,
    # at 0.704 0.176000 against 0.606437 / 3.452877 = 0.175632
    assert better == GRID[704:]
    unbonused = LogScore(correct_bonus=0.0)
    assert all(calibrated(unbonused, p) <= unbonused.value(0.0, 0.0) for p in GRID)


@pytest.mark.parametrize(
    ("reward", "even"),
    [
        (Ternary(), 0.5),
        (ConfidenceTarget(target=0.5), 0.5),
        (ConfidenceTarget(target=0.75), 0.75),
        (ConfidenceTarget(target=0.9), 0.9),
        (ConfidenceTarget(target=1 / 3), 1 / 3),
    ],
)
def test_answering_pays_from_the_break_even_on(reward, even):
    prompts = {}
    if isinstance(reward, ConfidenceTarget):
        prompts = {"prompts": [target_statement(reward.target)] * 3}
    said = ["Seoul", "Busan", IDK]
    right, wrong, abstained = reward(
        completions=said, expected_answer=["Seoul"] * 3, is_unanswerable=[False] * 3, **prompts
    )

    def answer(p):
        return p * right + (1 - p) * wrong

    # at 0.75: 0.75 x 1 - 0.25 x 3 = 0
    assert answer(even) == pytest.approx(abstained, abs=1e-12)
    assert answer(even - 0.01) < abstained < answer(even + 0.01)


# --- what they share ------------------------------------------------------------------------------


@pytest.mark.parametrize("make", EVERY)
def test_the_shares_and_the_brier_score_are_logged(make):
    reward = make(name="mine")
    columns = {"expected_answer": EXPECTED, "is_unanswerable": UNANSWERABLE}
    results = run_rewards([reward], PROMPTS, COMPLETIONS, [[1]] * len(CASES), columns)
    assert results.metrics == pytest.approx(
        {
            "mine/correct": 2 / 8,
            "mine/abstained": 3 / 8,
            "mine/wrong": 3 / 8,
            "mine/stated": 4 / 8,
            # (1 - 0.9)^2, 0.9^2, 0.3^2, 0.2^2
            "mine/brier_score": (0.01 + 0.81 + 0.09 + 0.04) / 4,
        }
    )


def test_without_a_stated_confidence_there_is_no_brier_score():
    columns = {"expected_answer": ["Seoul"], "is_unanswerable": [False]}
    metrics = run_rewards([Ternary()], ["?"], ["Seoul"], [[1]], columns).metrics
    assert metrics["ternary/stated"] == 0.0 and "ternary/brier_score" not in metrics


@pytest.mark.parametrize("make", EVERY)
def test_a_number_is_not_found_in_the_confidence(make):
    reward = make()
    columns = {"expected_answer": ["80"] * 2, "is_unanswerable": [False] * 2}
    completions = [[{"role": "assistant", "content": text}] for text in ("12 80%", "80 80%")]
    prompts = [[{"role": "system", "content": target_statement(0.75)}]] * 2
    metrics = run_rewards([reward], prompts, completions, [[1]] * 2, columns).metrics
    assert metrics[f"{reward.name}/correct"] == 0.5


@pytest.mark.parametrize("make", EVERY)
def test_bad_columns_are_errors(make):
    reward = make()
    ids = [[1]]
    for column, bad in (("expected_answer", None), ("is_unanswerable", "False")):
        columns = {"expected_answer": ["Seoul"], "is_unanswerable": [False], column: [bad]}
        with pytest.raises(RewardError, match=rf"{column}\[0\] must be a .*, found {bad!r}"):
            run_rewards([reward], PROMPTS[:1], ["Seoul"], ids, columns)
    with pytest.raises(RewardError, match="needs the column 'is_unanswerable'"):
        check_rewards([reward], ["expected_answer"])


@pytest.mark.parametrize("make", EVERY)
def test_matching_is_substring_or_strict(make):
    with pytest.raises(RewardError, match="must be 'substring' or 'strict', not 'exact'"):
        make(matching="exact")


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Brier(brier_weight=-0.5),
            "brier_weight of 'brier' must be at least 0 but is -0.5",
        ),
        (lambda: Brier(abstained=math.nan), "abstained of 'brier' must be finite, not nan"),
        (lambda: Brier(missing=-math.inf), "missing of 'brier' must be finite, not -inf"),
        (lambda: LogScore(scale=0.0), "scale of 'log_score' must be above 0 but is 0"),
        (lambda: LogScore(clip=0.5), "clip of 'log_score' must be above 0 and below 0.5 but is"),
        (lambda: LogScore(clip=0.0), "clip of 'log_score' must be above 0 and below 0.5 but is"),
        (lambda: Ternary(wrong=math.inf), "wrong of 'ternary' must be finite, not inf"),
        (lambda: ConfidenceTarget(target=1.0), "must be from 0 to below 1 but is 1.0"),
        (lambda: ConfidenceTarget(target=-0.1), "must be from 0 to below 1 but is -0.1"),
        (lambda: ConfidenceTarget(target=75), "must be from 0 to below 1 but is 75"),
        (lambda: ConfidenceTarget(statement="Be sure."), "must hold '{percent}', the target"),
        (lambda: ConfidenceTarget(statement="{percent} {t}"), "'{penalty}' only: 't'"),
        (lambda: ConfidenceTarget(statement="{percent} {"), "'{penalty}' only: "),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, message):
    with pytest.raises(RewardError) as caught:
        make()
    assert message in str(caught.value)


# --- the target is a part of the question ---------------------------------------------------------


def targeted(reward, prompt, **columns):
    given = {"expected_answer": ["Seoul"], "is_unanswerable": [False], **columns}
    return run_rewards([reward], [prompt], ["Busan"], [[1]], given).values["confidence_target"]


def test_a_prompt_that_does_not_state_the_target_is_refused():
    with pytest.raises(RewardError) as caught:
        targeted(ConfidenceTarget(target=0.75), [{"role": "user", "content": "Capital of Korea?"}])
    assert (
        "prompt 0 does not state the confidence target: expected 'Answer only if you are more"
        in (str(caught.value))
    )
    assert "found 'Capital of Korea?'; put it into data.system or the messages" in str(caught.value)
    with pytest.raises(RewardError, match="does not state the confidence target"):
        targeted(ConfidenceTarget(target=0.75), target_statement(0.7))  # another target


def test_the_statement_may_stand_anywhere_in_a_wording_of_ones_own():
    reward = ConfidenceTarget(target=0.75, statement="Be {percent}% sure, errors cost {penalty}.")
    system = {"role": "system", "content": "You are helpful.\nBe 75% SURE,  errors cost 3."}
    assert targeted(reward, [system, {"role": "user", "content": "Capital of Korea?"}]) == [-3.0]
    assert targeted(reward, "Be 75% sure, errors cost 3. Capital of Korea?") == [-3.0]


def test_numbers_of_a_statement_are_short():
    assert target_statement(1 / 3, "{percent} {penalty}") == "33.33 0.5"
    assert target_statement(0, "{percent} {penalty}") == "0 0"
    assert target_statement(0.9, "{percent} {penalty}") == "90 9"


def test_one_target_and_not_two():
    with pytest.raises(RewardError, match="set `target`, or give the data a column"):
        targeted(ConfidenceTarget(), "Capital of Korea?")
    with pytest.raises(RewardError, match=r"two confidence targets: the setting `target` is 0\.75"):
        targeted(ConfidenceTarget(target=0.75), target_statement(0.75), confidence_target=[0.75])
    with pytest.raises(RewardError, match="must be from 0 to below 1 but is None"):
        targeted(ConfidenceTarget(), "Capital of Korea?", confidence_target=[None])


def test_ternary_says_from_where_answering_pays():
    # none is unanswerable: p* = (0 + 1) / 2 = 0.5
    (line,) = Ternary().advice({"is_unanswerable": [False] * 4})
    assert line.startswith("ternary: none of 4 questions is unanswerable") and "below 0.5" in line


# --- strict matching ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("completion", "answers", "answerable", "substring", "strict"),
    [
        ("I know. 90%", ["no"], True, "correct", "wrong"),  # "no" is in "know"
        ("Anything but Seoul 90%", ["Seoul"], True, "correct", "wrong"),
        ("Seoul, I think, but I'm not sure. 30%", ["Seoul"], True, "correct", "correct"),
        ("I'm not sure, perhaps Busan. 30%", ["Seoul"], True, "abstained", "wrong"),
        ("I'm not sure. Napoleon, in 1804. 30%", [IDK], False, "abstained", "wrong"),
        ("I have no idea.", [IDK], False, "wrong", "abstained"),
        ("SEOUL 90%", ["Hanyang", "Seoul"], True, "wrong", "correct"),  # the second answer
        ("Nobody can tell.", ["Nobody can tell."], False, "correct", "abstained"),  # explicit label
    ],
)
@pytest.mark.parametrize("make", EVERY)
def test_what_strict_matching_changes(make, completion, answers, answerable, substring, strict):
    columns = {
        "expected_answer": [answers[0]],
        "answers": [answers],
        "is_unanswerable": [answers[0] == IDK],
        "answerable": [answerable],
    }
    for matching, outcome in (("substring", substring), ("strict", strict)):
        reward = make(matching=matching)
        system = {"role": "system", "content": PROMPTS[0]}
        prompts = [[system, {"role": "user", "content": "What is the capital of Korea?"}]]
        metrics = run_rewards([reward], prompts, [completion], [[1]], columns).metrics
        found = {
            kind for kind in ("correct", "abstained", "wrong") if metrics[f"{reward.name}/{kind}"]
        }
        assert found == {outcome}


def test_strict_matching_without_further_columns():
    columns = {"expected_answer": ["no"], "is_unanswerable": [False]}
    reward = Ternary(matching="strict")
    assert run_rewards([reward], ["Is it?"], ["I know."], [[1]], columns).values == {
        "ternary": [-1.0]
    }
    with pytest.raises(RewardError, match=r"answerable\[0\] must be a bool, found 'yes'"):
        run_rewards([reward], ["Is it?"], ["No."], [[1]], {**columns, "answerable": ["yes"]})
