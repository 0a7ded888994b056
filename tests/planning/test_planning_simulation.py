"""A simulation against the real training: the peak by the profiler, and nothing left behind."""

from __future__ import annotations

import os
import random

import numpy
import pytest
import torch
import transformers
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from plan_accuracy_real import real_peak

from hf_efficient.model.adapter import add_adapter
from hf_efficient.model.load import load_base
from hf_efficient.planning.arguments import simulation_arguments
from hf_efficient.planning.model_config import model_config
from hf_efficient.planning.simulation import planned_memory, simulate
from hf_efficient.planning.trainers import simulation_trainer

CASES = {
    "full": ("llama", "full", {}, {}),
    "full in mixed precision": ("llama", "full", {"bf16": True}, {"dtype": "float32"}),
    "LoRA": ("mistral", "lora", {}, {}),
    "LoRA with dropout": ("llama", "lora", {"gradient_checkpointing": False}, {"dropout": 0.1}),
    "QLoRA": ("qwen2", "qlora", {}, {}),
    "no checkpointing": ("qwen3", "full", {"gradient_checkpointing": False}, {}),
    "reentrant checkpointing": ("llama", "full", {"gradient_checkpointing_kwargs": {"use_reentrant": True}}, {}),
    "accumulation": ("llama", "full", {"gradient_accumulation_steps": 4}, {"dtype": "float32"}),
    "packing": ("llama", "lora", {"packing": True, "gradient_checkpointing": False}, {}),
    "eager attention": ("gemma2", "lora", {"gradient_checkpointing": False}, {"attention": "eager"}),
    "Adafactor": ("llama", "full", {"optim": "adafactor"}, {"dtype": "float32"}),
    "8-bit AdamW": ("llama", "full", {"optim": "adamw_8bit"}, {"dtype": "float32"}),
    "another loss": ("llama", "full", {"loss_type": "dft"}, {}),
    "a chunked loss": ("qwen2", "full", {"loss_type": "chunked_nll"}, {}),
    "a chunked loss in mixed precision": ("gemma2", "lora", {"loss_type": "chunked_nll", "bf16": True}, {}),
    "a head to save": ("llama", "lora", {}, {"modules_to_save": ["lm_head"]}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_peak_is_within_two_per_cent_of_the_real_one(case, recipe, saved):
    family, method, train, more = CASES[case]
    wanted = recipe(saved(family), method, {"per_device_train_batch_size": 8, **train}, **more)
    config = model_config(wanted.model)
    planned = planned_memory(simulate(wanted, config, 64, on_gpu=False)).peak_allocated_bytes
    assert planned == pytest.approx(real_peak(wanted, config, 64), rel=0.02)


def test_a_simulation_says_what_it_simulated(recipe, saved):
    wanted = recipe(saved("llama"), "full", {"gradient_accumulation_steps": 5, "per_device_train_batch_size": 3})
    found = simulate(wanted, model_config(wanted.model))
    assert (found.rows, found.length, found.vocabulary, found.micro_batches) == (3, 64, 96, 5)
    assert len(found.backward_starts) == 4  # two steps of two micro-batches: a third would add nothing
    assert 0 < found.first_step < found.backward_starts[0] < found.second_step < found.backward_starts[2]
    # by hand: embedding and head 2 * 96 * 64; a layer: q, o 64 * 64, k, v 64 * 32, three of 64 * 160, two norms; a norm
    parameters = 2 * 96 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160 + 2 * 64) + 64
    assert found.parameters == found.trained_parameters == parameters


def test_categories_by_hand(recipe, saved):
    wanted = recipe(saved("llama"), "full", {"optim": "adamw_torch"}, dtype="float32")
    memory = planned_memory(simulate(wanted, model_config(wanted.model), 64))
    parameters = 2 * 96 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160 + 2 * 64) + 64
    tables = 2 * 4 * 8  # inverse frequencies of the rotary embedding, and the same as first computed
    assert memory.model_bytes == 4 * parameters + tables
    assert memory.categories["weights"] == 4 * parameters + tables
    assert memory.categories["optimizer_state"] == 2 * 4 * parameters + 4 * 21  # and a step count per tensor
    assert memory.category_peak_bytes["gradients"] == 4 * parameters
    assert memory.peak_step == 2
    assert sum(memory.categories.values()) == memory.peak_allocated_bytes
    assert memory.peak_allocated_bytes == max(memory.phase_peak_allocated_bytes.values())


def test_an_adapter_is_apart_from_the_weights(recipe, saved):
    wanted = recipe(saved("llama"), "qlora", r=4)
    found = simulate(wanted, model_config(wanted.model), 64)
    adapter = 4 * 2 * ((64 + 64) + (64 + 32) + (64 + 32) + (64 + 64) + 3 * (64 + 160))
    assert found.trained_parameters == adapter
    categories = planned_memory(found).categories
    assert categories["adapter"] == 4 * adapter
    linear = 2 * [64 * 64, 64 * 32, 64 * 32, 64 * 64, 64 * 160, 64 * 160, 64 * 160]
    # half a byte a value; a byte a block of 64, one float32 for all blocks; tables of 16 and 256 float32; an offset
    packed = sum(values // 2 + values // 64 + 4 * (1 + 16 + 256 + 1) for values in linear)
    assert categories["weights"] == packed + 2 * (2 * 96 * 64 + 5 * 64) + 2 * 4 * 8
    dense = 2 * 96 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160 + 2 * 64) + 64
    assert found.parameters == dense + adapter


def test_without_a_length_the_recipes_most_counts(recipe, saved):
    for length, found in ((48, 48), (None, 512)):
        wanted = recipe(saved("llama"), "lora", {"max_length": length, "per_device_train_batch_size": 1})
        assert simulate(wanted, model_config(wanted.model)).length == found


def process_state():
    return {
        "environment": dict(os.environ),
        "torch": torch.get_rng_state().tolist(),
        "python": random.getstate(),
        "numpy": repr(numpy.random.get_state()),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "threads": torch.get_num_threads(),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "process": dict(PartialState._shared_state),
        "accelerator": dict(AcceleratorState._shared_state),
        "accumulation": dict(GradientState._shared_state),
        "log level": transformers.logging.get_verbosity(),
    }


def test_nothing_of_the_process_is_changed_and_nothing_is_written(recipe, saved, tmp_path):
    """A run's own arguments and accelerator may be there already when its plan is made."""
    folder = saved("llama")
    own = simulation_arguments(recipe(train={"bf16": False, "gradient_accumulation_steps": 3}), str(tmp_path))
    Accelerator(cpu=True, gradient_accumulation_steps=3)
    random.seed(1)
    numpy.random.seed(2)
    torch.manual_seed(3)
    before = process_state()
    wanted = recipe(folder, "qlora", {"bf16": True, "seed": 7})
    simulate(wanted, model_config(wanted.model), 32)
    after = process_state()
    assert {name: (before[name], after[name]) for name in before if before[name] != after[name]} == {}
    assert own.device == torch.device("cpu")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", ["full", "qlora"])
def test_a_training_after_a_simulation_is_the_training_before_it(method, recipe, saved, tmp_path):
    wanted = recipe(saved("llama"), method, {"bf16": method == "full"}, dropout=0.1, dtype="float32")
    config = model_config(wanted.model)
    other = recipe(saved("llama"), "lora", {"bf16": method != "full", "gradient_accumulation_steps": 3})

    def trained():
        torch.manual_seed(3)
        args = simulation_arguments(wanted, str(tmp_path))
        model = add_adapter(load_base(wanted), wanted.adapter, seed=1, checkpointing=args.gradient_checkpointing)
        simulation_trainer(wanted, model, args, 32).train()
        return {name: value.clone() for name, value in model.named_parameters() if value.requires_grad}

    before = trained()
    simulate(wanted, config, 32)
    simulate(other, config, 16)
    after = trained()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_batch_of_more_tokens_than_are_computed_with(recipe, saved):
    """The collator looks at each of a million token ids, of which none is lost to a tensor without values."""
    train = {"packing": True, "per_device_train_batch_size": 16_400, "gradient_checkpointing": True}
    wanted = recipe(saved("llama"), "lora", train)
    found = simulate(wanted, model_config(wanted.model))
    assert found.rows * found.length == 16_400 * 64 > 2**20
    small = simulate(recipe(saved("llama"), "lora", {**train, "per_device_train_batch_size": 164}), config_of(wanted))
    logits = [planned_memory(one).category_peak_bytes["logits"] for one in (found, small)]
    assert logits[0] == 100 * logits[1]


def config_of(wanted):
    return model_config(wanted.model)
