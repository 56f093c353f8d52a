from __future__ import annotations

import math

import pytest
import torch

from sctom.modules import Backbone
from sctom.modules.scoring import Scorer, collate
from tests.modules.test_silent_rows import distinct, make_module, run


@pytest.mark.parametrize("self_check", [True, False])
def test_old_logps_are_the_samplers_own_where_the_check_found_them_equal(
    tiny_model, tiny_prompts, tmp_path, self_check
):
    module = make_module(tiny_model, distinct, passes=2, self_check=self_check)
    run(module, tiny_prompts, tmp_path, iterations=1)
    assert module.progress.sampler_agrees is (True if self_check else None)
    # with self-checks the sampler's, else the scorer's: near to them, but not the same tensors
    own = [torch.equal(row.old_logps, row.sampler_logps) for row in module.last_rollout.rows]
    assert all(own) if self_check else not all(own)
    for row in module.last_rollout.rows:
        torch.testing.assert_close(row.old_logps, row.sampler_logps, rtol=0, atol=1e-4)


def test_a_sampler_that_is_a_little_off_is_not_taken_at_its_word(
    tiny_model, tiny_prompts, tmp_path
):
    module = make_module(tiny_model, distinct, passes=2, self_check=True)
    sample = module.sampler.sample

    def biased(*args, **kwargs):
        samples = sample(*args, **kwargs)
        for one in samples:
            one.logps += 5e-4  # within what the check allows, beyond what rounding gives
        return samples

    module.sampler.sample = biased
    (metrics,) = run(module, tiny_prompts, tmp_path, iterations=1)
    assert module.progress.sampler_agrees is False
    start = Backbone(str(tiny_model), lora_rank=4).load_model()
    for row in module.last_rollout.rows:
        logps, _ = Scorer(1.0)(start, collate([row], torch.device("cpu")))
        torch.testing.assert_close(row.old_logps, logps[0].detach(), rtol=0, atol=1e-5)
    assert metrics["sampling/sampling_logp_difference/mean"] == pytest.approx(5e-4, rel=0.1)


@pytest.mark.parametrize("found", [True, False])
def test_what_the_check_found_is_kept_for_the_run(tiny_model, tiny_prompts, tmp_path, found):
    first = make_module(tiny_model, distinct, passes=2, self_check=True)
    run(first, tiny_prompts, tmp_path, iterations=2, save=True)
    saved = torch.load(tmp_path / "1.ckpt", weights_only=False)
    assert saved["progress"]["sampler_agrees"] is True
    saved["progress"]["sampler_agrees"] = found  # as another machine might have found it
    torch.save(saved, tmp_path / "other.ckpt")

    again = make_module(tiny_model, distinct, passes=2, self_check=True)
    options = {"ckpt_path": str(tmp_path / "other.ckpt"), "weights_only": False}
    run(again, tiny_prompts, tmp_path, iterations=2, **options)
    assert again.progress.iteration == 2
    assert again.progress.sampler_agrees is found  # checked again, and not changed
    own = [torch.equal(row.old_logps, row.sampler_logps) for row in again.last_rollout.rows]
    assert all(own) is found


# ---- the arithmetic that the check must see ------------------------------------------------------


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_under_other_precisions_old_logps_come_from_the_trainer(
    tiny_model, tiny_prompts, tmp_path, capsys, precision
):
    module = make_module(tiny_model, distinct, passes=2, self_check=True)
    metrics = run(module, tiny_prompts, tmp_path, precision=precision)[-1]
    # the check runs in the arithmetic of the run, so rounding in bfloat16 is seen
    assert module.progress.sampler_agrees is False
    assert "old log-probabilities come from the trainer" in capsys.readouterr().out
    assert module.progress.skipped == 0 and math.isfinite(metrics["loss"])
    assert metrics["sampling/sampling_logp_difference/max"] > 1e-4


def resumed(module, prompts, folder, **options):
    options |= {"ckpt_path": str(folder / "1.ckpt"), "weights_only": False}
    run(module, prompts, folder, iterations=2, **options)
    assert module.progress.iteration == 2


def test_a_run_that_began_without_checks_goes_on_as_it_was(tiny_model, tiny_prompts, tmp_path):
    first = make_module(tiny_model, distinct, passes=2, self_check=False)
    run(first, tiny_prompts, tmp_path, save=True)
    again = make_module(tiny_model, distinct, passes=2, self_check=True)
    resumed(again, tiny_prompts, tmp_path)
    assert again.progress.sampler_agrees is None


def test_a_run_resumed_in_another_arithmetic_takes_it_back(tiny_model, tiny_prompts, tmp_path):
    first = make_module(tiny_model, distinct, passes=2, self_check=True)
    run(first, tiny_prompts, tmp_path, save=True)
    assert first.progress.sampler_agrees is True
    again = make_module(tiny_model, distinct, passes=2, self_check=True)
    resumed(again, tiny_prompts, tmp_path, precision="bf16-mixed")
    assert again.progress.sampler_agrees is False
    for row in again.last_rollout.rows:
        assert not torch.equal(row.old_logps, row.sampler_logps)
