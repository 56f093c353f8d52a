from __future__ import annotations

import json
import subprocess
import sys
from math import exp, log
from pathlib import Path
from types import SimpleNamespace

import lightning as L
import pytest
import torch

from sctom.callbacks import IterationCheckpoint
from sctom.callbacks.checkpoint import checkpoints
from sctom.data import DialogueData
from sctom.data.pairs import PairBatch, PreferenceData, TokenPair, pair_loader
from sctom.fit import check_config
from sctom.modules.backbone import Backbone, trainable
from sctom.modules.reward_head import RewardModel, load_reward_model
from sctom.modules.reward_metrics import ScoredPair
from sctom.modules.reward_model import RewardModelModule
from sctom.modules.supervised import SupervisedModule
from sctom.preferences import GRADES
from sctom.readers import DataError
from sctom.rollout.causal import hidden_states
from tests.training import quiet_trainer

ROWS = [
    {"prompt": "what is one ?", "chosen": "one", "rejected": "i don't know .", "grade": GRADES[3]},
    {"prompt": "is red green ?", "chosen": "no .", "rejected": "yes", "grade": GRADES[0]},
    {"prompt": "is red red ?", "chosen": "yes", "rejected": "no . no .", "grade": GRADES[2]},
    {"prompt": "what is two ?", "chosen": "two", "rejected": "red", "grade": GRADES[1]},
    {"prompt": "is blue green ?", "chosen": "no .", "rejected": "yes . yes", "grade": GRADES[2]},
]
TIED = {"prompt": "is red red ?", "chosen": "yes", "rejected": "yes yes", "tied": True}


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x))


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def still(parameters):
    return torch.optim.SGD(parameters, lr=0.0)


def write(path: Path, rows=ROWS) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def data_file(tmp_path) -> str:
    return write(tmp_path / "pairs.jsonl")


@pytest.fixture
def settings_only() -> RewardModelModule:
    """A module that has no weights yet."""
    return RewardModelModule(Backbone("none/needed"), sgd)


class Started(RewardModelModule):
    """With a head that is not zero, so that every weight has a gradient at once."""

    def make_model(self, device):
        model = super().make_model(device)
        generator = torch.Generator().manual_seed(1)
        model.head.weight.data.normal_(std=0.1, generator=generator)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.data.normal_(std=0.1, generator=generator)
        return model


def fit(
    model_path,
    data_path,
    *,
    kind=RewardModelModule,
    backbone=None,
    data=None,
    optimizer=sgd,
    resume=None,
    trainer=None,
    epochs=1,
    **settings,
):
    settings = {"schedule": "constant", "warmup_ratio": 0.0, **settings}
    module = kind(Backbone(str(model_path), **(backbone or {})), optimizer, **settings)
    pairs = PreferenceData(data_path, **{"val": data_path, "batch_size": 5, **(data or {})})
    options = trainer or {}
    runner = L.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        logger=False,
        enable_checkpointing="callbacks" in options,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=Path(data_path).parent,
        **options,
    )
    runner.fit(module, datamodule=pairs, ckpt_path=resume, weights_only=False)
    return module, runner


def weights(module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.model.parameters()])


# ---- the loss ---------------------------------------------------------------------------------


def one_pair(**about) -> PairBatch:
    return PairBatch([TokenPair([1], [2], [3], **about)], 1)


def test_the_example_of_the_paper_s_margins(settings_only):
    # Scores 2.0 and 1.8. Without a margin -ln sigma(0.2) = 0.598; with the large margin 3 of
    # "significantly better" -ln sigma(-2.8) = 2.859, 4.8 times as much.
    chosen, rejected = torch.tensor([2.0]), torch.tensor([1.8])
    plain = settings_only.losses(chosen, rejected, one_pair()).item()
    large = settings_only.losses(chosen, rejected, one_pair(margin=3.0)).item()
    assert plain == pytest.approx(0.598, abs=5e-4)
    assert large == pytest.approx(2.859, abs=5e-4)
    assert large / plain == pytest.approx(4.8, abs=0.05)


def test_smoothing_and_centring_by_hand(settings_only):
    chosen, rejected = torch.tensor([2.0]), torch.tensor([0.5])
    settings_only.label_smoothing, settings_only.centering = 0.1, 0.01
    # 0.9 (-ln sigma(1.5)) + 0.1 (-ln sigma(-1.5)) + 0.01 * 2.5^2
    expected = -0.9 * log(sigmoid(1.5)) - 0.1 * log(sigmoid(-1.5)) + 0.0625
    found = settings_only.losses(chosen, rejected, one_pair())
    assert found.item() == pytest.approx(expected, rel=1e-6)


def test_ties_by_hand(settings_only):
    settings_only.tie_theta = 3.0
    even = torch.zeros(1)
    # At equal scores and theta = 3: P(first wins) = 1 / (1 + 3), P(tie) = (9 - 1) / 16 = 1/2.
    assert settings_only.losses(even, even, one_pair()).item() == pytest.approx(log(4))
    assert settings_only.losses(even, even, one_pair(tied=True)).item() == pytest.approx(log(2))


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (
            {"label_smoothing": 0.5},
            r"label_smoothing must be at least 0 and below 0\.5 but is 0\.5",
        ),
        ({"centering": -0.01}, r"centering must be at least 0 but is -0\.01"),
        ({"tie_theta": 1.0}, r"tie_theta must be null or above 1 but is 1\.0"),
        ({"tie_theta": 2.0, "label_smoothing": 0.1}, "do not go together"),
        ({"schedule_floor": 1.5}, r"schedule_floor must be in \[0, 1\] but is 1\.5"),
    ],
)
def test_settings_out_of_range_are_refused(settings, error):
    with pytest.raises(ValueError, match=error):
        RewardModelModule(Backbone("none/needed"), sgd, **settings)


# ---- the step ---------------------------------------------------------------------------------


def last_hidden(tiny_model, pairs) -> list[list[torch.Tensor]]:
    """The hidden state of the last token of each answer, of each sequence run alone."""
    model = Backbone(str(tiny_model)).load_model()
    return [
        [
            hidden_states(model, input_ids=torch.tensor([pair.prompt + answer]))[0, -1].detach()
            for answer in (pair.chosen, pair.rejected)
        ]
        for pair in pairs
    ]


def test_the_first_step_of_the_head_by_hand(tiny_model, data_file):
    # dL/dw = sum over pairs of -sigma(-z) (h_c - h_r) / N, and with w = 0 it is z = -margin.
    module, trainer = fit(tiny_model, data_file, data={"margin": "large"})
    pairs = trainer.datamodule.train_examples
    assert [pair.margin for pair in pairs] == [3, 0, 2, 1, 2]
    gradient = torch.zeros(16)
    for pair, (chosen, rejected) in zip(pairs, last_hidden(tiny_model, pairs), strict=True):
        gradient -= sigmoid(pair.margin) * (chosen - rejected) / 5
    torch.testing.assert_close(module.model.head.weight[0].detach(), -0.1 * gradient)
    before = Backbone(str(tiny_model)).load_model()
    for name, parameter in module.model.model.named_parameters():  # behind a head of zeros
        assert torch.equal(parameter, before.get_parameter(name)), name


def test_the_gradient_of_the_head_by_hand_away_from_zero(tiny_model, data_file):
    module, trainer = fit(tiny_model, data_file, kind=Started, optimizer=still)
    batch = PairBatch(trainer.datamodule.train_examples, 5)
    head = module.model.head.weight[0]
    expected = torch.zeros(16)
    for chosen, rejected in last_hidden(tiny_model, batch.pairs):
        z = float(head.detach() @ (chosen - rejected))
        expected -= sigmoid(-z) * (chosen - rejected) / 5
    module.zero_grad()
    losses = module.losses(*module.scores(batch), batch)
    (losses.sum() / 5).backward()
    torch.testing.assert_close(module.model.head.weight.grad[0], expected, rtol=1e-4, atol=1e-6)


@pytest.fixture(params=[0, 4], ids=["all weights", "LoRA"])
def lora(request) -> dict:
    return {"lora_rank": request.param}


@pytest.mark.parametrize(("batch_size", "accumulate"), [(2, 4), (4, 2), (1, 8), (3, 3)])
def test_a_step_does_not_depend_on_how_it_is_cut(
    tiny_model, tmp_path, lora, batch_size, accumulate
):
    path = write(tmp_path / "eight.jsonl", [*ROWS, *ROWS[:3]])
    settings = {"kind": Started, "backbone": lora, "centering": 0.01}
    whole, _ = fit(tiny_model, path, data={"batch_size": 8, "margin": "small"}, **settings)
    cut, trainer = fit(
        tiny_model,
        path,
        data={"batch_size": batch_size, "margin": "small"},
        trainer={"accumulate_grad_batches": accumulate},
        **settings,
    )
    assert trainer.global_step == 1
    torch.testing.assert_close(weights(cut), weights(whole), rtol=0, atol=1e-6)
    start = Started(Backbone(str(tiny_model), **lora), sgd).make_model(torch.device("cpu"))
    moved = [not torch.equal(p, start.get_parameter(name)) for name, p in trainable(whole.model)]
    assert all(moved)


def test_two_processes_have_the_gradient_of_one(tiny_model, data_file):
    module, trainer = fit(tiny_model, data_file, kind=Started, optimizer=still)
    pairs = trainer.datamodule.train_examples[:4]

    def gradient(rank: int, world_size: int) -> torch.Tensor:
        module.zero_grad()
        module.trainer = SimpleNamespace(
            accumulate_grad_batches=1,
            world_size=world_size,
            current_epoch=0,
            optimizers=trainer.optimizers,
            global_rank=rank,
        )
        module.log_dict = lambda numbers: None
        place = {"rank": rank, "world_size": world_size}
        (batch,) = pair_loader(pairs, 4 // world_size, seed=None, **place)
        module.training_step(batch, 0).backward()
        return torch.cat([p.grad.flatten() for _, p in trainable(module.model)])

    averaged = (gradient(0, 2) + gradient(1, 2)) / 2  # what DDP does
    torch.testing.assert_close(averaged, gradient(0, 1), rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_two_processes_end_where_one_does(tmp_path, graded_pairs):
    config = Path(__file__).parents[2] / "configs" / "tiny" / "reward_model.yaml"
    found = []
    for devices in (1, 2):
        folder = tmp_path / f"on-{devices}"
        options = {
            "--run_dir": folder,
            "--data.train": graded_pairs / "train.jsonl",
            "--data.val": graded_pairs / "valid.jsonl",
            "--data.batch_size": 8 // devices,
            "--trainer.devices": devices,
            "--trainer.strategy": "auto" if devices == 1 else "ddp",
        }
        words = [str(word) for option in options.items() for word in option]
        command = [sys.executable, "-m", "sctom.fit", "--config", str(config), *words]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        iteration, path = checkpoints(folder)[-1]
        found.append((torch.load(path, weights_only=True)["state_dict"], records))
        assert iteration == len(records) == 8  # 64 pairs, two batches to a step
    (one, losses), (two, same) = found
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-4, atol=1e-5)
    assert [r["train/loss"] for r in losses] == pytest.approx([r["train/loss"] for r in same])


def test_a_loss_that_is_not_finite_names_its_pair(tiny_model, data_file):
    class Broken(RewardModelModule):
        def scores(self, batch):
            chosen, rejected = super().scores(batch)
            return chosen.index_fill(0, torch.tensor([1]), torch.nan), rejected

    with pytest.raises(FloatingPointError, match=r"pairs\.jsonl:2: the loss of this pair is not"):
        fit(tiny_model, data_file, kind=Broken, data={"shuffle": False})


# ---- what is logged ---------------------------------------------------------------------------


class Scripted(RewardModelModule):
    """Whose scores are known: those of the chosen and of the rejected answers of six pairs."""

    CHOSEN = (3.0, 1.0, 0.0, -1.0, 2.0, 0.5)
    REJECTED = (1.0, 1.0, 2.0, -4.0, 1.0, -0.5)

    def scores(self, batch):
        anchor = self.model.head.weight.sum() * 0
        return torch.tensor(self.CHOSEN) + anchor, torch.tensor(self.REJECTED) + anchor


def test_accuracy_and_difference_by_hand(tiny_model, tmp_path):
    path = write(tmp_path / "six.jsonl", [*ROWS, TIED])
    module, trainer = fit(
        tiny_model,
        path,
        kind=Scripted,
        tie_theta=2.0,
        data={"batch_size": 6, "val_batch": 6, "shuffle": False},
    )
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    # Of five that are not tied, 3 > 1, -1 > -4 and 2 > 1 are right; 1 = 1 and 0 < 2 are not.
    assert logged["train/accuracy"] == logged["val/accuracy"] == pytest.approx(3 / 5)
    assert logged["train/difference"] == pytest.approx((2 + 0 - 2 + 3 + 1 + 1) / 6)
    assert logged["train/score_mean"] == pytest.approx((5.5 + 0.5) / 12)
    both = torch.tensor(Scripted.CHOSEN + Scripted.REJECTED)
    assert logged["train/score_std"] == pytest.approx(float(both.std()))
    assert logged["train/learning_rate"] == pytest.approx(0.1)
    assert logged["val/loss"] == pytest.approx(logged["train/loss"])
    assert module.last_metrics == pytest.approx(
        {name: value for name, value in logged.items() if name.startswith("train/")}
    )
    assert module.progress.iteration == 1 and module.progress.updates == 1
    assert module.validation_pairs[3] == ScoredPair(
        chosen=-1.0,
        rejected=-4.0,
        grade=1,
        source=None,
        is_safety=None,
        tied=False,
        chosen_tokens=2,
        rejected_tokens=2,
        prompt_key=trainer.datamodule.val_examples[3].prompt_key,
        chosen_key=module.validation_pairs[3].chosen_key,
        rejected_key=module.validation_pairs[3].rejected_key,
    )
    assert [pair.tied for pair in module.validation_pairs] == [False] * 5 + [True]


def test_accuracy_of_validation_weighs_every_pair_alike(tiny_model, tmp_path):
    path = write(tmp_path / "six.jsonl", [*ROWS, TIED])

    class Slices(Scripted):
        def scores(self, batch):
            lines = [int(pair.place.split(":")[-1]) - 1 for pair in batch.pairs]
            return tuple(scores[lines] for scores in super().scores(batch))

    module, trainer = fit(
        tiny_model, path, kind=Slices, tie_theta=2.0, data={"batch_size": 6, "val_batch": 5}
    )
    # The second batch has the tied pair alone, which counts for nothing.
    assert trainer.callback_metrics["val/accuracy"] == pytest.approx(3 / 5)
    assert len(module.validation_pairs) == 6


def test_a_limit_must_not_cut_an_optimiser_step(tiny_model, data_file):
    def limited(batches):
        options = {"limit_train_batches": batches, "accumulate_grad_batches": 2}
        return fit(tiny_model, data_file, data={"batch_size": 1}, trainer=options)

    with pytest.raises(ValueError, match="leaves 3 batches of an epoch, which cuts an optimiser"):
        limited(3)
    limited(4)
    limited(5)  # all there are: the last step of an epoch may be smaller, and knows it


def test_every_process_needs_a_validation_row(settings_only):
    data = SimpleNamespace(render=lambda tokenizer: None, val_examples=[1, 2])
    settings_only._trainer = SimpleNamespace(datamodule=data, world_size=3)
    settings_only.tokenizer = object()
    with pytest.raises(ValueError, match=r"data.val has 2 rows for 3 processes"):
        SupervisedModule.setup(settings_only, "fit")


def test_it_learns_what_it_is_shown(tiny_model, data_file):
    module, trainer = fit(
        tiny_model,
        data_file,
        epochs=12,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    )
    assert trainer.callback_metrics["val/accuracy"] == 1.0
    assert trainer.callback_metrics["val/loss"] < 0.2
    assert len(module.validation_pairs) == 5  # of the last validation only


def test_the_learning_rate_ends_at_the_floor(tiny_model, data_file):
    rates = []

    class Watch(RewardModelModule):
        def on_train_batch_start(self, batch, batch_idx):
            rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])

    fit(
        tiny_model,
        data_file,
        kind=Watch,
        data={"batch_size": 1},
        schedule="linear",
        schedule_floor=0.2,
        warmup_ratio=0.2,
    )
    # Five steps, one of them warm-up; then 1 - 0.8 k / 4 of 0.1.
    assert rates == pytest.approx([0.1, 0.1, 0.08, 0.06, 0.04])


def test_a_precision_that_would_round_the_head_is_refused(tiny_model, data_file):
    with pytest.raises(ValueError, match=r"precision bf16-true would .* model\.backbone\.dtype"):
        fit(tiny_model, data_file, trainer={"precision": "bf16-true"})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_mixed_precision_and_narrow_weights_train_and_reload(tiny_model, data_file, dtype):
    backbone = {"lora_rank": 2, "dtype": dtype}
    module, _ = fit(
        tiny_model,
        data_file,
        kind=Started,
        backbone=backbone,
        trainer={"precision": "bf16-mixed"},
    )
    assert module.model.head.weight.dtype == torch.float32
    start = Started(Backbone(str(tiny_model), **backbone), sgd).make_model(torch.device("cpu"))
    assert not torch.equal(start.head.weight, module.model.head.weight)


# ---- ties in the data -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["train", "val"])
def test_tied_pairs_need_theta_and_are_found_before_weights_load(tiny_model, tmp_path, name):
    path = write(tmp_path / "good.jsonl")
    tied = write(tmp_path / "tied.jsonl", [ROWS[0], TIED])
    module = RewardModelModule(Backbone(str(tiny_model)), sgd)
    data = PreferenceData(**{"train": path, name: tied})
    with pytest.raises(DataError, match=r"tied\.jsonl:2: neither .* set model\.tie_theta"):
        quiet_trainer(tmp_path).fit(module, datamodule=data)
    assert "model" not in module._modules


def test_ties_and_margins_do_not_go_together(tiny_model, data_file):
    with pytest.raises(ValueError, match=r"tie_theta and data\.margin: small do not go together"):
        fit(tiny_model, data_file, tie_theta=2.0, data={"margin": "small"})


def test_it_trains_on_pairs_only(data_file):
    parts = SimpleNamespace(
        model=RewardModelModule(Backbone("none/needed"), sgd), datamodule=DialogueData(data_file)
    )
    said = "RewardModelModule trains on PreferenceData, but data is DialogueData"
    with pytest.raises(ValueError, match=said):
        check_config(parts)


# ---- checkpoints and the saved model ----------------------------------------------------------


def test_a_resumed_run_ends_where_the_whole_run_does(tiny_model, data_file, tmp_path, lora):
    settings = {
        "backbone": {**lora, "lora_dropout": 0.1 if lora["lora_rank"] else 0.0},
        "data": {"batch_size": 1},
        "epochs": 2,
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        "schedule": "cosine",
    }
    whole, _ = fit(
        tiny_model, data_file, trainer={"callbacks": [IterationCheckpoint(1, keep=10)]}, **settings
    )
    for iteration in (3, 7):  # within the first epoch and within the second
        path = tmp_path / "checkpoints" / f"iteration-{iteration:06d}.ckpt"
        resumed, trainer = fit(tiny_model, data_file, resume=path, **settings)
        assert trainer.global_step == 10
        assert torch.equal(weights(resumed), weights(whole))


def test_a_checkpoint_holds_head_and_adapters_and_fits_no_other_model(
    tiny_model, data_file, tmp_path
):
    path = tmp_path / "last.ckpt"
    module, trainer = fit(tiny_model, data_file, backbone={"lora_rank": 2})
    trainer.save_checkpoint(path)
    saved = torch.load(path, weights_only=False)
    assert "model.head.weight" in saved["state_dict"]
    assert all("lora_" in name or "head" in name for name in saved["state_dict"])
    module.on_load_checkpoint(saved)
    other, _ = fit(tiny_model, data_file)
    with pytest.raises(ValueError, match="this checkpoint is of another model"):
        other.on_load_checkpoint(saved)


def test_the_trained_model_is_in_the_run_folder(tiny_model, data_file, tmp_path, lora):
    module, trainer = fit(
        tiny_model,
        data_file,
        backbone=lora,
        kind=Started,
        trainer={"callbacks": [IterationCheckpoint(5)]},
    )
    loaded, tokenizer = load_reward_model(tmp_path / "model")
    sequences = PairBatch(trainer.datamodule.train_examples, 5).sequences
    with torch.no_grad():
        assert torch.equal(loaded.scores(sequences), module.model.eval().scores(sequences))
    assert tokenizer.chat_template == module.tokenizer.chat_template


@pytest.mark.parametrize("callbacks", [[], [IterationCheckpoint(5)]], ids=["no folder", "saved"])
def test_a_saved_model_with_other_scores_is_told(tiny_model, data_file, monkeypatch, callbacks):
    original = RewardModel.save

    def forgetful(model, tokenizer, folder, backbone):
        head = model.head.weight.detach().clone()
        model.head.weight.data.mul_(1.01)
        original(model, tokenizer, folder, backbone)
        model.head.weight.data.copy_(head)

    monkeypatch.setattr(RewardModel, "save", forgetful)
    with pytest.raises(ValueError, match="does not hold the model that was trained: loaded again"):
        fit(tiny_model, data_file, kind=Started, trainer={"callbacks": callbacks})


def test_without_a_checkpoint_callback_nothing_is_left_behind(tiny_model, data_file, tmp_path):
    fit(tiny_model, data_file)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pairs.jsonl"]
