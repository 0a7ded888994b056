"""The model and the trainer that the runs share: healthy, until a run changes something."""

import http.client
import json
import os
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from hf_efficient.callbacks.profilers import SynchronisationsCallback
from hf_efficient.profilers.calibration import cpu_is_faster_in_float32
from hf_efficient.trainer import EfficientTrainer, EfficientTrainerMixin
from planted_runs.cases import Setup
from planted_runs.data import VOCABULARY, Rows

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
        "bf16": not cpu_is_faster_in_float32(),
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


class _ReadsScalars(Trainer):
    """Watches its tensors, scalar by scalar."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, *args: Any, **kwargs: Any) -> Any:
        loss, outputs = super().compute_loss(model, inputs, True, *args, **kwargs)
        watched = {"loss": loss.item()}
        watched["largest"] = outputs.logits.abs().max().item()
        watched["accuracy"] = float((outputs.logits.argmax(-1) == inputs["labels"]).float().mean())
        if torch.isnan(outputs.logits).any():
            raise RuntimeError(f"logits that are not finite: {watched}")
        return (loss, outputs) if return_outputs else loss


class _KeepsLogits(Trainer):
    """Keeps them for a metric at the end, and never lets go."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kept: list[torch.Tensor] = []

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, *args: Any, **kwargs: Any) -> Any:
        loss, outputs = super().compute_loss(model, inputs, True, *args, **kwargs)
        self.kept.append(outputs.logits.detach().float())
        return (loss, outputs) if return_outputs else loss


class _SkipsNaN(Trainer):
    """Leaves out the steps whose gradients are not finite, without a word."""

    def training_step(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        loss = super().training_step(model, *args, **kwargs)
        if not torch.isfinite(loss):
            model.zero_grad(set_to_none=False)
        return loss


class _SlowRank(Trainer):
    """The last rank computes more for its loss than the others, as a slower machine would take longer."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if int(os.environ.get("RANK", "0")) == int(os.environ.get("WORLD_SIZE", "1")) - 1 and model.training:
            with torch.no_grad():
                model.module(input_ids=inputs["input_ids"])
                model.module(input_ids=inputs["input_ids"])
        return super().compute_loss(model, inputs, *args, **kwargs)


class ReadsScalars(EfficientTrainerMixin, _ReadsScalars):
    """Watches its tensors, scalar by scalar."""


class KeepsLogits(EfficientTrainerMixin, _KeepsLogits):
    """Keeps its logits."""


class SkipsNaN(EfficientTrainerMixin, _SkipsNaN):
    """Skips steps that are not finite."""


class SlowRank(EfficientTrainerMixin, _SlowRank):
    """Its last rank is slower."""


class Tracker(TrainerCallback):
    """Sends every log and waits for the answer."""

    def __init__(self, server: str, seconds: float) -> None:
        self._connection, self._seconds = http.client.HTTPConnection(server), seconds

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Send a log."""
        self._connection.request("POST", f"/logs?wait={self._seconds}", body=json.dumps(logs))
        self._connection.getresponse().read()
