"""The peak of a real training on the CPU, by the profiler's allocation events."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM, PretrainedConfig

from hf_efficient.callbacks.checks import keep_four_bit_trainable
from hf_efficient.data.prepare import is_packed
from hf_efficient.model.adapter import add_adapter
from hf_efficient.model.load import load_base
from hf_efficient.planning.arguments import simulation_arguments
from hf_efficient.planning.trainers import is_evaluated, longest_rows, simulation_trainer
from hf_efficient.recipe.schema import Recipe

__all__ = ["real_peak"]


def real_peak(recipe: Recipe, config: PretrainedConfig, length: int) -> int:
    """Bytes allocated at most while two optimizer steps train and a batch is evaluated, the model's own included.

    The model is saved with random weights and loaded as a run loads it, quantized where the recipe says so.

    Args:
        recipe: ``method: sft``.
        config: of its model.
        length: tokens of a row.
    """
    with tempfile.TemporaryDirectory() as folder:
        dtype = torch.float32 if recipe.model.dtype == "float32" else torch.bfloat16
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(folder)
        located = recipe.model_copy(update={"model": recipe.model.model_copy(update={"id": folder})})
        args = simulation_arguments(recipe, folder)
        base = load_base(located)
        model = add_adapter(base, recipe.adapter, seed=args.seed, checkpointing=args.gradient_checkpointing)
        keep_four_bit_trainable(model)
        trainer = _trainer(located, model, args, length)
        reference = getattr(trainer, "ref_model", None)
        before = _bytes(model) + (0 if reference is None else _bytes(reference))
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            trainer.train()
            if is_evaluated(recipe):
                _evaluate(trainer, length)
    live = most = 0
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda one: one.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return before + most


def _trainer(recipe: Recipe, model: Any, args: Any, length: int) -> Any:
    if recipe.method == "sft":
        return simulation_trainer(recipe, model, args, length)
    from hf_efficient.planning.trainers import preference_trainer

    reference = load_base(recipe) if recipe.adapter.method == "full" else None
    return preference_trainer(recipe, model, reference, args, length)


def _evaluate(trainer: Any, length: int) -> None:
    """transformers' own evaluation loop on one batch."""
    trainer.args.prediction_loss_only = trainer.compute_metrics is None
    args = trainer.args
    trainer.evaluate(longest_rows(args, length, args.per_device_eval_batch_size, packed=is_packed(args, "eval")))


def _bytes(model: Any) -> int:
    """Of all storages that the model holds, quantization constants included."""
    from hf_efficient.recording.activations import Storages, model_tensors

    held = Storages()
    held.add(tensor for tensor, _ in model_tensors(model))
    return sum(held.bytes_by_device().values())
