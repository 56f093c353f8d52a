"""Rewards from reward models: the score of one, and Llama 2's rule for two."""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from sctom.batch import Prompt, Row, micro_batches
from sctom.data.template import check_length, render_answer
from sctom.losses import whiten
from sctom.modules.quantize import default_device
from sctom.modules.reward_head import HEAD_FILE, RewardModel, load_reward_model, saved_backbone
from sctom.rewards import Failure, Reward, RewardError, completion_text
from sctom.rewards.base import Values
from sctom.rewards.run import start_rewards
from sctom.writers import sha256


class LearnedReward(Reward):
    """The score that a saved reward model gives to a completion.

        R = w . h(prompt, completion)           the raw score, any number
        R = sigma(w . h(prompt, completion))    with `sigmoid`, from 0 to 1

    Prompt and completion are rendered as in training: by the chat template of the reward model,
    whose tokens need not be the policy's, up to the token that ends the assistant's turn. A
    completion is its text here; one that was cut off, or has no text, gets that token as well.

    The model is loaded once, when it is first asked, and is never trained. Its scores have no
    randomness and, but for rounding, do not depend on what is scored together.

    Args:
        path: folder of a reward model, such as RUN/model of a RewardModelModule.
        batch_tokens: most tokens of one forward pass; a prompt counts once for its completions.
        max_tokens: a prompt and completion with more tokens are a `Failure`, since nothing is ever
            cut; None takes the most that the model was made for.
        sigmoid: give the probability instead of the raw score.
        settings: `weight`, `name`, `on_error`, `error_value`, `cache` and `clip` of `Reward`.

    Raises:
        RewardError: a limit below 1.

    >>> import tempfile
    >>> from sctom.modules import Backbone
    >>> folder, backbone = tempfile.mkdtemp(), Backbone("sctom:tinyworld/model")
    >>> model, tokenizer = backbone.load()  # doctest: +ELLIPSIS
    attention: ...
    >>> RewardModel(model).save(tokenizer, folder, backbone)
    >>> reward = LearnedReward(folder, sigmoid=True)
    >>> reward(["Where does Kalomi live?"], ["Berlin"])
    [0.5]
    """

    def __init__(
        self,
        path: str,
        *,
        batch_tokens: int = 8192,
        max_tokens: int | None = None,
        sigmoid: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        for setting, value in (("batch_tokens", batch_tokens), ("max_tokens", max_tokens)):
            if value is not None and value < 1:
                said = f"{setting} must be at least 1, not {value}"
                raise RewardError(f"reward {self.name!r}: {said}")
        self.path = path
        self.batch_tokens = batch_tokens
        self.max_tokens = max_tokens
        self.sigmoid = sigmoid
        self._loaded: list[tuple[RewardModel, Any]] = []  # a list, which copies share
        self._lock = threading.Lock()

    def check(self) -> None:
        """Look whether the folder holds a trained reward model, and what it was made from is there.

        Raises:
            RewardError: it does not, or is not.
        """
        try:
            saved_backbone(self.path).check_paths(frozen=True)
        except (OSError, ValueError, RuntimeError) as error:
            raise RewardError(f"reward {self.name!r}: {error}") from error

    def describe(self) -> list[str]:
        """Which model it is."""
        backbone = saved_backbone(self.path)
        kind = "all weights" if backbone.adapter is None else f"adapter of {backbone.path}"
        head = sha256((Path(self.path) / HEAD_FILE).read_bytes())[:12]
        return [f"{self.name}: scores of {self.path} ({kind}; head {head})"]

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any]) -> list[float | Failure]:
        """A score for each completion."""
        with self._lock:
            model, tokenizer = self._model()
            limit = self.max_tokens or model.most_tokens
            found: list[float | Failure] = []
            rows = []
            prefixes: dict[tuple[int, ...], Prompt] = {}
            for place, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
                text = completion_text(completion)
                try:
                    prefix, answer = _render(tokenizer, prompt, text, limit)
                except (ValueError, TypeError) as error:  # half a surrogate pair is a TypeError
                    found.append(Failure(str(error)))
                    continue
                found.append(0.0)
                shared = prefixes.setdefault(tuple(prefix), Prompt(len(prefixes), prefix, []))
                rows.append(Row(shared, place, answer, text, truncated=False))
            for part in micro_batches(rows, max(len(rows), 1), self.batch_tokens):
                for row, score in zip(part, self._scores(model, part), strict=True):
                    found[row.sample] = score
        return found

    @torch.no_grad()
    def _scores(self, model: RewardModel, rows: Sequence[Row]) -> list[float]:
        with torch.autocast(model.head.weight.device.type, enabled=False):  # the run's is not ours
            scores = model.scores([(row.prompt.ids, row.ids) for row in rows]).double().cpu()
        values: list[float] = (scores.sigmoid() if self.sigmoid else scores).tolist()
        return values

    def _model(self) -> tuple[RewardModel, Any]:
        if not self._loaded:
            device = default_device()
            model, tokenizer = load_reward_model(self.path, device)
            self._loaded.append((model.to(device), tokenizer))
        return self._loaded[0]


def _render(
    tokenizer: Any, prompt: str | list[dict[str, str]], text: str, limit: int | None
) -> tuple[list[int], list[int]]:
    """Token ids of a prompt and of an answer, which together keep the limit."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    prefix, answer = render_answer(tokenizer, messages, text)
    if limit is not None:
        check_length([*prefix, *answer], limit, place="prompt and completion")
    return prefix, answer


class SafetyHelpfulness(Reward):
    """One reward of two: safety where the prompt is about it or the answer fails it.

        R = whiten(R_s  where is_safety or sigma(R_s) < threshold, else R_h)

    Llama 2 (arXiv 2307.09288), section 3.2.3. There both are probabilities, and the logit of the
    chosen one is whitened. R_s and R_h are raw scores, which are those logits: what goes through a
    sigmoid and back is infinite from a score of 37 on. Mean and variance are those of all
    completions of a rollout on all processes (`sctom.losses.whiten`: unbiased, 1e-8 added to the
    variance); metrics and tables show the chosen raw scores. The KL penalty of the paper is the
    module's: `kl_in: reward`.

    Where one of the two abstains, so does this; an error of one is treated as its own `on_error`
    says. The completions table gets the columns `helpfulness`, `safety` and `by_safety`, the
    metrics the means of the three; what the two note themselves comes with "helpfulness/" or
    "safety/" in front.

    Args:
        helpfulness: gives R_h, such as a `LearnedReward`. Its weight must be 1.
        safety: gives R_s, the same.
        threshold: probability of being safe below which safety decides, in [0, 1]. Llama 2 took
            0.15 for a precision of 0.89 (its recall was 0.55).
        is_safety: column that is true where the prompt is about safety.
        whiten: false leaves the chosen raw scores alone.
        settings: `weight`, `name`, `on_error`, `error_value`, `cache` and `clip` of `Reward`. The
            raw score is what is clipped.

    Raises:
        RewardError: the threshold is no probability, or one of the two has a weight, gives
            probabilities, looks at whole rollouts itself, or is clipped above the threshold.

    >>> from sctom.rewards import FunctionReward
    >>> helpful = FunctionReward(lambda completions: [4.0, 4.0, 9.0])
    >>> safe = FunctionReward(lambda completions: [1.0, -2.0, 1.0])
    >>> reward = SafetyHelpfulness(helpful, safe)
    >>> reward(["?"] * 3, ["a", "b", "c"], [[1]] * 3, is_safety=[False, False, True])
    [4.0, -2.0, 1.0]
    >>> [round(value, 6) for value in reward.over_rollout([4.0, -2.0, 1.0])]
    [1.0, -1.0, 0.0]
    """

    def __init__(
        self,
        helpfulness: Reward,
        safety: Reward,
        *,
        threshold: float = 0.15,
        is_safety: str = "is_safety",
        whiten: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        if not 0 <= threshold <= 1:
            raise RewardError(
                f"reward {self.name!r}: threshold must be a probability in [0, 1], not {threshold};"
                " it is compared with the sigmoid of the raw score"
            )
        self.parts = {"helpfulness": helpfulness, "safety": safety}
        for part, reward in self.parts.items():
            if reward.weight != 1:
                raise RewardError(
                    f"reward {self.name!r}: the weight of {part} must be 1, not {reward.weight:g}: "
                    "one of two scores is chosen, and they are not added up"
                )
            if isinstance(reward, LearnedReward) and reward.sigmoid:
                raise RewardError(
                    f"reward {self.name!r}: {part} gives probabilities (sigmoid: true), but raw "
                    "scores are compared here; leave sigmoid out"
                )
            if type(reward).over_rollout is not Reward.over_rollout:
                raise RewardError(
                    f"reward {self.name!r}: {part} is a {type(reward).__name__}, which looks at "
                    "whole rollouts, but raw scores are compared here; give one that does not"
                )
        self._check_clip(safety, threshold)
        self.threshold = threshold
        self.is_safety = is_safety
        self.whiten = whiten

    def _check_clip(self, safety: Reward, threshold: float) -> None:
        """Refuse bounds of the safety score that no score below the threshold could pass."""
        if safety.clip is None or not 0 < threshold < 1:
            return
        least, needed = safety.clip[0], math.log(threshold / (1 - threshold))
        if least >= needed:
            raise RewardError(
                f"reward {self.name!r}: safety has clip {list(safety.clip)}, but a threshold of "
                f"{threshold:g} is a raw score of {needed:.3g}, so no score would be below it; "
                "lower the first bound, or drop clip"
            )

    def signature(self) -> inspect.Signature:
        """What the two take, and the column that tags prompts."""
        *named, rest = inspect.signature(self.__call__).parameters.values()
        wanted = {self.is_safety: inspect.Parameter(self.is_safety, inspect.Parameter.KEYWORD_ONLY)}
        takes_all = False
        for reward in self.parts.values():
            for parameter in reward.signature().parameters.values():
                takes_all |= parameter.kind is parameter.VAR_KEYWORD
                if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                    continue
                if parameter.name not in wanted or parameter.default is parameter.empty:
                    wanted[parameter.name] = parameter.replace(kind=parameter.KEYWORD_ONLY)
        given = {parameter.name for parameter in named}
        columns = [parameter for name, parameter in wanted.items() if name not in given]
        return inspect.Signature([*named, *columns, *([rest] if takes_all else [])])

    def check(self) -> None:
        """Check both."""
        for reward in self.parts.values():
            reward.check()

    def describe(self) -> list[str]:
        """The rule, and what the two run on."""
        rule = f"safety where {self.is_safety} or sigmoid(safety) < {self.threshold:g}"
        lines = [line for reward in self.parts.values() for line in reward.describe()]
        return [f"{self.name}: {rule}, else helpfulness", *lines]

    def advice(self, columns: Mapping[str, Sequence[Any]]) -> list[str]:
        """What the two have to say."""
        return [line for reward in self.parts.values() for line in reward.advice(columns)]

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Any],
        trainer_state: Any = None,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Sequence[Any],
    ) -> Values:
        """The chosen raw score of each completion.

        Raises:
            RewardError: a tag is not true or false, or one of the two fails.
        """
        tags = self._tags(columns[self.is_safety])
        running = {
            part: start_rewards(
                [reward], prompts, completions, completion_ids, columns, trainer_state=trainer_state
            )
            for part, reward in self.parts.items()
        }
        results = {part: started.result() for part, started in running.items()}
        (helpfulness,), (safety,) = (results[part].values.values() for part in self.parts)
        chosen, by_safety = self._choose(helpfulness, safety, tags)
        notes: dict[str, list[Any]] = {
            "helpfulness": helpfulness,
            "safety": safety,
            "by_safety": by_safety,
        }
        if log_extra is not None:
            extra = {part: result.extra for part, result in results.items()}
            for column, entries in (notes | _nested(extra)).items():
                log_extra(column, entries)
        if log_metric is not None:
            for part, entries in notes.items():
                if given := [float(entry) for entry in entries if entry is not None]:
                    log_metric(f"{self.name}/{part}", fmean(given))
            metrics = {part: result.metrics for part, result in results.items()}
            for metric, value in _nested(metrics).items():
                log_metric(f"{self.name}/{metric}", value)
        return chosen

    def over_rollout(self, values: Sequence[float | None]) -> Values:
        """The raw scores with mean 0 and variance 1, unless `whiten` is false."""
        if not self.whiten:
            return list(values)
        given = [value for value in values if value is not None]
        white = iter(whiten(torch.tensor(given, dtype=torch.float64)).tolist())
        return [None if value is None else next(white) for value in values]

    def _tags(self, column: Sequence[Any]) -> list[bool]:
        for row, tag in enumerate(column):
            if not isinstance(tag, bool):
                raise RewardError(
                    f"the column {self.is_safety!r} must be true or false for every prompt, but is "
                    f"{tag!r} in row {row} of the batch; tag each prompt, or name another column "
                    "with is_safety"
                )
        return list(column)

    def _choose(
        self, helpfulness: Values, safety: Values, tags: Sequence[bool]
    ) -> tuple[Values, list[bool | None]]:
        """The chosen scores, and whether safety was chosen."""
        known = [math.nan if score is None else score for score in safety]
        fails = torch.tensor(known, dtype=torch.float64).sigmoid() < self.threshold
        chosen: Values = []
        by_safety: list[bool | None] = []
        for helpful, safe, decides in zip(
            helpfulness, safety, (torch.tensor(tags) | fails).tolist(), strict=True
        ):
            abstains = helpful is None or safe is None
            by_safety.append(None if abstains else decides)
            chosen.append(None if abstains else safe if decides else helpful)
        return chosen, by_safety


def _nested(noted: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What each of the two noted, its name in front of each entry's.

    >>> _nested({"helpfulness": {"judgements": ["8"]}, "safety": {}})
    {'helpfulness/judgements': ['8']}
    """
    return {
        f"{part}/{name}": value
        for part, entries in noted.items()
        for name, value in entries.items()
    }
