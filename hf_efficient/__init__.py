"""hf_efficient: fine-tuning with Hugging Face that is predictable, explained and cheap.

The map of the house. A room imports only rooms printed above it (held by tests/test_architecture.py).

    errors.py     the exception tree; every message names the remedy
    early.py      what a process that `-m` starts does before all other imports: its path, signals meanwhile
    text.py       formatters of numbers, labels and sentences
    facts/        data with source and date, and look-ups: accelerators, prices, grid carbon, model shapes, environment
    records/      structs that are written and read as they are: steps, account, plan, findings, trace, profile
    estimate/     arithmetic on plain numbers, no torch: shape, FLOPs, roofline, allocator, sharding, energy, cost
    run_dir/      paths of a run directory, JSONL writing and reading, archive, checkpoints and their mirror
    recipe/       the YAML contract, no torch: schema, load (extends, overrides, provenance), checks
    accounting/   records in, the account of a run out, and runs compared with a first one; no torch
    trace/        a Chrome trace that torch wrote in, its breakdown out; no torch
    diagnosis/    account and records in, ranked findings out, no torch: rules by topic, and the engine
    recording/    torch and the operating system, not transformers: events, steps, tokens, loader, meters, sampler, stop
    profilers/    torch profiler, memory history, Python profilers, NVTX and Nsight, synchronisations, calibration
    data/         sources, formats, chat templates, targets, tokenised cache, packing, prompts and their rewards
    metrics/      evaluate.Metric classes that work offline, and answers generated for a look
    model/        recipe to model, adapter, tokenizer; what is trained, pruned, learned from a teacher; FLOPs of a step
    curation/     raw rows in, a training set with its funnel out: filters, duplicates, private data, written rows
    callbacks/    thin TrainerCallbacks: account, stop, checks, progress, profilers, cadence of saves
    trainer.py    EfficientTrainerMixin and EfficientTrainer: the phases that a callback cannot see
    trl_trainers.py  the mixin over TRL's SFT, DPO, KTO, reward, GRPO and on-policy distillation trainers
    simulate/     training on tensors without values: what it allocates, when, and what it computes
    planning/     recipe or Trainer to plan: the step simulated, memory, time, cost, advice, several ranks
    reporting/    finished data in, something to look at out; computes nothing
    launch/       recipe to a run: build, start, output, strategies, command, restart, checkpoints, card
    export/       a trained model as GGUF, for Ollama or vLLM: written, read back, compared with the trained one
    preflight/    the longest batch, a save, a load, the disk, tried before a run starts
    jobs/         a recipe and a cluster in, the job of Slurm, SkyPilot or Kubernetes out
    trials/       short trainings, each in a process of its own: isolate, bench, tune (changes), sweep (values)
    train.py      `accelerate launch -m hf_efficient.train RECIPE`
    cli/          the commands; parses, calls, prints

Public names are imported when they are first used, so that ``import hf_efficient`` loads no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from hf_efficient.version import __version__

if TYPE_CHECKING:
    from hf_efficient.accounting.account import load_run as load_run
    from hf_efficient.diagnosis.engine import diagnose as diagnose
    from hf_efficient.errors import HfEfficientError as HfEfficientError
    from hf_efficient.facts.prices import Rates as Rates
    from hf_efficient.facts.prices import prices as prices
    from hf_efficient.facts.tables import accelerators as accelerators
    from hf_efficient.launch.run import run_recipe as run_recipe
    from hf_efficient.planning.model_config import model_config as model_config
    from hf_efficient.planning.own_trainer import plan as plan
    from hf_efficient.preflight.own_trainer import preflight_check as preflight_check
    from hf_efficient.recipe.load import load_recipe as load_recipe
    from hf_efficient.recipe.schema import Recipe as Recipe
    from hf_efficient.reporting.plan import show_plan as show_plan
    from hf_efficient.trainer import EfficientTrainer as EfficientTrainer
    from hf_efficient.trainer import EfficientTrainerMixin as EfficientTrainerMixin
    from hf_efficient.trl_trainers import EfficientDistillationTrainer as EfficientDistillationTrainer
    from hf_efficient.trl_trainers import EfficientDPOTrainer as EfficientDPOTrainer
    from hf_efficient.trl_trainers import EfficientGRPOTrainer as EfficientGRPOTrainer
    from hf_efficient.trl_trainers import EfficientKTOTrainer as EfficientKTOTrainer
    from hf_efficient.trl_trainers import EfficientRewardTrainer as EfficientRewardTrainer
    from hf_efficient.trl_trainers import EfficientSFTTrainer as EfficientSFTTrainer

_NAMES = {
    "accounting.account": ["load_run"],
    "diagnosis.engine": ["diagnose"],
    "errors": ["HfEfficientError"],
    "facts.prices": ["Rates", "prices"],
    "facts.tables": ["accelerators"],
    "launch.run": ["run_recipe"],
    "planning.model_config": ["model_config"],
    "planning.own_trainer": ["plan"],
    "preflight.own_trainer": ["preflight_check"],
    "recipe.load": ["load_recipe"],
    "recipe.schema": ["Recipe"],
    "reporting.plan": ["show_plan"],
    "trainer": ["EfficientTrainer", "EfficientTrainerMixin"],
    "trl_trainers": [f"Efficient{of}Trainer" for of in ("Distillation", "DPO", "GRPO", "KTO", "Reward", "SFT")],
}
_HOMES = {name: f"{__name__}.{home}" for home, names in _NAMES.items() for name in names}
__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'hf_efficient' has no attribute {name!r}")
    from hf_efficient.facts.environment import quiet_imports

    try:
        with quiet_imports():
            return getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as error:
        from hf_efficient.facts.environment import missing_package

        raise missing_package(error.name) or error from error
    except ImportError as error:
        if not (error.name or "").startswith("transformers"):
            raise
        from hf_efficient.errors import SetupError

        why = f"the installed transformers lacks a part of it ({error})"
        raise SetupError(f"hf_efficient.{name}: {why}. Install transformers 5.17 or newer.") from error


def __dir__() -> list[str]:
    return sorted(__all__)
