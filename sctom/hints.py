"""The config parser: what the command line may say, and error messages that name the nearest key.

One thing is added to what jsonargparse accepts: `null` reaches settings of any depth.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn, get_type_hints

from jsonargparse import ArgumentError, Namespace
from lightning.pytorch.cli import LightningArgumentParser

_UNKNOWN = (
    re.compile(r"does not accept option '([\w.]+)'"),
    re.compile(r"Option '([\w.]+)' is not accepted"),
    re.compile(r"Key '([\w.]+)' is not expected"),
    re.compile(r"(?i)unrecognized arguments: --([\w.]+)"),
    re.compile(r"No action for key ['\"]([\w.]+)['\"]"),
    re.compile(r"Unexpected keyword argument '?([\w.]+)'?"),
)

_KEY = re.compile(r"Parser key \"([\w.]+)\"(?: element \d+)?:\s*")
_CLASS = re.compile(r"Problem with given class_path '([\w.]+)':")
_CALLABLE = re.compile(r"Type .* expects a function or a callable class: ")
_NOT_A_CLASS = re.compile(
    r"Expected an instantiatable class, but ([\w.]+) is (abstract|a protocol)"
)
_NO_CLASS = re.compile(r"Expected a dot import path string: ([\w.]+)")
_NOT_A_SAMPLER = re.compile(
    r"Import path(?: (?P<path>[\w.]+))? does not implement protocol Sampler"
    r"(?:[\s\S]*?Given value: (?P<value>[\w.]+))?"  # has the path where the sentence lacks it
)
_LIKELY = (  # where a setting may be several things, what was meant
    re.compile(r"Expected a <class '(int|float)'>"),
    re.compile(r"Expected a dot import path string: [A-Z]"),
    re.compile(r"Import path .*does not implement protocol Sampler"),
)
_INFINITE = re.compile(r"Expected a <class '(int|float)'>[\s\S]*value: [+-]?(?i:inf(inity)?|nan)\b")
_NOISE = re.compile(
    r"Does not validate against any of the Union subtypes|Subtypes: |Errors:$|Given value"
    r"|Expected a <class 'NoneType'>|Expected a path but .* either not accessible or invalid"
)

_MORE = "(--help lists the options of a run, --model.help CLASS those of a class)"


def _classes(module: Any) -> list[type]:
    return [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and value.__module__.startswith("sctom")
        and not issubclass(value, BaseException)
    ]


def known_names(parser: LightningArgumentParser) -> set[str]:
    """Every name a config may use.

    These are options of the parser, class names, and the arguments of sctom's classes.
    """
    import sctom.callbacks
    import sctom.data
    import sctom.modules
    import sctom.objectives
    import sctom.rewards
    import sctom.rollout

    names = {action.dest for action in parser._actions}
    names |= {name.split(".")[-1] for name in names}
    for module in (
        sctom.callbacks,
        sctom.data,
        sctom.modules,
        sctom.objectives,
        sctom.rewards,
        sctom.rollout,
    ):
        for cls in _classes(module):
            names.add(cls.__name__)
            names |= set(inspect.signature(cls).parameters)
    return names - {"args", "kwargs", "self"}


@dataclass(frozen=True)
class Reason:
    """One reason for which a value was refused."""

    text: str
    place: str = ""
    """Dotted name of the setting, where the parser knows it."""
    class_path: str = ""
    """The innermost class whose arguments were being read."""
    depth: int = 0

    def __str__(self) -> str:
        root = self.place.split(".")[0]
        told = not root or self.text.startswith(f"{root}.")
        return self.text if told else f"{self.place}: {self.text}"


def reasons(message: str) -> list[Reason]:
    """What is wrong, from the tree that jsonargparse prints.

    That tree has a branch for every type a value might have had. The deepest branches are those of
    the type that was meant; of equal ones the first stays.

    >>> told = '''Parser key "model":
    ...   Does not validate against any of the Union subtypes
    ...   Errors:
    ...     - Problem with given class_path 'sctom.modules.PolicyModule':
    ...         Parser key "group_size":
    ...           Expected a <class 'int'>. Got value: four
    ...     - Expected a <class 'NoneType'>'''
    >>> [str(reason) for reason in reasons(told)]
    ["model.group_size: Expected a <class 'int'>. Got value: four"]
    """
    found = list(_leaves(message))
    deepest = max((reason.depth for reason in found), default=0)
    kept = {(r.place, r.text): r for r in reversed(found) if r.depth == deepest}
    return list(reversed(kept.values()))


def _leaves(message: str) -> Iterator[Reason]:
    above: list[tuple[int, str, str]] = []  # indentation, key, class path
    for line in filter(str.strip, message.splitlines()):
        text = line.lstrip().removeprefix("- ")
        indent = len(line) - len(text)
        above = [entry for entry in above if entry[0] < indent]
        text = _CALLABLE.sub("", text)
        if key := _KEY.match(text):
            above.append((indent, key[1], ""))
            text = text[key.end() :]
        if not text:
            continue
        if given := _CLASS.fullmatch(text):
            above.append((indent, "", given[1]))
        elif not _NOISE.match(text):
            place = ".".join(key for _, key, _ in above if key)
            classes = [path for _, _, path in above if path]
            yield Reason(text, place, classes[-1] if classes else "", len(above))


def _imported(class_path: str) -> Any:
    """A class that the parser has imported already; None if there is none of that name."""
    module, _, name = class_path.rpartition(".")
    return getattr(sys.modules.get(module), name, None)


def _nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that begins with a name, if there is only one, or the most similar one."""
    folded = {candidate.lower(): candidate for candidate in sorted(candidates)}
    longer = [candidate for candidate in folded if candidate.startswith(name.lower())]
    if len(longer) != 1:
        longer = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.6)
    return folded[longer[0]] if longer else None


def _own(reason: Reason, options: set[str]) -> set[str]:
    """What may stand where an unknown name stood, if that is known."""
    cls = _imported(reason.class_path)
    if cls is None:
        return set() if reason.place else options
    return set(inspect.signature(cls).parameters) - {"args", "kwargs"}


def _unknown(name: str, own: set[str], known: set[str]) -> str:
    short = name.split(".")[-1]
    in_full = {option for option in known if "." in option and "." in name}
    near = _nearest(name, in_full) or _nearest(short, own)
    if near is None and short in known:
        return f"  '{short}' belongs to another class or place than this"
    near = near or _nearest(short, known)
    return f"  '{name}' is not known" + (f"; did you mean '{near}'?" if near else "")


def _subclasses(cls: type) -> list[str]:
    derived: list[type] = cls.__subclasses__()
    below = [name for subclass in derived for name in _subclasses(subclass)]
    return below if inspect.isabstract(cls) else [cls.__name__, *below]


def _advice(reason: Reason, known: set[str], options: set[str]) -> Iterator[str]:
    for pattern in _UNKNOWN:
        for name in pattern.findall(reason.text):
            yield _unknown(name, set() if "." in name else _own(reason, options), known)
    for name in _NO_CLASS.findall(reason.text):
        yield _unknown(name, set(), {other for other in known if other[:1].isupper()})
    for class_path, _ in _NOT_A_CLASS.findall(reason.text):
        cls = _imported(class_path)
        names = _subclasses(cls) if inspect.isabstract(cls) else []
        choice = f"one of {', '.join(sorted(names))}" if names else "a class of your own"
        yield f"  name its class first: --{reason.place} followed by {choice}"


def _annotated(name: str, wanted: inspect.Parameter) -> str:
    default = "" if wanted.default is wanted.empty else f" = {wanted.default}"
    return f"{name}: {wanted.annotation}{default}"


def _sampler_faults(cls: type) -> Iterator[str]:
    """How the method `sample` of a class differs from that of `sctom.rollout.Sampler`."""
    from sctom.rollout import Sampler

    method = inspect.getattr_static(cls, "sample", None)
    if not inspect.isfunction(method):
        yield "has no method 'sample'"
        return
    wanted, found = inspect.signature(Sampler.sample), inspect.signature(method).parameters
    lacking = [name for name in wanted.parameters if name not in found]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in found.values()):
        lacking = []
    for name in lacking:
        yield f"lacks the argument {_annotated(name, wanted.parameters[name])}"
    first = list(wanted.parameters)[1:3]
    if not lacking and list(found)[1:3] != first:
        yield f"must begin with (self, {', '.join(first)})"
    for name, parameter in found.items():
        expected = wanted.parameters.get(name)
        required = parameter.default is parameter.empty and "VAR" not in parameter.kind.name
        if required and (expected is None or expected.default is not expected.empty):
            yield f"needs a default for {name}, which it may be called without"
    yield from _annotation_faults(method, wanted)


def _annotation_faults(method: Any, wanted: inspect.Signature) -> Iterator[str]:
    from sctom.rollout import Sampler

    try:
        own = get_type_hints(method)
    except NameError as error:
        yield f"has an annotation that cannot be read: {error}"
        return
    parameters = inspect.signature(method).parameters
    texts = {name: str(parameter.annotation) for name, parameter in wanted.parameters.items()}
    texts["return"] = str(wanted.return_annotation)
    missing, other = [], []
    for name, expected in get_type_hints(Sampler.sample).items():
        if name != "return" and name not in parameters:
            continue
        told = f"-> {texts[name]}" if name == "return" else f"{name}: {texts[name]}"
        if name not in own:
            missing.append(told)
        elif own[name] != expected:
            other.append(told)
    if missing:
        yield f"lacks annotations: {', '.join(missing)}"
    if other:
        yield f"has other annotations than {', '.join(other)}"


def _about_sampler(message: str) -> Iterator[str]:
    """Why a class is refused as a sampler, and what its `sample` has to be."""
    if (refused := _NOT_A_SAMPLER.search(message)) is None:
        return
    path = refused["path"] or refused["value"]
    cls = _imported(path or "")
    if not inspect.isclass(cls):
        yield f"  {path} is not a class"
        return
    for fault in _sampler_faults(cls):
        yield f"  {path}{'' if fault.startswith('has no') else '.sample'} {fault}"
    yield "  docs/extending.md has a sampler to start from; the interface is sctom.rollout.Sampler"


def explain(message: str, known: set[str], options: Iterable[str] = ()) -> str:
    """The reasons in a message, each with its place, and the nearest name for every unknown one.

    Args:
        message: of the parser.
        known: every name a config may use.
        options: names that may stand at the top of a config.

    >>> explain("Option 'weight_mx' is not accepted", {"weight_max", "scale"}).splitlines()[-1]
    "  'weight_mx' is not known; did you mean 'weight_max'?"
    """
    found = reasons(message)
    for pattern in _LIKELY:
        found = [reason for reason in found if pattern.match(reason.text)] or found
    lines = [str(reason) for reason in found[:1]]
    for before, reason in pairwise(found):
        lines.append(str(reason) if reason.place != before.place else f"  {reason.text}")
    lines += [advice for reason in found for advice in _advice(reason, known, set(options))]
    lines += _about_sampler(message)
    if _INFINITE.search(message):
        lines.append("  a finite number is needed")
    return "\n".join(dict.fromkeys(lines)) or message.strip()


def _as_json(argument: str) -> str:
    """A nested option with its value as JSON where jsonargparse wrote it as Python.

    jsonargparse 4.53 hands `--a.b.c null` from class to class as `--b.c=None`, which is a word.

    >>> _as_json("--backbone.adapter=None"), _as_json("--rewards.names=['a', None]")
    ('--backbone.adapter=null', '--rewards.names=["a", null]')
    """
    option, equals, text = argument.partition("=")
    if text == "None":
        return f"{option}{equals}null"
    if text[:1] not in ("[", "{") or "None" not in text:
        return argument
    try:
        value = ast.literal_eval(text)
        return f"{option}{equals}{json.dumps(value, ensure_ascii=False)}"
    except (ValueError, SyntaxError, TypeError):
        return argument


class HintingParser(LightningArgumentParser):
    """A parser that names the nearest known key instead of printing its whole usage."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def parse_args(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        namespace: Namespace | None = None,
        env: bool | None = None,
        defaults: bool = True,
        **kwargs: Any,
    ) -> Namespace:
        """Parse the command line or, in the parser of a class, one option of it.

        `null` is null at every depth, also for a setting that is a text: no text can be that word
        here. In a class inside a class (`--model.backbone.adapter`), so is `None`.
        """
        if args is not None and not self.exit_on_error:
            args = [_as_json(argument) for argument in args]
        return super().parse_args(args, namespace, env, defaults, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print what is wrong and leave with exit code 2.

        The parser of a class raises instead, so that the one above it adds the place.
        """
        if not self.exit_on_error:
            raise ArgumentError(None, message) from ex
        self.refuse(message)

    def refuse(self, message: str) -> NoReturn:
        """Print what is wrong with the config, with hints, and leave with exit code 2."""
        options = {action.dest.split(".")[0] for action in self._actions}
        told = explain(message, known_names(self), options)
        print(f"error in the config: {told}", file=sys.stderr)
        print(_MORE, file=sys.stderr)
        sys.exit(2)
