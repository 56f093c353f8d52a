from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import lightning as L
import pytest
import torch

from sctom.data import PromptData
from sctom.modules import Backbone, PolicyModule
from sctom.modules.memory_probe import (
    is_out_of_memory,
    probe_memory,
    state_share,
    wants_probe,
)
from sctom.modules.scoring import Scorer
from sctom.modules.selfcheck import SelfCheckError, run_self_checks
from sctom.objectives import GRPO
from sctom.rewards import FunctionReward
from sctom.rollout import LocalSampler, Sampling
from sctom.rollout.causal import causal_model
from tests.training import quiet_trainer

LONGEST = 15
"""Tokens of the longest prompt: seven words and three more "?", with five of the chat template."""


def _distinct(completion_ids, **kwargs):
    return [float(len(set(ids))) for ids in completion_ids]


def make_module(model: Path, *, lora_rank: int = 4, **settings) -> PolicyModule:
    defaults = {
        "objective": GRPO(),
        "rewards": [FunctionReward(_distinct)],
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        "group_size": 4,
        "sampling": Sampling(max_new_tokens=6),
        "memory_probe": True,
        "seed": 3,
    }
    if settings.get("self_check") is False:  # then nothing is probed unless a test does it itself
        defaults["memory_probe"] = None
    backbone = Backbone(str(model), lora_rank=lora_rank)
    return PolicyModule(backbone, **{**defaults, **settings})


def run(
    module: PolicyModule,
    prompts: Path,
    folder: Path,
    callback: L.Callback | None = None,
    precision: str = "32-true",
    **data,
) -> None:
    settings = {"prompts_per_iteration": 3, "iterations": 2, "columns": "selfaware", **data}
    trainer = quiet_trainer(folder, precision=precision, callbacks=[callback] if callback else [])
    trainer.fit(module, PromptData(str(prompts), **settings))


def trained(module: PolicyModule) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.model.parameters() if p.requires_grad])


class Before(L.Callback):
    """Calls something with a module that is ready to train, before its first iteration."""

    def __init__(self, call) -> None:
        self.call = call

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        if batch_idx == 0:
            self.call(pl_module)


@pytest.fixture
def probed(tiny_model, tiny_prompts, tmp_path):
    """The probe of a module, called where training begins, after an optional change of it."""

    def call(change=lambda module: None, **settings):
        outcome = []

        def probe(module: PolicyModule) -> None:
            change(module)
            outcome.append(probe_memory(module, module.trainer.datamodule.train_prompts))

        module = make_module(tiny_model, self_check=False, **settings)
        run(module, tiny_prompts, tmp_path, Before(probe), iterations=1)
        return outcome[0]

    return call


# ---- it changes nothing --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"passes": 2, "minibatch_size": 6, "micro_batch_size": 4},
        {"reference": "initial", "beta": 0.1},
        {"reference": "base", "beta": 0.1, "kl_in": "reward", "kl_estimator": "k1"},
        {"lora_rank": 0, "optimizer": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)},
    ],
    ids=["plain", "several updates", "initial", "base in the reward", "all weights"],
)
def test_a_run_ends_with_the_same_weights(tiny_model, tiny_prompts, tmp_path, settings):
    weights = []
    for probe in (True, False):
        module = make_module(tiny_model, memory_probe=probe, **settings)
        module.backbone.lora_dropout = 0.3
        run(module, tiny_prompts, tmp_path, val=str(tiny_prompts))
        weights.append(trained(module))
        assert module.progress.updates >= 2
    assert torch.equal(*weights)


def test_nothing_else_is_changed_either(tiny_model, tiny_prompts, tmp_path):
    def state(module):
        return (
            torch.get_rng_state().tolist(),
            [layer.training for layer in module.model.modules()],
            [p.grad for p in module.model.parameters()],
            dict(module.optimizers(use_pl_optimizer=False).state),
            vars(module.progress).copy(),
            (module.last_rollout, module.last_metrics),
            trained(module).tolist(),
        )

    seen = []

    def probe(module):
        module.model.eval()
        next(module.model.children()).train()  # a state that eval() or train() would not restore
        before = state(module)
        assert probe_memory(module, module.trainer.datamodule.train_prompts).fits
        seen.append((before, state(module)))

    module = make_module(tiny_model, self_check=False, passes=2, reference="initial", beta=0.1)
    run(module, tiny_prompts, tmp_path, Before(probe))
    ((before, after),) = seen
    assert before == after
    assert set(before[1]) == {True, False}


def test_the_state_of_a_resumed_optimiser_is_neither_changed_nor_allocated_again(
    tiny_model, tiny_prompts, tmp_path, monkeypatch
):
    made = []
    monkeypatch.setattr("sctom.modules.memory_probe.state_share", lambda *a: made.append(1) or 2.0)
    seen = []

    class Later(L.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            optimizer = pl_module.optimizers(use_pl_optimizer=False)
            before = [t.clone() for s in optimizer.state.values() for t in s.values()]
            probe_memory(pl_module, trainer.datamodule.train_prompts)
            after = [t for s in optimizer.state.values() for t in s.values()]
            seen.append((len(made), all(map(torch.equal, before, after)), len(after)))

    run(make_module(tiny_model, self_check=False), tiny_prompts, tmp_path, Later())
    first, second = seen
    assert first == (1, True, 0)
    assert second[:2] == (1, True) and second[2] > 0


# ---- what it runs --------------------------------------------------------------------------------


class Recorder(LocalSampler):
    """Notes the lengths of prompt and completion in every call without a stop token."""

    def __init__(self, max_rows: int) -> None:
        super().__init__(max_rows)
        self.without_stop: list[list[tuple[int, int]]] = []

    def sample(self, model, prompts, *, group_size, stop_ids, **arguments):
        samples = super().sample(
            model, prompts, group_size=group_size, stop_ids=stop_ids, **arguments
        )
        if not stop_ids:
            lengths = [len(prompts[i // group_size].ids) for i in range(len(samples))]
            self.without_stop.append(
                [(length, len(s.ids)) for length, s in zip(lengths, samples, strict=True)]
            )
        return samples


@pytest.mark.parametrize(
    ("max_rows", "rows"),
    [(256, 12), (11, 8), (8, 8), (7, 4), (1, 4)],  # 3 prompts x 4; whole groups, at least one
)
def test_the_longest_prompt_in_every_row_and_no_stop(probed, max_rows, rows):
    sampler = Recorder(max_rows)
    probe = probed(sampler=sampler)
    assert probe.fits
    assert f"sampling of {rows} rows x {LONGEST + 6} tokens, peak " in probe.detail
    assert sampler.without_stop == [[(LONGEST, 6)] * rows]


@pytest.mark.parametrize(
    ("settings", "scoring", "update"),
    [
        ({}, None, 12),  # 3 prompts x 4 completions, in one micro-batch of at most 16
        ({"micro_batch_size": 5}, None, 5),
        ({"minibatch_size": 4, "micro_batch_size": 8}, 8, 4),  # two updates and more need old logps
        ({"passes": 2}, 12, 12),
        ({"reference": "base", "beta": 0.1, "micro_batch_size": 3}, 3, 3),
    ],
)
def test_micro_batches_are_as_large_as_the_run_has_them(probed, settings, scoring, update):
    parts = probed(**settings).detail.split("; ")
    tokens = f"rows x {LONGEST + 6} tokens"
    expected = [f"sampling of 12 {tokens}"]
    expected += [f"scoring of {scoring} {tokens}"] if scoring else []
    expected += [f"update of {update} {tokens}"]
    assert [part.split(", ")[0] for part in parts] == expected


def test_gradients_and_optimiser_state_are_in_memory_during_the_update(probed):
    seen = {}

    def change(module):
        parameters = [p for p in module.model.parameters() if p.requires_grad]
        make, loss = torch.empty, module.loss

        def empty(*sizes, **arguments):
            if arguments.get("dtype") == torch.uint8:
                seen.setdefault("state", []).append(sizes[0])
            return make(*sizes, **arguments)

        def noted(*arguments):
            seen["weights"] = [p.nbytes for p in parameters]
            seen["gradients"] = [p.grad is not None for p in parameters]
            seen["training"] = module.model.training
            value = loss(*arguments)
            seen["differentiable"] = value.requires_grad
            return value

        module.loss = noted
        patch.setattr(torch, "empty", empty)

    with pytest.MonkeyPatch.context() as patch:
        probed(change, micro_batch_size=5)
    # AdamW keeps two numbers for each weight
    assert seen["state"][: len(seen["weights"])] == [2 * size for size in seen["weights"]]
    assert all(seen["gradients"]) and seen["training"] and seen["differentiable"]


@pytest.mark.parametrize(
    ("make", "share"),
    [
        (torch.optim.SGD, 0.0),
        (lambda p: torch.optim.SGD(p, momentum=0.9), 1.0),
        (torch.optim.Adam, 2.0),
        (lambda p: torch.optim.AdamW(p, amsgrad=True), 3.0),
        (torch.optim.Adafactor, 2 / 128),  # a row and a column of a 128 x 128 matrix
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_state_of_an_optimiser_is_measured(make, share, dtype):
    assert state_share(make, dtype, torch.device("cpu")) == share


def test_a_sampler_of_ones_own_is_told_apart(probed):
    class Mine:
        def sample(self, *args, **kwargs):
            return LocalSampler().sample(*args, **kwargs)

    detail = probed(sampler=Mine()).detail
    assert "sampling of 12 rows x 21 tokens, given at once to Mine, which may hold fewer" in detail


def test_it_runs_in_the_precision_of_the_run(tiny_model, tiny_prompts, tmp_path):
    seen = []

    def noted(module):
        loss = module.loss

        def note(*arguments):
            seen.append(torch.is_autocast_enabled("cpu"))
            return loss(*arguments)

        module.loss = note
        probe_memory(module, module.trainer.datamodule.train_prompts)
        module.loss = loss

    module = make_module(tiny_model, self_check=False)
    run(module, tiny_prompts, tmp_path, Before(noted), "bf16-mixed", iterations=1)
    assert seen == [True]


# ---- when it runs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "device", "wanted"),
    [
        (None, "cpu", False),
        (None, "cuda", True),
        (None, "mps", True),
        (True, "cpu", True),
        (False, "cuda", False),
    ],
)
def test_by_default_only_on_an_accelerator(setting, device, wanted):
    module = SimpleNamespace(memory_probe=setting, device=torch.device(device))
    assert wants_probe(module) is wanted


def test_it_is_the_first_of_the_self_checks(tiny_model, tiny_prompts, tmp_path, capsys):
    run(make_module(tiny_model), tiny_prompts, tmp_path)
    lines = [line for line in capsys.readouterr().out.splitlines() if "self-check" in line]
    assert lines[0].startswith("  self-check ok: memory: sampling of 12 rows x 21 tokens, peak ")
    assert len(lines) == 6
    run(make_module(tiny_model, memory_probe=None), tiny_prompts, tmp_path)
    assert "memory:" not in capsys.readouterr().out


# ---- when memory runs out ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "meant"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 5 GB)"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), True),
        (MemoryError(), True),
        (RuntimeError("The size of tensor a (3) must match"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_which_errors_are_meant(error, meant):
    assert is_out_of_memory(error) is meant


@pytest.fixture
def ready(tiny_model, tiny_prompts, tmp_path):
    """Makes a module that has trained for an iteration."""

    def make(*, dropout: float = 0.0, **settings) -> PolicyModule:
        module = make_module(tiny_model, self_check=False, **settings)
        module.backbone.lora_dropout = dropout
        run(module, tiny_prompts, tmp_path, iterations=1)
        return module

    return make


def probe(module: PolicyModule):
    return probe_memory(module, module.trainer.datamodule.train_prompts)


def full(*args, **kwargs):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB\nMore.")


LENGTHS = ["model.sampling.max_new_tokens", "data.max_prompt_tokens (the longest prompt has 15)"]


def told(phase: str, *settings: str) -> str:
    cause = "CUDA out of memory. Tried to allocate 2.00 GiB"
    remedies = ", ".join([*settings, *LENGTHS])
    return f"out of memory in {phase} x 21 tokens ({cause}); lower in this order: {remedies}"


def test_dropout_does_not_mislead_the_scorer(ready):
    module = ready(dropout=0.5)
    module.scorer = Scorer(1.0)  # has not looked at the head yet
    assert probe(module).fits
    assert module.scorer._head_alone[causal_model(module.model)] is True


@pytest.mark.parametrize(
    ("max_rows", "rows", "setting"),
    [
        (256, 12, "model.sampler.max_rows (now 256)"),
        (4, 4, "model.group_size"),  # one group is sampled at once, whatever max_rows is
    ],
)
def test_out_of_memory_in_sampling(ready, max_rows, rows, setting):
    module = ready(sampler=LocalSampler(max_rows))
    module.sampler.sample = full
    assert probe(module).detail == told(f"sampling of {rows} rows", setting)
    assert not probe(module).fits


def test_out_of_memory_in_scoring(ready):
    module = ready(passes=2, micro_batch_size=5)
    module.scorer = full
    assert probe(module).detail == told("scoring of 5 rows", "model.micro_batch_size (now 5)")


def test_a_second_model_in_memory_is_named(ready, tiny_model):
    module = ready(reference="model", reference_model=Backbone(str(tiny_model)), beta=0.1)
    module.scorer = full
    assert probe(module).detail.endswith(
        "model.reference: base or none (a second model is in memory)"
    )


CHECKPOINTING = "model.backbone.gradient_checkpointing: true"
DTYPE = "model.backbone.dtype: bfloat16"
NF4 = "model.backbone.quantization: nf4"
LORA = "model.backbone.lora_rank: 16 instead of training all weights"


@pytest.mark.parametrize(
    ("settings", "backbone", "rows", "remedies"),
    [
        (
            {},
            {},
            12,
            [
                "model.micro_batch_size (now 16) or model.micro_batch_tokens (now 8,192)",
                CHECKPOINTING,
                DTYPE,
                NF4,
            ],
        ),
        ({"micro_batch_size": 1}, {"dtype": "bfloat16"}, 1, [CHECKPOINTING, NF4]),
        (
            {"micro_batch_size": 1, "lora_rank": 0},
            {"gradient_checkpointing": True, "dtype": "bfloat16"},
            1,
            [NF4, LORA],
        ),
        ({"micro_batch_size": 1}, {"gradient_checkpointing": True, "quantization": "nf4"}, 1, []),
    ],
)
def test_out_of_memory_in_the_update(ready, settings, backbone, rows, remedies):
    module = ready(**settings)
    for name, value in backbone.items():
        setattr(module.backbone, name, value)
    if backbone.get("quantization"):
        module.backbone.dtype = "bfloat16"
    module.loss = full
    assert probe(module).detail == told(f"update of {rows} rows", *remedies)


def test_memory_that_runs_out_leaves_everything_as_it_was(ready):
    module = ready(micro_batch_size=5)
    module.loss = full
    random, weights = torch.get_rng_state(), trained(module)
    probe(module)
    assert torch.equal(random, torch.get_rng_state()) and torch.equal(weights, trained(module))
    assert all(p.grad is None for p in module.model.parameters())
    assert not any(layer.training for layer in module.model.modules())


def test_another_error_is_not_taken_for_it(ready):
    module = ready()

    def broken(*args):
        raise RuntimeError("The size of tensor a (3) must match")

    module.loss = broken
    with pytest.raises(RuntimeError, match="The size of tensor a"):
        probe(module)


def test_a_failure_stops_the_run_before_anything_else_is_checked(ready, capsys):
    module = ready()
    module.memory_probe, module.loss = True, full
    module.complete = None  # would be called by the other checks
    with pytest.raises(SelfCheckError, match="memory: out of memory in update of 12 rows x 21"):
        run_self_checks(module, module.trainer.datamodule.train_prompts)
    assert "self-check FAILED: memory: out of memory in update" in capsys.readouterr().out


def test_every_process_learns_of_a_failure_on_one(ready, monkeypatch):
    module = ready()
    where = "sctom.modules.memory_probe.gathered"
    monkeypatch.setattr(where, lambda module, mine: torch.stack([mine, torch.tensor(True)]))
    found = probe(module)
    assert not found.fits
    assert found.detail == "process 1 ran out of memory; its own message says in what"


SCRIPT = """
import resource, sys
from pathlib import Path
import lightning as L
sys.path.insert(0, {folder!r})
from test_memory_probe import LocalSampler, Sampling, SelfCheckError, make_module, run

class Limited(L.Callback):
    def on_fit_start(self, trainer, pl_module):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + 48 * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))

def attempt(prompts, **settings):
    sampling = Sampling(max_new_tokens=50)
    module = make_module(Path({model!r}), sampling=sampling, sampler=LocalSampler(8), **settings)
    data = {{"iterations": 1, "prompts_per_iteration": prompts}}
    try:
        run(module, Path({prompts!r}), Path({out!r}), Limited(), **data)
        print("RESULT trained")
    except SelfCheckError as error:
        print("RESULT", str(error).splitlines()[1])
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

attempt(1)
attempt(512, micro_batch_size=2048, micro_batch_tokens=10**6)
attempt(1, group_size=32768)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits memory as Linux does")
def test_a_cpu_that_really_runs_out(tiny_model, tiny_prompts, tmp_path):
    prompts = tmp_path / "many.jsonl"
    prompts.write_text(tiny_prompts.read_text() * 43)  # no iteration asks a prompt twice
    script = SCRIPT.format(
        folder=str(Path(__file__).parent),
        model=str(tiny_model),
        prompts=str(prompts),
        out=str(tmp_path),
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    fits, update, sampling = results
    assert fits == "RESULT trained"
    allocator = r"\(.*DefaultCPUAllocator: can't allocate memory: you tried to allocate \d+ bytes"
    for result, phase, first in (
        (
            update,
            "update of 2,048 rows",
            r"model\.micro_batch_size \(now 2048\) or model\.micro_batch_tokens \(now 1,000,000\)",
        ),
        (sampling, "sampling of 32,768 rows", r"model\.group_size"),
    ):
        wanted = rf"{phase} x 65 tokens {allocator}.*; lower in this order: {first}, model\."
        assert re.search(wanted, result), result
