import json
from pathlib import Path

import lightning as L
import pytest
import torch

from sctom.callbacks import IterationCheckpoint
from sctom.data.dialogues import Dialogue, DialogueBatch, DialogueData
from sctom.modules.backbone import Backbone
from sctom.modules.scoring import Padded, Scorer
from sctom.modules.sft import (
    SFTModule,
    learned_logits,
    learned_logps,
    pack_dialogues,
    pad_dialogues,
)
from sctom.rollout.packing import Packed
from sctom.rollout.sharing import shares_prefixes
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


# ---- packed rows ---------------------------------------------------------------------------------

SHAPE = {
    "vocab_size": 31,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "eos_token_id": 2,
    "bos_token_id": None,
    "pad_token_id": 0,
}
MIXED = [
    Dialogue([5, 6, 7, 8, 9, 10, 11, 12], [0, 0, 1, 1, 0, 0, 1, 1]),  # two turns
    Dialogue([5, 6, 13, 14], [0, 0, 1, 1]),  # begins as the first
    Dialogue([21, 3], [0, 1]),
    Dialogue([9, 8, 7, 6, 5, 4, 3, 9, 8, 7], [0, 0, 0, 0, 0, 0, 0, 1, 1, 1]),  # the last one only
]
LEARNED = [7, 8, 11, 12, 13, 14, 3, 9, 8, 7]
CPU = torch.device("cpu")


def make(kind="Llama", **settings):
    import transformers

    config, model = (getattr(transformers, f"{kind}{part}") for part in ("Config", "ForCausalLM"))
    with torch.random.fork_rng():
        torch.manual_seed(5)
        made = model(config(**{**SHAPE, **settings}))
        for parameter in made.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.25)
    return made


def loss_and_gradient(model, rows):
    model.zero_grad()
    logps, _ = learned_logps(Scorer(temperature=1.0), model, rows)
    loss = -(logps * rows.mask).sum() / rows.mask.sum()
    loss.backward()
    return loss.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])


KINDS = [
    ("Llama", {}),
    ("Llama", {"tie_word_embeddings": True}),
    ("Qwen3", {"head_dim": 8}),
    ("Granite", {"logits_scaling": 2.0}),  # its head alone does not give the logits
]


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_packed_rows_give_the_loss_and_gradient_of_padded_ones(kind, settings):
    model = make(kind, **settings)
    assert shares_prefixes(model, 10)
    for dialogues in (MIXED, ALIKE, [*MIXED, *ALIKE]):
        packed = loss_and_gradient(model, pack_dialogues(dialogues, CPU))
        padded = loss_and_gradient(model, pad_dialogues(dialogues, CPU))
        torch.testing.assert_close(packed, padded, rtol=0, atol=1e-5)


def test_the_loss_is_that_of_each_dialogue_run_alone():
    model, total = make(), 0.0
    for one in MIXED:
        logps = model(torch.tensor([one.ids])).logits[0].log_softmax(-1).detach()
        total -= sum(float(logps[place - 1, one.ids[place]]) for place in one.learned)
    loss, _ = loss_and_gradient(model, pack_dialogues(MIXED, CPU))
    assert float(loss) == pytest.approx(total / len(LEARNED), abs=1e-5)


def test_a_packed_row_has_no_padding_and_each_dialogue_begins_at_position_0():
    rows = pack_dialogues(MIXED, CPU)
    assert isinstance(rows.layout, Packed)
    # 5 6 stands once for two dialogues; the last token of each dialogue predicts nothing
    assert rows.layout.ids.tolist() == [
        *(5, 6, 7, 8, 9, 10, 11, 13),
        *(21,),
        *(9, 8, 7, 6, 5, 4, 3, 9, 8),
    ]
    assert rows.layout.positions.tolist() == [0, 1, 2, 3, 4, 5, 6, 2, 0, *range(9)]
    # of 7 8 11 12, of 13 14, of 3, of 9 8 7: each the place in front of it
    assert rows.layout.sources.tolist() == [1, 2, 5, 6, 1, 7, 8, 15, 16, 17]
    assert rows.targets.tolist() == [LEARNED]
    assert rows.mask.tolist() == [[1.0] * 10]


ALIKE = [
    Dialogue([5, 6, 7, 8, 9], [0, 0, 0, 1, 1]),
    Dialogue([5, 6, 10, 11], [0, 0, 0, 1]),
    Dialogue([5, 6, 12, 13], [0, 0, 1, 1]),
]


def test_dialogues_share_what_all_have_in_common():
    rows = pack_dialogues(ALIKE, CPU)
    assert rows.layout.ids.tolist() == [5, 6, 7, 8, 10, 12]
    assert rows.layout.positions.tolist() == [0, 1, 2, 3, 2, 2]
    # of 8 and 9: 7 and 8; of 11: 10; of 12 and 13: 6 and 12
    assert rows.layout.sources.tolist() == [2, 3, 4, 1, 5]
    assert rows.targets.tolist() == [[8, 9, 11, 12, 13]]
    twice = pack_dialogues([*ALIKE, ALIKE[0]], CPU)  # the first and the last share all of 5 6 7
    assert twice.layout.ids.tolist() == [5, 6, 7, 8, 8, 5, 6, 10, 12]


def test_sources_of_padded_rows_point_one_before_the_targets():
    rows = pad_dialogues([Dialogue([7, 8, 9, 10, 11], [0, 1, 0, 1, 1]), MIXED[2]], CPU)
    assert isinstance(rows.layout, Padded)
    assert rows.layout.input_ids.tolist() == [[7, 8, 9, 10, 11], [21, 3, 0, 0, 0]]
    assert rows.layout.attention_mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]
    assert rows.targets.tolist() == [[8, 10, 11], [3, 0, 0]]
    assert rows.layout.sources.tolist() == [[0, 2, 3], [0, 0, 0]]
    assert rows.mask.tolist() == [[1, 1, 1], [1, 0, 0]]


def test_what_is_learned_does_not_see_the_other_dialogues():
    model = make()
    logits = learned_logits(model, pack_dialogues(MIXED, CPU))
    others = [Dialogue([one.ids[0] + 1, *one.ids[1:]], one.mask) for one in MIXED[:3]]
    changed = learned_logits(model, pack_dialogues([*others, MIXED[3]], CPU))
    torch.testing.assert_close(changed[0, 7:], logits[0, 7:], rtol=0, atol=1e-6)
    assert (changed[0, :7] - logits[0, :7]).abs().amax(-1).min() > 1e-3


def test_packing_can_be_turned_off(data_file, one_batch):
    for packing, kind in ((True, Packed), (False, Padded)):
        module = SFTModule(Backbone("sctom:tinyworld/model"), torch.optim.SGD, packing=packing)
        module.model = make()
        assert isinstance(module._lay_out(DialogueBatch(MIXED, 10)).layout, kind)
    padded = weights(fit(data_file, batch_size=5, packing=False)[0])
    torch.testing.assert_close(padded, one_batch, rtol=0, atol=1e-6)


def test_a_model_that_cannot_be_packed_is_run_on_padded_rows():
    module = SFTModule(Backbone("sctom:tinyworld/model"), torch.optim.SGD)
    module.model = make("Mistral", sliding_window=8)
    assert isinstance(module._lay_out(DialogueBatch(MIXED[:3], 7)).layout, Packed)
    assert isinstance(module._lay_out(DialogueBatch(MIXED, 10)).layout, Padded)  # ten tokens
