from __future__ import annotations

import math
import pickle
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

pytest.importorskip("trl", reason="compares with TRL, which `pip install -e .[dev]` installs")
from trl import rewards as theirs

from sctom.rewards import formats, lengths, math_answers, math_grading

MANY = settings(
    max_examples=2000,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def outcome(call):
    """What a call gives, or the type of what it raises; repr, so that NaN equals NaN."""
    try:
        return repr(call())
    except Exception as error:
        return type(error)


def inline(function, items, *, seconds):
    assert function == "sctom.rewards.math_grading:grade"
    return [math_grading.grade(*item) for item in items]


@pytest.fixture
def in_process(monkeypatch):
    """Grades without worker processes: the same function, called here."""
    monkeypatch.setattr(math_answers, "shared_workers", lambda: SimpleNamespace(map=inline))


integers = st.integers(-120, 120).map(str)
numbers = st.one_of(
    integers,
    st.sampled_from(
        ["0.5", "1,234", "2,5", "1.50", "4 096", "4\\,096", "1e3", ".5", "007", "25\\%"]
    ),
    st.sampled_from(
        ["12 \\text{ kg}", "\\$5", "90^\\circ", "\uff11\uff17", "\u22123", "x", "b", "\\pi", "n"]
    ),
)
pairs = st.tuples(numbers, numbers)
simple = st.one_of(
    numbers,
    pairs.map(lambda p: f"\\frac{{{p[0]}}}{{{p[1]}}}"),
    pairs.map(lambda p: f"{p[0]}/{p[1]}"),
    st.sampled_from(
        ["\\frac12", "\\sqrt2", "\\sqrt{7}", "4\\sqrt{5}", "6\\pi", "7x-2", "x^2", "\\infty"]
    ),
)
latex = st.one_of(
    simple,
    st.tuples(
        simple, st.sampled_from(["+", "-", "\\cdot ", "=", ",", " \\lor ", "<", "\\le "]), simple
    ).map("".join),
    pairs.map(lambda p: f"\\{{{p[0]},{p[1]}\\}}"),
    st.tuples(st.sampled_from("(["), numbers, numbers, st.sampled_from(")]")).map(
        lambda p: f"{p[0]}{p[1]},{p[2]}{p[3]}"
    ),
    integers.map(lambda n: f"n = {n}"),
    pairs.map(lambda p: f"n={p[0]}={p[1]}"),
    pairs.map(lambda p: f"x={p[0]} \\text{{ or }} x={p[1]}"),
    pairs.map(lambda p: f"\\begin{{pmatrix}}{p[0]}\\\\{p[1]}\\end{{pmatrix}}"),
    st.sampled_from(
        ["\\text{Tuesday}", "\\text{(B)}", "Seoul", "0 \\le x < 5", "\\sin x", "2^{3}", ""]
    ),
    st.text("\\{}[]()$^_=,.%&~ 0123456789abx", max_size=12),
)
WRAPS = [
    "%s",
    "$%s$",
    "$$%s$$",
    "\\(%s\\)",
    "\\[%s\\]",
    "\\boxed{%s}",
    "$\\boxed{%s}$",
    "\\fbox{%s}",
]
WRAPS += ["Answer: %s", "The final answer is $%s$. I hope", "#### %s", "\\boxed{%s", "**%s**"]
wrapped = st.tuples(st.sampled_from(WRAPS), latex).map(lambda p: p[0].replace("%s", p[1]))
boxed = latex.map(lambda text: f"\\boxed{{{text}}}")
prose = st.sampled_from(
    ["", "So ", "between 2 and 3 ", " and ", "\n", "it is 7% ", "<think>3</think>", "é☃\ud800"]
)
answers = st.one_of(
    boxed,
    st.tuples(prose, wrapped, prose).map("".join),
    st.tuples(prose, boxed, prose, wrapped).map("".join),
)
golds = st.one_of(wrapped, simple, boxed, st.none(), st.integers(0, 9))


@st.composite
def questions(draw):
    """An answer and a solution, often of the same expression."""
    if draw(st.booleans()):
        same = draw(latex)
        gold = draw(st.sampled_from(["%s", "$%s$", "\\boxed{%s}"])).replace("%s", same)
        return draw(prose) + f"\\boxed{{{same}}}" + draw(prose), gold
    return draw(answers), draw(golds)


def message(content):
    return [{"role": "assistant", "content": content}]


def logging_call(function, *args, **kwargs):
    told = {}
    values = function(*args, log_extra=told.__setitem__, **kwargs)
    return values, told


@MANY
@given(question=questions())
@example(question=("\\boxed{3=4}", "4"))
@example(question=("\\boxed{n=3 \\lor n=4}", "4"))
@example(question=("\\boxed{3} .. \\boxed{8}", "8"))
@example(question=(None, "4"))
@example(question=([{"type": "text", "text": "\\boxed{4}"}], "4"))
@example(question=("\\boxed{4}", ["4"]))
@example(question=("\\boxed{10^{5000}}", "$" + "9" * 5000 + "$"))
def test_accuracy_reward(in_process, question):
    content, gold = question
    args = ([message(content), message("\\boxed{1}")], [gold, "1"])
    ours = outcome(lambda: logging_call(math_answers.accuracy_reward, *args))
    assert ours == outcome(lambda: logging_call(theirs.accuracy_reward, *args))


ends = st.sampled_from(["", "</think>", "<answer>", "</think> 3 </think>", "<answer></think>"])
cheap = st.one_of(simple, simple.map(lambda text: f"\\boxed{{{text}}}"))
delimiters = st.one_of(
    st.none(),
    st.lists(st.sampled_from(["</think>", "<answer>", "</th", ""]), max_size=3),
    st.sampled_from(["", "x", "</think>"]),
)


@MANY
@given(parts=st.tuples(cheap, ends, cheap, ends, cheap), gold=golds, delimiters=delimiters)
@example(parts=("a", "</think>", "\\boxed{4}", "", ""), gold="4", delimiters=[])
@example(parts=("a", "", "\\boxed{4}", "", ""), gold="Seoul", delimiters=None)
def test_reasoning_accuracy_reward(in_process, parts, gold, delimiters):
    args = ([message("".join(parts))], [gold], delimiters)
    ours = outcome(lambda: logging_call(math_answers.reasoning_accuracy_reward, *args))
    assert ours == outcome(lambda: logging_call(theirs.reasoning_accuracy_reward, *args))


values = st.one_of(
    st.floats(-2, 2), st.integers(-2, 2), st.sampled_from([math.nan, math.inf, -0.0])
)


@MANY
@given(
    max_len=st.one_of(st.integers(-2, 60), st.sampled_from([1.5, math.nan, math.inf])),
    bounds=st.lists(values, max_size=4),
    content=cheap,
    gold=st.one_of(integers, simple, st.none()),
    length=st.integers(0, 80),
)
def test_cosine_scaled_reward(in_process, max_len, bounds, content, gold, length):
    def call(factory):
        reward = factory(max_len, *bounds)
        return reward([message(content)], [gold], [[1] * length]), reward.__name__

    ours = outcome(lambda: call(math_answers.get_cosine_scaled_reward))
    assert ours == outcome(lambda: call(theirs.get_cosine_scaled_reward))


tags = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<Think>", "think", " ", "\n", "\ufeff", "x", "<", ">", "4", "</"]
    ),
    max_size=9,
).map("".join)
texts = st.one_of(tags, tags.map(lambda text: f"<think>{text}"), st.text(max_size=20))
messages = st.one_of(
    texts.map(message),
    st.lists(texts, max_size=3).map(lambda many: [{"content": text} for text in many]),
    st.sampled_from([[], [{}], [{"content": None}], [{"content": [{"text": "x"}]}], None, [3]]),
)


@MANY
@given(completions=st.lists(messages, max_size=3))
def test_think_format_reward(completions):
    ours = outcome(lambda: formats.think_format_reward(completions, solution=None))
    assert ours == outcome(lambda: theirs.think_format_reward(completions, solution=None))


ids = st.one_of(
    st.lists(st.integers(0, 3), max_size=14),
    st.text("ab", max_size=9),
    st.sampled_from([None, [[1], [1], [1], [1]], (1, 1, 1, 1)]),
)


@MANY
@given(
    size=st.one_of(st.integers(-1, 5), st.sampled_from([2.0, None])),
    penalty=st.one_of(st.floats(-3, 0), st.sampled_from([-1, 0, 0.5, math.nan, -math.inf])),
    completion_ids=st.lists(ids, max_size=3),
)
def test_repetition_penalty_reward(size, penalty, completion_ids):
    def call(factory):
        reward = factory(size, penalty)
        return reward(completion_ids, prompts=None), reward.__name__

    ours = outcome(lambda: call(lengths.get_repetition_penalty_reward))
    assert ours == outcome(lambda: call(theirs.get_repetition_penalty_reward))


@MANY
@given(
    limit=st.one_of(st.integers(-3, 30), st.floats(0, 30)),
    cache=st.one_of(st.integers(-3, 40), st.floats(0, 30)),
    completion_lengths=st.lists(st.integers(0, 40), max_size=3),
)
@example(limit=8, cache=16, completion_lengths=[0, 8, 9])
@example(limit=8, cache=0, completion_lengths=[7, 8, 9])
def test_soft_overlong_punishment(limit, cache, completion_lengths):
    def call(factory):
        reward = factory(limit, cache)
        return reward([[1] * length for length in completion_lengths]), reward.__name__

    ours = outcome(lambda: call(lengths.get_soft_overlong_punishment))
    assert ours == outcome(lambda: call(theirs.get_soft_overlong_punishment))


def test_arrays_and_tensors_of_ids_as_trl_reads_them():
    torch = pytest.importorskip("torch")
    numpy = pytest.importorskip("numpy")
    same = [[5, 5, 5, 5, 5], numpy.full(5, 5), torch.full((5,), 5)]
    # 3 trigrams, 1 different: 1 - 1/3; elements of a tensor hash by identity
    expected = [-(1 - 1 / 3), -(1 - 1 / 3), 0.0]
    assert theirs.get_repetition_penalty_reward()(same) == expected
    assert lengths.get_repetition_penalty_reward()(same) == expected
    assert lengths.get_repetition_penalty_reward(strict=True)(same) == expected[:1] * 3


@pytest.mark.parametrize("completions", [[[]], [[{}]], [[{"content": "\\boxed{1}"}]] * 2, [None]])
@pytest.mark.parametrize("name", ["accuracy_reward", "reasoning_accuracy_reward"])
def test_errors_of_malformed_batches(name, completions):
    ours = outcome(lambda: getattr(math_answers, name)(completions, ["1"]))
    assert isinstance(ours, type)
    assert ours is outcome(lambda: getattr(theirs, name)(completions, ["1"]))


SAMPLE = [
    ("\\boxed{\\frac{1}{3}}", "\\frac{1}{3}"),
    ("\\boxed{3} .. \\boxed{8}", "8"),
    ("\\boxed{3=4}", "4"),
    ("17", "17"),
    ("\\boxed{25\\%}", "0.25"),
    ("\\boxed{x}", "\\sqrt{7}"),
    (None, "4"),
]


def test_through_worker_processes_too():
    args = [message(content) for content, _ in SAMPLE], [gold for _, gold in SAMPLE]
    ours = logging_call(math_answers.accuracy_reward, *args)
    assert ours == logging_call(theirs.accuracy_reward, *args)
    assert ours[0] == [1.0, 0.0, 1.0, 0.0, 1.0, None, 0.0]


def test_plain_texts_are_the_exception_to_parity():
    assert outcome(lambda: theirs.accuracy_reward(["\\boxed{4}"], ["4"])) is TypeError
    assert math_answers.accuracy_reward(["\\boxed{4}"], ["4"]) == [1.0]
    assert formats.think_format_reward(["<think>a</think>b"]) == [1.0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: math_answers.get_cosine_scaled_reward(10),
        lengths.get_repetition_penalty_reward,
        lambda: lengths.get_soft_overlong_punishment(10, 5),
    ],
)
def test_rewards_that_factories_make_can_be_pickled(make):
    reward = pickle.loads(pickle.dumps(make()))
    arguments = {"completion_ids": [[1] * 8]}
    if "cosine" in reward.__name__:
        arguments |= {"completions": ["\\boxed{4}"], "solution": ["4"]}
    assert reward(**arguments) == make()(**arguments)
