"""Values that a library would refuse in its own words, once the model was loaded, or would not refuse."""

import re
from collections.abc import Iterator
from pathlib import Path

from hf_efficient.recipe.rules.settings import Contradiction, Settings, rule
from hf_efficient.recipe.tree import any_of, nearest

# The parameters of transformers' schedules (5.23) beyond steps; None: any, those of a class of torch.
_MIN_LR = ("num_cycles", "min_lr", "min_lr_rate")
SCHEDULES: dict[str, tuple[str, ...] | None] = {
    "linear": (),
    "cosine": ("num_cycles",),
    "cosine_with_restarts": ("num_cycles",),
    "polynomial": ("lr_end", "power"),
    "constant": (),
    "constant_with_warmup": (),
    "inverse_sqrt": ("timescale",),
    "reduce_lr_on_plateau": None,
    "greedy": None,
    "cosine_with_min_lr": _MIN_LR,
    "cosine_warmup_with_min_lr": (*_MIN_LR, "warmup_lr_rate"),
    "warmup_stable_decay": (
        "num_decay_steps", "num_stable_steps", "warmup_type", "decay_type", "min_lr_ratio", "num_cycles",
    ),
}  # fmt: skip
_CHECKPOINTING = ("every_n_layers", "use_reentrant", "preserve_rng_state", "determinism_check", "debug", "early_stop")
_OPTIMIZER_ARGUMENTS = re.compile(r"\s*\w+\s*=[^=,]*(,\s*\w+\s*=[^=,]*)*")


@rule("output_dir")
def output_has_a_folder_of_its_own(settings: Settings) -> Iterator[Contradiction]:
    """A run fills its folder, and ``--overwrite`` clears what a run has left there."""
    path = Path(settings.recipe.output_dir).expanduser().absolute()
    if path in (Path(path.anchor), Path.home()):
        message = f"is {settings.recipe.output_dir}, the {'home' if path == Path.home() else 'root'} folder."
        yield "output_dir", message, "Write a folder of its own, for instance outputs/my-run."


@rule("train.lr_scheduler_type", "train.lr_scheduler_kwargs")
def schedule_knows_its_parameters(settings: Settings) -> Iterator[Contradiction]:
    """transformers passes them to the function of the schedule."""
    schedule, given = str(settings.train("lr_scheduler_type")), settings.train("lr_scheduler_kwargs") or {}
    known = SCHEDULES.get(schedule)
    if known is None or not isinstance(given, dict):
        return
    for name in (one for one in given if one not in known):
        meant = nearest(name, known)
        takes = f"Did you mean {meant}?" if meant else f"It takes {any_of(known)}." if known else "Remove it."
        message = f"is no parameter of `train.lr_scheduler_type: {schedule}`."
        yield f"train.lr_scheduler_kwargs.{name}", message, takes
    if "min_lr" in known and ("min_lr" in given) == ("min_lr_rate" in given):
        message = f"must hold min_lr or min_lr_rate, one of them, for `train.lr_scheduler_type: {schedule}`."
        yield "train.lr_scheduler_kwargs", message, "Write, for instance, {min_lr_rate: 0.1}."
    elif schedule == "warmup_stable_decay" and "num_decay_steps" not in given:
        message = "must hold num_decay_steps for `train.lr_scheduler_type: warmup_stable_decay`."
        yield "train.lr_scheduler_kwargs", message, "Write, for instance, {num_decay_steps: 100}."


@rule("train.gradient_checkpointing_kwargs")
def checkpointing_knows_its_parameters(settings: Settings) -> Iterator[Contradiction]:
    """transformers' ``every_n_layers``, and those of torch.utils.checkpoint.checkpoint that YAML can write."""
    given = settings.train("gradient_checkpointing_kwargs")
    for name in given if isinstance(given, dict) else ():
        if name not in _CHECKPOINTING:
            message = "is no parameter of torch's checkpointing."
            yield f"train.gradient_checkpointing_kwargs.{name}", message, f"It takes {any_of(_CHECKPOINTING)}."


@rule("train.optim_args")
def optimizer_arguments_are_pairs(settings: Settings) -> Iterator[Contradiction]:
    """transformers splits them at commas and equals signs."""
    given = settings.train("optim_args")
    if isinstance(given, str) and given.strip() and not _OPTIMIZER_ARGUMENTS.fullmatch(given):
        yield "train.optim_args", f"is {given!r}, which names no value.", "Write name=value,name=value."


@rule("train.dataloader_num_workers", "train.dataloader_prefetch_factor", "train.dataloader_persistent_workers")
def loader_options_need_workers(settings: Settings) -> Iterator[Contradiction]:
    for name in ("dataloader_prefetch_factor", "dataloader_persistent_workers"):
        if settings.train("dataloader_num_workers") == 0 and settings.train(name):
            message = "is set, but `train.dataloader_num_workers` is 0."
            yield f"train.{name}", message, "Write at least 1 worker, or remove it."


@rule("train.max_steps")
def some_steps_are_trained(settings: Settings) -> Iterator[Contradiction]:
    """transformers takes 0 as "not given", and trains whole epochs."""
    if settings.train("max_steps") == 0:
        remedy = "Write a number of steps, or -1 for as many as `num_train_epochs` takes."
        yield "train.max_steps", "is the number 0, which trains nothing.", remedy
