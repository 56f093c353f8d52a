"""How many groups can teach a model anything, under a config's prompt and under the data's own?

    python scripts/prompt_signal.py --config configs/selfaware_smollm2.yaml [--prompts 20]

A group of equal rewards has no advantage and no gradient. Samples the same questions with the
system message and shots of the config and without them, and prints the share of groups with signal
and what the completions did. Needs SelfAware's columns. Further options are those of sctom.fit.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence

import torch

from sctom.batch import Row
from sctom.data import PromptData
from sctom.fit import build, quiet
from sctom.modules import PolicyModule
from sctom.modules.policy import TRAIN
from sctom.rewards.selfaware import outcome
from sctom.seeds import permutation

HEAD = ("prompt", "groups with signal", "answerable", "unanswerable", "mean length")
KINDS = {False: ("correct", "abstained", "wrong"), True: ("abstained", "wrong")}


def sampled(module: PolicyModule, data: PromptData, prompts: int) -> list[Row]:
    """Completions of the first prompts of the run, with their rewards."""
    data.setup("fit")
    data.render(module.tokenizer)
    order = permutation(len(data.train_prompts), data.seed, 0)[:prompts]
    chosen = [data.train_prompts[i] for i in order]
    rows = module.complete(chosen, module.group_size, module.sampling, TRAIN, 0)
    module.score_rewards(rows, module.group_size)
    return rows


def summary(module: PolicyModule, rows: Sequence[Row]) -> list[str]:
    """What HEAD names, for the completions under one prompt."""
    rewards = torch.tensor([row.reward for row in rows]).view(-1, module.group_size)
    signal = int((module.bound.advantages(rewards) != 0).any(1).sum())
    counts: Counter[tuple[bool, str]] = Counter()
    for row in rows:
        expected, unanswerable = (
            row.prompt.columns[name] for name in ("expected_answer", "is_unanswerable")
        )
        counts[unanswerable, outcome(row.text, expected, unanswerable)] += 1
    cells = [", ".join(f"{counts[side, kind]} {kind}" for kind in KINDS[side]) for side in KINDS]
    length = sum(len(row.ids) for row in rows) / len(rows)
    return [f"{signal} of {len(rewards)} ({signal / len(rewards):.0%})", *cells, f"{length:.1f}"]


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, found {text}")
    return number


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--prompts", type=positive, default=20, help="questions to sample")
    parser.add_argument("--group_size", type=positive, help="completions each, if not the config's")
    arguments, sys.argv[1:] = parser.parse_known_args()
    quiet()
    cli = build()  # reads what is left in sys.argv
    module, data = cli.model, cli.datamodule
    module.group_size = arguments.group_size or module.group_size
    module.trainer = cli.trainer  # says which device to load to
    module.tokenizer = module.backbone.load_tokenizer()
    module.configure_model()
    lines = [["config's", *summary(module, sampled(module, data, arguments.prompts))]]
    data.system, data.shots = None, []
    lines += [["data's own", *summary(module, sampled(module, data, arguments.prompts))]]
    for line in (HEAD, ["---"] * len(HEAD), *lines):
        print("| " + " | ".join(line) + " |")


if __name__ == "__main__":
    main()
