from __future__ import annotations

from pathlib import Path

import pytest

KINDS = {"lora": {}, "rslora": {"use_rslora": True}, "dora": {"use_dora": True}}


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two layers, and beside it adapters as PEFT itself saves them."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, LlamaConfig

    from sctom.mlx_port.adapters import peft_to_mlx

    folder = tmp_path_factory.mktemp("adapters")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=20,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / "model")
    for kind, settings in KINDS.items():
        lora = LoraConfig(
            r=4,
            lora_alpha=6,
            lora_dropout=0.05,
            target_modules=["v_proj", "up_proj"],
            init_lora_weights=False,
            task_type="CAUSAL_LM",
            **settings,
        )
        base = AutoModelForCausalLM.from_pretrained(folder / "model")
        get_peft_model(base, lora).save_pretrained(folder / kind)
    peft_to_mlx(folder / "lora", folder / "mlx-lora")
    peft_to_mlx(folder / "dora", folder / "mlx-dora")
    return folder
