"""What is pruned, and what is learned from a teacher."""

from collections.abc import Iterator

from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.rules.settings import Contradiction, Settings, rule

_SPREAD = ("zero3", "fsdp2")


@rule("objective", "distill")
def distillation_has_a_teacher(settings: Settings) -> Iterator[Contradiction]:
    recipe = settings.recipe
    if OBJECTIVES[recipe.objective].teacher == (recipe.distill is not None):
        return
    if recipe.distill is None:
        yield "distill", "is missing, and with it the teacher.", "Write `distill: {teacher: NAME_OR_FOLDER}`."
    else:
        message = f"is set, but `objective: {recipe.objective}` learns from no teacher."
        yield "distill", message, "Remove it, or write `objective: distill`."


@rule("distill")
def something_of_the_teacher_is_learned(settings: Settings) -> Iterator[Contradiction]:
    distill = settings.recipe.distill
    if distill is None:
        return
    if not distill.alpha and not distill.hidden_states:
        yield "distill.alpha", "is 0, so nothing of the teacher is learned.", "Write 0.5, or `objective: sft`."
    if distill.top_k is not None and distill.hidden_states:
        message = "is set, but with `distill.top_k` the teacher's hidden states are not there to be compared."
        yield "distill.hidden_states", message, "Write 0, or remove top_k."


@rule("objective", "distill", "distributed.strategy", "train.loss_type", "train.label_smoothing_factor")
def the_teacher_is_whole(settings: Settings) -> Iterator[Contradiction]:
    if settings.recipe.distill is None:
        return
    strategy, loss = settings.recipe.distributed.strategy, settings.train("loss_type")
    if strategy in _SPREAD:
        message = f"is {strategy}, but each process holds the whole teacher."
        yield "distributed.strategy", message, "Write zero2 or ddp; `distill.teacher.quantization` makes it smaller."
    if loss == "dft":
        yield "train.loss_type", "is dft, which has no part for a teacher.", "Write auto or nll."
    if settings.train("label_smoothing_factor"):
        message = "is set, but the teacher's predictions are what smooths the labels."
        yield "train.label_smoothing_factor", message, "Write 0."


@rule("model.qat", "adapter.method", "distributed.strategy")
def what_is_rounded_is_trained_whole(settings: Settings) -> Iterator[Contradiction]:
    recipe = settings.recipe
    if recipe.model.qat is None:
        return
    if recipe.adapter.method != "full":
        message = f"is set, but the weights that it rounds are frozen by `adapter.method: {recipe.adapter.method}`."
        yield "model.qat", message, "Write `adapter.method: full`, or remove it."
    if recipe.distributed.strategy in _SPREAD:
        message = f"is set, but `distributed.strategy: {recipe.distributed.strategy}` takes the weights apart."
        yield "model.qat", message, "Write zero2 or ddp."


@rule("objective", "model.prune", "adapter.method", "distributed.strategy")
def what_is_pruned_is_trained_whole(settings: Settings) -> Iterator[Contradiction]:
    recipe, prune = settings.recipe, settings.recipe.model.prune
    if prune is None:
        return
    first = "prune it first (`hf-efficient prune RECIPE --output DIR`, without this key), and write DIR as model.id"
    if not prune.layers and prune.mlp is None:
        yield "model.prune.layers", "is 0, and mlp is not set: nothing is pruned.", "Write a number or a share."
    if recipe.adapter.method != "full":
        message = f"is set, but `adapter.method: {recipe.adapter.method}` saves an adapter without the model under it."
        yield "model.prune", message, f"Write `adapter.method: full`; or {first}."
    if not OBJECTIVES[recipe.objective].imitates:
        message = f"is set, but blocks are measured on examples, which `objective: {recipe.objective}` does not have."
        yield "model.prune", message, f"Remove it: {first}."
    if recipe.distributed.strategy in _SPREAD:
        message = f"is set, but `distributed.strategy: {recipe.distributed.strategy}` loads a share of the model."
        yield "model.prune", message, f"Write zero2 or ddp; or {first}."
