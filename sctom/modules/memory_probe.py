"""The memory probe: the longest possible batch is run before anything has been paid for.

A run meets its longest batch late, when the longest prompts come together or the model learns to
write to the limit, and ends there. The probe samples, scores and differentiates that batch first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import nn

from sctom.batch import Prompt, Row, micro_batches
from sctom.modules.backbone import trainable
from sctom.modules.fill import fill_logps, fill_values
from sctom.modules.metrics import Means, peak_memory_mib
from sctom.modules.ranks import exchanging_gradients, gathered
from sctom.modules.scoring import collate
from sctom.objectives import Totals
from sctom.rollout import LocalSampler

if TYPE_CHECKING:
    from sctom.modules.policy import PolicyModule

PROBE = 5
"""Second part of the address of the draws made here, after that of `sctom.modules.selfcheck`."""

_PHRASES = ("can't allocate memory", "defaultcpuallocator", "out of memory", "alloc_failed")


@dataclass(frozen=True)
class Probe:
    """What the probe found."""

    fits: bool
    detail: str


@dataclass(frozen=True)
class Phase:
    """One part of an iteration, at its largest."""

    name: str
    rows: int
    tokens: int
    """Prompt and completion of one row."""
    run: Callable[[], None]
    lower: list[str]
    """Settings that make it smaller, the first to try first."""
    note: str = ""

    def __str__(self) -> str:
        return f"{self.name} of {self.rows:,} rows x {self.tokens:,} tokens{self.note}"


def wants_probe(module: PolicyModule) -> bool:
    """Whether the run is probed: as set, and by default where there is an accelerator.

    A CPU gives out memory it does not have and the system then ends the process, so there a batch
    that is too large cannot be told: the probe would be what kills the run.
    """
    if module.memory_probe is None:
        return module.device.type != "cpu"
    return module.memory_probe


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error says that memory has run out, on an accelerator or on the CPU.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    True
    >>> is_out_of_memory(RuntimeError("shapes do not match"))
    False
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(phrase in text for phrase in _PHRASES)


def probe_memory(module: PolicyModule, prompts: Sequence[Prompt]) -> Probe:
    """Sample, score and differentiate the longest possible batch, and leave everything as it was.

    Every phase has the longest prompt in every row and `max_new_tokens` tokens of completion, as
    many rows as the run will ever hold at once there. Optimiser state and gradients are in place
    while the micro-batch is differentiated, as they are from the second one on. What is not run:
    the optimiser's step, whose temporary memory comes when activations are gone, rewards, and
    validation, which precedes training anyway.

    All ranks must call it, and all learn of a failure on any.

    Args:
        module: with its model loaded and its optimiser made.
        prompts: all training prompts.
    """
    longest = max(prompts, key=lambda prompt: len(prompt.ids))
    if module.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(module.device)
    found: list[str] = []
    failure = ""
    with _unchanged(module), module.trainer.precision_plugin.train_step_context():
        for phase in _phases(module, longest):
            failure = _attempt(phase)
            if failure:
                break
            found.append(f"{phase}, peak {peak_memory_mib(module.device):,.0f} MiB")
    if module.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(module.device)  # `memory_mib` is about the run
    failed = gathered(module, torch.tensor(bool(failure))).nonzero().flatten().tolist()
    if failed and not failure:
        failure = f"process {failed[0]} ran out of memory; its own message says in what"
    return Probe(not failed, failure or "; ".join(found))


def _attempt(phase: Phase) -> str:
    """Run a phase: empty, or what to do where memory ran out.

    Only text leaves, since the error holds on to what was allocated.
    """
    try:
        phase.run()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        cause = (str(error).splitlines() or [type(error).__name__])[0][:200]
        return f"out of memory in {phase} ({cause}); lower in this order: {', '.join(phase.lower)}"
    return ""


@contextmanager
def _unchanged(module: PolicyModule) -> Iterator[None]:
    """Put back the modes of the layers and torch's random state, and drop all gradients."""
    modes = [(layer, layer.training) for layer in module.model.modules()]
    devices = [module.device] if module.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        for layer, training in modes:
            layer.training = training
        for _, parameter in trainable(module):
            parameter.grad = None


def _phases(module: PolicyModule, longest: Prompt) -> Iterator[Phase]:
    """The phases in the order an iteration has them; a later one gets what an earlier one made."""
    data = module.trainer.datamodule  # type: ignore[attr-defined]
    prompts = data.prompts_per_iteration // module.trainer.world_size
    length = len(longest.ids) + module.sampling.max_new_tokens
    yield _sampling(module, longest, prompts, length)
    completions = prompts * module.group_size
    rows = _rows(module, longest, completions)
    scored_by = module._reference, module.value_head
    if module.updates_per_rollout() > 1 or any(part is not None for part in scored_by):
        lower = [f"model.micro_batch_size (now {module.micro_batch_size})", *_lengths(longest)]
        if module.reference_kind == "model":
            lower.append("model.reference: base or none (a second model is in memory)")
        yield Phase("scoring", len(rows), length, lambda: _score(module, rows), lower)
    step = min(module.minibatch_size or completions, completions)
    batch = rows[:step]
    yield Phase(
        "update",
        len(batch),
        length,
        lambda: _differentiate(module, batch, several=step > len(batch)),
        _update_settings(module, len(batch), longest),
    )


def _lengths(longest: Prompt) -> list[str]:
    found = f"data.max_prompt_tokens (the longest prompt has {len(longest.ids):,})"
    return ["model.sampling.max_new_tokens", found]


def _sampling(module: PolicyModule, longest: Prompt, prompts: int, length: int) -> Phase:
    sampler, size = module.sampler, module.group_size
    lower = ["model.group_size", *_lengths(longest)]
    note = ""
    if isinstance(sampler, LocalSampler):
        prompts = min(prompts, max(1, sampler.max_rows // size))
        if sampler.max_rows > size and prompts > 1:
            lower[0] = f"model.sampler.max_rows (now {sampler.max_rows:,})"
    else:
        note = f", given at once to {type(sampler).__name__}, which may hold fewer at a time"

    def run() -> None:
        module.model.eval()
        sampler.sample(
            module.model,
            [longest] * prompts,
            group_size=size,
            sampling=module.sampling,
            stop_ids=frozenset(),
            address=(module.seed, PROBE),
        )

    return Phase("sampling", prompts * size, length, run, lower, note)


def _rows(module: PolicyModule, longest: Prompt, completions: int) -> list[Row]:
    """The largest micro-batch of the longest prompts and completions.

    Which tokens they have does not matter to memory, but prompts must differ: a micro-batch holds
    equal ones once. Shuffled minibatches may have another prompt in every row.
    """
    tokens = module.sampling.max_new_tokens
    together = 1 if module.minibatch_size else module.group_size
    ids = [longest.ids[i % len(longest.ids)] for i in range(tokens)]
    rows = []
    for i in range(min(completions, module.micro_batch_size)):
        number = i // together
        turn = number % len(longest.ids)
        prompt = replace(longest, index=number, ids=longest.ids[turn:] + longest.ids[:turn])
        rows.append(Row(prompt, i, ids, "", truncated=True, advantage=1.0))
    return micro_batches(rows, module.micro_batch_size, module.micro_batch_tokens)[0]


def _score(module: PolicyModule, rows: Sequence[Row]) -> None:
    """Log-probabilities and values of one micro-batch, where the run needs them."""
    reference, head = module._reference, module.value_head
    limits = module.micro_batch_size, module.micro_batch_tokens
    several = module.updates_per_rollout() > 1 or module.kl_in == "reward"
    if head is not None:
        fill_values(rows, module.scorer, module.model, head, *limits, logps=several)
        for row in rows:
            row.returns = row.old_values
    elif several:
        fill_logps(rows, "old_logps", module.scorer, module.model, *limits)
    if reference is not None:
        with reference.scoring() as model:
            fill_logps(rows, "ref_logps", module.scorer, model, *limits)


def _differentiate(module: PolicyModule, rows: Sequence[Row], *, several: bool) -> None:
    """Forward and backward pass of one micro-batch with optimiser state in memory.

    Args:
        module: the module.
        rows: the micro-batch.
        several: whether an update has further micro-batches, so that the gradients of earlier ones
            are there from the start.
    """
    module.model.eval()
    with torch.no_grad():  # the scorer looks at the head once; dropout must not mislead it
        module.scorer(module.model, collate(rows[:1], module.device))
    parameters = [parameter for _, parameter in trainable(module)]
    held = _optimizer_state(module, parameters)
    if several:
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
    tokens = sum(len(row.ids) for row in rows)
    totals = Totals(float(tokens), float(len(rows)), module.sampling.max_new_tokens)
    module.model.train()
    with torch.enable_grad(), exchanging_gradients(module.trainer, False):
        loss = module.loss(collate(rows, module.device), totals, Means(), 0)
        loss.backward()  # type: ignore[no-untyped-call]
    del held  # until here it took its place


def _optimizer_state(module: PolicyModule, parameters: list[nn.Parameter]) -> list[torch.Tensor]:
    """Memory as large as the state that the optimiser has after its first step.

    Only a step makes that state, and a step changes weights. So the optimiser of the config takes
    one with a small parameter, and what its state has for each byte of weight is allocated for
    every trained weight. That holds for any optimiser: 2 for Adam, 0 for plain SGD, about 1/2 for
    Adam in 8 bits. A resumed run has its state in memory already.
    """
    optimizer = module.optimizers(use_pl_optimizer=False)
    assert not isinstance(optimizer, list)
    if optimizer.state:
        return []
    shares = {
        dtype: state_share(module.make_optimizer, dtype, module.device)
        for dtype in {parameter.dtype for parameter in parameters}
    }
    return [
        torch.empty(int(shares[p.dtype] * p.nbytes), dtype=torch.uint8, device=p.device)
        for p in parameters
    ]


def state_share(make: OptimizerCallable, dtype: torch.dtype, device: torch.device) -> float:
    """Bytes of optimiser state for each byte of trained weight, in matrices.

    >>> state_share(torch.optim.AdamW, torch.float32, torch.device("cpu"))
    2.0
    """
    weight = nn.Parameter(torch.zeros(128, 128, dtype=dtype, device=device))
    weight.grad = torch.zeros_like(weight)
    optimizer = make([weight])
    optimizer.step()
    held = [t for t in optimizer.state[weight].values() if isinstance(t, torch.Tensor)]
    return sum(tensor.nbytes for tensor in held if tensor.numel() > 1) / weight.nbytes


def _update_settings(module: PolicyModule, rows: int, longest: Prompt) -> list[str]:
    """What makes an update smaller and is not in use yet; what costs least first."""
    backbone = module.backbone
    choices = [
        (
            rows > 1,
            f"model.micro_batch_size (now {module.micro_batch_size}) or "
            f"model.micro_batch_tokens (now {module.micro_batch_tokens:,})",
        ),
        (not backbone.gradient_checkpointing, "model.backbone.gradient_checkpointing: true"),
        (backbone.dtype == "float32", "model.backbone.dtype: bfloat16"),
        (backbone.quantization is None, "model.backbone.quantization: nf4"),
        (
            backbone.lora_rank == 0 and backbone.adapter is None,
            "model.backbone.lora_rank: 16 instead of training all weights",
        ),
    ]
    return [*(text for applies, text in choices if applies), *_lengths(longest)]
