"""The request of validateReinforcementTuningReward, answered here in the shape of its response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sctom.readers import DataError
from sctom.rewards.base import RewardError
from sctom.rewards.google.example import read_content, read_example
from sctom.rewards.google.fields import Fields
from sctom.rewards.google.outcome import Detail
from sctom.rewards.google.reward import GoogleReward
from sctom.rewards.judge import Judge
from sctom.sandbox import Sandbox

_INVALID_ARGUMENT = 3
_INTERNAL = 13
_CONFIGS = ("singleRewardConfig", "compositeRewardConfig")


def answer(
    request: Mapping[str, Any],
    *,
    judge: Judge | None = None,
    sandbox: Sandbox | None = None,
    escape_references: bool = True,
    retries: int = 3,
    job_id: int = 0,
) -> dict[str, Any]:
    """Score the sample response of a request, as the service would.

    Args:
        request: {"sampleResponse", "example", and "singleRewardConfig" or "compositeRewardConfig"};
            keys in camelCase or snake_case.
        judge: see `GoogleReward`, and so for the others.
        sandbox: where code runs.
        escape_references: whether references in patterns stand for their characters.
        retries: of code that is too slow.
        job_id: what a service is told.

    Returns:
        overallReward, where there is one; rewardInfoDetails, reward -> reward or errorStatus, and
        userRequestedAuxInfo where it has something to say; errorStatus {code, message, details}
        where the request is wrong (code 3) or a reward failed (13).

    >>> answer({"example": {"contents": [{"parts": [{"text": "2 + 2?"}]}]},
    ...         "sampleResponse": {"parts": [{"text": "4"}]}, "singleRewardConfig": {
    ...             "rewardName": "sum", "stringMatchRewardScorer": {
    ...                 "correctAnswerReward": 1, "stringMatchExpression": {
    ...                     "matchOperation": "EXACT_MATCH", "expression": "4"}}}})
    {'overallReward': 1.0, 'rewardInfoDetails': {'sum': {'reward': 1.0}}}
    """
    try:
        fields = Fields(request, "", ("sampleResponse", "example", *_CONFIGS))
        chosen = fields.one_of(_CONFIGS)
        response = read_content(fields.raw("sampleResponse"), fields.at("sampleResponse"))
        example = read_example(fields.raw("example"), fields.at("example"))
        reward = GoogleReward(
            {fields.at(chosen): fields.raw(chosen)},
            judge=judge,
            sandbox=sandbox,
            escape_references=escape_references,
            retries=retries,
            job_id=job_id,
        )
        reward.check()
    except (DataError, RewardError) as error:
        return {"errorStatus": _status(_INVALID_ARGUMENT, str(error))}
    total, details = reward.score(example, response)
    answered: dict[str, Any] = {} if total is None else {"overallReward": total}
    answered["rewardInfoDetails"] = {name: _info(detail) for name, detail in details.items()}
    failed = [name for name, detail in details.items() if detail.reward is None]
    if total is None:
        said = f"no reward, because of: {', '.join(failed)}"
        answered["errorStatus"] = _status(_INTERNAL, said)
    return answered


def _info(detail: Detail) -> dict[str, Any]:
    info: dict[str, Any] = {}
    if detail.reward is not None:
        info["reward"] = detail.reward
    if detail.error is not None:
        info["errorStatus"] = _status(_INTERNAL, detail.error)
    if detail.aux is not None:
        info["userRequestedAuxInfo"] = detail.aux
    return info


def _status(code: int, message: str) -> dict[str, Any]:
    return {"code": code, "message": message, "details": []}
