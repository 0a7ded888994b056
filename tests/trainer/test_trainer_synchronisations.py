"""The census of a real training: which lines read tensors, and that it trains as it would without."""

from __future__ import annotations

import inspect

import pytest
import torch
from tiny_training import assert_same_run, train_causal
from transformers import Trainer

from hf_efficient.callbacks.profilers import SynchronisationsCallback
from hf_efficient.launch.build import instrument_callbacks
from hf_efficient.recipe.schema import ProfileSection
from hf_efficient.trainer import EfficientTrainer


class ReadsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        gradient.item()
        return gradient


class Curious(Trainer):
    """Reads in the forward by a condition, a conversion and a mask, and in the backward."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        self.is_high = bool(loss.detach() > 100)
        self.seen = float(loss.detach())
        self.seen_as_well = loss.tolist()
        self.ids = inputs["input_ids"][inputs["attention_mask"].bool()]
        return ReadsInBackward.apply(loss)


def census(kind, folder, output_dir, **settings):
    callback = SynchronisationsCallback(after_step=2, steps=2)
    trainer = train_causal(kind, folder, output_dir, callbacks=[callback], max_steps=6, **settings)
    return trainer, callback.facts


def own(facts):
    """``(operator, times)`` of this file's sites, by the text of their line."""
    text = inspect.getsource(inspect.getmodule(Curious)).splitlines()
    sites = [site for site in facts["sites"] if site["file"] == __file__]
    assert not any(site["inside_library"] for site in sites)
    return {text[site["line"] - 1].strip(): (site["operator"], site["count_per_step"]) for site in sites}


@pytest.mark.slow
def test_every_line_of_ones_own_that_reads_is_told(tiny_dir, tmp_path):
    trainer, facts = census(Curious, tiny_dir, tmp_path, gradient_accumulation_steps=2)
    assert (facts["steps"], facts["on_device"]) == (2, False)
    assert own(facts) == {
        "gradient.item()": ("item", 2.0),
        "self.seen_as_well = loss.tolist()": ("tolist", 2.0),
        "self.is_high = bool(loss.detach() > 100)": ("item", 2.0),
        "self.seen = float(loss.detach())": ("item", 2.0),
        'self.ids = inputs["input_ids"][inputs["attention_mask"].bool()]': ("index", 2.0),
    }
    plain = train_causal(Curious, tiny_dir, tmp_path / "plain", max_steps=6, gradient_accumulation_steps=2)
    assert_same_run(trainer, plain)


@pytest.mark.slow
def test_the_trainers_own_reads_are_told_as_the_librarys(tiny_dir, tmp_path):
    """The NaN filter reads twice per micro-batch; without it nothing does in that function."""

    def of_the_epoch(**settings):
        facts = census(EfficientTrainer, tiny_dir, tmp_path, logging_steps=100, **settings)[1]
        return [
            (site["operator"], site["count_per_step"], site["inside_library"])
            for site in facts["sites"]
            if site["function"].rpartition(".")[2] == "_run_epoch"
        ]

    assert of_the_epoch() == [("item", 2.0, True)]
    assert of_the_epoch(logging_nan_inf_filter=False) == []


@pytest.mark.slow
def test_loader_optimizer_and_this_package_are_left_out(tiny_dir, tmp_path):
    facts = census(EfficientTrainer, tiny_dir, tmp_path)[1]
    files = [site["file"] for site in facts["sites"]]
    assert files
    assert not any("torch/optim" in file or "hf_efficient" in file or "sft_trainer" in file for file in files)


@pytest.mark.slow
def test_nothing_watches_after_the_counted_steps(tiny_dir, tmp_path):
    census(Trainer, tiny_dir, tmp_path)
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    assert torch.overrides._get_current_function_mode() is None


@pytest.mark.slow
def test_a_training_that_ends_inside_the_census_leaves_nothing_on(tiny_dir, tmp_path):
    callback = SynchronisationsCallback(after_step=1, steps=50)
    train_causal(Trainer, tiny_dir, tmp_path, callbacks=[callback], max_steps=3)
    assert callback.facts["steps"] == 2
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()


def test_a_recipe_asks_for_it():
    (callback,) = instrument_callbacks(ProfileSection(synchronisations={"after_step": 1, "steps": 4}))
    assert isinstance(callback, SynchronisationsCallback)


@pytest.mark.parametrize("counts", [(-1, 1), (0, 0)])
def test_counts_that_are_too_small(counts):
    with pytest.raises(ValueError, match="write at least 0 and 1"):
        SynchronisationsCallback(*counts)
