"""What can be told about a run before it starts, and about its signal while it goes on.

Nothing here stops a run or changes it. A line has a number, its consequence and a remedy.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from sctom.batch import Prompt, Rollout
from sctom.modules.groups import silent_share
from sctom.rewards import Reward, RewardError
from sctom.tasks.selfaware import label_leaks

if TYPE_CHECKING:
    from sctom.modules.policy import PolicyModule

Columns = Mapping[str, Sequence[Any]]


def print_advice(module: PolicyModule, prompts: Sequence[Prompt]) -> list[str]:
    """Print, on the first process, what can be told before anything is sampled.

    Returns:
        The lines without their mark, the same on every process.
    """
    lines = advise(module, columns_of(prompts))
    if module.trainer.is_global_zero:
        for line in lines:
            print(f"advice: {line}", flush=True)
    return lines


def columns_of(prompts: Sequence[Prompt]) -> dict[str, list[Any]]:
    """The columns of the data, None where a prompt lacks one.

    >>> columns_of([Prompt(0, [1], [], {"answer": "a"}), Prompt(1, [1], [], {"limit": 3})])
    {'answer': ['a', None], 'limit': [None, 3]}
    """
    names = dict.fromkeys(name for prompt in prompts for name in prompt.columns)
    return {name: [prompt.columns.get(name) for prompt in prompts] for name in names}


def advise(module: PolicyModule, columns: Columns) -> list[str]:
    """All that can be told from the settings and the training data.

    A reward of weight 0 takes no part and one of a negative weight pursues the opposite, so neither
    is asked.

    Args:
        module: with its settings; no model is needed.
        columns: column of the training data -> one value for each prompt.
    """
    rewards = [reward for reward in module.rewards if reward.weight > 0]
    lines = [line for reward in rewards for line in _lines_of(reward, columns)]
    return [
        *lines,
        *leak_advice(rewards, columns),
        *pair_advice(module),
        *precision_advice(module),
    ]


def _lines_of(reward: Reward, columns: Columns) -> list[str]:
    """What a reward has to say.

    Raises:
        RewardError: it raised, or gave something else than a list of texts.
    """
    try:
        lines = reward.advice(columns)
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
        raise RewardError(f"reward {reward.name!r}: its advice raised {fault}") from error
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise RewardError(
            f"reward {reward.name!r}: its advice must be a list of texts, found {lines!r:.60}"
        )
    return lines


def leak_advice(rewards: Sequence[Reward], columns: Columns) -> list[str]:
    """Rows whose explicit label and pattern-derived label disagree.

    Only where a reward reads the derived one, and only rows that have both.
    """
    if not any("is_unanswerable" in reward.signature().parameters for reward in rewards):
        return []
    names = ("answerable", "is_unanswerable")
    if not columns.keys() >= set(names):
        return []
    rows = [
        {"row": number, **dict(zip(names, labels, strict=True))}
        for number, labels in enumerate(zip(*(columns[n] for n in names), strict=True))
        if all(isinstance(label, bool) for label in labels)
    ]
    leaks = label_leaks(rows)
    if not leaks:
        return []
    first = leaks[0]["row"]
    answers = columns.get("expected_answer")
    place = f"row {first + 1}" + (f", answer {answers[first]!r:.60}" if answers else "")
    return [
        f"label leak: in {len(leaks):,} of {len(rows):,} rows `answerable` and the wording of the "
        f"reference answer disagree (first: {place}), so the reward takes these questions for the "
        "other kind; word their answers with one of the 19 patterns, or use a reward that reads "
        "`answerable`"
    ]


def pair_advice(module: PolicyModule) -> list[str]:
    """Groups of two in which only the order of the rewards is left.

    Whether that is so is measured: two pairs of rewards, one four times as far apart as the other,
    must not become the same advantages.
    """
    if module.group_size != 2 or module.objective.rule == "gae":
        return []
    pairs = torch.tensor([[1.0, -1.0], [-0.5, -1.0]], dtype=torch.float64)
    (high, low), (nearer, _) = module.bound.advantages(pairs).tolist()
    if not math.isclose(high, nearer, rel_tol=0.01):
        return []
    remedy = "set group_size to 4 or more"
    if any(item.name == "scale" for item in dataclasses.fields(module.objective)):
        remedy += ", or objective.scale to none"
    return [
        f"group_size is 2: {type(module.objective).__name__} makes {high:+.2f} and {low:+.2f} of "
        "any two different rewards, so of rewards with more than two values only the order is "
        f"left; {remedy}"
    ]


def precision_advice(module: PolicyModule) -> list[str]:
    """All weights trained in half precision, where most updates are below its resolution."""
    backbone = module.backbone
    if backbone.dtype == "float32" or backbone.lora_rank or backbone.adapter is not None:
        return []
    steps = {"bfloat16": 2**-8, "float16": 2**-11}
    return [
        f"all weights are trained in {backbone.dtype}, in which a weight moves by "
        f"{steps[backbone.dtype]:.2%} of itself or not at all, so small updates are lost; set "
        "backbone.lora_rank to 16 (adapters are kept in float32), or backbone.dtype to float32"
    ]


class RewardWatch:
    """Says once when iterations spend much of their time waiting for rewards.

    Args:
        window: iterations looked at together.
        limit: share of the time above which it speaks.

    >>> watch = RewardWatch(window=2)
    >>> watch.see(1.0, 1.5) is None
    True
    >>> watch.see(1.0, 1.5)[:62]
    'rewards: the last 2 iterations waited 67% of their time for re'
    >>> watch.see(1.0, 1.5) is None
    True
    """

    def __init__(self, window: int = 3, limit: float = 0.25) -> None:
        self.limit = limit
        self.waits: deque[tuple[float, float]] = deque(maxlen=window)
        self.told = False

    def tell(self, module: PolicyModule, metrics: dict[str, float]) -> None:
        """Take the times of one iteration, and print the line on the first process."""
        line = self.see(metrics["time/reward"], metrics["step_time"])
        if line is not None and module.overlap_rewards and module.trainer.is_global_zero:
            print(f"advice: {line}", flush=True)

    def see(self, waited: float, whole: float) -> str | None:
        """Take the seconds that one iteration waited for rewards, and those of all of it."""
        self.waits.append((waited, whole))
        waited, whole = (sum(column) for column in zip(*self.waits, strict=True))
        if self.told or len(self.waits) != self.waits.maxlen or waited <= self.limit * whole:
            return None
        self.told = True
        return (
            f"rewards: the last {len(self.waits)} iterations waited {waited / whole:.0%} of their "
            "time for rewards, which are called once for each prompt, one call after the other; "
            "make slow ones async or concurrent: true, or set model.overlap_rewards to false to "
            "score a whole iteration in one call"
        )


class SignalWatch:
    """Says once when most groups of the last iterations taught nothing: all advantages were 0.

    It keeps no more than a window of numbers that the run logs anyway, draws nothing and changes
    nothing. It is in no checkpoint: after a resume the window starts anew, so the line comes, or
    comes again, at the earliest a whole window later.

    Args:
        window: iterations looked at together.
        limit: share of groups without signal above which it speaks.

    Raises:
        ValueError: a window below 1, or a limit that is not from 0 to 1.

    >>> watch = SignalWatch(window=2, limit=0.8)
    >>> watch.see(1.0) is None, watch.see(0.5) is None, watch.see(1.0) is None
    (True, True, True)
    >>> watch.see(1.0)[:61]
    'no signal: 100% of the groups of the last 2 iterations taught'
    >>> watch.see(1.0) is None
    True
    """

    def __init__(self, window: int = 10, limit: float = 0.8) -> None:
        if window < 1:
            raise ValueError(f"window must be at least 1 iteration but is {window}")
        if not 0.0 <= limit <= 1.0:
            raise ValueError(f"limit must be a share from 0 to 1 but is {limit}")
        self.limit = limit
        self.shares: deque[float] = deque(maxlen=window)
        self.told = False

    def tell(self, module: PolicyModule, share: float) -> None:
        """Take the share of one iteration, and print the line on the first process."""
        line = self.see(share)
        if line is not None and module.trainer.is_global_zero:
            print(f"advice: {line}; {_signal_remedies(module)}", flush=True)

    def see(self, share: float) -> str | None:
        """Take the share of the groups of one iteration that taught nothing.

        Returns:
            The line, once, when the mean over a full window is above the limit.
        """
        self.shares.append(share)
        window = self.shares.maxlen
        if self.told or len(self.shares) != window or not fmean(self.shares) > self.limit:
            return None
        self.told = True
        return (
            f"no signal: {fmean(self.shares):.0%} of the groups of the last {window} iterations "
            "taught nothing, as no completion in them was better than another "
            "(frac_groups_all_best and frac_groups_all_worst tell whether the questions are too "
            "easy or too hard)"
        )


def _signal_remedies(module: PolicyModule) -> str:
    """What may help, of the settings that are not set."""
    order = module.trainer.datamodule.order  # type: ignore[attr-defined]
    remedies = [
        *(["zero_variance: resample"] if module.zero_variance != "resample" else []),
        *(["data.order: SolveRate"] if not order.watches else []),
        "a larger group_size",
        "a higher sampling.temperature",
    ]
    return "set " + ", ".join(remedies[:-1]) + " or " + remedies[-1]


class Watches:
    """What looks at every iteration of a run and speaks up once."""

    def __init__(self) -> None:
        self.signal = SignalWatch()
        self.rewards = RewardWatch()

    def tell(self, module: PolicyModule, rollout: Rollout, metrics: dict[str, float]) -> None:
        """Show them one iteration."""
        self.signal.tell(module, silent_share(rollout.groups()))
        self.rewards.tell(module, metrics)
