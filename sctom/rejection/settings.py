"""The settings of rejection sampling, and what can be refused before any weight is loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from sctom.checks import check_numbers
from sctom.data.prompts import Columns
from sctom.modules import Backbone
from sctom.rejection.select import BestOf, Select
from sctom.rewards import Reward
from sctom.rollout import Sampling


@dataclass(frozen=True)
class SampleSettings:
    """What is sampled, how it is scored, and what is kept.

    Args:
        backbone: the model that answers.
        prompts: JSONL file in the messages format ("sctom:..." for one that sctom ships).
        rewards: their weighted sum is what a sample is chosen by.
        select: the rule: `BestOf`, `TopFraction` or `Above`.
        samples: completions of each prompt at each temperature.
        temperatures: of the completions; more than one shows which is best for the best of n.
        sampling: how they are drawn, but for the temperature.
        columns: "plain" or "selfaware", see `PromptData`.
        system: replaces the system message of every prompt; null leaves it alone.
        preprompt: text that the model sees before the prompt, as its system message or in front of
            it, and that is not written to what is learned from; null: none.
        limit: only the first so many prompts; null for all.
        max_prompt_tokens: a longer prompt is an error that names it.
        keep_truncated: allow completions that max_new_tokens cut off: learned from, they would
            teach to stop anywhere.
        chunk: prompts sampled, scored and written at a time. Changes memory, not results.
        run_dir: folder for everything that is written.
        seed: first part of the address of every draw.
    """

    backbone: Backbone
    prompts: str
    rewards: list[Reward]
    select: Select = BestOf()  # noqa: RUF009  frozen
    samples: int = 16
    temperatures: list[float] = field(default_factory=lambda: [1.0])
    sampling: Sampling = Sampling()  # noqa: RUF009  frozen
    columns: Columns = "plain"
    system: str | None = None
    preprompt: str | None = None
    limit: int | None = None
    max_prompt_tokens: int = 1024
    keep_truncated: bool = False
    chunk: int = 64
    run_dir: str = "runs/sample"
    seed: int = 0

    @property
    def per_prompt(self) -> int:
        """Completions of each prompt, K."""
        return self.samples * len(self.temperatures)


def check_settings(settings: SampleSettings) -> None:
    """Refuse settings that cannot mean what they say.

    Raises:
        ValueError: naming the setting, what was expected and what was found.
    """
    least_one = ("at least 1", 1, math.inf)
    numbers = {name: (getattr(settings, name), *least_one) for name in ("samples", "chunk")}
    numbers["max_prompt_tokens"] = (settings.max_prompt_tokens, *least_one)
    numbers["seed"] = (settings.seed, "from 0 to 2**62", 0, 2**62)
    if settings.limit is not None:
        numbers["limit"] = (settings.limit, "null or at least 1", 1, math.inf)
    check_numbers("sampling run", numbers)
    temperatures = settings.temperatures
    if not temperatures or len(set(temperatures)) < len(temperatures):
        raise ValueError(
            f"temperatures must be different numbers, at least one, not {temperatures}"
        )
    if not all(0 < temperature < math.inf for temperature in temperatures):
        raise ValueError(
            f"temperatures must be above 0 and finite, but are {temperatures}: at 0 all samples of "
            "a prompt are equal"
        )
    if settings.sampling.temperature != 1.0:
        raise ValueError(
            f"sampling.temperature is {settings.sampling.temperature}; set temperatures to "
            f"[{settings.sampling.temperature}] instead, and leave it out here"
        )
    if isinstance(settings.select, BestOf) and settings.select.count >= settings.per_prompt:
        raise ValueError(
            f"select keeps the best {settings.select.count} of {settings.per_prompt} completions "
            "of a prompt, which is all of them; raise samples, or lower select.count"
        )
    if not any(reward.weight for reward in settings.rewards):
        raise ValueError("there is no reward with a weight, so nothing to choose by; name one")
