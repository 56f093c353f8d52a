from __future__ import annotations

from types import SimpleNamespace

import pytest

from sctom.callbacks import Throughput


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("sctom.callbacks.throughput.time.perf_counter", lambda: clock.now)
    return clock


def test_rates_and_shares(
    trainer: SimpleNamespace, module: SimpleNamespace, clock: SimpleNamespace
) -> None:
    callback = Throughput()
    module.progress.num_tokens = 1000  # of an earlier part of a resumed run
    callback.on_train_start(trainer, module)
    clock.now += 10.0
    module.progress.num_tokens += 30
    callback.on_train_batch_end(trainer, module, None, None, 0)
    # 4 prompts of 3 tokens, completions of 4 + 5 + 4 + 5: 30 tokens
    # a step takes 4 s, the update 1 s of them for two passes
    assert module.logged == {
        "throughput/update": 60.0,
        "throughput/step": 7.5,
        "throughput/total": 3.0,
        "share/generate": 0.5,
        "share/reward": 0.125,
        "share/score": 0.125,
        "share/update": 0.25,
    }
    assert module.last_metrics["throughput/step"] == 7.5
    assert module.last_metrics["reward"] == -0.25


def test_processes_add_up_and_a_phase_too_short_to_see_is_no_error(
    trainer: SimpleNamespace, module: SimpleNamespace, clock: SimpleNamespace
) -> None:
    trainer.world_size = 2
    module.last_metrics["time/reward"] = module.last_metrics["time/update"] = 0.0
    Throughput().on_train_batch_end(trainer, module, None, None, 0)
    assert module.logged["throughput/step"] == 15.0
    assert module.logged["share/reward"] == 0.0
    assert module.logged["throughput/update"] > 1e9
