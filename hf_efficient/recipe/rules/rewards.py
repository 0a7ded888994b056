"""Rewards and groups of completions (``objective: grpo``)."""

import re
from collections.abc import Iterator

from hf_efficient.facts.libraries import is_installed
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.rules.profile import FUNCTION
from hf_efficient.recipe.rules.settings import Contradiction, Settings, rule

_OWN = {"pattern": "format", "tokens": "length"}  # keys of one built-in reward


def _generates(settings: Settings) -> bool:
    return OBJECTIVES[settings.recipe.objective].generates


@rule("objective", "rewards")
def rewards_go_with_completions(settings: Settings) -> Iterator[Contradiction]:
    if settings.recipe.rewards and not _generates(settings):
        message = f"is set, but `objective: {settings.recipe.objective}` rewards no completions."
        yield "rewards", message, "Remove it, or write `objective: grpo`."
    elif not settings.recipe.rewards and _generates(settings):
        remedy = "Write one or more: `rewards: number_match`, or exact_match, format, length, module:function."
        yield "rewards", "is missing, and GRPO learns from nothing else.", remedy


@rule("rewards")
def a_reward_is_named(settings: Settings) -> Iterator[Contradiction]:
    for index, one in enumerate(settings.recipe.rewards):
        key = f"rewards.{index}"
        if (one.name is None) == (one.function is None):
            what = "names no reward" if one.name is None else "has both a name and a function"
            yield key, f"{what}.", "Write `name`, for instance number_match, or `function: module:function`."
        for own, name in _OWN.items():
            held = getattr(one, own)
            if held is not None and one.name != name:
                yield f"{key}.{own}", f"is set, but belongs to the reward {name}.", "Remove it."
            elif held is None and one.name == name:
                example = "<answer>.*</answer>" if own == "pattern" else "200"
                yield key, f"is {name}, which needs `{own}`.", f"Write {{name: {name}, {own}: {example}}}."


@rule("rewards")
def reward_patterns_compile(settings: Settings) -> Iterator[Contradiction]:
    for index, one in enumerate(settings.recipe.rewards):
        if one.pattern is not None:
            try:
                re.compile(one.pattern)
            except (re.error, OverflowError, RecursionError) as error:
                yield f"rewards.{index}.pattern", f"is no regular expression: {error}.", "Write a valid one."


@rule("rewards")
def code_is_run_where_the_recipe_says_so(settings: Settings) -> Iterator[Contradiction]:
    for index, one in enumerate(settings.recipe.rewards):
        key = f"rewards.{index}"
        if one.function is not None and not FUNCTION.fullmatch(one.function):
            yield f"{key}.function", f"is {one.function!r}, which names no function.", "Write module:function."
        elif one.function is not None and not one.run_code:
            message = f"is {one.function}, and a recipe runs Python code only where it says so."
            yield f"{key}.function", message, f"Write {{function: {one.function}, run_code: true}} if you trust it."


@rule("objective", "train", "distributed", "data.eval", "data.eval_fraction")
def groups_are_whole(settings: Settings) -> Iterator[Contradiction]:
    """The completions of a prompt are compared with each other, so a batch holds all of them."""
    distributed, train = settings.recipe.distributed, settings.train
    if not _generates(settings) or distributed.global_batch_size is not None or distributed.processes == "auto":
        return
    group = train("num_generations")
    if group < 2:
        message = f"is {group}, but completions of one prompt are compared with each other."
        yield "train.num_generations", message, "Write 2 or more."
        return
    ranks = distributed.processes * distributed.nodes
    rows = train("per_device_train_batch_size") * ranks
    times = train("steps_per_generation") or train("gradient_accumulation_steps")
    together = train("generation_batch_size") or rows * times
    if together % group:
        message = f"is {group}, but {together} completions are generated together, which is no multiple of it."
        remedy = f"Write a divisor of {together}, or other train.per_device_train_batch_size or accumulation."
        yield "train.num_generations", message, remedy
    group = train("num_generations_eval") or group
    evaluated = train("per_device_eval_batch_size") * ranks
    if settings.has_evaluation_data and evaluated % group:
        message = f"gives {evaluated} completions, no multiple of the {group} of a prompt."
        remedy = f"Write a multiple of {group}, or train.num_generations_eval."
        yield "train.per_device_eval_batch_size", message, remedy


@rule("objective", "adapter.method", "train.beta", "train.use_vllm", "efficiency.preflight", "data.overlong")
def what_grpo_cannot_have(settings: Settings) -> Iterator[Contradiction]:
    """What TRL's trainer would refuse or load elsewhere, and what prompts do not have."""
    recipe = settings.recipe
    if not _generates(settings):
        return
    if recipe.adapter.method == "full" and settings.train("beta"):
        message = "is set, for which TRL would load a second model by its name, past what `model` says."
        yield "train.beta", message, "Write 0.0, or `adapter.method: lora`, whose base is the reference."
    if settings.train("use_vllm") and not is_installed("vllm"):
        yield "train.use_vllm", "needs the package vllm, which is not installed.", "Install it, or write false."
    if recipe.efficiency.preflight is True:
        message = "is true, but a preflight check knows no longest batch of completions that are not there yet."
        yield "efficiency.preflight", message, "Write false, or remove it."
    if recipe.data.overlong != "truncate":
        message = f"is {recipe.data.overlong}, but prompts are not cut."
        yield "data.overlong", message, "Remove it, and leave long prompts out of the file."
