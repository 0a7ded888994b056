"""The clock of a variant: when each optimizer step ended, the same way with our instrumentation and without.

A variant that trains, timed step by step.

The batches of a run made before its first step: a loader that has nothing left to do.

A training whose backward and update do nothing: what is left is the forward, in the Trainer's own loop.

The train dataloader read to the end of the measured steps, without a training.

Evaluations and saves of a training, timed as the Trainer calls them.

A variant that trains with our recording on: its step times, and its forward and backward by phase.

When the whole run of a recipe would log, evaluate and save.

The recipe's data made from their sources, timed.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_efficient.data.build import build_preference_data, build_sft_data
from hf_efficient.data.examples import build_raw, open_sources
from hf_efficient.diagnosis.case import read_columns
from hf_efficient.facts.environment import usable_cpus
from hf_efficient.isolate.variants import Setup
from hf_efficient.launch.arguments import settle_compute_dtype, training_arguments
from hf_efficient.launch.build import build
from hf_efficient.launch.listener import SilentListener
from hf_efficient.model.load import load_tokenizer
from hf_efficient.recipe.load import change_recipe
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recording.loader import batch_tensors
from hf_efficient.records.isolation import IsolationSchedule, VariantMeasurement


class StepStamps(TrainerCallback):
    """A reading at the end of every optimizer step, and what the steps held.

    A step's time is that between two readings: with the log after the step before, its own batches, forward, backward
    and update. The device is waited for before the first measured step and after the last one, and not in between.
    """

    def __init__(self, trainer: Trainer, warm_up: int, now: Callable[[], float] = time.perf_counter) -> None:
        """Watch a trainer that has not begun.

        Args:
            trainer: gets this as a callback.
            warm_up: steps that are not measured, at least 1.
            now: a monotonic clock in seconds.
        """
        self._warm_up, self._now = warm_up, now
        self._ends: list[float] = []
        self._tokens: list[int] = []
        self._micro_batches: list[int] = []
        self._logged_after: set[int] = set()
        self._last_step = 0
        fetch = trainer.get_batch_samples

        def counted(*args: Any, **kwargs: Any) -> Any:
            batches, items = fetch(*args, **kwargs)
            self._tokens.append(sum(positions(batch) for batch in batches))
            self._micro_batches.append(len(batches))
            return batches, items

        trainer.get_batch_samples = counted  # type: ignore[method-assign]
        trainer.add_callback(self)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The last step is known."""
        self._last_step = state.max_steps

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """An optimizer step is done."""
        if state.global_step in (self._warm_up, self._last_step):
            synchronise(args.device)
        self._ends.append(self._now())

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A log was written."""
        self._logged_after.add(state.global_step)

    def measurement(self) -> VariantMeasurement:
        """Of the steps after the warm-up."""
        first, last = self._warm_up, len(self._ends)
        return VariantMeasurement(
            step_seconds=[self._ends[at] - self._ends[at - 1] for at in range(first, last)],
            step_tokens=self._tokens[first:last],
            step_micro_batches=self._micro_batches[first:last],
            step_logged=[at in self._logged_after for at in range(first, last)],
        )


def positions(batch: Any) -> int:
    """Of a micro-batch, padding included, without reading anything from the device; 0 where it does not tell."""
    held: Sequence[Any] = list(batch.values()) if hasattr(batch, "values") else []
    named = batch.get("input_ids") if hasattr(batch, "get") else None
    if isinstance(named, torch.Tensor):
        return named.numel()
    return max((one.numel() for one in held if isinstance(one, torch.Tensor)), default=0)


def synchronise(device: torch.device) -> None:
    """Wait for the device; on a CPU there is nothing to wait for."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


Adjust = Callable[[Trainer], None]


def built_trainer(setup: Setup) -> Trainer:
    """The trainer of the variant's recipe, as its run would build it.

    Raises:
        HfEfficientError: data, model or adapter that do not fit.
    """
    args = training_arguments(setup.recipe)
    return build(settle_compute_dtype(setup.recipe, args.device), args, SilentListener()).trainer


def timed_training(setup: Setup, adjust: Adjust = lambda trainer: None) -> VariantMeasurement:
    """Train the variant's recipe and time its steps.

    Args:
        setup: of the variant.
        adjust: changes the trainer before it trains.

    Raises:
        HfEfficientError: as for a run.
    """
    trainer = built_trainer(setup)
    adjust(trainer)
    stamps = StepStamps(trainer, setup.warm_up)
    trainer.train()
    return stamps.measurement()


MOST_BYTES = 512 << 20
"""Of batches that are held; what comes later is one of them again."""


def step_batches(trainer: Trainer, loader: Any, steps: int, share: int = 1) -> Iterator[list[Any]]:
    """The micro-batches of each optimizer step, epoch after epoch, as the Trainer takes them.

    Args:
        trainer: whose arguments count.
        loader: its train dataloader.
        steps: so many.
        share: of so many processes the first one's, which takes every ``share``-th batch.
    """
    return islice(_all_steps(loader, trainer.args.gradient_accumulation_steps, share), steps)


def _all_steps(loader: Any, accumulation: int, share: int) -> Iterator[list[Any]]:
    epoch = 0
    while True:
        _begin_epoch(loader, epoch)
        batches = islice(loader, 0, None, share)
        while held := list(islice(batches, accumulation)):
            yield held
        epoch += 1


def _begin_epoch(loader: Any, epoch: int) -> None:
    """As the Trainer does: accelerate's loader does not reach through its own batch sampler."""
    if hasattr(loader, "set_epoch"):
        loader.set_epoch(epoch)
    inner = getattr(getattr(loader, "batch_sampler", None), "batch_sampler", None)
    if inner is not None and hasattr(inner, "set_epoch"):
        inner.set_epoch(epoch)


class HeldBatches:
    """Stands for a train dataloader: its batches are those of the first epochs, in the same order.

    Attributes:
        dataset: of the loader.
        repeats: whether batches had to be given twice, since all took too much memory.
    """

    def __init__(self, dataset: Any, per_epoch: int, batches: list[Any], repeats: bool) -> None:
        """Nothing is loaded.

        Args:
            dataset: of the loader.
            per_epoch: micro-batches of an epoch.
            batches: in the order of the epochs.
            repeats: begin again at the end of them.
        """
        self.dataset = dataset
        self.repeats = repeats
        self._per_epoch, self._batches = per_epoch, batches
        self._epoch = 0

    def __len__(self) -> int:
        """Micro-batches of an epoch."""
        return self._per_epoch

    def set_epoch(self, epoch: int) -> None:
        """The next iterator is of this epoch."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        """The batches of the epoch, as far as they are held; a trainer takes tensors out of them, so each is a copy."""
        first = self._epoch * self._per_epoch
        for at in range(first, first + self._per_epoch):
            if at >= len(self._batches) and not self.repeats:
                return
            held = self._batches[at % len(self._batches)]
            yield dict(held) if isinstance(held, Mapping) else held


def hold_batches(trainer: Trainer, steps: int, share: int = 1) -> HeldBatches:
    """Load what the trainer will train on, leave it on its device, and give it to the trainer in place of its loader.

    Args:
        trainer: that has not begun.
        steps: that it will train.
        share: see ``step_batches``: one process in place of several trains on the batches of the first of these.
    """
    loader = trainer.get_train_dataloader()
    batches: list[Any] = []
    held_bytes, repeats = 0, False
    for step in step_batches(trainer, loader, steps, share):
        batches += [_on(trainer.args.device, batch) for batch in step]
        held_bytes += sum(tensor.nbytes for batch in step for tensor in batch_tensors(batch))
        if held_bytes > MOST_BYTES:
            repeats = True
            break
    if hasattr(loader, "end"):
        loader.end()  # else accelerate takes a loader that was left half-read for the one that is trained on
    held = HeldBatches(loader.dataset, math.ceil(len(loader) / share), batches, repeats)
    stands_in: Any = held
    trainer.get_train_dataloader = lambda: stands_in  # type: ignore[method-assign]
    return held


def _on(device: torch.device, batch: Any) -> Any:
    if not isinstance(batch, Mapping):
        return batch
    return {name: one.to(device) if isinstance(one, torch.Tensor) else one for name, one in batch.items()}


def forward_training(setup: Setup, *, with_graph: bool) -> VariantMeasurement:
    """Time the forward of each step, on batches made beforehand.

    Without gradients an optimizer passes over every parameter, and clipping finds nothing to clip.

    Args:
        setup: of the variant.
        with_graph: keep what a backward would read; else run under ``torch.no_grad``.

    Raises:
        HfEfficientError: as for a run.
    """

    def adjust(trainer: Trainer) -> None:
        hold_batches(trainer, setup.warm_up + setup.steps, setup.share)
        trainer.accelerator.backward = _no_backward
        if not with_graph:
            trainer.compute_loss = torch.no_grad()(trainer.compute_loss)  # type: ignore[method-assign]

    return timed_training(setup, adjust)


def _no_backward(loss: torch.Tensor, **kwargs: Any) -> None:
    """Takes the place of ``Accelerator.backward``."""


def loader_alone(setup: Setup) -> VariantMeasurement:
    """Time the batches of each step, on their way to the device.

    Raises:
        HfEfficientError: as for a run.
    """
    trainer = built_trainer(setup)
    found = VariantMeasurement()
    cpu_began = _cpu_seconds()
    ended = time.perf_counter()
    loader = trainer.get_train_dataloader()
    for step, batches in enumerate(step_batches(trainer, loader, setup.warm_up + setup.steps)):
        synchronise(trainer.args.device)
        now = time.perf_counter()
        if step == setup.warm_up - 1:
            cpu_began = _cpu_seconds()
        if step >= setup.warm_up:
            found.step_seconds.append(now - ended)
            found.step_tokens.append(sum(positions(batch) for batch in batches))
            found.step_micro_batches.append(len(batches))
            found.step_logged.append(False)
        ended = time.perf_counter()
    return dataclasses.replace(found, cpu_seconds=_cpu_seconds() - cpu_began)


def _cpu_seconds() -> float:
    """Of this process and its workers, so far."""
    own = psutil.Process()
    times = [one.cpu_times() for one in (own, *own.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def timed_pauses(setup: Setup) -> VariantMeasurement:
    """Train the variant's few steps, with an evaluation and a save after each.

    Raises:
        HfEfficientError: as for a run.
    """
    trainer = built_trainer(setup)
    found = VariantMeasurement()
    device = trainer.args.device
    trainer.evaluate = _timed(trainer.evaluate, found.evaluation_seconds, device)  # type: ignore[method-assign]
    trainer._save_checkpoint = _timed(trainer._save_checkpoint, found.save_seconds, device)  # type: ignore[method-assign]
    trainer.train()
    return found


def _timed(method: Callable[..., Any], into: list[float], device: torch.device) -> Callable[..., Any]:
    @functools.wraps(method)
    def timed(*args: Any, **kwargs: Any) -> Any:
        synchronise(device)
        began = time.perf_counter()
        result = method(*args, **kwargs)
        synchronise(device)
        into.append(time.perf_counter() - began)
        return result

    return timed


def recorded_training(setup: Setup) -> tuple[VariantMeasurement, Trainer]:
    """Train the variant's recipe, time its steps, and read what it recorded.

    Returns:
        With its trainer.

    Raises:
        HfEfficientError: as for a run.
    """
    trainer = built_trainer(setup)
    stamps = StepStamps(trainer, setup.warm_up)
    trainer.train()
    found = stamps.measurement()
    path = Path(setup.recipe.output_dir) / "efficiency" / "steps.jsonl"
    if not setup.recipe.efficiency.record_steps or trainer.args.process_index or not path.exists():
        return found, trainer
    columns = read_columns(path)
    counts = np.maximum(columns.micro_batches, 1)[setup.warm_up :]
    seconds = columns.compute_seconds[setup.warm_up :] / counts
    tokens = columns.processed[setup.warm_up :] / counts
    known = np.isfinite(seconds) & np.isfinite(tokens)
    found = dataclasses.replace(
        found, micro_batch_seconds=seconds[known].tolist(), micro_batch_tokens=tokens[known].tolist()
    )
    return found, trainer


def recipe_schedule(recipe: Recipe, trainer: Trainer) -> IsolationSchedule:
    """Of the recipe as the user wrote it.

    Args:
        recipe: the user's.
        trainer: of a variant with its data; its training is over.

    Raises:
        HfEfficientError: as for a run.
    """
    batches = len(trainer.get_train_dataloader())
    args = training_arguments(recipe)  # makes accelerate forget what the trainer's own arguments set
    epoch = max(1, math.ceil(batches / args.gradient_accumulation_steps))
    steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * epoch)
    evaluate_steps = args.eval_steps or args.logging_steps
    rows = 0 if trainer.eval_dataset is None else _rows(trainer.eval_dataset)
    return IsolationSchedule(
        steps=steps,
        log_every=_every(args.logging_strategy, args.logging_steps, steps, epoch),
        evaluate_every=_every(args.eval_strategy, evaluate_steps, steps, epoch) if rows else None,
        save_every=_every(args.save_strategy, args.save_steps, steps, epoch),
        micro_batch_rows=args.per_device_train_batch_size,
        accumulation=args.gradient_accumulation_steps,
        processes=args.world_size,
        workers=args.dataloader_num_workers,
        cores=usable_cpus() / args.world_size,
        threads=torch.get_num_threads(),
        device=trainer.args.device.type,
        best_at_end=bool(args.load_best_model_at_end),
        evaluation_rows=rows,
    )


def _rows(dataset: Any) -> int:
    """Of one data set, or of several by name."""
    return sum(len(one) for one in dataset.values()) if isinstance(dataset, dict) else len(dataset)


def _every(strategy: Any, wanted: float, steps: int, epoch: int) -> int | None:
    """So many steps, or such a share of all of them; None where no distance says when."""
    named = str(getattr(strategy, "value", strategy))
    if named == "steps" and wanted:
        return math.ceil(steps * wanted) if wanted < 1 else int(wanted)
    return epoch if named == "epoch" else None


def tokenisation_alone(setup: Setup) -> VariantMeasurement:
    """Read the sources once, then prepare them from the beginning with an empty cache.

    Raises:
        HfEfficientError: faults of the data or the tokenizer.
    """
    cache = Path(setup.recipe.output_dir) / "tokenized"
    recipe = change_recipe(setup.recipe, {"data.cache_dir": str(cache)})
    args: Any = training_arguments(recipe)
    tokenizer = load_tokenizer(recipe.model, recipe.train)
    began = time.perf_counter()
    build_raw(recipe.data, open_sources(recipe.data), args.seed, **_reading(recipe, args))
    read = time.perf_counter()
    if recipe.method == "dpo":
        pairs = build_preference_data(recipe, tokenizer, args)
        examples, tokens = len(pairs.train) + pairs.dropped, _pair_tokens(pairs.train)
    else:
        data = build_sft_data(recipe, tokenizer, args)
        examples, tokens = data.stats.examples, data.stats.tokens_total
    prepared = time.perf_counter()
    return dataclasses.replace(
        VariantMeasurement(),
        examples=examples,
        tokens=tokens,
        read_seconds=read - began,
        prepare_seconds=prepared - read,
    )


def _reading(recipe: Recipe, args: Any) -> dict[str, Any]:
    """As ``data/build.py`` reads them."""
    if recipe.method == "dpo":
        return {"method": "dpo"}
    return {"completion_only": args.completion_only_loss is True, "text_column": args.dataset_text_field}


def _pair_tokens(pairs: Any) -> int:
    return sum(len(row[name]) for row in pairs for name in ("prompt_ids", "chosen_ids", "rejected_ids"))
