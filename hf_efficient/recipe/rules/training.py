"""Adapter and quantization.

Fields of ``train:`` that contradict one another.

The chunked loss, and what it cannot be combined with.

Packing and padding-free batches: examples that share a row must not see each other.

Supervised fine-tuning and preference pairs.

Values of ``train:`` that need a package beyond those that a run always needs.

Settings that would be accepted and do nothing, or nothing good.
"""

from __future__ import annotations

import re

from hf_efficient.facts.libraries import is_installed
from hf_efficient.recipe.rules.settings import Contradiction, Settings, reads


@reads("adapter.method", "adapter.quantization")
def quantization_needs_qlora(settings: Settings) -> list[Contradiction]:
    """Only ``qlora`` trains on a quantized base."""
    adapter = settings.recipe.adapter
    if adapter.quantization is None or adapter.method == "qlora":
        return []
    bits = adapter.quantization.bits
    if adapter.method == "full":
        message = f"is {bits}-bit, but `adapter.method: full` trains all weights; {bits}-bit weights cannot train."
    else:
        message = f"is {bits}-bit, but `adapter.method: lora` trains on a base that is not quantized."
    return [("adapter.quantization", message, "Write `adapter.method: qlora`, or remove the quantization.")]


@reads("adapter")
def full_has_no_adapter(settings: Settings) -> list[Contradiction]:
    """What shapes or follows an adapter says nothing about full fine-tuning."""
    adapter = settings.recipe.adapter
    if adapter.method != "full":
        return []
    chosen = {
        "dora": adapter.dora,
        "rslora": adapter.rslora,
        "modules_to_save": bool(adapter.modules_to_save),
        "bias": adapter.bias != "none",
        "merge": adapter.merge,
    }
    message = "is set, but `adapter.method: full` trains all weights and has no adapter."
    remedy = "Remove it, or write `adapter.method: lora`."
    return [(f"adapter.{name}", message, remedy) for name, is_chosen in chosen.items() if is_chosen]


@reads("adapter.quantization")
def eight_bit_has_no_four_bit_options(settings: Settings) -> list[Contradiction]:
    """LLM.int8() has one data type, one way to quantize it and computes in the activations' type."""
    quantization = settings.recipe.adapter.quantization
    if quantization is None or quantization.bits != 8:
        return []
    names = ("type", "double_quant", "compute_dtype")
    given = [key for key in (f"adapter.quantization.{name}" for name in names) if settings.was_set(key)]
    message = "is a setting of 4-bit quantization, but `adapter.quantization.bits` is 8."
    return [(key, message, "Remove it, or write `bits: 4`.") for key in given]


@reads("adapter.target_modules")
def targets_are_a_pattern(settings: Settings) -> list[Contradiction]:
    """PEFT takes a text other than ``all-linear`` for a regular expression, once the model was loaded."""
    pattern = settings.recipe.adapter.target_modules
    if not isinstance(pattern, str):
        return []
    try:
        re.compile(pattern)
        return []
    except re.error as error:
        why = f"{error.msg} at position {error.pos}"
    except (OverflowError, RecursionError) as error:
        why = str(error)
    message = f"is neither all-linear nor a valid regular expression: {why}."
    return [("adapter.target_modules", message, "Write all-linear, a list of module names, or a valid expression.")]


@reads("train.bf16", "train.fp16", "train.bf16_full_eval", "train.fp16_full_eval")
def one_half_precision(settings: Settings) -> list[Contradiction]:
    """One of bf16 and fp16."""
    found = []
    for suffix in ("", "_full_eval"):
        if settings.train(f"bf16{suffix}") and settings.train(f"fp16{suffix}"):
            message = f"is true, and so is `train.bf16{suffix}`."
            found.append((f"train.fp16{suffix}", message, "Keep one: bf16 where the device has it, else fp16."))
    return found


@reads(
    "train.activation_checkpointing",
    "train.activation_checkpointing_kwargs",
    "train.gradient_checkpointing",
    "train.gradient_checkpointing_kwargs",
)
def checkpointing_arguments_need_checkpointing(settings: Settings) -> list[Contradiction]:
    """Arguments of activation checkpointing, where it is off.

    ``gradient_checkpointing`` is transformers' older name; it counts where the newer one is not given.
    """
    newer = settings.train("activation_checkpointing")
    older = settings.train("gradient_checkpointing")
    if newer if newer is not None else older:
        return []
    switch = "activation_checkpointing" if newer is not None else "gradient_checkpointing"
    message = f"is set, but activation checkpointing is off (`train.{switch}: false`)."
    return [
        (f"train.{name}", message, f"Write `train.{switch}: true`, or remove it.")
        for name in ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs")
        if settings.train(name)
    ]


@reads("train.dataloader_num_workers", "train.dataloader_prefetch_factor", "train.dataloader_persistent_workers")
def loader_options_need_workers(settings: Settings) -> list[Contradiction]:
    """torch's DataLoader refuses options of its workers where it has none."""
    if settings.train("dataloader_num_workers") != 0:
        return []
    message = "is set, but `train.dataloader_num_workers` is 0."
    return [
        (f"train.{name}", message, "Write at least 1 worker, or remove it.")
        for name in ("dataloader_prefetch_factor", "dataloader_persistent_workers")
        if settings.train(name)
    ]


_INSTEAD = "or write `train.loss_type: nll`."


@reads(
    "method", "train.loss_type", "train.label_smoothing_factor", "train.use_liger_kernel", "train.liger_kernel_config"
)
def chunked_loss_has_the_head_to_itself(settings: Settings) -> list[Contradiction]:
    """Label smoothing needs whole logits; Liger's own fused loss replaces the forward that TRL's is in."""
    return _other_users(settings) if _chunked(settings) else []


@reads("method", "train.loss_type", "adapter.method", "adapter.target_modules")
def chunked_loss_has_no_adapter_on_the_head(settings: Settings) -> list[Contradiction]:
    """TRL's fused head reads the weight of ``lm_head``, and would leave out an adapter on it."""
    return _adapter_on_the_head(settings) if _chunked(settings) else []


def fits_chunked_loss(settings: Settings) -> bool:
    """Whether a recipe with another loss could be given this one."""
    return settings.recipe.method == "sft" and not [*_other_users(settings), *_adapter_on_the_head(settings)]


def _other_users(settings: Settings) -> list[Contradiction]:
    found = []
    if settings.train("label_smoothing_factor"):
        message = "is set, but `train.loss_type: chunked_nll` never has the whole logits that it needs."
        found.append(("train.label_smoothing_factor", message, f"Write 0, {_INSTEAD}"))
    fused_by_liger = (settings.train("liger_kernel_config") or {}).get("fused_linear_cross_entropy", True)
    if settings.train("use_liger_kernel") and fused_by_liger:
        message = "is true, but Liger's fused loss takes the place of `train.loss_type: chunked_nll`."
        remedy = f"Write `train.liger_kernel_config: {{fused_linear_cross_entropy: false}}`, {_INSTEAD}"
        found.append(("train.use_liger_kernel", message, remedy))
    return found


def _adapter_on_the_head(settings: Settings) -> list[Contradiction]:
    adapter = settings.recipe.adapter
    if adapter.method == "full" or not isinstance(adapter.target_modules, list):
        return []
    if not any(name.rsplit(".", 1)[-1] == "lm_head" for name in adapter.target_modules):
        return []
    message = "names lm_head, whose adapter `train.loss_type: chunked_nll` would leave out."
    return [("adapter.target_modules", message, f"Write it in `adapter.modules_to_save`, {_INSTEAD}")]


def _chunked(settings: Settings) -> bool:
    return settings.recipe.method == "sft" and settings.train("loss_type") == "chunked_nll"


# From position ids that start again, transformers (>= 5.17) builds a block-diagonal mask for the first three;
# the flash kernels take the sequence boundaries.
KEEPS_APART = (
    "sdpa",
    "eager",
    "flex_attention",
    "flash_attention_2",
    "flash_attention_3",
    "flash_attention_4",
)


@reads("method", "model.attn_implementation", "train.packing", "train.eval_packing", "train.packing_strategy")
def attention_keeps_examples_apart(settings: Settings) -> list[Contradiction]:
    """An attention that is not known to respect example boundaries mixes packed examples.

    ``packing_strategy: wrapped`` cuts one stream of text into rows and means its examples to run on.
    """
    attention = settings.recipe.model.attn_implementation
    packs = settings.train("packing") or settings.train("eval_packing")
    if not packs or attention is None or settings.train("packing_strategy") == "wrapped":
        return []
    # Kernels of the hub are named by their repository: kernels-community/flash-attn2.
    if attention in KEEPS_APART or "flash-attn" in attention or "flash_attn" in attention:
        return []
    message = f"is {attention}, which is not known to keep packed examples apart."
    remedy = f"Write one of {', '.join(KEEPS_APART)}, or `train.packing: false`."
    return [("model.attn_implementation", message, remedy)]


@reads("train.packing", "train.eval_packing", "train.max_length")
def packing_needs_a_length(settings: Settings) -> list[Contradiction]:
    """Rows are packed up to ``max_length``."""
    packs = settings.train("packing") or settings.train("eval_packing")
    if not packs or settings.train("max_length") is not None:
        return []
    message = "is null, but packing fills rows of this length."
    return [("train.max_length", message, "Write a length in tokens, for instance 2048.")]


@reads("method", "train.packing", "train.padding_free", "train.max_length")
def padding_free_has_no_length(settings: Settings) -> list[Contradiction]:
    """TRL does not cut examples to ``max_length`` in padding-free batches without packing, and refuses."""
    if settings.recipe.method != "sft" or not settings.train("padding_free") or settings.train("packing"):
        return []
    if settings.train("max_length") is None:
        return []
    length = settings.train("max_length")
    message = f"is true without packing, so `train.max_length: {length}` would not be enforced."
    return [("train.padding_free", message, "Write `train.packing: true`, or `train.max_length: null`.")]


@reads("method", "data.train", "data.eval")
def dpo_reads_preferences(settings: Settings) -> list[Contradiction]:
    """DPO trains on preference pairs, and nothing else does."""
    method = settings.recipe.method
    found: list[Contradiction] = []
    for split, sources in (("train", settings.recipe.data.train), ("eval", settings.recipe.data.eval)):
        for index, source in enumerate(sources):
            key = f"data.{split}.{index}.format"
            if method == "dpo" and source.format not in ("auto", "preference"):
                message = f"is {source.format}, but `method: dpo` trains on preference pairs."
                found.append((key, message, "Write `format: preference`, or `method: sft`."))
            elif method == "sft" and source.format == "preference":
                message = "is preference, but `method: sft` does not train on pairs."
                found.append((key, message, "Write `method: dpo`, or the format of single answers."))
    return found


@reads("method", "evaluate.metrics")
def dpo_has_its_own_metrics(settings: Settings) -> list[Contradiction]:
    """An evaluation of DPO reports the loss and TRL's reward metrics."""
    if settings.recipe.method != "dpo" or not settings.recipe.evaluate.metrics:
        return []
    message = "is set, but an evaluation of `method: dpo` reports the loss and TRL's rewards only."
    return [("evaluate.metrics", message, "Remove it.")]


# The modules that an integration imports, of which one or all are needed, and what to install.
_INTEGRATIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "azure_ml": (("azureml",), "azureml-mlflow"),
    "clearml": (("clearml",), "clearml"),
    "codecarbon": (("codecarbon",), "codecarbon"),
    "comet_ml": (("comet_ml",), "comet-ml"),
    "dagshub": (("dagshub",), "dagshub mlflow"),
    "dvclive": (("dvclive",), "dvclive"),
    "flyte": (("flytekit",), "flytekit"),
    "mlflow": (("mlflow",), "mlflow"),
    "neptune": (("neptune",), "neptune"),
    "swanlab": (("swanlab",), "swanlab"),
    "tensorboard": (("tensorboard", "tensorboardX"), "tensorboard"),
    "trackio": (("trackio",), "trackio"),
    "wandb": (("wandb",), "wandb"),
}
# The beginning of the optimizer's name, its module, and what to install.
_OPTIMIZERS = (
    ("galore_", "galore_torch", "galore-torch"),
    ("apollo_", "apollo_torch", "apollo-torch"),
    ("lomo", "lomo_optim", "lomo-optim"),
    ("adalomo", "lomo_optim", "lomo-optim"),
    ("grokadamw", "grokadamw", "grokadamw"),
    ("schedule_free_", "schedulefree", "schedulefree"),
    ("stable_adamw", "optimi", "torch-optimi"),
    ("adamw_torch_4bit", "torchao", "torchao"),
    ("adamw_torch_8bit", "torchao", "torchao"),
    ("adamw_torch_xla", "torch_xla", "torch_xla"),
    ("adamw_torch_npu_fused", "torch_npu", "torch_npu"),
    ("adamw_anyprecision", "torchdistx", "torchdistx"),
)
_ALONE = ("none", "all")


@reads("train.report_to")
def reports_are_installed(settings: Settings) -> list[Contradiction]:
    """transformers asks for the package of an integration only after the model was loaded."""
    said = settings.train("report_to")
    if said is None:
        return [("train.report_to", "is null, which transformers takes for a name.", "Write none.")]
    names = [said] if isinstance(said, str) else list(said)
    found: list[Contradiction] = []
    for index, name in enumerate(names):
        key = "train.report_to" if isinstance(said, str) else f"train.report_to.{index}"
        if name in _ALONE and len(names) > 1:
            found.append((key, f"is {name}, which stands alone.", "Name integrations, or write it alone."))
        modules, package = _INTEGRATIONS.get(name, ((), ""))
        if modules and not any(is_installed(module) for module in modules):
            message = f"is {name}, but the package {modules[0]} is not installed."
            found.append((key, message, f"Install it (pip install {package}), or write `train.report_to: none`."))
    return found


@reads("train.optim")
def optimizer_is_installed(settings: Settings) -> list[Contradiction]:
    """transformers asks for the package of an optimizer only after the model was loaded."""
    name = settings.train("optim")
    if not isinstance(name, str):
        return []
    for beginning, module, package in _OPTIMIZERS:
        if name.startswith(beginning) and not is_installed(module):
            message = f"is {name}, but the package {module} is not installed."
            return [("train.optim", message, f"Install it (pip install {package}), or write another optimizer.")]
    return []


@reads("evaluate.metrics", "train.prediction_loss_only")
def metrics_need_predictions(settings: Settings) -> list[Contradiction]:
    """Perplexity and accuracy are computed from predictions."""
    if not settings.train("prediction_loss_only") or not settings.recipe.evaluate.metrics:
        return []
    message = "is true, but `evaluate.metrics` are computed from predictions."
    return [("train.prediction_loss_only", message, "Remove it, or the metrics.")]


@reads("method", "train.remove_unused_columns")
def recipe_decides_the_columns(settings: Settings) -> list[Contradiction]:
    """Prepared rows hold what the collator reads, and the Trainer would drop some of it."""
    if settings.recipe.method != "sft" or settings.recipe.train.get("remove_unused_columns") is not True:
        return []
    return [("train.remove_unused_columns", "has no effect: prepared rows hold what is needed.", "Remove it.")]


@reads("train.do_train", "train.do_eval", "train.do_predict")
def recipe_decides_what_is_done(settings: Settings) -> list[Contradiction]:
    """These fields belong to example scripts; the Trainer does not read them."""
    return [
        (f"train.{name}", "has no effect: it is read by example scripts only.", "Remove it.")
        for name in ("do_train", "do_eval", "do_predict")
        if settings.recipe.train.get(name)
    ]


@reads("train.metric_for_best_model", "train.greater_is_better")
def best_perplexity_is_the_lowest(settings: Settings) -> list[Contradiction]:
    """A greater perplexity is a worse model."""
    metric = str(settings.recipe.train.get("metric_for_best_model", "")).removeprefix("eval_")
    if metric not in ("perplexity", "loss") or settings.recipe.train.get("greater_is_better") is not True:
        return []
    message = f"is true, but the best {metric} is the lowest."
    return [("train.greater_is_better", message, "Remove it.")]


@reads("adapter.method", "model.dtype")
def full_weights_are_not_float16(settings: Settings) -> list[Contradiction]:
    """float16 weights overflow and underflow as they are updated; mixed precision keeps a float32 copy."""
    if settings.recipe.adapter.method != "full" or settings.recipe.model.dtype != "float16":
        return []
    message = "is float16, whose range is too small for weights that are trained."
    return [("model.dtype", message, "Write bfloat16, or float32 with `train.fp16: true`.")]


@reads("method", "data.overlong")
def dpo_has_no_length_policy(settings: Settings) -> list[Contradiction]:
    """TRL tokenises preference pairs itself and decides what to do with long ones."""
    if settings.recipe.method != "dpo" or settings.recipe.data.overlong == "truncate":
        return []
    message = f"is {settings.recipe.data.overlong}, but TRL's DPOTrainer truncates to `train.max_length`."
    return [("data.overlong", message, "Write truncate, or shorten the pairs beforehand.")]


@reads("method", "evaluate.generate")
def dpo_shows_no_answers(settings: Settings) -> list[Contradiction]:
    """Answers are generated for supervised data."""
    if settings.recipe.method != "dpo" or not settings.recipe.evaluate.generate.show:
        return []
    message = "is set, but an evaluation of `method: dpo` generates no answers."
    return [("evaluate.generate.show", message, "Write 0.")]
