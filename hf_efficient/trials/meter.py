"""What measures a Trainer: its steps, its batches, a method of it; and, as a script, a peer in the peer's own Python.

    PYTHON meter.py llamafactory CONFIG.yaml RESULT.json

It imports nothing of hf_efficient, which a peer's environment does not have.
"""

import functools
import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments, trainer

if __name__ == "__main__":  # in the Python of a peer, this file's folder is on the path
    from run_figures import run_figures, token_counts
else:
    from hf_efficient.trials.run_figures import run_figures, token_counts


class StepMeter(TrainerCallback):
    """Time, tokens, loss, gradient norm of each step; waits for no device. ``train.logging_steps`` must be 1."""

    def __init__(self, pad_token_id: int | None = None) -> None:
        self.pad_token_id = pad_token_id
        self.ends: list[float] = []
        self.counts: list[list[tuple[Any, int]]] = []
        self.logs: list[dict[str, float]] = []

    def install(self) -> None:
        train_on = Trainer.training_step

        @functools.wraps(train_on)
        def counted_step(one: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            self.counts[-1].append(token_counts(inputs, self.pad_token_id))
            return train_on(one, model, inputs, *args, **kwargs)

        Trainer.training_step = counted_step  # type: ignore[method-assign, assignment]

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        tokenizer = kwargs.get("processing_class")
        self.pad_token_id = getattr(tokenizer, "pad_token_id", self.pad_token_id)
        self.ends.append(time.perf_counter())

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.counts.append([])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.ends.append(time.perf_counter())

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self.logs.append({"loss": float(logs["loss"]), "grad_norm": float(logs["grad_norm"])})

    def figures(self) -> dict[str, Any]:
        """The fields of ``records.bench.ArmRun``."""
        seconds = [end - begin for begin, end in zip(self.ends, self.ends[1:], strict=False)]
        losses, norms = ([one[name] for one in self.logs] for name in ("loss", "grad_norm"))
        return run_figures(seconds, self.counts, losses, norms)


def on_batches(trainer: Trainer, see: Callable[[list[Any]], None]) -> None:
    fetch = trainer.get_batch_samples

    def shown(*args: Any, **kwargs: Any) -> Any:
        batches, items = fetch(*args, **kwargs)
        see(batches)
        return batches, items

    trainer.get_batch_samples = shown  # type: ignore[method-assign]


def synchronise(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


def timed(method: Callable[..., Any], into: list[float], device: torch.device) -> Callable[..., Any]:
    """The method, which then adds the seconds of each call to ``into``."""

    @functools.wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        synchronise(device)
        began = time.perf_counter()
        result = method(*args, **kwargs)
        synchronise(device)
        into.append(time.perf_counter() - began)
        return result

    return called


def main() -> None:
    name, config, result = sys.argv[1:]
    meter = StepMeter()
    meter.install()
    callbacks: list[Any] = trainer.DEFAULT_CALLBACKS
    callbacks.append(meter)
    if name == "llamafactory":  # what its command does
        sys.argv = ["llamafactory-cli", "train", config]
        importlib.import_module("llamafactory.cli").main()
    else:
        if not torch.cuda.is_available():  # Axolotl has no key for it
            TrainingArguments.__dataclass_fields__["use_cpu"].default = True
        importlib.import_module("axolotl.cli.train").do_cli(config=config)
    Path(result).write_text(json.dumps({"result": meter.figures()}), encoding="utf-8")


if __name__ == "__main__":
    main()
