from __future__ import annotations

import torch

from sctom.callbacks import Banner
from sctom.callbacks.banner_supervised import describe_supervised
from sctom.data import DialogueData
from sctom.modules import Backbone, SFTModule
from tests.training import quiet_trainer


def test_a_supervised_run_says_what_it_does(tmp_path, tiny_model, tiny_prompts):
    module = SFTModule(
        Backbone(str(tiny_model), lora_rank=2),
        lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        warmup_ratio=0.25,
        schedule="linear",
    )
    data = DialogueData(str(tiny_prompts), batch_size=3)
    trainer = quiet_trainer(tmp_path, accumulate_grad_batches=2, callbacks=[Banner()])
    trainer.fit(module, data)
    lines = dict(describe_supervised(trainer, module))
    assert lines["loss"] == "mean of -log p over the learned tokens of the optimiser step"
    assert lines["optimiser step"] == "6 rows, 3 at a time on 1 process(es); 2 steps"  # 12 rows
    assert lines["optimiser"] == "SGD, learning rate 0.5, linear, warm-up 25%"
    assert lines["training data"] == f"{tiny_prompts} (12 rows)"
    assert lines["validation data"] == "none"
    changed = "schedule linear (default cosine), warmup_ratio 0.25 (default 0.03)"
    assert lines["differs from defaults"] == changed
    written = (tmp_path / "banner.txt").read_text()
    assert written.startswith("model") and "2 steps" in written
