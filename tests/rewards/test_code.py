from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sctom.rewards import code_inside
from sctom.rewards.base import Failure, RewardError
from sctom.rewards.code import CodeReward, code_reward
from sctom.rewards.code_grading import Grade, grade, pack
from sctom.rewards.code_tests import CannotJudge, humaneval_tests, mbpp_tests, program_of
from sctom.sandbox import Iter, Opaque, Sandbox, SandboxUnavailable

SANDBOX = Sandbox()


def graded(program, *tests, seconds=20.0, setup=""):
    return grade(program, mbpp_tests(tests, setup), SANDBOX, seconds=seconds)


def completion(code):
    return [{"role": "assistant", "content": f"Here:\n```python\n{code}\n```\n"}]


# --- the program of a completion


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("x = 1", "x = 1"),
        ("a\n```python\nx = 1\n```\nb\n```python\nx = 2\n```\nc", "x = 2\n"),
        ("```python\nx = 1\n```\nIt prints:\n```\n1\n```", "x = 1\n"),
        ("```text\n1\n```\n```\nx = 2\n```", "x = 2\n"),
        ("```py\nx = 1", "x = 1"),
        ("```Python3 title=a\r\nx = 1\r\n```\r\n", "x = 1\n"),
        ("~~~python\nx = '```'\n~~~", "x = '```'\n"),
        ("````python\nx = '''\n```\n'''\n````", "x = '''\n```\n'''\n"),
        ("```python x = 1```", "```python x = 1```"),
        ("", ""),
    ],
)
def test_program_of_a_text(text, program):
    assert program_of(text) == program


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("    return 1\n\nprint(one())\n", "    return 1\n\n"),
        ("\n    return 1\n# so", "\n    return 1\n"),
        ("```python\n    return 1\n```", "    return 1\n"),
        ("def one():\n    return 1\nx = 2", "def one():\n    return 1\nx = 2"),
        (
            "```\nimport math\ndef one():\n    return 1\n```",
            "import math\ndef one():\n    return 1\n",
        ),
    ],
)
def test_a_prompt_comes_first(text, rest):
    assert program_of(text, 'def one():\n    """1"""\n') == 'def one():\n    """1"""\n' + rest


# --- what tests call


@pytest.mark.parametrize(
    ("tests", "names", "setup"),
    [
        (["assert f(1) == g(2)"], ("f", "g"), ""),
        (["assert set(f(1)) == set([2])"], ("f",), ""),
        (["assert sum(1, 2) == 3", "assert sum(0, 0) == 0"], ("sum",), ""),
        (["x = 1", "assert list(map(f, [x])) == [1]"], ("f",), ""),
        (["assert f(1) == sys.maxsize"], ("f",), "import sys"),
        (["import math\nassert math.isclose(f(1), 1.0)"], ("f",), ""),
        (["assert Sum_of(1) == 1"], ("Sum_of",), ""),
        (["list = [1]\nassert f(list) == 1"], ("f",), ""),
        (["assert all(f(i) == i for i in range(3))"], ("f",), ""),
    ],
)
def test_names_of_mbpp_tests(tests, names, setup):
    made = mbpp_tests(tests)
    assert (made.names, made.setup) == (names, setup)


@pytest.mark.parametrize(
    ("tests", "setup", "why"),
    [
        (["assert f([Pair(1, 2)]) == 1"], "", "objects of the program's class Pair"),
        (["assert f(root) == 1"], "root = Node(1)", "objects of the program's class Node"),
        (["assert f(x=1) == 1"], "", "keyword arguments to f"),
        (["assert f(lambda x: x) == 1"], "", "pass a function to f"),
        (["assert f(g) == g(1)"], "", "pass g to f"),
        (["assert f([1], int) == []"], "", "pass int to f"),
        (["x = [2, 1]\nf(x)\nassert x == [1, 2]"], "", "what f does to its arguments"),
        (["assert f(1) == f.cache"], "", "the tests use f.cache"),
        (["assert 1 == 1"], "", "call no function"),
        (["assert min(1) == max(1)"], "", "call no function"),
        ([], "", "call no function"),
        (["assert f(1) = 1"], "", "not Python"),
    ],
)
def test_tests_that_need_more_are_refused(tests, setup, why):
    with pytest.raises(CannotJudge, match=why):
        mbpp_tests(tests, setup)


@pytest.mark.parametrize(
    ("test", "why"),
    [
        ("def verify(candidate): pass", "must define check"),
        ("def check(candidate):\n    assert candidate(helper) == 1", "use helper, which"),
        ("def check(candidate):\n    candidate([])", "does to its arguments"),
    ],
)
def test_humaneval_tests_that_need_more_are_refused(test, why):
    with pytest.raises(CannotJudge, match=why):
        humaneval_tests("def f(x):\n    'Doc.'\n", test, "f")


# --- grades

TWICE = "def twice(x):\n    return 2 * x\n"


def test_a_right_and_a_wrong_program():
    tests = ("assert twice(2) == 4", "assert twice([1]) == [1, 1]", "assert twice('a') == 'aa'")
    assert graded(TWICE, *tests) == Grade("passed", 3, 3)
    squared = graded("def twice(x):\n    return x * x\n", *tests)
    assert squared.status == "error" and (squared.passed, squared.total) == (1, 3)
    assert squared.detail.startswith("TypeError: can't multiply sequence")
    assert graded("def twice(x):\n    return 4\n", *tests).status == "wrong"


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("def twice(x:", "error"),
        ("def thrice(x):\n    return 3 * x\n", "error"),
        ("twice = 4", "error"),
        ("import os\nos._exit(0)", "died"),
        ("import os\ndef twice(x):\n    os._exit(0)", "died"),
        ("def twice(x):\n    raise SystemExit(0)", "error"),
        ("def twice(x):\n    while True: pass", "timeout"),
        ("while True: pass", "timeout"),
        ("def twice(x):\n    return [0] * 10**10", "memory"),
        ("def twice(x):\n    return 'x' * 10**8", "value"),
        ("def twice(x):\n    return twice", "wrong"),
        ("def twice(x):\n    a = 4\n    for _ in range(95): a = [a]\n    return a", "value"),
    ],
)
def test_a_program_that_fails_is_wrong_and_no_failure(program, status):
    result = graded(program, "assert twice(2) == 4", seconds=2.0)
    assert isinstance(result, Grade)
    assert (result.status, result.passed) == (status, 0)
    assert result.detail


@pytest.mark.parametrize(
    "value",
    [
        "(1, [2.5, None], {'a': {1, 2}, (1, 2): frozenset('x')}, b'\\x00', 2**80, 1j)",
        "(float('inf'), True, 'tuple', ('dict', 1), [])",
    ],
)
def test_values_cross_as_they_are(value):
    same = f"def same(x):\n    return x if x == {value} else None\n"
    assert graded(same, f"assert same({value}) == {value}") == Grade("passed", 1, 1)


def test_types_that_differ_differ():
    result = graded(
        "def f(x):\n    return [x, x]\n", "assert f(1) == (1, 1)", "assert f(1) == [1, 1]"
    )
    assert result == Grade("wrong", 1, 2, "AssertionError:")


def test_iterators_arrive_as_iterators():
    program = "def f(n):\n    yield from range(n)\n"
    assert graded(program, "assert list(f(3)) == [0, 1, 2]").status == "passed"
    assert graded(program, "assert f(3) == [0, 1, 2]").status == "wrong"


def test_exceptions_arrive_as_exceptions():
    program = (
        "class Own(ValueError): pass\ndef f(x):\n    raise [KeyError, Own, SyntaxError][x]('no')"
    )
    tests = [
        f"r = 0\ntry:\n    r = f({place})\nexcept {kind}:\n    r = 'caught'\nassert r == 'caught'"
        for place, kind in ((0, "KeyError"), (1, "Exception"), (1, "ValueError"))
    ]
    result = graded(program, *tests)
    assert result == Grade("error", 2, 3, "Own: no")


def test_an_exception_of_the_program_is_no_fault_of_the_tests():
    for kind in ("NameError", "ImportError", "SyntaxError"):
        result = graded(f"def f(x):\n    raise {kind}('no')", "assert f(1) == 1")
        assert result == Grade("error", 0, 1, f"{kind}: no")


def test_an_object_of_the_program_is_no_way_out_of_being_judged():
    program = (
        "class A:\n    x = 1\n    def __eq__(self, other): return True\ndef f(x):\n    return A()\n"
    )
    assert graded(program, "assert f(1) == 1").status == "wrong"
    assert graded(program, "assert f(1) != 1").status == "passed"
    assert graded(program, "assert f(1)").status == "passed"
    for test in ("r = f(1)\nassert r.x == 1", "assert f(f(1)) == 1", "assert len(f(1)) == 1"):
        result = graded(program, test)
        assert result.status == "value" and result.passed == 0, test
        assert "object of the program" in result.detail


def test_no_program_can_choose_not_to_be_judged():
    nested = "def g(x):\n    return iter([1])\ndef f(y):\n    return 99\n"
    assert graded(nested, "assert f(g(3)) == 5").status == "value"
    deep = (
        "import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n"
        "        found = frame.f_locals.get('self')\n"
        "        if type(found).__name__ == 'Harness': harness = found\n"
        "        frame = frame.f_back\n"
        "    harness.send('[\"value\",%d,' % harness.current + '['*90 + '{\"q\":' + '['*850"
        " + ']'*850 + '}' + ']'*90 + ']')\n    while True: pass\n"
    )
    assert graded(deep, "assert f(2) == 4").status == "value"


def test_half_a_surrogate_pair_is_escaped():
    result = graded("def f(x):\n    return '\\ud800'\n", "assert f(1) == 2, f(1)")
    assert result.status == "wrong" and result.detail.encode()


def test_arguments_that_cannot_cross_are_failures():
    for test in ("assert f(iter([1])) == 1", "assert f([range(3)]) == 1", "assert f(*[f]) == 1"):
        result = graded("def f(x):\n    return 1\n", test)
        assert isinstance(result, Failure), test
        assert "the tests pass an" in result.debug


def test_broken_tests_are_failures():
    late = graded(
        TWICE, "def test():\n    return missing\nassert twice(2) == 4", "from no import no"
    )
    assert late == Failure("the tests are broken", "ModuleNotFoundError: No module named 'no'")
    setup = graded(TWICE, "assert twice(2) == 4", setup="x = 1 / 0")
    assert setup == Failure(
        "the setup of the tests does not run", "ZeroDivisionError: division by zero"
    )


def test_the_time_is_that_of_all_calls_together():
    program = "import time\ndef f(x):\n    time.sleep(0.7)\n    return x\n"
    tests = [f"assert f({number}) == {number}" for number in range(3)]
    assert graded(program, *tests, seconds=1.0).passed == 1
    assert graded(program, *tests, seconds=1.0).status == "timeout"


def test_a_program_that_ended_has_failed_whatever_the_test_catches():
    program = "import os\ndef f(x):\n    os._exit(0)\n"
    test = "try:\n    f(1)\nexcept BaseException:\n    pass"
    assert graded(program, "r = f\n" + test.replace("f(1)", "r(1)")).status == "died"


def test_helpers_are_those_of_the_prompt():
    prompt = "def square(x):\n    return x * x\n\ndef root(x):\n    'Square root.'\n"
    test = "def check(candidate):\n    assert abs(square(candidate(9)) - 9) < 1e-6\n"
    tests = humaneval_tests(prompt, test, "root")
    honest = grade(prompt + "    return x ** 0.5\n", tests, SANDBOX, seconds=20.0)
    forged = "    return 0\ndef square(x):\n    return 9\n"
    assert honest == Grade("passed", 1, 1)
    assert grade(prompt + forged, tests, SANDBOX, seconds=20.0).status == "wrong"
    assert grade(prompt, tests, SANDBOX, seconds=20.0).status == "wrong"  # the stub gives None


def test_builtins_are_those_of_the_tests():
    program = "def set(x):\n    return 0\ndef f(x):\n    return []\n"
    assert graded(program, "assert set(f(1)) == set([1])").status == "wrong"


def test_pack_and_unpack():
    value = [1, (2.0, "x"), {"list": {(1, 2): {3}}}, Iter((4, 5))]
    first, second, third, fourth = code_inside.unpack(pack(value))
    assert (first, second, third, list(fourth)) == (*value[:3], [4, 5])
    foreign = code_inside.unpack(pack(Opaque("a.B", "<B>", False)))
    assert foreign != foreign and not foreign and repr(foreign) == "<B>"
    for use in (lambda: foreign.name, lambda: foreign + 1, lambda: foreign[0], lambda: foreign()):
        with pytest.raises(code_inside.LooksInside):
            use()


def test_asserts_stand_where_python_strips_them():
    code = "from sctom.rewards import code_inside as c; print(c.run('assert 1 == 2'))"
    ended = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True)
    assert ended.stdout.strip() == "['wrong', 'AssertionError: ']"


# --- the reward


def test_scores_and_what_is_logged():
    tests = ["assert twice(2) == 4", "assert twice([1]) == [1, 1]"]
    rows = [
        completion(TWICE),
        completion("def twice(x):\n    return 4"),
        completion("def twice(x:"),
    ]
    logged = {}
    arguments = {"completions": rows, "test_list": [tests] * 3, "log_extra": logged.__setitem__}
    assert CodeReward(score="fraction")(**arguments) == [1.0, 0.5, 0.0]
    values = CodeReward()(**arguments, log_metric=logged.__setitem__)
    assert values == [1.0, 0.0, 0.0]
    assert logged["code/status"] == ["passed", "wrong", "error"]
    assert logged["code/detail"][2].startswith("SyntaxError")
    assert logged["code/passed"] == pytest.approx(1 / 3) and logged["code/timeout"] == 0.0


def test_rows_of_both_forms_and_of_neither():
    prompt, test = "def f(x):\n    'Twice x.'\n", "def check(c):\n    assert c(2) == 4\n"
    values = CodeReward()(
        [completion(TWICE), completion("    return 2 * x"), "x = 1"],
        test_list=[["assert twice(2) == 4"], None, None],
        test_setup_code=[None, None, None],
        prompt=[None, prompt, None],
        test=[None, test, None],
        entry_point=[None, "f", None],
    )
    assert values[:2] == [1.0, 1.0]
    assert values[2] == Failure("the row has neither test_list nor prompt, test and entry_point")


def test_no_column_of_tests_is_an_error():
    with pytest.raises(RewardError, match="needs the column test_list"):
        CodeReward()([completion(TWICE)])


class Counting(Sandbox):
    """Remembers what it was asked to run, and how much of it at a time."""

    def __init__(self):
        super().__init__()
        self.sources = []

    def open(self, source, *, limits=None):
        self.sources.append(source)
        return super().open(source, limits=limits)


def test_equal_programs_are_run_once():
    sandbox = Counting()
    rows = [completion(TWICE)] * 3 + [completion("def twice(x): return 0")]
    values = CodeReward(sandbox=sandbox)(rows, test_list=[["assert twice(2) == 4"]] * 4)
    assert values == [1.0, 1.0, 1.0, 0.0]
    assert len(sandbox.sources) == 4  # two programs, and a grader for each


class Broken(Sandbox):
    def open(self, source, *, limits=None):
        raise SandboxUnavailable("no namespaces here")

    def check(self):
        raise SandboxUnavailable("no namespaces here")


def test_a_sandbox_that_does_not_work_is_a_failure_and_found_before_the_run():
    reward = CodeReward(sandbox=Broken())
    values = reward([completion(TWICE)], test_list=[["assert twice(2) == 4"]])
    assert values == [Failure("the sandbox does not work", "no namespaces here")]
    with pytest.raises(RewardError, match="reward 'code_reward' has no sandbox: no namespaces"):
        reward.check()


def test_the_sandbox_is_described():
    reward = CodeReward(seconds=3.0, at_once=4)
    reward.check()
    (line,) = reward.describe()
    assert str(SANDBOX.check()) in line and line.endswith("3 s, 1024 MiB, 4 at once")


def test_the_function_for_trl_abstains_where_there_is_no_verdict():
    tests = [["assert twice(2) == 4"], ["assert twice(iter([])) == 4"]]
    row = completion(TWICE)
    assert code_reward([row] * 2, prompts=["a"] * 2, test_list=tests) == [1.0, None]


@pytest.mark.parametrize(
    "settings", [{"score": "some"}, {"seconds": 0.0}, {"seconds": float("nan")}, {"at_once": 0}]
)
def test_settings_out_of_range(settings):
    with pytest.raises(RewardError, match=next(iter(settings))):
        CodeReward(**settings)


def test_what_runs_inside_needs_the_standard_library_only():
    text = Path(code_inside.__file__).read_text()
    assert "sctom" not in text.split('"""', 2)[2]
