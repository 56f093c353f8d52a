"""The scores that a reward model gives to the answers of pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from sctom.batch import Prompt, Row, micro_batches
from sctom.data.pairs import TokenPair, render_pair
from sctom.data.template import check_length
from sctom.modules.reward_head import RewardModel
from sctom.modules.reward_metrics import ScoredPair, check_finite
from sctom.preferences import Pair

Progress = Callable[[int, int], object]
"""Called with the answers scored so far, and all there are."""


def score_pairs(
    model: RewardModel,
    tokenizer: Any,
    pairs: Sequence[Pair],
    *,
    batch_tokens: int = 8192,
    max_tokens: int | None = None,
    place: str = "pairs",
    progress: Progress = lambda done, answers: None,
) -> list[ScoredPair]:
    """Score the answers of pairs, in the order of the pairs.

    Each distinct answer to a prompt is scored once, however many pairs it is in, and the prompt is
    run once for those that are scored together. Prompts come longest first, so that memory runs out
    at once or not at all.

    Args:
        model: in the mode (`eval`) that is wanted, on its device.
        tokenizer: the model's, with a chat template.
        pairs: as `sctom.preferences.read_preferences` gives them.
        batch_tokens: most tokens of one forward pass; a single answer may have more.
        max_tokens: a prompt with an answer that is longer is an error, for nothing is ever cut;
            None takes the most that the model was made for.
        place: where the pairs are from, such as the name of a file; errors add the line.
        progress: see `Progress`.

    Raises:
        ValueError: a pair is too long or cannot be rendered, or a score is not finite.
    """
    limit = max_tokens or model.most_tokens
    rendered = [_render(tokenizer, pair, limit, f"{place}:{i}") for i, pair in enumerate(pairs, 1)]
    rows: dict[tuple[str, tuple[int, ...]], Row] = {}
    prompts: dict[str, Prompt] = {}
    for pair in rendered:
        prompt = prompts.setdefault(pair.prompt_key, Prompt(len(prompts), pair.prompt, []))
        for ids in (pair.chosen, pair.rejected):
            row = Row(prompt, len(rows), ids, text="", truncated=False)
            rows.setdefault((pair.prompt_key, tuple(ids)), row)
    scores = _scores(model, list(rows.values()), batch_tokens, progress)
    scored = []
    for pair in rendered:
        chosen, rejected = (
            scores[rows[pair.prompt_key, tuple(ids)].sample] for ids in (pair.chosen, pair.rejected)
        )
        scored.append(ScoredPair.of(pair, chosen, rejected))
        check_finite(scored[-1], pair.place)
    return scored


def _render(tokenizer: Any, pair: Pair, limit: int | None, place: str) -> TokenPair:
    made = render_pair(tokenizer, pair, margin=0.0, place=place)
    if limit is not None:
        for name, answer in (("chosen", made.chosen), ("rejected", made.rejected)):
            check_length([*made.prompt, *answer], limit, place=f"{place}: prompt and {name}")
    return made


@torch.no_grad()
def _scores(
    model: RewardModel, rows: list[Row], batch_tokens: int, progress: Progress
) -> dict[int, float]:
    """The raw score of each row, by its `sample`."""
    scores: dict[int, float] = {}
    for part in micro_batches(rows, max(len(rows), 1), batch_tokens):
        found = model.scores([(row.prompt.ids, row.ids) for row in part]).tolist()
        scores |= zip((row.sample for row in part), found, strict=True)
        progress(len(scores), len(rows))
    return scores
