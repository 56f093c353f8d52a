"""Functions as rewards, by their dotted path in a config."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, cast

from sctom.readers import nearest
from sctom.rewards.base import Reward, RewardError


class FunctionReward(Reward):
    """A reward that is a function, written for TRL or for sctom.

    Args:
        path: "my_file.my_reward" or "package.module:my_reward"; or, outside a config, the function
            itself.
        weight: factor in the weighted sum.
        arguments: for a factory such as TRL's get_cosine_scaled_reward: the reward is what the
            factory returns for these keyword arguments. None: `path` is the reward itself.
        name: metric key; by default the last part of the path.
        concurrent: the function may be called from several threads at once.

    Raises:
        RewardError: nothing callable is found, or the factory does not take `arguments`.

    >>> FunctionReward("sctom.rewards.selfaware.selfaware_reward_func").name
    'selfaware_reward_func'
    >>> FunctionReward("sctom.rewards.selfaware:selfaware_reward")
    Traceback (most recent call last):
        ...
    sctom.rewards.base.RewardError: 'sctom.rewards.selfaware:selfaware_reward': the module \
sctom.rewards.selfaware has no 'selfaware_reward'. Did you mean 'selfaware_reward_func'?
    """

    def __init__(
        self,
        path: str | Callable[..., Any],
        *,
        weight: float = 1.0,
        arguments: dict[str, Any] | None = None,
        name: str | None = None,
        concurrent: bool = False,
    ) -> None:
        found = _find(path) if isinstance(path, str) else path
        place = path if isinstance(path, str) else _own_name(path)
        super().__init__(weight=weight, name=name or re.split("[.:]", place)[-1])
        self.function = _prepared(found, arguments, place)
        self.concurrent = concurrent

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns."""
        return self.function(*args, **kwargs)

    def signature(self) -> inspect.Signature:
        """The arguments of the function."""
        return inspect.signature(self.function)


def _own_name(function: Callable[..., Any]) -> str:
    return function.__name__ if inspect.isroutine(function) else type(function).__name__


def _prepared(found: Any, arguments: Mapping[str, Any] | None, place: str) -> Callable[..., Any]:
    """The reward function: what was found, or what that makes of `arguments`."""
    if arguments is None and inspect.isclass(found):
        hint = "to make an object of it give `arguments`, {} if it takes none"
        if issubclass(found, Reward):
            hint = "it is a Reward already, so name it as the class_path itself"
        raise RewardError(f"{place!r} is a class, not a function; {hint}")
    function: Any = found if arguments is None else _make(found, arguments, place)
    if not callable(function):
        raise RewardError(f"{place!r} must give a function but gives {function!r}")
    return cast(Callable[..., Any], function)


def _make(factory: Any, arguments: Mapping[str, Any], place: str) -> Any:
    if not callable(factory):
        raise RewardError(f"{place!r} has `arguments`, so must be a function; found {factory!r}")
    signature = inspect.signature(factory)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise RewardError(f"{place}{signature} does not take these `arguments`: {error}") from error
    return factory(**arguments)


def _find(path: str) -> Any:
    """What a dotted path names."""
    module_name, _, attribute = path.rpartition(":" if ":" in path else ".")
    if not module_name or not attribute:
        expected = "expected 'package.module.function' or 'package.module:function'"
        raise RewardError(f"cannot find a reward function at {path!r}; {expected}")
    module = _module(module_name, path)
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        public = [name for name in dir(module) if not name.startswith("_")]
        hint = nearest(attribute, public) or f" It has: {', '.join(public) or 'nothing public'}."
        message = f"{path!r}: the module {module_name} has no {attribute!r}.{hint}"
        raise RewardError(message) from error


def _module(name: str, path: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise RewardError(f"{path!r}: importing {name} failed: {error}") from error
        folder = f"the folder that holds {name.partition('.')[0]}"
        hint = f"start from {folder}, add that folder to PYTHONPATH, or install its package"
        raise RewardError(f"{path!r}: there is no module named {error.name!r}; {hint}") from error
