"""hf_efficient: fine-tuning with Hugging Face that is predictable, explained and cheap.

The map of the house. A room imports only rooms printed above it (held by tests/test_architecture.py).

    errors.py     the exception tree; every message names the remedy
    units.py      bytes, seconds, counts: formatters
    hardware/     what this machine is, and facts with source and date: accelerators, prices, grid carbon
    catalog/      the shapes of well-known models, facts with source and date: what their config.json holds
    records/      frozen dataclasses that measurement writes and reports read

    estimate/     arithmetic on plain numbers, no torch: model shape, FLOPs, roofline, allocator, energy, cost, spot
    account/      records in, the account of a run out: arithmetic on streams, no torch
    trace/        a Chrome trace that torch wrote in, its breakdown out; no torch
    recipe/       the YAML contract, no torch: schema, load (extends, overrides, provenance), checks
    diagnosis/    records in, ranked findings out, no torch: one rule per file, and the engine
    report/       an account, a diagnosis, a trace in, something to look at out; computes nothing

    measure/      torch and the operating system, not transformers: phases of a step, record streams, meters, profilers
    data/         sources, formats, cleaning, tokenised cache, packing
    metrics/      evaluate.Metric classes that work offline, and answers generated for them
    models/       a live model looked at once: what is trained, by which kernels, in which dtype; FLOPs of a step
    callbacks/    thin TrainerCallbacks: one concern per file
    trainer.py    EfficientTrainerMixin and EfficientTrainer: the phases that a callback cannot see
    assembly/     recipe to the parts of its run: model, tokenizer, adapter, objective, the kind of trainer
    simulate/     torch, no GPU: training on tensors without values: what it allocates, when, and what it computes
    planning/     recipe to plan: the run's own trainer rehearsed, its memory, time and cost; what to change
    launch/       recipe to a run: data, plan, trainer, records, card; to an accelerate command; merge
    isolate/      short controlled variants of a recipe, each in a process of its own: time by their differences
    cluster/      a recipe and a cluster in, the job of Slurm, SkyPilot or Kubernetes out; what a machine checks first
    train.py      `accelerate launch -m hf_efficient.train RECIPE`
    cli/          one command per file; parses, calls, prints

Public names are imported when they are first used, so that ``import hf_efficient`` loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hf_efficient.version import __version__

if TYPE_CHECKING:
    from hf_efficient.account.load import load_run
    from hf_efficient.diagnosis.run import diagnose
    from hf_efficient.hardware.rates import Rates
    from hf_efficient.launch.run import run_recipe
    from hf_efficient.planning.plan import plan
    from hf_efficient.recipe.load import load_recipe
    from hf_efficient.recipe.schema import Recipe
    from hf_efficient.trainer import EfficientTrainer, EfficientTrainerMixin

__all__ = [
    "EfficientTrainer",
    "EfficientTrainerMixin",
    "Rates",
    "Recipe",
    "__version__",
    "diagnose",
    "load_recipe",
    "load_run",
    "plan",
    "run_recipe",
]

_HOMES = {
    "EfficientTrainer": "hf_efficient.trainer",
    "EfficientTrainerMixin": "hf_efficient.trainer",
    "Rates": "hf_efficient.hardware.rates",
    "Recipe": "hf_efficient.recipe.schema",
    "diagnose": "hf_efficient.diagnosis.run",
    "load_recipe": "hf_efficient.recipe.load",
    "load_run": "hf_efficient.account.load",
    "plan": "hf_efficient.planning.plan",
    "run_recipe": "hf_efficient.launch.run",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'hf_efficient' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
