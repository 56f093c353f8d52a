"""Functions as rewards, by their dotted path in a config."""

from __future__ import annotations

import importlib
import inspect
import math
import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, cast

from sctom.readers import nearest
from sctom.rewards import loop
from sctom.rewards.base import Reward, RewardError
from sctom.rewards.workers import importable, shared_workers

NOT_IN_A_WORKER = {"trainer_state", "log_extra", "log_metric"}


class FunctionReward(Reward):
    """A reward that is a function, written for TRL or for sctom.

    Args:
        path: "my_file.my_reward" or "package.module:my_reward"; or, outside a config, the function
            itself.
        arguments: for a factory such as TRL's get_cosine_scaled_reward: the reward is what the
            factory returns for these keyword arguments. None: `path` is the reward itself.
        concurrent: the function may be called from several threads at once.
        row_seconds: score each completion by a call of its own (every argument is a list of one),
            in a worker process that is killed after so many seconds; an error or a hang is then
            that of one completion. The function must be importable and has no `trainer_state`,
            `log_extra` or `log_metric` there. None: one call, here, without a limit.
        settings: `weight`, `name` (by default the last part of the path), `on_error` (with
            `row_seconds` by default "abstain"), `error_value`, `cache` and `clip` of `Reward`.

    Raises:
        RewardError: nothing callable is found, the factory does not take `arguments`, or the
            function cannot be called in a worker process.

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
        arguments: dict[str, Any] | None = None,
        concurrent: bool = False,
        row_seconds: float | None = None,
        **settings: Any,
    ) -> None:
        found = _find(path) if isinstance(path, str) else path
        place = path if isinstance(path, str) else _own_name(path)
        if row_seconds is not None:
            self.default_on_error = "abstain"
        self.name = re.split("[.:]", place)[-1]
        super().__init__(**settings)
        self.function = _prepared(found, arguments, place)
        self.concurrent = concurrent or row_seconds is not None
        self.row_seconds = row_seconds
        self.worker_path = place
        self.arguments = arguments
        if row_seconds is not None:
            self._check_rows(path)

    def _check_rows(self, path: str | Callable[..., Any]) -> None:
        about = f"reward {self.name!r}: row_seconds"
        if self.row_seconds is not None and not 0 < self.row_seconds < math.inf:
            raise RewardError(f"{about} must be a positive number, not {self.row_seconds}")
        try:
            self.worker_path = importable(path)
        except ValueError as error:
            raise RewardError(f"{about}: {error}") from error
        for name, parameter in self.signature().parameters.items():
            if name in NOT_IN_A_WORKER and parameter.default is parameter.empty:
                raise RewardError(f"{about} is set, so there is no {name!r} for the function")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns, for all completions or one by one."""
        if self.row_seconds is None:
            return self.function(*args, **kwargs)
        columns = {name: v for name, v in kwargs.items() if name not in NOT_IN_A_WORKER}
        rows = [
            (self.worker_path, self.arguments, {name: [v[i]] for name, v in columns.items()})
            for i in range(len(next(iter(columns.values()))))
        ]
        also = [self.worker_path]
        return shared_workers().map(score_row, rows, seconds=self.row_seconds, also=also)

    def signature(self) -> inspect.Signature:
        """The arguments of the function."""
        return inspect.signature(self.function)


_made: dict[tuple[str, str], Callable[..., Any]] = {}


def score_row(path: str, arguments: Mapping[str, Any] | None, columns: Mapping[str, Any]) -> Any:
    """The value of one completion, in a worker process.

    Args:
        path: "module:function".
        arguments: of the factory, or None.
        columns: keyword arguments of the call, each a list of one entry.
    """
    key = path, repr(arguments)
    if key not in _made:
        _made[key] = _prepared(_find(path), arguments, path)
    values = _made[key](**columns)
    if inspect.isawaitable(values):
        values = loop.start(values).result()
    if isinstance(values, (str, bytes, Mapping)) or len(values) != 1:
        raise RewardError(
            f"expected a list with one value for one completion, found {values!r:.60}"
        )
    return values[0]


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
