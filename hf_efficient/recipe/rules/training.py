"""Model, adapter, ``train:``, packing, the loss and the method; rewards and groups of completions; what is pruned, and
what is learned from a teacher."""

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


@rule("adapter.method", "adapter.quantization")
def quantization_needs_qlora(settings: Settings) -> Iterator[Contradiction]:
    adapter = settings.recipe.adapter
    if adapter.quantization is None or adapter.method == "qlora":
        return
    bits, why = adapter.quantization.bits, "trains on a base that is not quantized"
    if adapter.method == "full":
        why = f"trains all weights; {bits}-bit weights cannot train"
    message = f"is {bits}-bit, but `adapter.method: {adapter.method}` {why}."
    yield "adapter.quantization", message, "Write `adapter.method: qlora`, or remove the quantization."


@rule("adapter")
def full_has_no_adapter(settings: Settings) -> Iterator[Contradiction]:
    adapter = settings.recipe.adapter
    if adapter.method != "full":
        return
    message = "is set, but `adapter.method: full` trains all weights and has no adapter."
    for name in ("dora", "rslora", "modules_to_save", "bias", "merge"):
        if getattr(adapter, name) not in (False, [], "none"):
            yield f"adapter.{name}", message, "Remove it, or write `adapter.method: lora`."


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


@rule("adapter.method", "model.dtype")
def full_weights_are_not_float16(settings: Settings) -> Iterator[Contradiction]:
    """float16 weights overflow and underflow as they are updated; mixed precision keeps a float32 copy."""
    if settings.recipe.adapter.method == "full" and settings.recipe.model.dtype == "float16":
        message = "is float16, whose range is too small for weights that are trained."
        yield "model.dtype", message, "Write bfloat16, or float32 with `train.fp16: true`."


@rule("data.targets", "objective", "train.assistant_only_loss", "train.completion_only_loss")
def targets_are_said_once(settings: Settings) -> Iterator[Contradiction]:
    if settings.recipe.data.targets is None:
        return
    if named := _other_than_sft(settings):
        yield "data.targets", f"is set, but {named} trains on whole answers.", "Remove it."
    for name in ("assistant_only_loss", "completion_only_loss"):
        if settings.recipe.train.get(name) is not None:
            yield f"train.{name}", "is set, and so is `data.targets`, which stands in its place.", "Remove one."


@rule("train.bf16", "train.fp16", "train.bf16_full_eval", "train.fp16_full_eval")
def one_half_precision(settings: Settings) -> Iterator[Contradiction]:
    for suffix in ("", "_full_eval"):
        if settings.train(f"bf16{suffix}") and settings.train(f"fp16{suffix}"):
            message = f"is true, and so is `train.bf16{suffix}`."
            yield f"train.fp16{suffix}", message, "Keep one: bf16 where the device has it, else fp16."


@rule("train.activation_checkpointing", "train.gradient_checkpointing")
def one_name_for_checkpointing(settings: Settings) -> Iterator[Contradiction]:
    held = [settings.recipe.train.get(f"{name}_checkpointing") for name in ("activation", "gradient")]
    if None not in held and held[0] != held[1]:
        message = f"is {held[0]}, and `train.gradient_checkpointing`, the same setting, is {held[1]}.".lower()
        yield "train.activation_checkpointing", message, "Keep `train.gradient_checkpointing`, and remove the other."


@rule("objective", "train", "adapter.method", "adapter.target_modules")
def chunked_loss_has_the_head_to_itself(settings: Settings) -> Iterator[Contradiction]:
    if OBJECTIVES[settings.recipe.objective].imitates and settings.train("loss_type") == "chunked_nll":
        yield from _other_users_of_the_head(settings)


def fits_chunked_loss(settings: Settings) -> bool:
    """Whether a recipe with another loss could be given this one."""
    return OBJECTIVES[settings.recipe.objective].imitates and not list(_other_users_of_the_head(settings))


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
    if not _packs(settings) or attention is None or settings.train("packing_strategy") == "wrapped":
        return
    # Kernels of the hub are named by their repository: kernels-community/flash-attn2.
    if attention not in _KEEPS_APART and "flash-attn" not in attention and "flash_attn" not in attention:
        message = f"is {attention}, which is not known to keep packed examples apart."
        remedy = f"Write one of {', '.join(_KEEPS_APART)}, or `train.packing: false`."
        yield "model.attn_implementation", message, remedy


@rule("train.packing", "train.eval_packing", "train.max_length")
def packing_needs_a_length(settings: Settings) -> Iterator[Contradiction]:
    if _packs(settings) and settings.train("max_length") is None:
        message = "is null, but packing fills rows of this length."
        yield "train.max_length", message, "Write a length in tokens, for instance 2048."


@rule("objective", "train.packing", "train.padding_free", "train.max_length")
def padding_free_has_no_length(settings: Settings) -> Iterator[Contradiction]:
    """TRL does not cut examples to ``max_length`` in padding-free batches without packing, and refuses."""
    length, packing = settings.train("max_length"), settings.train("packing")
    imitates = OBJECTIVES[settings.recipe.objective].imitates
    if imitates and settings.train("padding_free") and not packing and length is not None:
        message = f"is true without packing, so `train.max_length: {length}` would not be enforced."
        yield "train.padding_free", message, "Write `train.packing: true`, or `train.max_length: null`."


def _packs(settings: Settings) -> bool:
    return bool(settings.train("packing") or settings.train("eval_packing"))


@rule("objective", "data.train", "data.eval")
def objective_reads_its_formats(settings: Settings) -> Iterator[Contradiction]:
    name = settings.recipe.objective
    fitting = FORMATS_OF[OBJECTIVES[name].data]
    for key, source in settings.recipe.data.sources().items():
        if source.format != "auto" and source.format not in fitting:
            other = next(one for one, held in OBJECTIVES.items() if source.format in FORMATS_OF[held.data])
            message = f"is {source.format}, but `objective: {name}` reads {any_of(fitting)}."
            yield f"{key}.format", message, f"Write `format: {fitting[0]}`, or `objective: {other}`."


def _other_than_sft(settings: Settings) -> str:
    name = settings.recipe.objective
    return "" if OBJECTIVES[name].imitates else f"`objective: {name}`"


@rule("objective", "train.loss_type")
def loss_is_of_the_objective(settings: Settings) -> Iterator[Contradiction]:
    """TRL asks whether it knows a loss once the model was loaded; a base for supervised fine-tuning brings one."""
    loss = settings.train("loss_type")
    if (named := _other_than_sft(settings)) and loss in ("auto", "nll", "chunked_nll", "dft"):
        message = f"is {loss}, a loss of supervised fine-tuning, not of {named}."
        yield "train.loss_type", message, "Write null for TRL's own, or name the objective's base last in `extends`."


@rule("objective", "evaluate.metrics", "evaluate.generate")
def preferences_have_their_own_metrics(settings: Settings) -> Iterator[Contradiction]:
    """An evaluation of preferences reports the loss and TRL's reward metrics; answers are of supervised data."""
    evaluate, named = settings.recipe.evaluate, _other_than_sft(settings)
    if named and evaluate.metrics:
        message = f"is set, but an evaluation of {named} reports the loss and TRL's own metrics only."
        yield "evaluate.metrics", message, "Remove it."
    if named and evaluate.generate.show:
        yield "evaluate.generate.show", f"is set, but an evaluation of {named} generates no answers.", "Write 0."


@rule("objective", "data.overlong")
def preferences_have_no_length_policy(settings: Settings) -> Iterator[Contradiction]:
    overlong, objective = settings.recipe.data.overlong, OBJECTIVES[settings.recipe.objective]
    if objective.is_of_preferences and overlong != "truncate":
        trainer = objective.trainer.rpartition(".")[2]
        message = f"is {overlong}, but TRL's {trainer} decides what happens beyond `train.max_length`."
        yield "data.overlong", message, "Write truncate, or shorten the rows beforehand."


@rule("objective", "train.loss_type", "train.per_device_train_batch_size", "train.train_sampling_strategy")
def kto_compares_within_a_batch(settings: Settings) -> Iterator[Contradiction]:
    """KTO estimates its KL term from the answers to other prompts of a micro-batch, which it pairs beforehand."""
    if settings.recipe.objective != "kto" or settings.train("loss_type") == "apo_zero_unpaired":
        return
    if settings.train("per_device_train_batch_size") < 2:
        message = "is 1, but KTO estimates its KL term from the other answers of a micro-batch."
        yield "train.per_device_train_batch_size", message, "Write 2 or more, or `train.loss_type: apo_zero_unpaired`."
    if (order := settings.train("train_sampling_strategy")) != "sequential":
        message = f"is {order}, but KTO pairs the answers of each micro-batch before the training."
        yield "train.train_sampling_strategy", message, "Remove it: rows are shuffled once, when they are read."


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


def _is_rewarded(settings: Settings) -> bool:
    return OBJECTIVES[settings.recipe.objective].is_rewarded


@rule("objective", "rewards")
def rewards_go_with_completions(settings: Settings) -> Iterator[Contradiction]:
    if settings.recipe.rewards and not _is_rewarded(settings):
        message = f"is set, but `objective: {settings.recipe.objective}` rewards no completions."
        yield "rewards", message, "Remove it, or write `objective: grpo`."
    elif not settings.recipe.rewards and _is_rewarded(settings):
        remedy = "Write one or more: `rewards: number_match`, or exact_match, format, length, module:function."
        yield "rewards", "is missing, and GRPO learns from nothing else.", remedy


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
    if not _is_rewarded(settings) or distributed.global_batch_size is not None or distributed.processes == "auto":
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


@rule(
    "objective", "adapter.method", "train.beta", "train.use_vllm", "train.max_completion_length",
    "efficiency.preflight", "data.overlong",
)  # fmt: skip
def what_generates_cannot_have(settings: Settings) -> Iterator[Contradiction]:
    """What TRL's trainers would refuse or load elsewhere, and what prompts do not have."""
    recipe = settings.recipe
    if not OBJECTIVES[recipe.objective].generates:
        return
    if settings.train("max_completion_length") is None:
        yield "train.max_completion_length", "is null, so a completion might never end.", "Write a number, as 256."
    if _is_rewarded(settings) and recipe.adapter.method == "full" and settings.train("beta"):
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


@rule("objective", "distill")
def something_of_the_teacher_is_learned(settings: Settings) -> Iterator[Contradiction]:
    distill = settings.recipe.distill
    if distill is None or not OBJECTIVES[settings.recipe.objective].imitates:
        return
    if not distill.alpha and not distill.hidden_states:
        yield "distill.alpha", "is 0, so nothing of the teacher is learned.", "Write 0.5, or `objective: sft`."
    if distill.top_k is not None and distill.hidden_states:
        message = "is set, but with `distill.top_k` the teacher's hidden states are not there to be compared."
        yield "distill.hidden_states", message, "Write 0, or remove top_k."


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
    if distill is None or not OBJECTIVES[settings.recipe.objective].generates:
        return
    for name, remedy in _INSTEAD.items():
        if getattr(distill, name) != type(distill).model_fields[name].default:
            message = f"is set, but `objective: {settings.recipe.objective}` learns by TRL's loss, which has none."
            yield f"distill.{name}", message, remedy


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
