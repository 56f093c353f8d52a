"""What four bits cost the shipped tiny model: float32 against NF4, on the held-out questions.

    python scripts/four_bits.py [--adapter runs/tiny-qlora/model]

The logits of the token after each question, their relative difference, the KL divergence and the
share with the same best token. With --adapter also that adapter on either base. Prints the table of
docs/qlora.md.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from sctom.data import PromptData
from sctom.fit import quiet
from sctom.modules import Backbone
from sctom.rollout.causal import next_logits, pad

MODEL, VALID = "sctom:tinyworld/model", "sctom:tinyworld/valid.jsonl"


@torch.no_grad()
def logits(quantization: str | None, adapter: str | None) -> Tensor:
    """Logits [questions, vocabulary] of the token after each held-out question."""
    backbone = Backbone(MODEL, adapter=adapter, quantization=quantization)
    model, tokenizer = backbone.load_model(frozen=True), backbone.load_tokenizer()
    data = PromptData(VALID)
    data.setup("fit")
    data.render(tokenizer)
    ids, mask, positions = pad([p.ids for p in data.train_prompts], 0, side="left")
    return next_logits(
        model, input_ids=ids, attention_mask=mask, position_ids=positions, cache=None
    ).float()


def compared(exact: Tensor, rounded: Tensor) -> str:
    """Relative difference, KL(exact, rounded) and agreement of the best token."""
    difference = (exact - rounded).norm() / exact.norm()
    logs, others = exact.log_softmax(-1), rounded.log_softmax(-1)
    kl = (logs.exp() * (logs - others)).sum(-1).mean()
    same = (exact.argmax(-1) == rounded.argmax(-1)).float().mean()
    return f"{difference:.1%} | {kl:.4f} | {same:.1%}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--adapter", help="folder of an adapter trained on the NF4 model")
    quiet()
    adapter = parser.parse_args().adapter
    print("| compared | logits differ by | KL | same best token |")
    print(f"| float32 and NF4 | {compared(logits(None, None), logits('nf4', None))} |")
    if adapter:
        pair = compared(logits("nf4", adapter), logits(None, adapter))
        print(f"| the adapter, with the NF4 base and with the float32 base | {pair} |")


if __name__ == "__main__":
    main()
