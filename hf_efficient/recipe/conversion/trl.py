"""The YAML of ``trl sft --config`` and ``trl dpo --config``: TRL's script, model and data arguments, and its config."""

from collections.abc import Mapping
from typing import Any

from hf_efficient.facts.tables import key_table
from hf_efficient.recipe.conversion.draft import Draft, put_sharding
from hf_efficient.recipe.schema_check import ELSEWHERE
from hf_efficient.recipe.train_fields import train_fields

_KEYS = key_table("trl")
_NOTES = {**_KEYS["notes"], **{key: ELSEWHERE[key] for key in ("dataset_kwargs", "hub_token")}}


def from_trl(keys: Mapping[str, Any], where: str) -> Draft:
    # The file itself does not say for which command it is.
    method = "dpo" if set(keys) & (set(train_fields("dpo")) - set(train_fields("sft"))) else "sft"
    fields = train_fields(method)
    today = {
        key if _KEYS["renamed"].get(key, key) in keys else _KEYS["renamed"][key]: value for key, value in keys.items()
    }
    draft = Draft(today, fields, where)
    draft.put("objective", method)
    _model(draft)
    _adapter(draft)
    _data(draft)
    draft.note_all(_NOTES)
    put_sharding(draft)
    draft.move({"num_processes": "distributed.processes", "num_machines": "distributed.nodes"})
    draft.move({name: f"train.{name}" for name in fields if name not in ELSEWHERE})
    if method == "sft":
        draft.default("train.assistant_only_loss", False)  # TRL's: all of a chat, where a recipe takes the answers
    draft.default("output_dir", "trainer_output")
    what = "no argument of the installed TRL's " + ("`trl sft`" if method == "sft" else "`trl dpo`")
    draft.note_rest([*fields, *_KEYS["moved"], *_KEYS["adapter"], *_KEYS["adapter_flags"], *_KEYS["four_bits"]], what)
    return draft


def _model(draft: Draft) -> None:
    init = draft.mapping("model_init_kwargs")
    for name in ("dtype", "torch_dtype", "attn_implementation", "revision"):
        if name in init:
            draft.put(f"model.{name.removeprefix('torch_')}", init.pop(name), "model_init_kwargs")
    if init:
        draft.note("model_init_kwargs", f"{', '.join(init)}: no keys of `model`.")
    draft.move(_KEYS["moved"])
    draft.move({"trust_remote_code": "model.trust_remote_code"}, flags=True)
    if "dtype" in draft.left:
        draft.put("model.dtype", str(draft.take("dtype")).removeprefix("torch."), "dtype")
    draft.default("model.dtype", "float32")


def _adapter(draft: Draft) -> None:
    if not draft.flag("use_peft"):
        draft.put("adapter.method", "full", "use_peft")
        of_peft = ("lora_", "load_in_", "bnb_", *_KEYS["adapter_flags"], "use_bnb_nested_quant")
        draft.note_some(of_peft, "has no effect in TRL without use_peft: true.")
        return
    four, eight = draft.flag("load_in_4bit"), draft.flag("load_in_8bit")
    draft.put("adapter.method", "qlora" if four or eight else "lora", "use_peft")
    _quantization(draft, four, eight)
    draft.move(_KEYS["adapter"])
    draft.move(_KEYS["adapter_flags"], flags=True)
    draft.default("adapter.dropout", 0.05)
    targets = draft.values.get("adapter.target_modules")
    if targets == ["all-linear"]:
        draft.put("adapter.target_modules", "all-linear", "lora_target_modules")
    if targets is None:
        draft.remarks.append(
            "adapter.target_modules: TRL leaves it to PEFT, which takes q_proj and v_proj of a Llama; a recipe takes "
            "all linear layers. Write [q_proj, v_proj] for the same."
        )


def _quantization(draft: Draft, four: bool, eight: bool) -> None:
    if four:
        draft.put("adapter.quantization.bits", 4, "load_in_4bit")
        draft.put("adapter.quantization.double_quant", draft.flag("use_bnb_nested_quant"), "use_bnb_nested_quant")
        draft.put("adapter.quantization.compute_dtype", draft.values["model.dtype"], "dtype")
        draft.move({"bnb_4bit_quant_type": "adapter.quantization.type"})
    elif eight:
        draft.put("adapter.quantization.bits", 8, "load_in_8bit")
    if not four:
        draft.note_some(("bnb_", "use_bnb_nested_quant"), "has no effect without load_in_4bit: true.")


def _data(draft: Draft) -> None:
    evaluates = draft.left.get("eval_strategy", "no") not in ("no", False)
    mixture = draft.entries("datasets")
    if mixture:
        draft.put("data.train", [_source(draft, index, one) for index, one in enumerate(mixture)], "datasets")
        draft.note_some(("dataset_name", "dataset_config", "dataset_t"), "TRL ignores it beside `datasets`.")
    name, config = draft.take("dataset_name"), draft.take("dataset_config")
    train, test = draft.take("dataset_train_split"), draft.take("dataset_test_split")
    if name:
        common = {"path": name, **({"name": config} if config else {})}
        draft.put("data.train", [{**common, **({"split": train} if train else {})}], "dataset_name")
        if evaluates:
            draft.put("data.eval", [{**common, "split": test or "test"}], "dataset_test_split")
        elif test:
            draft.note("dataset_test_split", "TRL reads it where eval_strategy is set. Write data.eval.")
    share = draft.take("test_split_size")
    if share is not None and mixture:
        draft.put("data.eval_fraction", share, "test_split_size")
    elif share is not None:
        draft.note("test_split_size", "TRL reads it beside `datasets` alone. Write data.eval_fraction.")


def _source(draft: Draft, index: int, held: dict[str, Any]) -> dict[str, Any]:
    key = f"datasets.{index}"
    source = draft.source(key, held)
    if held.get("fraction") is not None:
        source["weight"] = held.pop("fraction")
    for name, value in held.items():
        if value is not None:
            draft.note(f"{key}.{name}", "no key of a source.")
    return source
