"""The model and the trainer that the runs share: healthy, until a run changes something."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

from hf_efficient.callbacks.profilers import SynchronisationsCallback
from hf_efficient.facts.environment import cpu_multiplies_bf16
from hf_efficient.trainer import EfficientTrainer
from planted_runs.case import Setup
from planted_runs.corpus import VOCABULARY
from planted_runs.data import Rows

__all__ = ["STEPS", "arguments", "rows_trainer", "small_llama", "trainer"]

STEPS = 60
_FEWEST_STEPS = 12
_EVALUATED_ROWS = 16


def small_llama(setup: Setup, **config: Any) -> LlamaForCausalLM:
    """Llama of 4 layers, width 256, random weights, float32: 4 million parameters.

    Args:
        setup: may set ``model.attn_implementation``.
        config: fields of ``LlamaConfig`` that differ.
    """
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "attn_implementation": "sdpa",
        "tie_word_embeddings": True,
    }
    chosen = {**shape, **config}
    chosen["attn_implementation"] = setup.override("model.attn_implementation", chosen["attn_implementation"])
    return LlamaForCausalLM(LlamaConfig(**chosen))


def arguments(setup: Setup, kind: type[TrainingArguments] = TrainingArguments, **fields: Any) -> TrainingArguments:
    """As a careful user sets them; then what the run sets; then what a remedy does.

    A remedy that puts more examples into a step gets fewer steps, so that about as many examples are trained on.

    Args:
        setup: of the run.
        kind: ``TrainingArguments`` or a class derived from it.
        fields: that differ.
    """
    chosen: dict[str, Any] = {
        "output_dir": str(setup.folder),
        "use_cpu": True,
        "bf16": cpu_multiplies_bf16(),
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "activation_checkpointing": False,
        "per_device_eval_batch_size": 16,
        "max_steps": STEPS,
        "learning_rate": 1e-3,
        "warmup_steps": 5,
        "logging_steps": 10,
        "eval_strategy": "steps",
        "eval_steps": 0.5,
        "save_strategy": "steps",
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
        "report_to": "none",
        "seed": 0,
        **fields,
    }
    examples = _examples_of_a_step(chosen)
    chosen.update(
        {key.removeprefix("train."): value for key, value in setup.overrides.items() if key.startswith("train.")}
    )
    if chosen["max_steps"] > 0:
        chosen["max_steps"] = max(_FEWEST_STEPS, round(chosen["max_steps"] * examples / _examples_of_a_step(chosen)))
    return kind(**chosen)


def trainer(setup: Setup, *, data: Any, model: Any = None, base: type = EfficientTrainer, **fields: Any) -> Any:
    """A trainer of the plain kind.

    Args:
        setup: of the run.
        data: to train on.
        model: None: ``small_llama``.
        base: the trainer's class.
        fields: of ``TrainingArguments``; ``data_collator``, ``callbacks``, ``eval_dataset`` and the keywords of the
            mixin go to the trainer.
    """
    own = ("data_collator", "callbacks", "eval_dataset", "optimizers", "check_gradients")
    given = {name: fields.pop(name) for name in own if name in fields}
    given["callbacks"] = [*given.get("callbacks", ()), SynchronisationsCallback()]
    given.setdefault("eval_dataset", Rows(setup.corpus, _EVALUATED_ROWS))
    made = small_llama(setup) if model is None else model
    return base(model=made, args=arguments(setup, **fields), train_dataset=data, **given)


def rows_trainer(setup: Setup, **fields: Any) -> Any:
    """A trainer on rows of one length, without padding; see ``trainer``."""
    return trainer(setup, data=Rows(setup.corpus, skip=_EVALUATED_ROWS), **fields)


def _examples_of_a_step(chosen: dict[str, Any]) -> int:
    return int(chosen["per_device_train_batch_size"] * chosen["gradient_accumulation_steps"])
