"""The YAML of Axolotl, its keys as of its schemas in 2025 and 2026."""

from collections.abc import Mapping
from typing import Any

from hf_efficient.errors import Problem, RecipeError
from hf_efficient.facts.tables import key_table
from hf_efficient.recipe.conversion.draft import Draft, put_sharding
from hf_efficient.recipe.schema_check import ELSEWHERE
from hf_efficient.recipe.train_fields import train_fields

_KEYS = key_table("axolotl")
_NOTES = {**_KEYS["notes"], "hub_token": ELSEWHERE["hub_token"]}


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
    for key, (target, chosen) in _KEYS["switches"].items():
        if draft.flag(key):
            draft.put(target, chosen, key)
    _data(draft, method)
    _templates(draft)
    _schedule(draft)
    _evaluation(draft)
    draft.move(_KEYS["moved"])
    draft.move(_KEYS["flags"], flags=True)
    for key in _KEYS["needless"]:
        draft.skip(key)
    draft.note_all(_NOTES)
    others = {*ELSEWHERE, "deepspeed", "fsdp", "fsdp_config"}
    draft.move({name: f"train.{name}" for name in fields if name not in others})
    put_sharding(draft)
    for target, value in _KEYS["defaults"].items():
        draft.default(target, value)
    draft.default("train.per_device_eval_batch_size", draft.values["train.per_device_train_batch_size"])
    known = [*_KEYS["moved"], *_KEYS["flags"], *_NOTES, *_KEYS["recognised"]]
    draft.note_rest(known, "not known here, or has no counterpart in a recipe")
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
    if "lora_r" not in draft.left:
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
        draft.put("data.overlong", _KEYS["excess"].get(excess, "drop"), "excess_length_strategy")
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
    elif kind in _KEYS["formats"]:
        source["format"] = _KEYS["formats"][kind]
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
    if str(draft.left.get("chat_template_jinja")).endswith(".jinja"):
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
    if "batch_size" in draft.left and "gradient_accumulation_steps" not in draft.left:
        steps = draft.number("batch_size", 1) // draft.number("micro_batch_size", 1)
        draft.put("train.gradient_accumulation_steps", max(int(steps), 1), "batch_size")
        draft.take("batch_size")
    draft.skip("batch_size")
    ratio = draft.take("warmup_ratio")
    if "warmup_steps" not in draft.left:
        draft.put("train.warmup_steps", 0.03 if ratio is None else ratio, "" if ratio is None else "warmup_ratio")
    if draft.left.get("lr_scheduler") in ("one_cycle", "rex"):
        draft.note("lr_scheduler", "is not there; the recipe has cosine.")
    if draft.left.get("gradient_checkpointing") in ("offload", "offload_disk", "unsloth"):
        draft.note("gradient_checkpointing", "activations stay on the GPU.")
        draft.put("train.gradient_checkpointing", True)
    if "liger" in str(draft.left.get("plugins")).lower():
        draft.put("train.use_liger_kernel", True, "plugins")
        draft.take("plugins")
        draft.note_some(("liger_",), "train.use_liger_kernel: true takes all of Liger's kernels for the model.")
    if "hub_model_id" in draft.left:
        draft.put("train.push_to_hub", True, "hub_model_id")


def _evaluation(draft: Draft) -> None:
    _interval(draft, "save")
    if "save_steps" not in draft.left and "save_strategy" not in draft.left:
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
    elif f"{kind}_steps" in draft.left and f"{kind}_strategy" not in draft.left:
        draft.put(f"train.{kind}_strategy", "steps", f"{kind}_steps")
