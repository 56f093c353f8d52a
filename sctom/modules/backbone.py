"""Loading a policy: weights, tokenizer and adapters.

Every surprise is reported before a run starts.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, nn

from sctom.assets import resolve
from sctom.checks import check_choices
from sctom.modules import quantize
from sctom.modules.adapters import check_adapter, check_safetensors, with_adapter
from sctom.modules.attention import Attention, causal_class, check_attention, choose_attention
from sctom.modules.quantize import DTYPES, DtypeName, Quantization
from sctom.seeds import seed_for


class Backbone:
    """A causal language model to train, fully or through LoRA adapters.

    Args:
        path: folder of a saved model, "sctom:..." for one that sctom ships, or a hub name.
        adapter: folder of a saved PEFT adapter to go on training; its settings win over the lora_*
            ones.
        lora_rank: rank of new LoRA adapters; 0 trains all weights.
        lora_alpha: the adapters' output is scaled by lora_alpha / lora_rank; null means equal to
            the rank.
        lora_dropout: dropout in front of the adapters, while training only.
        lora_targets: "all-linear", or the names of the linear layers that get adapters.
        lora_seed: seed of the adapters' initial weights.
        dtype: dtype the weights are loaded in. Adapters are always kept in float32.
        attention: "flash_attention_2", "sdpa" or "eager"; null takes the first of them that works
            here and says which and why.
        gradient_checkpointing: recompute activations in the backward pass: less memory, more time.
        quantization: "nf4" keeps the frozen linear layers in four bits (QLoRA); it needs
            bitsandbytes and, unless nothing is trained (a reference), adapters.
        double_quantization: for nf4: quantise the scales of the blocks too.
        compute_dtype: for nf4: dtype of the products; null takes bfloat16 where the GPU computes in
            it, else float32.
    """

    def __init__(
        self,
        path: str,
        *,
        adapter: str | None = None,
        lora_rank: int = 0,
        lora_alpha: float | None = None,
        lora_dropout: float = 0.0,
        lora_targets: str | list[str] = "all-linear",
        lora_seed: int = 0,
        dtype: DtypeName = "float32",
        attention: str | None = None,
        gradient_checkpointing: bool = False,
        quantization: Quantization | None = None,
        double_quantization: bool = True,
        compute_dtype: DtypeName | None = None,
    ) -> None:
        if lora_rank < 0:
            raise ValueError(
                f"lora_rank must be 0 (train all weights) or positive but is {lora_rank}"
            )
        if not 0.0 <= lora_dropout < 1.0:
            raise ValueError(f"lora_dropout must be in [0, 1) but is {lora_dropout}")
        if lora_alpha is not None and not lora_alpha > 0:
            raise ValueError(f"lora_alpha must be null or above 0 but is {lora_alpha}")
        if adapter is None and lora_rank == 0 and lora_dropout > 0.0:
            raise ValueError(
                "lora_dropout is set but lora_rank is 0; set lora_rank or drop lora_dropout"
            )
        choices: dict[str, tuple[Any, tuple[str, ...]]] = {"dtype": (dtype, tuple(DTYPES))}
        if quantization is not None:
            choices["quantization"] = (quantization, ("nf4",))
        if compute_dtype is not None:
            choices["compute_dtype"] = (compute_dtype, tuple(DTYPES))
        check_choices("model.backbone", choices)
        check_attention(attention)
        if quantization is None and compute_dtype is not None:
            raise ValueError(
                f"compute_dtype is {compute_dtype} but nothing is quantised; set quantization: nf4,"
                " or dtype for the dtype of all weights"
            )
        self.path = path
        self.adapter = adapter
        self.lora_rank = lora_rank
        self.lora_alpha = float(lora_rank if lora_alpha is None else lora_alpha)
        self.lora_dropout = lora_dropout
        self.lora_targets = lora_targets
        self.lora_seed = lora_seed
        self.dtype = dtype
        self.attention = attention
        self.gradient_checkpointing = gradient_checkpointing
        self.quantization = quantization
        self.double_quantization = double_quantization
        self.compute_dtype = compute_dtype
        self.attention_choice: Attention | None = None
        """The implementation the model was loaded with, and why; None before."""

    @property
    def location(self) -> str:
        """Where the weights come from, checked to exist unless it can only be a hub name.

        Raises:
            FileNotFoundError: the path looks local and is not there.
        """
        return _existing(self.path, what="model.backbone.path")

    def check_paths(self, *, frozen: bool = False) -> None:
        """Check what can be checked before weights load.

        That there is something to train, that what looks like a local folder is there and its files
        are complete, and that the package is installed which nf4 needs.

        Args:
            frozen: nothing is to be trained, as `load_model` has it.

        Raises:
            FileNotFoundError: a folder is not there; the message names the nearest one.
            ValueError: a file is incomplete, or 4-bit weights would have to be trained.
            RuntimeError: bitsandbytes is not installed.
        """
        if self.quantization is not None and not (frozen or self.adapter or self.lora_rank):
            raise ValueError(
                f"quantization: {self.quantization} freezes the weights, but all weights are to be "
                "trained (lora_rank 0); set lora_rank, or drop quantization"
            )
        if (folder := Path(self.location)).is_dir():
            check_safetensors(sorted(folder.iterdir()))
        if self.adapter is not None:
            folder = Path(_existing(self.adapter, what="model.backbone.adapter"))
            if folder.exists():
                check_adapter(folder)
        if self.quantization is not None:
            quantize.check_bitsandbytes()

    def load_tokenizer(self) -> Any:
        """The tokenizer, with a chat template and a pad token.

        Raises:
            ValueError: the tokenizer has no chat template.
        """
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self.location)
        if tokenizer.chat_template is None:
            raise ValueError(
                f"the tokenizer of {self.path} has no chat template, so messages cannot be rendered"
                "; use an instruction-tuned model or put a chat_template.jinja into its folder"
            )
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        return tokenizer

    def load_model(self, device: torch.device | None = None, *, frozen: bool = False) -> nn.Module:
        """The model in evaluation mode, adapters added.

        Exactly the weights to train require a gradient.

        Args:
            device: where the model will compute; None means the current CUDA device if there is
                one, else the CPU. Quantised weights are made and left there, others stay on the CPU
                until they are moved.
            frozen: nothing is to be trained, so that 4-bit weights need no adapters.

        Raises:
            ValueError: the model is incomplete, the adapter is of another one, or settings do not
                go together; see also `check_paths`.
        """
        from transformers import AutoModelForCausalLM

        self.check_paths(frozen=frozen)
        device = device or quantize.default_device()
        options = self._options(device, told=not frozen)
        read: Any = AutoModelForCausalLM.from_pretrained(
            self.location, dtype=DTYPES[self.dtype], output_loading_info=True, **options
        )
        model, loaded = read
        if loaded["missing_keys"]:
            missing = sorted(loaded["missing_keys"])
            raise ValueError(
                f"{self.path} lacks {len(missing)} weights its config.json asks for, {missing[0]} "
                "first, and they would start out random; the folder is incomplete or its "
                "config.json is of another model"
            )
        quantize.make_exact_on_cpu(model)
        if (memory := quantize.memory_4bit(model)) is not None:
            computing = str(quantize.coarsest_dtype(model)).removeprefix("torch.")
            _say(f"quantization: {self.quantization} ({memory}; computes in {computing})")
        quantize.quiet_bitsandbytes()
        if self.adapter is not None:
            folder = _existing(self.adapter, what="model.backbone.adapter")
            model = with_adapter(model, folder, trainable=not frozen)
        elif self.lora_rank:
            model = self._with_new_adapter(model)
        if self.gradient_checkpointing:
            with (
                warnings.catch_warnings()
            ):  # the name that is new in transformers 5.24 is not in 5.20
                warnings.filterwarnings("ignore", "`gradient_checkpointing_enable` is deprecated")
                model.gradient_checkpointing_enable({"use_reentrant": False})
        evaluating: nn.Module = model.eval()
        return evaluating.requires_grad_(False) if frozen else evaluating

    def _options(self, device: torch.device, *, told: bool) -> dict[str, Any]:
        """What is asked of transformers, checked and told before weights are read."""
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(self.location)
        if getattr(config, "quantization_config", None) is not None:
            raise ValueError(
                f"{self.path} holds weights that are quantised already; give the model they were "
                "made from, with quantization: nf4 for weights in four bits"
            )
        choice = choose_attention(
            self.attention, causal_class(config), dtype=self.dtype, device=device
        )
        self.attention_choice = choice
        if self.attention is None and told:
            _say(f"attention: {choice}")
        options = {"attn_implementation": choice.name}
        if self.quantization is None:
            return options
        quantize.quiet_bitsandbytes()
        compute = quantize.choose_compute_dtype(self.compute_dtype, device)
        return options | quantize.loading_options(
            double=self.double_quantization, compute_dtype=compute, device=device
        )

    def load(self) -> tuple[nn.Module, Any]:
        """Model and tokenizer."""
        return self.load_model(), self.load_tokenizer()

    def _with_new_adapter(self, model: Any) -> nn.Module:
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(
            r=self.lora_rank,
            lora_alpha=self.lora_alpha,  # type: ignore[arg-type]  # PEFT annotates int, uses it as a factor
            lora_dropout=self.lora_dropout,
            target_modules=self.lora_targets,
            task_type="CAUSAL_LM",
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for(self.lora_seed))
            return get_peft_model(model, config)


@rank_zero_only
def _say(line: str) -> None:
    print(line, flush=True)


def _existing(path: str, *, what: str) -> str:
    """The path if it is there, or a hub name as it is; else an error with the nearest name.

    A name of the form owner/name is taken for a hub name unless a folder `owner` is here or it is
    one of the folders that sctom's own commands write to.
    """
    folder = resolve(path)
    if folder.exists():
        return str(folder)
    local = folder.parent.exists() or path.startswith(("models/", "runs/"))
    if re.fullmatch(r"[\w.-]+/[\w.-]+", path) and not local:
        return path
    siblings = [p.name for p in folder.parent.iterdir()] if folder.parent.is_dir() else []
    near = difflib.get_close_matches(folder.name, siblings, n=1)
    hint = f"; did you mean {folder.parent / near[0]}?" if near else ""
    if path == "models/smollm2-135m":
        hint = "; `make smollm2` makes it"
    raise FileNotFoundError(
        f"{what}: {path} is neither a folder here nor a hub name of the form owner/name{hint}"
    )


def trainable(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The named parameters that are trained."""
    return ((name, p) for name, p in model.named_parameters() if p.requires_grad)


def stop_ids(model: nn.Module, tokenizer: Any) -> frozenset[int]:
    """Every token that ends a completion: those of the generation config and the tokenizer's eos.

    Raises:
        ValueError: there is none, so that no completion could ever end.
    """
    from sctom.rollout.causal import causal_model

    configured = causal_model(model).generation_config.eos_token_id
    ids = set(configured) if isinstance(configured, list) else {configured}
    ids = (ids | {tokenizer.eos_token_id}) - {None}
    if not ids:
        raise ValueError(
            "neither the generation config nor the tokenizer names an end-of-sequence token; "
            "set eos_token in the tokenizer's files"
        )
    return frozenset(ids)


def fingerprint(tensors: Iterator[tuple[str, Tensor]], *, samples: int = 64) -> str:
    """A short hash of names, shapes, dtypes and evenly spaced values.

    It tells one model from another. Of a 4-bit weight the scales count as well as the codes.
    """
    digest = hashlib.sha256()
    for name, tensor in _with_statistics(tensors):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        flat = tensor.detach().reshape(-1)
        values = flat[:: max(1, flat.numel() // samples)].float().cpu().numpy()
        digest.update(values.tobytes())
    return digest.hexdigest()[:16]


def _with_statistics(tensors: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in tensors:
        yield name, tensor
        for part, scale in quantize.statistics(tensor).items():
            yield f"{name}.{part}", scale


def save_backbone(model: nn.Module, tokenizer: Any, folder: str | Path) -> None:
    """Save the adapter (if there is one) or the whole model, with the tokenizer beside it."""
    model.save_pretrained(str(folder))  # type: ignore[operator]
    tokenizer.save_pretrained(str(folder))
