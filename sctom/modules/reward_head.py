"""A reward model: a language model whose head gives one number for a whole answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sctom.modules.adapters import check_safetensors
from sctom.modules.backbone import Backbone, save_backbone
from sctom.rollout.causal import causal_model, head, hidden_states, pad
from sctom.rollout.packing import pack
from sctom.rollout.pooling import last_hidden
from sctom.rollout.sharing import shares_prefixes

HEAD_FILE = "reward_head.safetensors"
ABOUT_FILE = "reward_model.json"
_LOADED_WITH = ("dtype", "quantization", "double_quantization", "compute_dtype")
"""Settings of the backbone that a saved model is loaded with."""

Sequences = Sequence[tuple[Sequence[int], Sequence[int]]]


class RewardModel(nn.Module):
    """Scores answers: r(x, y) = w . h, with h the hidden state of the last token of x and y.

    Llama 2 (arXiv 2307.09288, section 3.2.2) puts a regression head in place of the next-token
    head of a chat checkpoint. Which token is the last is known from lengths, never from the ids of
    a padding token, which may be the end-of-turn token as well; with 135 million weights a wrong
    place is no error, it is a worse model. The head is in float32 whatever the model is in.

    Args:
        model: a causal language model, with or without adapters. Its own head is not used, and not
            trained unless the input embedding is the same tensor.

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
        embedding = {id(p) for p in causal_model(model).get_input_embeddings().parameters()}
        for parameter in head(model).parameters():
            if id(parameter) not in embedding:
                parameter.requires_grad_(False)

    @property
    def most_tokens(self) -> int | None:
        """Tokens of the longest sequence that the model was made for, where it says so."""
        config = causal_model(self.model).config.get_text_config()
        return getattr(config, "max_position_embeddings", None)

    def scores(self, sequences: Sequences) -> Tensor:
        """The raw scores [B], before any sigmoid, with their gradient.

        Answers with the same prompt are packed behind one copy of it, where that is exact for the
        model (docs/fast_path.md): a pair costs P + C + R tokens instead of 2 P + C + R, and of the
        last layer only what the scores need (`sctom.rollout.pooling`).

        Args:
            sequences: (prompt, answer) of each as token ids; neither is empty.
        """
        longest = max(len(prompt) + len(answer) for prompt, answer in sequences)
        if not shares_prefixes(self.model, longest):
            return self.padded_scores(sequences)
        device = self.head.weight.device
        return self._score(last_hidden(self.model, pack(sequences, device, whole=True)))

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
        return (hidden.float() * self.head.weight).sum(-1)  # a product autocast leaves in float32

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
            "pooled": "last token",
            **{name: getattr(backbone, name) for name in _LOADED_WITH},
        }
        (folder / ABOUT_FILE).write_text(json.dumps(about, indent=2) + "\n")


def saved_backbone(folder: str | Path, *, attention: str | None = None) -> Backbone:
    """What a saved reward model is made from, once it is known to have a head; nothing is loaded.

    Args:
        folder: where it was saved.
        attention: implementation of attention, see `Backbone`.

    Raises:
        FileNotFoundError: the folder holds no trained head; a new one would give scores at random.
        ValueError: the head's file is incomplete.
    """
    folder = Path(folder)
    for name in (HEAD_FILE, ABOUT_FILE):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"{folder} has no {name}, so it is no reward model with a trained head"
                f"{_other_model(folder)}; train one with RewardModelModule, or name the folder "
                "`model` of its run"
            )
    check_safetensors([folder / HEAD_FILE])
    about = _read_about(folder / ABOUT_FILE)
    path, adapter = (str(folder), None) if about["base"] is None else (about["base"], str(folder))
    settings = {name: about[name] for name in _LOADED_WITH}
    return Backbone(path, adapter=adapter, attention=attention, **settings)


def _read_about(path: Path) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads(path.read_text())
        missing = {"base", *_LOADED_WITH} - about.keys()
    except (ValueError, AttributeError):
        missing = {"everything"}
    if missing:
        raise ValueError(
            f"{path} is damaged: it lacks {', '.join(sorted(missing))}; restore it, or train the "
            "reward model again"
        )
    return about


def load_reward_model(
    folder: str | Path, device: torch.device | None = None, *, attention: str | None = None
) -> tuple[RewardModel, Any]:
    """A saved reward model, frozen, and its tokenizer.

    Args:
        folder: where it was saved.
        device: where 4-bit weights are put, see `Backbone.load_model`.
        attention: implementation of attention, see `Backbone`.

    Raises:
        FileNotFoundError: the folder holds no trained head; a new one would give scores at random.
        ValueError: the head is of another model, or a file is incomplete.
    """
    folder = Path(folder)
    backbone = saved_backbone(folder, attention=attention)
    model = RewardModel(backbone.load_model(device, frozen=True))
    weight = load_file(folder / HEAD_FILE)["weight"]
    if weight.shape != model.head.weight.shape:
        found, wanted = tuple(weight.shape), tuple(model.head.weight.shape)
        raise ValueError(f"{folder / HEAD_FILE} has a head of {found}, the model needs {wanted}")
    model.head.weight.data.copy_(weight)
    return model.eval().requires_grad_(False), backbone.load_tokenizer()


def _other_model(folder: Path) -> str:
    """What a folder holds instead, as far as it says so."""
    if not folder.is_dir():
        return " (there is no such folder)"
    if (folder / "model" / HEAD_FILE).is_file():
        return f"; did you mean {folder / 'model'}?"
    config = folder / "config.json"
    classes = json.loads(config.read_text()).get("architectures") if config.is_file() else None
    if not classes:
        return ""
    hint = ", whose head is of another make" if "Classification" in classes[0] else ""
    return f" (it is a {classes[0]}{hint})"


@torch.no_grad()
def check_saved(
    model: RewardModel, folder: str | Path, sequences: Sequences, *, attention: str | None = None
) -> None:
    """Load a saved reward model and compare its scores with those of the one in memory.

    Args:
        model: the one that was saved.
        folder: where to.
        sequences: (prompt, answer) of what is scored, as token ids.
        attention: the implementation that the model in memory runs with.

    Raises:
        ValueError: a score differs by more than 1e-6 of it (of 1, where it is smaller).
    """
    device = model.head.weight.device
    loaded, _ = load_reward_model(folder, device, attention=attention)
    training = model.training
    expected = model.eval().scores(sequences)
    model.train(training)
    found = loaded.to(device).scores(sequences)
    for number, (one, other) in enumerate(zip(expected.tolist(), found.tolist(), strict=True)):
        if not abs(one - other) <= 1e-6 * max(abs(one), 1.0):
            raise ValueError(
                f"{folder} does not hold the model that was trained: loaded again, it scores "
                f"answer {number} with {other:.7g} instead of {one:.7g}. Do not use it. Either the "
                "base model has changed on disk, or the weights were trained in another dtype than "
                "model.backbone.dtype names; train again with both as they are"
            )
