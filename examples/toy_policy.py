"""Objectives on a policy that fits in the head: three symbols, one softmax, no language model.

    python examples/toy_policy.py --objective CISPO

A completion is one to four symbols; its reward is the share of them that are symbol 2. The loop is
the whole algorithm: sample, reward, advantages within groups, two optimiser steps on the losses.
PPO is not here: it compares no completions and needs a value head instead.
"""

from __future__ import annotations

import argparse

import torch

import sctom.losses
from sctom.objectives import Objective, Totals

PROMPTS, GROUP, LENGTH, BEST = 4, 8, 4, 2


def train(objective: Objective, *, iterations: int = 120, seed: int = 0) -> list[float]:
    """The probabilities of the three symbols after training; each is 1/3 before."""
    bound = objective.bind(sctom.losses)
    logits = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.05)
    generator = torch.Generator().manual_seed(seed)
    rows = PROMPTS * GROUP
    for _ in range(iterations):
        # sample: symbols [B, T], and a mask that is 1 on the first 1 to 4 of them
        probabilities = logits.detach().softmax(0).expand(rows, 3)
        symbols = torch.multinomial(probabilities, LENGTH, replacement=True, generator=generator)
        lengths = torch.randint(1, LENGTH + 1, (rows, 1), generator=generator)
        mask = (torch.arange(LENGTH) < lengths).float()
        # reward and compare
        rewards = ((symbols == BEST) * mask).sum(1) / mask.sum(1)
        advantages = bound.advantages(rewards.view(PROMPTS, GROUP)).flatten()
        # update twice: in the second step the ratio has left 1
        old_logps = logits.detach().log_softmax(0)[symbols]
        totals = Totals(tokens=float(mask.sum()), sequences=rows, length=LENGTH)
        for _ in range(2):
            losses = bound.loss(logits.log_softmax(0)[symbols], old_logps, advantages, mask)
            optimizer.zero_grad()
            bound.reduce(losses, mask, totals).backward()
            optimizer.step()
    return logits.detach().softmax(0).tolist()


def main() -> None:
    choices = {cls.__name__: cls for cls in Objective.__subclasses__() if cls.rule != "gae"}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--objective", choices=choices, default="GRPO")
    objective = choices[parser.parse_args().objective]()
    print(objective.formula)
    print("probabilities:", ", ".join(f"{p:.3f}" for p in train(objective)))


if __name__ == "__main__":
    main()
