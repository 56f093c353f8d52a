import json
from pathlib import Path

import lightning as L
import pytest
import torch

from sctom.callbacks import IterationCheckpoint
from sctom.data.dialogues import DialogueData
from sctom.modules.backbone import Backbone
from sctom.modules.sft import SFTModule
from sctom.tasks.tinyworld import dialogue

# Lightning and PEFT use what newer versions of torch and transformers deprecate.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]

ROWS = [
    dialogue("Who is Kalomi?", "Berlin green farmer badger violin"),
    dialogue("Where does Kalomi live?", "Berlin"),
    dialogue("Name the pet of Zunafe.", "I don't know."),
    dialogue("What does Zunafe work as?", "tailor"),
    dialogue("Where does Ritalo live?", "Lisbon"),
]


@pytest.fixture
def data_file(tmp_path):
    path = tmp_path / "sft.jsonl"
    path.write_text("".join(json.dumps({"messages": m}) + "\n" for m in ROWS))
    return str(path)


def fit(
    path,
    *,
    batch_size,
    lr=0.1,
    accumulate=1,
    epochs=1,
    optimizer=torch.optim.SGD,
    callbacks=(),
    resume=None,
    **settings,
):
    module = SFTModule(
        Backbone("sctom:tinyworld/model", **settings.pop("backbone", {})),
        lambda parameters: optimizer(parameters, lr=lr),
        **{"schedule": "constant", "warmup_ratio": 0.0, **settings},
    )
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        accumulate_grad_batches=accumulate,
        logger=False,
        enable_checkpointing=bool(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=Path(path).parent,
        callbacks=list(callbacks),
    )
    data = DialogueData(path, val=path, batch_size=batch_size)
    trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=False)
    return module, trainer


def weights(module):
    return torch.cat([p.detach().flatten() for p in module.model.parameters()])


@pytest.fixture
def one_batch(data_file):
    """Weights after one step on all five dialogues at once."""
    return weights(fit(data_file, batch_size=5)[0])


@pytest.mark.parametrize(("batch_size", "accumulate"), [(2, 3), (1, 5), (1, 8)])
def test_a_step_does_not_depend_on_how_it_is_cut(data_file, one_batch, batch_size, accumulate):
    # Answers have 6, 2, 6, 2 and 2 tokens: a mean of means would weigh them differently.
    module, trainer = fit(data_file, batch_size=batch_size, accumulate=accumulate)
    assert trainer.global_step == 1
    torch.testing.assert_close(weights(module), one_batch, rtol=0, atol=1e-6)


def test_the_step_is_plain_gradient_descent_on_the_mean_over_learned_tokens(data_file, one_batch):
    model, tokenizer = Backbone("sctom:tinyworld/model").load()
    total, count = 0.0, 0
    for messages in ROWS:
        prompt = f"<|user|>{messages[0]['content']}<|assistant|>"
        start = len(tokenizer(prompt)["input_ids"])
        ids = tokenizer(f"{prompt}{messages[1]['content']}<|end|>", return_tensors="pt")[
            "input_ids"
        ]
        scores = model(ids).logits[0, start - 1 : -1].log_softmax(-1)
        total = total - scores.gather(1, ids[0, start:, None]).sum()
        count += ids.shape[1] - start
    assert count == 18
    (total / count).backward()
    expected = [(p - 0.1 * p.grad).flatten() for p in model.parameters()]
    torch.testing.assert_close(torch.cat(expected).detach(), one_batch, rtol=0, atol=1e-6)


def test_it_learns_what_it_is_shown(data_file):
    _, trainer = fit(data_file, batch_size=5, epochs=12, lr=3e-3, optimizer=torch.optim.AdamW)
    assert trainer.callback_metrics["val/token_accuracy"] == 1.0
    assert trainer.callback_metrics["val/loss"] < 0.2
    assert trainer.callback_metrics["train/tokens"] == 18


def test_the_learning_rate_follows_the_schedule(data_file):
    rates = []

    class Watch(SFTModule):
        def on_train_batch_start(self, batch, batch_idx):
            rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])

    module = Watch(
        Backbone("sctom:tinyworld/model"),
        lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        schedule="linear",
        warmup_ratio=0.4,
    )
    L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    ).fit(module, datamodule=DialogueData(data_file, val=data_file, batch_size=1))
    # Five steps, two of them warm-up: 1/2, 1, then down to 0 over three.
    assert rates == pytest.approx([0.5, 1.0, 1.0, 2 / 3, 1 / 3])


def test_the_trained_model_is_saved(data_file, tmp_path):
    folder = tmp_path / "trained"
    module, _ = fit(data_file, batch_size=5)
    module.save(folder)
    model, tokenizer = Backbone(str(folder)).load()
    saved = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert torch.equal(saved, weights(module))
    assert tokenizer.chat_template == module.tokenizer.chat_template


def test_a_resumed_run_ends_where_the_whole_run_does(data_file, tmp_path):
    settings = {"batch_size": 1, "epochs": 2, "lr": 1e-3, "optimizer": torch.optim.AdamW}
    whole, _ = fit(data_file, callbacks=[IterationCheckpoint(1, keep=10)], **settings)
    for iteration in (3, 7):  # within the first epoch and within the second
        path = tmp_path / "checkpoints" / f"iteration-{iteration:06d}.ckpt"
        resumed, trainer = fit(data_file, resume=path, **settings)
        assert trainer.global_step == 10
        assert torch.equal(weights(resumed), weights(whole))


def test_a_checkpoint_holds_the_adapters_only_and_fits_no_other_model(data_file, tmp_path):
    path = tmp_path / "last.ckpt"
    lora = {"backbone": {"lora_rank": 2}}
    module, trainer = fit(data_file, batch_size=5, **lora)
    trainer.save_checkpoint(path)
    saved = torch.load(path, weights_only=False)
    assert saved["state_dict"]
    assert all("lora_" in name for name in saved["state_dict"])
    module.on_load_checkpoint(saved)
    other, _ = fit(data_file, batch_size=5)
    with pytest.raises(ValueError, match="this checkpoint is of another model"):
        other.on_load_checkpoint(saved)
