"""The YAML of Axolotl, its keys as of its schemas in 2025 and 2026."""

from collections.abc import Mapping
from typing import Any

from hf_efficient.errors import Problem, RecipeError
from hf_efficient.recipe.conversion.draft import Draft, put_sharding
from hf_efficient.recipe.schema_check import ELSEWHERE
from hf_efficient.recipe.train_fields import train_fields

RECOGNISED = (
    "base_model", "sequence_len", "micro_batch_size", "num_epochs", "val_set_size", "adapter", "lora_target_linear",
    "sample_packing", "dataset_prepared_path", "train_on_inputs", "lr_scheduler", "optimizer",
)  # fmt: skip
"""Keys that the other tools do not have."""

_MOVED = {
    "base_model": "model.id",
    "revision_of_model": "model.revision",
    "tokenizer_config": "model.tokenizer",
    "attn_implementation": "model.attn_implementation",
    "lora_r": "adapter.r",
    "lora_alpha": "adapter.alpha",
    "lora_dropout": "adapter.dropout",
    "lora_modules_to_save": "adapter.modules_to_save",
    "dataset_prepared_path": "data.cache_dir",
    "default_system_message": "data.system",
    "output_dir": "output_dir",
    "sequence_len": "train.max_length",
    "micro_batch_size": "train.per_device_train_batch_size",
    "eval_batch_size": "train.per_device_eval_batch_size",
    "num_epochs": "train.num_train_epochs",
    "optimizer": "train.optim",
    "lr_scheduler": "train.lr_scheduler_type",
    "dataset_processes": "train.dataset_num_proc",
    "dataset_num_proc": "train.dataset_num_proc",
    "eval_sample_packing": "train.eval_packing",
    "wandb_name": "train.run_name",
    "rl_beta": "train.beta",
}
_FLAGS = {
    "trust_remote_code": "model.trust_remote_code",
    "peft_use_dora": "adapter.dora",
    "peft_use_rslora": "adapter.rslora",
    "sample_packing": "train.packing",
}
_SWITCHES = {
    "flash_attention": ("model.attn_implementation", "flash_attention_2"),
    "sdp_attention": ("model.attn_implementation", "sdpa"),
    "flex_attention": ("model.attn_implementation", "flex_attention"),
    "eager_attention": ("model.attn_implementation", "eager"),
    "group_by_length": ("train.train_sampling_strategy", "group_by_length"),
    "auto_resume_from_checkpoints": ("existing_output", "resume"),
    "use_tensorboard": ("train.report_to", "tensorboard"),
}
_DEFAULTS = {
    "train.max_length": 512,
    "train.per_device_train_batch_size": 1,
    "train.num_train_epochs": 1,
    "train.optim": "adamw_torch_fused",
    "train.lr_scheduler_type": "cosine",
    "train.gradient_checkpointing": False,
    "train.save_total_limit": 4,
    "output_dir": "model-out",
}
_NEEDLESS = (
    "model_type", "tokenizer_type", "tokenizer_use_fast", "tokenizer_legacy", "is_llama_derived_model", "strict",
    "is_mistral_derived_model", "is_qwen_derived_model", "is_falcon_derived_model", "local_rank", "save_safetensors",
    "debug", "device_map", "base_model_config", "shuffle_merged_datasets", "pad_to_sequence_len",
)  # fmt: skip
_WANDB = "write train.report_to: wandb, and set W&B's variables (WANDB_PROJECT)."
_NOTES = {
    **dict.fromkeys(("wandb_project", "wandb_entity", "use_wandb", "wandb_watch", "wandb_run_id"), _WANDB),
    "lora_model_dir": "training does not start from an adapter. Merge it first: hf-efficient merge.",
    "resume_from_checkpoint": "write `hf-efficient train RECIPE --resume`, or existing_output: resume.",
    "lora_target_parameters": "only modules get adapters. Write adapter.target_modules.",
    "unfrozen_parameters": "write adapter.modules_to_save for an adapter; not there for adapter.method: full.",
    "eval_table_size": "write evaluate.generate.examples and evaluate.generate.show.",
    "do_causal_lm_eval": "write evaluate.metrics: [perplexity, token_accuracy].",
    "tokens": "tokens cannot be added. Save a tokenizer and a model that have them, and name these.",
    "tensor_parallel_size": "a layer is not split over GPUs; distributed.strategy: fsdp2 shards it.",
    "hub_token": ELSEWHERE["hub_token"],
}
_FORMATS = {"alpaca": "alpaca", "completion": "text", "pretrain": "text", "chat_template": "messages"}
_EXCESS = {"drop": "drop", "truncate": "truncate", "raise": "error"}


def from_axolotl(keys: Mapping[str, Any], where: str) -> Draft:
    """The recipe of a file for Axolotl. Raises ``RecipeError`` for a method (``rl``) that recipes do not have."""
    method = "dpo" if keys.get("rl") in ("dpo", "ipo") else "sft"
    if keys.get("rl") and method == "sft":
        remedy = "A recipe trains `objective: sft` or `objective: dpo`; train this with Axolotl or TRL."
        raise RecipeError([Problem(where, "rl", f"{keys['rl']} has no counterpart.", remedy)])
    fields = train_fields(method)
    draft = Draft(keys, fields, where)
    draft.put("objective", method, "rl")
    if draft.take("rl") == "ipo":
        draft.put("train.loss_type", "ipo", "rl")
    _precision(draft)
    _adapter(draft)
    for key, (target, chosen) in _SWITCHES.items():
        if draft.flag(key):
            draft.put(target, chosen, key)
    _data(draft, method)
    _templates(draft)
    _schedule(draft)
    _evaluation(draft)
    draft.move(_MOVED)
    draft.move(_FLAGS, flags=True)
    for key in _NEEDLESS:
        draft.skip(key)
    draft.note_all(_NOTES)
    others = {*ELSEWHERE, "deepspeed", "fsdp", "fsdp_config"}
    draft.move({name: f"train.{name}" for name in fields if name not in others})
    put_sharding(draft)
    for target, value in _DEFAULTS.items():
        draft.default(target, value)
    draft.default("train.per_device_eval_batch_size", draft.values["train.per_device_train_batch_size"])
    draft.note_rest([*_MOVED, *_FLAGS, *_NOTES, *RECOGNISED], "not known here, or has no counterpart in a recipe")
    return draft


def _precision(draft: Draft) -> None:
    """``bf16: auto`` and true load the weights in bfloat16 too."""
    bf16, fp16 = draft.take("bf16", "auto"), draft.flag("fp16")
    if fp16 or bf16 in (False, "false", "no"):
        draft.put("model.dtype", "float16" if fp16 else "float32", "fp16" if fp16 else "bf16")
        draft.put("train.bf16", False, "bf16")
        if fp16:
            draft.put("train.fp16", True, "fp16")
    else:
        draft.put("model.dtype", "bfloat16", "bf16")
        if bf16 == "full":
            draft.put("train.bf16_full_eval", True, "bf16")


def _adapter(draft: Draft) -> None:
    adapter, four, eight = draft.take("adapter"), draft.flag("load_in_4bit"), draft.flag("load_in_8bit")
    if adapter is None:
        draft.put("adapter.method", "full")
        draft.note_some(("lora_", "peft_"), "has no effect without `adapter`.")
        return
    draft.put("adapter.method", "qlora" if adapter == "lora" and (four or eight) else adapter, "adapter")
    if eight and not four:
        draft.put("adapter.quantization.bits", 8, "load_in_8bit")
    if draft.flag("lora_target_linear"):
        draft.put("adapter.target_modules", "all-linear", "lora_target_linear")
        draft.skip("lora_target_modules")
    elif modules := draft.take("lora_target_modules"):
        draft.put("adapter.target_modules", modules, "lora_target_modules")
    if "lora_r" not in draft:
        draft.put("adapter.r", 8)


def _data(draft: Draft, method: str) -> None:
    entries = [(f"datasets.{index}", one) for index, one in enumerate(draft.entries("datasets"))]
    for index, one in enumerate(draft.entries("pretraining_dataset")):
        entries.append((f"pretraining_dataset.{index}", {"type": "pretrain", **one}))
    if entries:
        draft.put("data.train", [_source(draft, key, one, method) for key, one in entries], "datasets")
    tests = draft.entries("test_datasets")
    if tests:
        held = [_source(draft, f"test_datasets.{index}", one, method) for index, one in enumerate(tests)]
        draft.put("data.eval", held, "test_datasets")
    share = draft.number("val_set_size", 0)
    if share and not tests:
        draft.put("data.eval_fraction", share, "val_set_size")
        draft.take("val_set_size")
    draft.skip("val_set_size")
    if method == "sft":
        excess = str(draft.take("excess_length_strategy", "drop"))
        draft.put("data.overlong", _EXCESS.get(excess, "drop"), "excess_length_strategy")
        _targets(draft)


def _targets(draft: Draft) -> None:
    """Of chats, the answers of the assistant are targets unless ``train_on_inputs``; of the other formats, a recipe
    takes the answer by itself."""
    formats = {one.get("format", "") for one in draft.values.get("data.train", [])}
    on_inputs = draft.flag("train_on_inputs")
    if formats & {"messages", "sharegpt"} and not on_inputs:
        draft.put("data.targets", "assistant", "train_on_inputs")
    elif formats & {"alpaca", "prompt_completion", "messages", "sharegpt"} and on_inputs:
        draft.put("data.targets", "all", "train_on_inputs")


def _source(draft: Draft, key: str, entry: dict[str, Any], method: str) -> dict[str, Any]:
    source = draft.source(key, entry)
    entry.pop("ds_type", None)  # a file's suffix says it
    _format(draft, key, entry, source, method)
    for name, value in entry.items():
        if value not in (None, False, "tokenizer_default", ["assistant"], ["gpt"]):
            draft.note(f"{key}.{name}", "is no key of a source.")
    return source


def _format(draft: Draft, key: str, entry: dict[str, Any], source: dict[str, Any], method: str) -> None:
    kind = entry.pop("type", None)
    if isinstance(kind, dict):
        columns = {ours: kind.pop(f"field_{ours}", None) for ours in ("instruction", "input", "output", "system")}
        source |= {"format": "alpaca", "columns": {ours: one for ours, one in columns.items() if one and one != ours}}
        for name in (name for name, value in kind.items() if value):
            draft.note(f"{key}.type.{name}", "the chat template formats a row. Write it in the data.")
        if not source["columns"]:
            del source["columns"]
    elif method == "dpo":
        source["format"] = "preference"
        draft.note(f"{key}.type", f"{kind}: columns must be prompt, chosen, rejected; `columns` renames.")
    elif kind in _FORMATS:
        source["format"] = _FORMATS[kind]
    elif kind is not None:
        draft.note(f"{key}.type", f"{kind}: the format is recognised by the columns, or write `format`.")
    messages = entry.pop("field_messages", None)
    if source.get("format") == "messages" and messages not in (None, "messages"):
        if messages == "conversations":
            source["format"] = "sharegpt"
        else:
            source["columns"] = {"messages": messages}
    text = entry.pop("field", None) or entry.pop("text_column", None)
    if text not in (None, "text") and source.get("format") == "text":
        source["columns"] = {"text": text}


def _templates(draft: Draft) -> None:
    template = draft.take("chat_template")
    if str(draft.look("chat_template_jinja")).endswith(".jinja"):
        draft.move({"chat_template_jinja": "train.chat_template_path"})
    elif template not in (None, "tokenizer_default", "jinja"):
        reason = f"{template}: the tokenizer's own is used. Write train.chat_template_path for another."
        draft.note("chat_template", reason)
    for name, value in draft.mapping("special_tokens").items():
        if name in ("pad_token", "eos_token") and value:
            draft.put(f"train.{name}", value, f"special_tokens.{name}")
        elif value:
            draft.note(f"special_tokens.{name}", "the tokenizer's own is used.")


def _schedule(draft: Draft) -> None:
    if "batch_size" in draft and "gradient_accumulation_steps" not in draft:
        steps = draft.number("batch_size", 1) // draft.number("micro_batch_size", 1)
        draft.put("train.gradient_accumulation_steps", max(int(steps), 1), "batch_size")
        draft.take("batch_size")
    draft.skip("batch_size")
    ratio = draft.take("warmup_ratio")
    if "warmup_steps" not in draft:
        draft.put("train.warmup_steps", 0.03 if ratio is None else ratio, "" if ratio is None else "warmup_ratio")
    if draft.look("lr_scheduler") in ("one_cycle", "rex"):
        draft.note("lr_scheduler", "is not there; the recipe has cosine.")
    if draft.look("gradient_checkpointing") in ("offload", "offload_disk", "unsloth"):
        draft.note("gradient_checkpointing", "activations stay on the GPU.")
        draft.put("train.gradient_checkpointing", True)
    if "liger" in str(draft.look("plugins")).lower():
        draft.put("train.use_liger_kernel", True, "plugins")
        draft.take("plugins")
        draft.note_some(("liger_",), "train.use_liger_kernel: true takes all of Liger's kernels for the model.")
    if "hub_model_id" in draft:
        draft.put("train.push_to_hub", True, "hub_model_id")


def _evaluation(draft: Draft) -> None:
    _interval(draft, "save")
    if "save_steps" not in draft and "save_strategy" not in draft:
        draft.default("train.save_strategy", "epoch")
    if "data.eval" in draft.values or "data.eval_fraction" in draft.values:
        _interval(draft, "eval")
    else:
        of_evaluations = ("evals_per_epoch", "eval_steps", "eval_strategy")
        draft.note_some(of_evaluations, "has no effect: the file has no evaluation data (val_set_size, test_datasets).")
    patience = draft.take("early_stopping_patience")
    if patience:
        draft.put("evaluate.early_stopping.patience", patience, "early_stopping_patience")
        draft.put("train.metric_for_best_model", "loss", "early_stopping_patience")


def _interval(draft: Draft, kind: str) -> None:
    times, epochs = draft.number(f"{kind}s_per_epoch", 0), draft.number("num_epochs", 1)
    draft.take(f"{kind}s_per_epoch")
    if times == 1:
        draft.put(f"train.{kind}_strategy", "epoch", f"{kind}s_per_epoch")
    elif times:
        draft.put(f"train.{kind}_strategy", "steps", f"{kind}s_per_epoch")
        draft.put(f"train.{kind}_steps", round(1 / (times * epochs), 6), f"{kind}s_per_epoch")
    elif f"{kind}_steps" in draft and f"{kind}_strategy" not in draft:
        draft.put(f"train.{kind}_strategy", "steps", f"{kind}_steps")
