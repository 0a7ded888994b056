"""Model, adapter, ``train:``, packing, the loss and the method; rewards, groups of completions and a teacher's loss."""

import re
from collections.abc import Iterator

from hf_efficient.facts.environment import is_installed
from hf_efficient.facts.tables import key_table
from hf_efficient.recipe.objectives import FORMATS_OF, OBJECTIVES
from hf_efficient.recipe.rules.settings import Contradiction, Settings, rule
from hf_efficient.recipe.rules.values import FUNCTION
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.tree import any_of

FEW_STEPS = 10  # fewer updates hardly change a model; a choice
_NLL = "or write `train.loss_type: nll`."

# From position ids that start again, transformers (>= 5.17) builds a block-diagonal mask for the first three;
# the flash kernels take the sequence boundaries.
_FLASH = ("flash_attention_2", "flash_attention_3", "flash_attention_4")
_KEEPS_APART = ("auto", "documents", "sdpa", "eager", "flex_attention", *_FLASH)

_INTEGRATIONS: dict[str, tuple[list[str], str]] = key_table("train_fields")["integrations"]


@rule("adapter.target_modules")
def targets_are_a_pattern(settings: Settings) -> Iterator[Contradiction]:
    """PEFT takes a text other than ``all-linear`` for a regular expression, once the model was loaded."""
    pattern = settings.recipe.adapter.target_modules
    if not pattern:
        yield "adapter.target_modules", "names no module.", "Write all-linear, or a list of module names."
    if not isinstance(pattern, str):
        return
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        message = f"is neither all-linear nor a valid regular expression: {error}."
        yield "adapter.target_modules", message, "Write all-linear, a list of module names, or a valid expression."


@rule("data.targets", "train.assistant_only_loss", "train.completion_only_loss")
def targets_are_said_once(settings: Settings) -> Iterator[Contradiction]:
    for name in ("assistant_only_loss", "completion_only_loss"):
        if settings.recipe.data.targets is not None and settings.recipe.train.get(name) is not None:
            yield f"train.{name}", "is set, and so is `data.targets`, which stands in its place.", "Remove one."


@rule("train.activation_checkpointing", "train.gradient_checkpointing")
def one_name_for_checkpointing(settings: Settings) -> Iterator[Contradiction]:
    held = [settings.recipe.train.get(f"{name}_checkpointing") for name in ("activation", "gradient")]
    if None not in held and held[0] != held[1]:
        message = f"is {held[0]}, and `train.gradient_checkpointing`, the same setting, is {held[1]}.".lower()
        yield "train.activation_checkpointing", message, "Keep `train.gradient_checkpointing`, and remove the other."


@rule("objective", "train", "adapter.method", "adapter.target_modules")
def chunked_loss_has_the_head_to_itself(settings: Settings) -> Iterator[Contradiction]:
    if settings.trains.imitates and settings.train("loss_type") == "chunked_nll":
        yield from _other_users_of_the_head(settings)


def fits_chunked_loss(settings: Settings) -> bool:
    """Whether a recipe with another loss could be given this one."""
    return settings.trains.imitates and not list(_other_users_of_the_head(settings))


def _other_users_of_the_head(settings: Settings) -> Iterator[Contradiction]:
    """Label smoothing needs whole logits; Liger's own fused loss replaces the forward that TRL's is in; TRL's reads the
    weight of ``lm_head``, and would leave out an adapter on it."""
    if settings.train("label_smoothing_factor"):
        message = "is set, but `train.loss_type: chunked_nll` never has the whole logits that it needs."
        yield "train.label_smoothing_factor", message, f"Write 0, {_NLL}"
    fused_by_liger = (settings.train("liger_kernel_config") or {}).get("fused_linear_cross_entropy", True)
    if settings.train("use_liger_kernel") and fused_by_liger:
        message = "is true, but Liger's fused loss takes the place of `train.loss_type: chunked_nll`."
        remedy = f"Write `train.liger_kernel_config: {{fused_linear_cross_entropy: false}}`, {_NLL}"
        yield "train.use_liger_kernel", message, remedy
    adapter = settings.recipe.adapter
    targets = adapter.target_modules if isinstance(adapter.target_modules, list) else []
    if adapter.method != "full" and any(name.rsplit(".", 1)[-1] == "lm_head" for name in targets):
        message = "names lm_head, whose adapter `train.loss_type: chunked_nll` would leave out."
        yield "adapter.target_modules", message, f"Write it in `adapter.modules_to_save`, {_NLL}"


@rule("objective", "model.attn_implementation", "train.packing", "train.eval_packing", "train.packing_strategy")
def attention_keeps_examples_apart(settings: Settings) -> Iterator[Contradiction]:
    """Other attentions mix packed examples, which only ``packing_strategy: wrapped`` means to do."""
    attention = settings.recipe.model.attn_implementation
    if not settings.packs or attention is None or settings.train("packing_strategy") == "wrapped":
        return
    # Kernels of the hub are named by their repository: kernels-community/flash-attn2.
    if attention not in _KEEPS_APART and "flash-attn" not in attention and "flash_attn" not in attention:
        message = f"is {attention}, which is not known to keep packed examples apart."
        remedy = f"Write one of {', '.join(_KEEPS_APART)}, or `train.packing: false`."
        yield "model.attn_implementation", message, remedy


@rule("objective", "data.train", "data.eval")
def objective_reads_its_formats(settings: Settings) -> Iterator[Contradiction]:
    name = settings.recipe.objective
    fitting = FORMATS_OF[OBJECTIVES[name].data]
    for key, source in settings.recipe.data.sources().items():
        if source.format != "auto" and source.format not in fitting:
            other = next(one for one, held in OBJECTIVES.items() if source.format in FORMATS_OF[held.data])
            message = f"is {source.format}, but `objective: {name}` reads {any_of(fitting)}."
            yield f"{key}.format", message, f"Write `format: {fitting[0]}`, or `objective: {other}`."


@rule("objective", "adapter.merge", "adapter.modules_to_save", "adapter.target_modules")
def head_of_the_objective(settings: Settings) -> Iterator[Contradiction]:
    """A reward model has a head of its own; the other preference trainers read the weight of lm_head."""
    adapter, name = settings.recipe.adapter, settings.recipe.objective
    targets = adapter.target_modules if isinstance(adapter.target_modules, list) else []
    if OBJECTIVES[name].scores and "lm_head" in (*targets, *adapter.modules_to_save):
        key = "target_modules" if "lm_head" in targets else "modules_to_save"
        yield f"adapter.{key}", "names lm_head, but a reward model has a head that scores in its place.", "Remove it."
    elif name in ("dpo", "kto", "grpo", "distill_on_policy") and "lm_head" in targets:
        message = f"names lm_head, whose adapter `objective: {name}` would leave out."
        yield "adapter.target_modules", message, "Remove it."


@rule("train.report_to")
def reports_are_installed(settings: Settings) -> Iterator[Contradiction]:
    """transformers asks for the package of an integration only after the model was loaded."""
    said = settings.train("report_to") or "none"
    names = {f"train.report_to.{i}": name for i, name in enumerate(said)}
    names = {"train.report_to": said} if isinstance(said, str) else names
    for key, name in names.items():
        modules, package = _INTEGRATIONS.get(name, ((), ""))
        if modules and not any(is_installed(module) for module in modules):
            message = f"is {name}, but the package {modules[0]} is not installed."
            yield key, message, f"Install it (pip install {package}), or write `train.report_to: none`."


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


_OWN = {"pattern": "format", "tokens": "length"}  # keys of one built-in reward


@rule("rewards")
def rewards_are_whole(settings: Settings) -> Iterator[Contradiction]:
    """Each has a name or a function, what belongs to it, and code only where the recipe says so."""
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
        try:
            re.compile(one.pattern or "")
        except (re.error, OverflowError, RecursionError) as error:
            yield f"{key}.pattern", f"is no regular expression: {error}.", "Write a valid one."
        if one.function is not None and not FUNCTION.fullmatch(one.function):
            yield f"{key}.function", f"is {one.function!r}, which names no function.", "Write module:function."
        elif one.function is not None and not one.run_code:
            message = f"is {one.function}, and a recipe runs Python code only where it says so."
            yield f"{key}.function", message, f"Write {{function: {one.function}, run_code: true}} if you trust it."


@rule("objective", "train", "distributed", "data.eval", "data.eval_fraction")
def groups_are_whole(settings: Settings) -> Iterator[Contradiction]:
    """The completions of a prompt are compared with each other, so a batch holds all of them."""
    distributed, train = settings.recipe.distributed, settings.train
    if not settings.trains.is_rewarded or distributed.global_batch_size is not None or distributed.processes == "auto":
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


@rule("objective", "train.use_vllm")
def vllm_is_installed(settings: Settings) -> Iterator[Contradiction]:
    if settings.trains.generates and settings.train("use_vllm") and not is_installed("vllm"):
        yield "train.use_vllm", "needs the package vllm, which is not installed.", "Install it, or write false."


_INSTEAD = {
    "temperature": "Write `train.temperature`, which divides the logits of both models and of the sampling.",
    "alpha": "Remove it, or write `objective: distill` to learn the tokens of the data too.",
    "top_k": "Remove it: the teacher reads completions as they are generated. `objective: distill` has a cache.",
    "hidden_states": "Write 0, or `objective: distill`, which compares them.",
}


@rule("objective", "distill")
def the_loss_on_policy_is_that_of_trl(settings: Settings) -> Iterator[Contradiction]:
    """Its temperature and divergence are fields of ``train:``; an inherited default says nothing."""
    distill = settings.recipe.distill
    if distill is None or not settings.trains.generates:
        return
    for name, remedy in _INSTEAD.items():
        if getattr(distill, name) != type(distill).model_fields[name].default:
            message = f"is set, but `objective: {settings.recipe.objective}` learns by TRL's loss, which has none."
            yield f"distill.{name}", message, remedy
