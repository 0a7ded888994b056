"""Values that a library would refuse in its own words, once the model was loaded; and what a recipe file cannot do."""

from collections.abc import Iterator

from hf_efficient.recipe.rules.settings import Contradiction, Settings, rule
from hf_efficient.recipe.schema import Recipe
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


@rule("model.trust_remote_code")
def code_is_allowed_by_who_starts_it(settings: Settings) -> Iterator[Contradiction]:
    """A recipe runs no code: that a model's repository may is for the command line to say."""
    origin = settings.recipe.provenance.get("model.trust_remote_code")
    if settings.recipe.model.trust_remote_code and (origin is None or origin.source != "command line"):
        message = "is true, which lets the model's repository run its Python code on this machine."
        remedy = "Read that code, and add model.trust_remote_code=true to the command line; a file cannot allow it."
        yield "model.trust_remote_code", message, remedy


def only_on_the_command_line(recipe: Recipe) -> tuple[str, ...]:
    """What to add there where a recipe is handed on as a file."""
    return ("model.trust_remote_code=true",) if recipe.model.trust_remote_code else ()


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
