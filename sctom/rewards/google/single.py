"""One reward of a config, ready to be called: first parse, then score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sctom.rewards.base import RewardError
from sctom.rewards.google.autorater import AutoraterScorer
from sctom.rewards.google.cloud_run import CloudRunScorer
from sctom.rewards.google.code import CodeScorer
from sctom.rewards.google.example import Content, content_from_text, content_text
from sctom.rewards.google.match import StringMatchScorer
from sctom.rewards.google.outcome import Detail, Sample, ScoreError
from sctom.rewards.google.parse import Parser
from sctom.rewards.google.schema import Autorater, CodeExecution, Single, StringMatch, Weighted
from sctom.rewards.judge import Judge
from sctom.rewards.remote import Turns, address
from sctom.sandbox import Sandbox


@dataclass(frozen=True)
class Services:
    """What scorers work with; see `GoogleReward`."""

    judge: Judge | None
    judge_seconds: float | None
    sandbox: Sandbox
    escape_references: bool
    sandboxes: Turns
    """No more sandboxes at a time than there are processors."""
    retries: int
    job_id: int


class SingleReward:
    """A singleRewardConfig with its weight.

    Args:
        entry: what it says.
        services: what it works with.

    Raises:
        RewardError: it cannot work; the message begins with the path in the JSON.
    """

    def __init__(self, entry: Weighted, services: Services) -> None:
        self.name = entry.reward.name
        self.weight = entry.weight
        self._config = entry.reward.scorer
        self._sandbox = services.sandbox
        self._parser = Parser(entry.reward.parse)
        self._scorer = _scorer(entry.reward, services)
        self.keys = self._scorer.keys
        """The references that its templates use."""

    def check(self) -> None:
        """Look whether what it depends on is there.

        Raises:
            RewardError: it is not.
        """
        if isinstance(self._scorer, CodeScorer | AutoraterScorer):
            self._scorer.check()

    def about(self) -> str:
        """One line on how it scores."""
        config = self._config
        weight = f"weight {self.weight:g}"
        if isinstance(config, StringMatch):
            return f"{weight}, {config.operation} with {config.expression!r:.60}"
        if isinstance(config, Autorater):
            return f"{weight}, {config.samples} replies of the judge{_unused(config)}"
        if isinstance(config, CodeExecution):
            level = self._sandbox.check()
            limits = self._sandbox.limits
            allowed = f"{limits.seconds:g} s, {limits.memory_mib} MiB"
            return f"{weight}, code runs in the sandbox {level}; {allowed}"
        return f"{weight}, asks {address(config.uri)}"

    async def score(self, example: dict[str, Any], response: Content, step: int) -> Detail:
        """Parse a response, and score it."""
        text: str | None = content_text(response)
        try:
            if not self._parser.is_identity:
                text = self._parser(text or "")
                response = content_from_text(text or "", response.get("role", "model"))
            return await self._scorer.score(Sample(example, response, text, step))
        except ScoreError as error:
            return Detail(None, error.reason, error.debug or None)


def _unused(config: Autorater) -> str:
    """What the config says about Google's judge, which is another one here."""
    given = {"autoraterModel": config.model, "generationConfig": config.generation}
    names = [name for name, value in given.items() if value is not None]
    return f" (not used: {', '.join(names)}; the judge has settings of its own)" if names else ""


def _scorer(
    single: Single, services: Services
) -> StringMatchScorer | AutoraterScorer | CodeScorer | CloudRunScorer:
    config = single.scorer
    if isinstance(config, StringMatch):
        return StringMatchScorer(config, escape_references=services.escape_references)
    if isinstance(config, CodeExecution):
        return CodeScorer(
            config, services.sandbox, retries=services.retries, turns=services.sandboxes
        )
    if isinstance(config, Autorater):
        if services.judge is None:
            said = "an autorater needs a judge, and none is given; set judge"
            raise RewardError(f"{config.place}: {said}")
        return AutoraterScorer(config, services.judge, seconds=services.judge_seconds)
    return CloudRunScorer(config, job_id=services.job_id)
