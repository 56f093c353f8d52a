"""What percentages a model states in the tiny world, by what it knows, and what they are worth.

    python scripts/stated_confidence.py runs/tinyworld_confidence_sft/model [MODEL ...]

Greedy answers to the held-out questions: the percentages stated by kind of person, and the mean of
(y - q)^2 over the answers that state one. Prints the table of docs/confidence.md.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from statistics import fmean

from sctom.batch import Prompt
from sctom.data import PromptData
from sctom.fit import quiet
from sctom.modules import Backbone
from sctom.modules.backbone import stop_ids
from sctom.rewards.confidence import stated_confidence, without_confidence
from sctom.rewards.selfaware import outcome
from sctom.rollout import LocalSampler, Sampling

VALID = "sctom:tinyworld/valid.jsonl"


def answers(path: str) -> list[tuple[Prompt, str]]:
    """The held-out questions, each with the greedy answer of a model."""
    data = PromptData(VALID, columns="selfaware")
    data.setup("fit")
    model, tokenizer = Backbone(path).load()
    data.render(tokenizer)
    samples = LocalSampler().sample(
        model,
        data.train_prompts,
        group_size=1,
        sampling=Sampling(max_new_tokens=12, temperature=0.0),
        stop_ids=stop_ids(model, tokenizer),
        address=(0,),
    )
    texts = tokenizer.batch_decode([s.ids for s in samples], skip_special_tokens=True)
    return list(zip(data.train_prompts, texts, strict=True))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", help="folders of models that state a confidence")
    quiet()
    for path in parser.parse_args().models:
        counts: dict[str, Counter[float]] = defaultdict(Counter)
        squares = []
        for prompt, text in answers(path):
            columns = prompt.columns
            said, confidence = without_confidence(text), stated_confidence(text)
            did = outcome(said, columns["expected_answer"], columns["is_unanswerable"])
            if confidence is not None:
                counts[columns["kind"]][confidence] += 1
                squares.append(((did == "correct") - confidence) ** 2)
        print(f"{path}: mean (y - q)^2 {fmean(squares):.2f} over {len(squares)} answers")
        for kind, found in counts.items():
            shown = ", ".join(f"{q:.0%} ({n})" for q, n in found.most_common())
            print(f"  {kind}: {shown}")


if __name__ == "__main__":
    main()
