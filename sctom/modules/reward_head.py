"""A reward model: a language model whose head gives one number for a whole answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sctom.modules.backbone import Backbone, save_backbone
from sctom.rollout.attention import run_packed
from sctom.rollout.causal import causal_model, decoder, hidden_states, pad
from sctom.rollout.packing import pack
from sctom.rollout.sharing import shares_prefixes

HEAD_FILE = "reward_head.safetensors"
ABOUT_FILE = "reward_model.json"

Sequences = Sequence[tuple[Sequence[int], Sequence[int]]]


class RewardModel(nn.Module):
    """Scores answers: r(x, y) = w . h, with h the hidden state of the last token of x and y.

    Llama 2 (arXiv 2307.09288, section 3.2.2) puts a regression head in place of the next-token
    head of a chat checkpoint. Which token is the last is known from lengths, never from the ids of
    a padding token, which may be the end-of-turn token as well; with 135 million weights a wrong
    place is no error, it is a worse model. The head is in float32 whatever the model is in.

    Args:
        model: a causal language model, with or without adapters; its own head is not used.

    >>> from sctom.modules import Backbone
    >>> model = RewardModel(Backbone("sctom:tinyworld/model", attention="sdpa").load_model())
    >>> model.scores([([1, 2, 3], [4, 5]), ([1, 2, 3], [6])]).tolist()  # a new head knows nothing
    [0.0, 0.0]
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        width = causal_model(model).config.get_text_config().hidden_size
        self.head = nn.Linear(width, 1, bias=False, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)  # even odds for every pair, and a gradient for w at once
        self.head.to(next(model.parameters()).device)

    def scores(self, sequences: Sequences) -> Tensor:
        """The raw scores [B], before any sigmoid, with their gradient.

        Answers with the same prompt are packed behind one copy of it, where that is exact for the
        model (docs/fast_path.md): a pair costs P + C + R tokens instead of 2 P + C + R.

        Args:
            sequences: (prompt, answer) of each as token ids; neither is empty.
        """
        longest = max(len(prompt) + len(answer) for prompt, answer in sequences)
        if not shares_prefixes(self.model, longest):
            return self.padded_scores(sequences)
        device = self.head.weight.device
        row = pack(sequences, device, whole=True)
        hidden = run_packed(decoder(self.model), row.ids, row.positions, row).last_hidden_state[0]
        assert row.last is not None  # `whole` puts it in
        return self._score(hidden.index_select(0, row.last))

    def padded_scores(self, sequences: Sequences, *, side: str = "right") -> Tensor:
        """The same from padded rows, for models that cannot be packed.

        Args:
            sequences: (prompt, answer) of each as token ids.
            side: where the padding is, "right" or "left"; it changes nothing.
        """
        device = self.head.weight.device
        whole = [[*prompt, *answer] for prompt, answer in sequences]
        ids, mask, positions = (t.to(device) for t in pad(whole, 0, side=side))
        hidden = hidden_states(
            self.model, input_ids=ids, attention_mask=mask, position_ids=positions
        )
        places = torch.arange(ids.shape[1], device=device) * mask  # the largest is the last token
        return self._score(hidden[torch.arange(len(whole), device=device), places.argmax(1)])

    def _score(self, hidden: Tensor) -> Tensor:
        scores: Tensor = self.head(hidden.float()).squeeze(-1)
        return scores

    def save(self, tokenizer: Any, folder: str | Path, backbone: Backbone) -> None:
        """Write the adapter or the whole model, the tokenizer and the head to a folder.

        Args:
            tokenizer: goes with it.
            folder: where to.
            backbone: what the model was made from; its path is what an adapter belongs to.
        """
        folder = Path(folder)
        save_backbone(self.model, tokenizer, folder)
        save_file({"weight": self.head.weight.detach().cpu().contiguous()}, folder / HEAD_FILE)
        about = {
            "base": backbone.path if backbone.adapter or backbone.lora_rank else None,
            "dtype": backbone.dtype,
            "pooled": "last token",
        }
        (folder / ABOUT_FILE).write_text(json.dumps(about, indent=2) + "\n")


def load_reward_model(
    folder: str | Path, device: torch.device | None = None
) -> tuple[RewardModel, Any]:
    """A saved reward model, frozen, and its tokenizer.

    Raises:
        FileNotFoundError: the folder holds no trained head; a new one would give scores at random.
        ValueError: the head is of another model.
    """
    folder = Path(folder)
    for name in (HEAD_FILE, ABOUT_FILE):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"{folder} has no {name}, so it is no reward model with a trained head; train one "
                "with RewardModelModule, or name the folder `model` of its run"
            )
    about = json.loads((folder / ABOUT_FILE).read_text())
    if about["base"] is None:
        backbone = Backbone(str(folder), dtype=about["dtype"])
    else:
        backbone = Backbone(about["base"], adapter=str(folder), dtype=about["dtype"])
    model = RewardModel(backbone.load_model(device, frozen=True))
    weight = load_file(folder / HEAD_FILE)["weight"]
    if weight.shape != model.head.weight.shape:
        found, wanted = tuple(weight.shape), tuple(model.head.weight.shape)
        raise ValueError(f"{folder / HEAD_FILE} has a head of {found}, the model needs {wanted}")
    model.head.weight.data.copy_(weight)
    return model.eval().requires_grad_(False), backbone.load_tokenizer()
