"""Tiny trainings for the tests of the trainer: model, data, and what a finished run is compared by."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    TrainingArguments,
)
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from hf_efficient.accounting.account import SCHEMA, account_of, read_account
from hf_efficient.records.account import RunAccount
from hf_efficient.records.steps import StepRecord

VOCABULARY = 259
CONFIGS = {SFTTrainer: SFTConfig, DPOTrainer: DPOConfig, RewardTrainer: RewardConfig}
METHODS = ("full", "lora", "qlora")


def tiny_config(**changes: Any) -> LlamaConfig:
    """All widths are multiples of 64, so that 4-bit blocks and the repacking for inference fit."""
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "attention_dropout": 0.1,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return LlamaConfig(**{**settings, **changes})


def save_tiny_model(folder: Path, tokenizer: Any) -> Path:
    torch.manual_seed(0)
    LlamaForCausalLM(tiny_config()).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def build_model(folder: Path, method: str, checkpointing: bool = False) -> Any:
    """The saved model, adapted for the method; dropout on the adapters' inputs as well."""
    torch.manual_seed(1)
    quantization = None
    if method == "qlora":
        quantization = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, quantization_config=quantization, device_map={"": "cpu"}
    )
    if method == "full":
        return model
    if method == "qlora":
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=checkpointing)
    elif checkpointing:
        model.enable_input_require_grads()
    lora = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(model, lora)


def rows(count: int = 24, packed: bool = False) -> list[dict[str, Any]]:
    """Examples of 5 to 20 tokens; packed: two of them to a row."""
    generator = torch.Generator().manual_seed(2)

    def draw() -> list[int]:
        length = int(torch.randint(5, 21, (1,), generator=generator))
        return torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()

    if not packed:
        return [{"input_ids": draw()} for _ in range(count)]
    pairs = [(draw(), draw()) for _ in range(count)]
    return [{"input_ids": a + b, "seq_lengths": [len(a), len(b)]} for a, b in pairs]


def arguments(output_dir: Path, kind: type[TrainingArguments] = TrainingArguments, **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "output_dir": str(output_dir),
        "use_cpu": True,
        "bf16": False,
        "seed": 3,
        "max_steps": 3,
        "logging_steps": 1,
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "report_to": [],
        "disable_tqdm": True,
        "save_strategy": "no",
        "remove_unused_columns": False,
        "gradient_checkpointing": False,
    }
    return kind(**{**settings, **changes})


def collator(packed: bool = False) -> DataCollatorForLanguageModeling:
    return DataCollatorForLanguageModeling(pad_token_id=0, padding_free=packed)


def causal_trainer(
    kind: type,
    folder: Path,
    output_dir: Path,
    method: str = "lora",
    packed: bool = False,
    checkpointing: bool = False,
    mixin: dict[str, Any] | None = None,
    eval_rows: int | dict[str, int] = 0,
    callbacks: list[Any] | None = None,
    model: Any = None,
    data: Any = None,
    **changes: Any,
) -> Any:
    """A trainer of this class over a fresh tiny model, with ``Trainer``'s own arguments."""
    evaluated: Any = rows(eval_rows, packed) if isinstance(eval_rows, int) and eval_rows else None
    if isinstance(eval_rows, dict):
        evaluated = {name: rows(count) for name, count in eval_rows.items()}
    return kind(
        model=build_model(folder, method, checkpointing) if model is None else model,
        args=arguments(output_dir, gradient_checkpointing=checkpointing, **changes),
        data_collator=collator(packed),
        train_dataset=rows(packed=packed) if data is None else data,
        eval_dataset=evaluated,
        callbacks=callbacks,
        **(mixin or {}),
    )


def trl_trainer(kind: type, model: Any, output_dir: Path, tokenizer: Any, more: Any = None, **changes: Any) -> Any:
    """A trainer of TRL, or over one, over texts or preferences."""
    library, config = next(pair for pair in CONFIGS.items() if issubclass(kind, pair[0]))
    texts = [{"text": f"{i} times {i} is {i * i}" + "!" * (i % 5)} for i in range(40)]
    data = Dataset.from_list(texts if library is SFTTrainer else preference_rows())
    args = arguments(output_dir, config, **changes)
    return kind(model=model, args=args, train_dataset=data, processing_class=tokenizer, **(more or {}))


def train_causal(*args: Any, resume: Any = None, **changes: Any) -> Any:
    """``causal_trainer``, trained."""
    trainer = causal_trainer(*args, **changes)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def every(evaluate: int | None = None, save: int | None = None) -> dict[str, Any]:
    """Arguments: an evaluation and a checkpoint after so many steps each."""
    evaluations = {"eval_strategy": "steps", "eval_steps": evaluate} if evaluate else {}
    return {**evaluations, **({"save_strategy": "steps", "save_steps": save} if save else {})}


def lines(output: Path, name: str) -> list[dict[str, Any]]:
    """Of a file of the run's records."""
    return [json.loads(line) for line in (output / "efficiency" / name).read_text().splitlines()]


def records(output: Path) -> list[StepRecord]:
    from tests.conftest import read_steps

    return list(read_steps(output / "efficiency/steps.jsonl"))


def stated(output: Path, topic: str) -> dict[str, Any]:
    """The facts of a topic in the records."""
    found: dict[str, Any] = {}
    for line in lines(output, "spans.jsonl"):
        found.update(line.get("facts", {}).get(topic, {}))
    return found


def valid_account(output: Path) -> RunAccount:
    """What run.json holds: valid by the schema, and the same that the records give."""
    path = output / "efficiency/run.json"
    data, found = json.loads(path.read_text()), read_account(path)
    jsonschema.validate(data, json.loads(SCHEMA.read_text()))
    assert json.loads(json.dumps(dataclasses.asdict(found))) == data
    assert account_of(path.parent) == found
    return found


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def gradient_norms(trainer: Any) -> list[float]:
    return [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]


def trained_weights(trainer: Any) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in trainer.model.named_parameters() if p.requires_grad}


def assert_same_run(trainer: Any, other: Any) -> None:
    """Losses, gradient norms and trained weights are equal, bit for bit."""
    assert losses(trainer) == losses(other)
    assert gradient_norms(trainer) == gradient_norms(other)
    weights, expected = trained_weights(trainer), trained_weights(other)
    assert list(weights) == list(expected)
    for name, weight in weights.items():
        assert torch.equal(weight, expected[name]), name


def preference_rows(count: int = 12) -> list[dict[str, str]]:
    return [{"prompt": f"{i} + 1 =", "chosen": f" {i + 1}.", "rejected": f" {i}, I think."} for i in range(count)]


def reward_model() -> Any:
    torch.manual_seed(1)
    return LlamaForSequenceClassification(tiny_config(num_labels=1))
