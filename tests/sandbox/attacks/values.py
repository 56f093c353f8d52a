"""Answers that lie: what arrives is made of exact plain types, or is an error."""

from __future__ import annotations

from sctom.sandbox import Limits
from tests.sandbox.attacks.base import ENDLESS, SHORT, Attack

_LIES = "anything but an exact plain value (or CodeError) reaches the trusted side"


def _answer(name: str, source: str, limits: Limits = SHORT) -> Attack:
    return Attack(name, _LIES, source, claims=False, limits=limits)


VALUES = [
    _answer(
        "an object that equals everything",
        """
class Yes:
    __eq__ = __le__ = __ge__ = __lt__ = __gt__ = __contains__ = lambda *_: True
    __ne__ = lambda *_: False
    __hash__ = lambda _: 0
    __bool__ = lambda _: True
    __float__ = lambda _: 1.0
    __int__ = __index__ = lambda _: 1
    __str__ = __repr__ = lambda _: "1.0"
    __class__ = float
def attack(target):
    return Yes()
""",
    ),
    _answer(
        "subclasses of every plain type",
        """
def attack(target):
    yes = {"__eq__": lambda *_: True, "__hash__": lambda _: 0, "__repr__": lambda _: "x",
           "__str__": lambda _: "x", "__float__": lambda _: 1.0, "__int__": lambda _: 1,
           "__len__": lambda _: 3, "__iter__": lambda _: iter([1, 2, 3]),
           "items": lambda _: [(1, 1)]}
    return [type(base.__name__, (base,), yes)() for base in (
        int, float, str, bytes, complex, list, tuple, dict, set, frozenset)]
""",
    ),
    _answer(
        "not a number, and infinities",
        """
def attack(target):
    return [float('nan'), float('inf'), -float('inf'), complex('nan+infj'), -0.0]
""",
    ),
    _answer("a number of a million digits", "def attack(target):\n    return 10**1_000_000\n"),
    _answer("a number of 5,000 digits, negative", "def attack(target):\n    return -10**5_000\n"),
    _answer(
        "lists a hundred thousand deep",
        """
def attack(target):
    x = []
    for _ in range(100_000):
        x = [x]
    return x
""",
    ),
    _answer(
        "dicts and tuples 900 deep",
        """
def attack(target):
    x = ()
    for _ in range(900):
        x = {'k': (x,)}
    return x
""",
    ),
    _answer(
        "a list that holds itself",
        "def attack(target):\n    x = []\n    x.append(x)\n    return x\n",
    ),
    _answer(
        "two to the fortieth items, shared",
        """
def attack(target):
    x = ['x']
    for _ in range(40):
        x = [x, x]
    return x
""",
    ),
    _answer("half a character", "def attack(target):\n    return ['\\ud800', '\\udfff\\x00']\n"),
    _answer("an endless generator", "def attack(target):\n    return iter(int, 1)\n"),
    _answer(
        "a generator that never yields",
        """
def attack(target):
    def never():
        while True:
            pass
        yield
    return never()
""",
        ENDLESS,
    ),
    _answer(
        "keys that are no text, and keys that look like the protocol's",
        """
def attack(target):
    return [
        {1: 2, None: 3, (1, 2): 4, 1.5: 5, b"x": 6, True: 7},
        {"type": "result", "value": 1}, {"ok": True}, {"__class__": "int"}, {"kind": "tuple"},
        {"t": "int", "v": "1"}, {"$": 1}, ["tuple", [1, 2]], ["float", "nan"], ["opaque", "x"],
    ]
""",
    ),
    _answer(
        "a type that lies about its name",
        """
class Meta(type):
    __name__ = property(lambda _: 1 / 0)
    __qualname__ = __module__ = __name__
    __instancecheck__ = __subclasscheck__ = lambda *_: True
    def __getattribute__(self, name):
        raise SystemExit
def attack(target):
    return Meta("Sly", (), {})()
""",
    ),
    _answer(
        "a truth that raises, and one that never ends",
        """
class Never:
    def __bool__(self):
        while True:
            pass
    def __repr__(self):
        return "x" * 50_000_000
def attack(target):
    return Never()
""",
        ENDLESS,
    ),
    _answer(
        "things that are no values",
        """
def attack(target):
    return [attack, type, sys, open('x', 'w'), threading.Lock(), range(3), memoryview(b'x'), ...]
""",
    ),
]
