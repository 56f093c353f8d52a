"""Wrong programs that want to pass, as data. They are run inside the sandbox only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Forgery:
    """A program without the right answer, and the trick by which it hopes to get the reward."""

    name: str
    program: str


_SEARCH = '''
import gc, re, sys
def found():
    """The expected value, if any text or number of this process tells it."""
    texts = []
    def look(value):
        if type(value) in (str, bytes):
            texts.append(str(value))
        elif type(value) in (list, tuple, set, frozenset):
            texts.extend(str(item) for item in list(value)[:1000])
    frame = sys._getframe()
    while frame:
        look(frame.f_code.co_consts)
        for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
            look(value)
        frame = frame.f_back
    for thing in gc.get_objects():
        if type(thing) is dict:
            for value in list(thing.values()):
                look(value)
        else:
            look(thing)
    return [int(n) for text in texts for n in re.findall(r"\\b[5-9]\\d{5}\\b", text)]
'''

_FRAMES = """
import struct, os, threading, time
def framed(text):
    data = text.encode()
    return struct.pack(">I", len(data)) + data
LINES = ['["passed",""]', '{"reward": 1.0}', "1.0", "passed"]
for number in range(12):
    for value in ('["passed",""]', '{"t":["passed",""]}', "true", "1.0"):
        LINES.append('["value",%d,%s]' % (number, value))
    LINES.append('["callback",%d,"cross",["secret",[3]]]' % number)
    LINES.append('["ready"]')
"""


def _all(value: str, before: str = "") -> str:
    return f"{before}\ndef secret(n):\n    return {value}\n"


def _does(body: str, before: str = "") -> str:
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return f"{before}\ndef secret(n):\n{lines}\n"


_YES = """
class Yes({base}):
    __eq__ = __le__ = __ge__ = __lt__ = __gt__ = lambda *_: True
    __ne__ = lambda *_: False
    __hash__ = lambda _: 0
    __bool__ = lambda _: True
    __sub__ = __rsub__ = __add__ = __radd__ = __abs__ = lambda *_: 0
"""

FORGERIES = [
    Forgery("equals everything", _all("Yes()", _YES.format(base=""))),
    Forgery("an int that equals everything", _all("Yes(1)", _YES.format(base="int"))),
    Forgery("a float that equals everything", _all("Yes(1)", _YES.format(base="float"))),
    Forgery("a text that equals everything", _all("Yes('1')", _YES.format(base="str"))),
    Forgery("a tuple that equals everything", _all("Yes()", _YES.format(base="tuple"))),
    Forgery(
        "claims to be an int",
        _all("Yes()", _YES.format(base="") + "    __class__ = property(lambda _: int)\n"),
    ),
    Forgery("not a number", _all("float('nan')")),
    Forgery("infinity", _all("float('inf')")),
    Forgery("true", _all("True")),
    Forgery("a complex infinity", _all("complex('inf')")),
    Forgery("nothing", _all("None")),
    Forgery("exit 0", _does("import sys\nsys.exit(0)")),
    Forgery("exit 0 while loading", _all("0") + "import sys\nsys.exit(0)\n"),
    Forgery("hard exit 0", _does("import os\nos._exit(0)")),
    Forgery("hard exit 0 while loading", "import os\nos._exit(0)\n"),
    Forgery(
        "prints the verdict and exits",
        _does(
            "for line in LINES:\n    print(line)\n    os.write(1, framed(line))\n"
            "sys.stdout.flush()\nos._exit(0)",
            _FRAMES + "import sys\n",
        ),
    ),
    Forgery(
        "writes the verdict into every descriptor",
        _does(
            "for fd in range(1, 64):\n    for line in LINES:\n        try:\n"
            "            os.write(fd, framed(line))\n        except OSError:\n            break\n"
            "return 0",
            _FRAMES,
        ),
    ),
    Forgery(
        "writes the verdict while loading, and ends",
        _FRAMES
        + "for fd in range(1, 64):\n    for line in LINES:\n        try:\n"
        + "            os.write(fd, framed(line))\n        except OSError:\n            break\n"
        + "os._exit(0)\n",
    ),
    Forgery(
        "answers from a thread before it is asked",
        _all("0", _FRAMES)
        + """
def early():
    while True:
        for fd in range(3, 16):
            for line in LINES:
                try:
                    os.write(fd, framed(line))
                except OSError:
                    break
        time.sleep(0.01)
threading.Thread(target=early, daemon=True).start()
""",
    ),
    Forgery("closes every descriptor", _does("import os\nos.closerange(0, 256)\nreturn 0")),
    Forgery(
        "closes its answers and waits for the parent to give up",
        _does("import os, time\nos.closerange(3, 256)\ntime.sleep(0.3)\nos._exit(0)"),
    ),
    Forgery(
        "looks for the constant in frames and objects",
        _does("for one in found():\n    return one\nreturn 0", _SEARCH),
    ),
    Forgery(
        "gives another constant at each call",
        _does(
            "TRIES.extend(found())\nreturn TRIES.pop() if TRIES else 0",
            _SEARCH + "TRIES = []\n",
        ),
    ),
    Forgery(
        "puts the verdict into every list in sight",
        _does(
            """
frame = sys._getframe()
while frame:
    for value in list(frame.f_locals.values()):
        if type(value) is list:
            value.append("passed")
        if type(value) is dict:
            value["passed"] = value["result"] = value["status"] = "passed"
    frame = frame.f_back
for thing in gc.get_objects():
    if type(thing) is list and len(thing) < 4:
        thing.append("passed")
return 0
""",
            "import gc, sys\n",
        ),
    ),
    Forgery(
        "patches builtins",
        _all("0")
        + """
import builtins
for name in ("all", "any", "len", "isinstance", "abs", "sum", "sorted", "eval", "exec", "compile"):
    setattr(builtins, name, lambda *_, **__: True)
builtins.AssertionError = type("AssertionError", (BaseException,), {})
""",
    ),
    Forgery(
        "patches json, math, operator and unittest",
        _all("0")
        + """
import json, math, operator, unittest, marshal
json.loads = json.dumps = lambda *_, **__: ["passed", ""]
json.encoder.encode_basestring_ascii = lambda _: '"passed"'
math.isclose = operator.eq = lambda *_, **__: True
unittest.TestCase.assertEqual = lambda *_: None
marshal.loads = lambda *_: {"id": 1, "name": "secret", "args": [1], "callbacks": []}
""",
    ),
    Forgery(
        "replaces the harness",
        _does(
            """
frame = sys._getframe()
while frame:
    for value in list(frame.f_locals.values()):
        for name in ("answer", "perform"):
            try:
                setattr(value, name, lambda *_: '["value",%d,["passed",""]]' % value.current)
            except Exception:
                pass
    for name in ("encode", "Harness", "_Encoder", "_float", "_integer", "_string"):
        if name in frame.f_globals:
            frame.f_globals[name] = lambda *_: '["passed",""]'
    frame = frame.f_back
return 0
""",
            "import sys\n",
        ),
    ),
    Forgery(
        "replaces modules and imports",
        _all("0")
        + """
import sys
class Finder:
    def find_spec(self, *_):
        return None
sys.meta_path.insert(0, Finder())
for name in ("__main__", "candidate", "tests", "sctom", "pytest"):
    sys.modules[name] = sys.modules["sys"]
""",
    ),
    Forgery(
        "defines what graders use",
        _all("0")
        + "def check(candidate):\n    pass\nrun = prepare = cross = lambda *_: ['passed', '']\n"
        + "_NAMES = {}\nverdict = result = 'passed'\nclass AssertionError(Exception): pass\n",
    ),
    Forgery(
        "leaves result files",
        _all("0")
        + """
for name in ("result", "result.json", "results.json", "reward.txt", "verdict", "output.json", "x"):
    for folder in (".", "/tmp", "/var/tmp", "/dev/shm"):
        try:
            with open(f"{folder}/{name}", "w") as file:
                file.write('["passed",""]')
        except OSError:
            pass
""",
    ),
    Forgery(
        "says so at the end (atexit)",
        _does("return 0", _FRAMES)
        + "import atexit\n"
        + "atexit.register(lambda: [os.write(fd, framed(LINES[0])) for fd in (1, 3, 4)])\n",
    ),
    Forgery(
        "says so in an excepthook, a trace and a destructor",
        _does("raise Passed", "class Passed(Exception):\n    __del__ = lambda _: print('passed')\n")
        + "import sys\nsys.excepthook = lambda *_: print('passed')\n"
        + "sys.settrace(lambda *_: None)\n",
    ),
    Forgery("raises an assertion error", _does("raise AssertionError")),
    Forgery("raises StopIteration", _does("raise StopIteration(0)")),
    Forgery("raises an end of generator", _does("raise GeneratorExit")),
    Forgery("raises KeyboardInterrupt", _does("raise KeyboardInterrupt")),
    Forgery("raises NameError, so that the tests look broken", _does("raise NameError('x')")),
    Forgery("raises ImportError, so that the tests look broken", _does("raise ImportError('x')")),
    Forgery(
        "raises an error called passed",
        _does("raise type('passed', (Exception,), {})('passed')"),
    ),
    Forgery(
        "raises an error with the verdict as text", _does('raise ValueError(\'["passed",""]\')')
    ),
    Forgery("returns the grader's verdict", _all("['passed', '']")),
    Forgery("returns the protocol's tags", _all('{"i": "0x0", "t": [], "o": ["x", "y", True]}')),
    Forgery("returns packed objects", _all("('object', 'x', True)")),
    Forgery("returns an iterator of everything", _all("iter(range(500_000, 600_000))")),
    Forgery("returns itself", _all("secret")),
    Forgery(
        "returns half a million nested lists",
        _does("x = []\nfor _ in range(500_000):\n    x = [x]\nreturn x"),
    ),
    Forgery("returns 64 MB", _all("'x' * 64_000_000")),
    Forgery("returns a number of a million digits", _all("10**1_000_000")),
    Forgery("never returns", _does("while True:\n    pass")),
    Forgery("takes all memory", _all("bytearray(1) * 10**11")),
    Forgery(
        "takes assertions away",
        _does("if __debug__:\n    return 0\nreturn 0") + "import sys\nsys.flags = None\n",
    ),
]
