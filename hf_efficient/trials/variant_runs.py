"""What is measured of a variant, in a process of its own: steps, a forward, a loader, pauses, a tokenisation."""

import dataclasses
import functools
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import psutil
import torch
from accelerate.utils import send_to_device
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_efficient.accounting.steps import read_columns
from hf_efficient.data.build import build_preference_data, build_sft_data, read_raw
from hf_efficient.data.examples import recipe_sources
from hf_efficient.data.stats import answer_lengths
from hf_efficient.facts.environment import usable_cpus
from hf_efficient.launch.arguments import settle_choices, training_arguments
from hf_efficient.launch.build import build
from hf_efficient.launch.listener import RunListener
from hf_efficient.launch.started import started_processes
from hf_efficient.model.load import load_tokenizer
from hf_efficient.recipe.load import change_recipe
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.rules.distributed import with_accumulation
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recording.loader import batch_tensors
from hf_efficient.recording.probes import cpu_seconds_of
from hf_efficient.records.isolation import IsolationSchedule, VariantMeasurement
from hf_efficient.trials.meter import on_batches, synchronise, timed
from hf_efficient.trials.variants import VARIANTS, in_folder, varied


@dataclass(frozen=True)
class Setup:
    """What a process measures of a variant: ``steps`` after ``warm_up`` others, at least 1."""

    recipe: Recipe  # the variant's, short and writing to a folder of its own
    original: Recipe  # the user's, writing to the same folder
    steps: int
    warm_up: int
    share: int = 1  # processes for whose first this one stands


def measured(recipe: Recipe, folder: Path, *, variant: str, share: int, steps: int, warm_up: int) -> VariantMeasurement:
    """The work of a worker: one run of a variant of the user's recipe, as the first of ``share`` processes."""
    original = in_folder(with_accumulation(recipe, max(share, started_processes(os.environ))), folder)
    one = next(one for one in VARIANTS if one.name == variant)
    return MEASURES[variant](Setup(varied(original, one, warm_up + steps), original, steps, warm_up, share))


class StepStamps(TrainerCallback):
    """The clock of a variant, the same with our instrumentation and without: a reading at the end of every step. A step
    lasts from one reading to the next. The device is waited for before the first measured step and after the last."""

    def __init__(self, trainer: Trainer, warm_up: int, now: Callable[[], float] = time.perf_counter) -> None:
        self._warm_up, self._now = warm_up, now
        self._ends: list[float] = []
        self._positions: list[list[int]] = []
        self._logged_after: set[int] = set()
        on_batches(trainer, lambda batches: self._positions.append(list(map(positions, batches))))
        trainer.add_callback(self)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step in (self._warm_up, state.max_steps):
            synchronise(args.device)
        self._ends.append(self._now())

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._logged_after.add(state.global_step)

    def measurement(self) -> VariantMeasurement:
        first, last = self._warm_up, len(self._ends)
        return VariantMeasurement(
            step_seconds=[self._ends[at] - self._ends[at - 1] for at in range(first, last)],
            step_tokens=[sum(each) for each in self._positions[first:last]],
            step_micro_batches=[len(each) for each in self._positions[first:last]],
            step_logged=[at in self._logged_after for at in range(first, last)],
        )


def positions(batch: Any) -> int:
    """Of a micro-batch, padding included, without reading anything from the device; 0 where there is no tensor."""
    named = batch.get("input_ids") if hasattr(batch, "get") else None
    if isinstance(named, torch.Tensor):
        return named.numel()
    return max((one.numel() for one in batch_tensors(batch)), default=0)


def _built_trainer(setup: Setup) -> Trainer:
    args = training_arguments(setup.recipe)
    return build(settle_choices(setup.recipe, args), args, RunListener()).trainer


def _timed_training(setup: Setup, adjust: Callable[[Trainer], Any] = lambda trainer: None) -> VariantMeasurement:
    """Train the variant's recipe and time its steps, after ``adjust`` changed the trainer."""
    trainer = _built_trainer(setup)
    adjust(trainer)
    stamps = StepStamps(trainer, setup.warm_up)
    trainer.train()
    return stamps.measurement()


def _recorded_training(setup: Setup) -> tuple[VariantMeasurement, Trainer]:
    trained: list[Trainer] = []
    found, trainer = _timed_training(setup, trained.append), trained[0]
    path = Path(setup.recipe.output_dir) / "efficiency" / "steps.jsonl"
    if not setup.recipe.efficiency.record_steps or trainer.args.process_index or not path.exists():
        return found, trainer
    columns = read_columns(path)
    counts = np.maximum(columns.micro_batches, 1)[setup.warm_up :]
    seconds = columns.compute_seconds[setup.warm_up :] / counts
    tokens = columns.processed[setup.warm_up :] / counts
    known = np.isfinite(seconds) & np.isfinite(tokens)
    each = {"micro_batch_seconds": seconds[known].tolist(), "micro_batch_tokens": tokens[known].tolist()}
    return dataclasses.replace(found, **each), trainer


def _as_it_is(setup: Setup) -> VariantMeasurement:
    """Evaluations and saves, which a few steps may not reach, are timed by ``pauses``."""
    found, trainer = _recorded_training(setup)
    return dataclasses.replace(found, schedule=_schedule(setup.original, trainer))


def _schedule(recipe: Recipe, trainer: Trainer) -> IsolationSchedule:
    """When the whole run of the user's recipe would log, evaluate and save; ``trainer`` has the data, and is done."""
    batches = len(trainer.get_train_dataloader())
    args = training_arguments(recipe)  # makes accelerate forget what the trainer's own arguments set
    epoch = max(1, math.ceil(batches / args.gradient_accumulation_steps))
    steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * epoch)
    evaluate_steps = args.eval_steps or args.logging_steps
    held: Any = trainer.eval_dataset
    rows = 0 if held is None else len(held)
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


def _every(strategy: str, wanted: float, steps: int, epoch: int) -> int | None:
    """So many steps, or such a share of all of them; None where no distance says when."""
    if strategy == "steps" and wanted:
        return math.ceil(steps * wanted) if wanted < 1 else int(wanted)
    return epoch if strategy == "epoch" else None


def step_batches(trainer: Trainer, loader: Any, steps: int, share: int = 1) -> Iterator[list[Any]]:
    """The micro-batches of each optimizer step, as the first of ``share`` processes takes them."""

    def all_steps() -> Iterator[list[Any]]:
        for epoch in count():
            inner: Any = getattr(getattr(loader, "batch_sampler", None), "batch_sampler", None)
            for one in (loader, inner):  # accelerate's loader does not reach through its own batch sampler
                if hasattr(one, "set_epoch"):
                    one.set_epoch(epoch)
            batches = islice(loader, 0, None, share)
            while held := list(islice(batches, trainer.args.gradient_accumulation_steps)):
                yield held

    return islice(all_steps(), steps)


class HeldBatches:
    """Stands for a train dataloader: its batches are those of the first epochs."""

    def __init__(self, dataset: Any, per_epoch: int, batches: list[Any]) -> None:
        self.dataset = dataset
        self._per_epoch, self._batches = per_epoch, batches
        self._epoch = 0

    def __len__(self) -> int:
        return self._per_epoch

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        """As far as they are held; a trainer takes tensors out of them, so each is a copy."""
        first = self._epoch * self._per_epoch
        for held in self._batches[first : first + self._per_epoch]:
            yield dict(held) if isinstance(held, Mapping) else held


def hold_batches(trainer: Trainer, steps: int, share: int = 1) -> HeldBatches:
    """Load what the trainer will train on to its device, in place of its loader; ``share``: see ``step_batches``."""
    loader = trainer.get_train_dataloader()
    each = (batch for step in step_batches(trainer, loader, steps, share) for batch in step)
    batches = [send_to_device(batch, trainer.args.device) for batch in each]
    if hasattr(loader, "end"):
        loader.end()  # else accelerate takes a loader that was left half-read for the one that is trained on
    held: Any = HeldBatches(loader.dataset, math.ceil(len(loader) / share), batches)
    trainer.get_train_dataloader = lambda: held  # type: ignore[method-assign]
    return cast(HeldBatches, held)


def _on_held_batches(setup: Setup) -> VariantMeasurement:
    return _timed_training(setup, lambda trainer: hold_batches(trainer, setup.warm_up + setup.steps, setup.share))


def _forward(setup: Setup, *, with_graph: bool) -> VariantMeasurement:
    """The forward in the Trainer's own loop on batches made beforehand; backward and update do nothing."""

    def adjust(trainer: Trainer) -> None:
        hold_batches(trainer, setup.warm_up + setup.steps, setup.share)
        trainer.accelerator.backward = lambda loss, **kwargs: None
        if not with_graph:
            trainer.compute_loss = torch.no_grad()(trainer.compute_loss)  # type: ignore[method-assign]

    return _timed_training(setup, adjust)


def _loader_alone(setup: Setup) -> VariantMeasurement:
    trainer = _built_trainer(setup)
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
    return cpu_seconds_of([os.getpid(), *[one.pid for one in psutil.Process().children(recursive=True)]])[0]


def _timed_pauses(setup: Setup) -> VariantMeasurement:
    """Evaluations and saves of a training of a few steps, timed as the Trainer calls them."""
    trainer = _built_trainer(setup)
    found = VariantMeasurement()
    device = trainer.args.device
    trainer.evaluate = timed(trainer.evaluate, found.evaluation_seconds, device)  # type: ignore[method-assign]
    trainer._save_checkpoint = timed(trainer._save_checkpoint, found.save_seconds, device)  # type: ignore[method-assign]
    trainer.train()
    return found


def _tokenisation_alone(setup: Setup) -> VariantMeasurement:
    """Read the sources once, then prepare them from the beginning with an empty cache."""
    cache = Path(setup.recipe.output_dir) / "tokenized"
    recipe = change_recipe(setup.recipe, {"data.cache_dir": str(cache)})
    args: Any = training_arguments(recipe)
    tokenizer = load_tokenizer(recipe.model, recipe.train)
    began = time.perf_counter()
    read_raw(recipe, args, recipe_sources(recipe))
    read = time.perf_counter()
    if OBJECTIVES[recipe.objective].is_of_preferences:  # isolate refuses what generates
        pairs = build_preference_data(recipe, tokenizer, args)
        examples = len(pairs.train) + pairs.dropped
        tokens = int(answer_lengths(pairs.train, None).sum())
    else:
        data = build_sft_data(recipe, tokenizer, args)
        examples, tokens = data.stats.examples, data.stats.tokens_total
    prepared = time.perf_counter() - read
    return VariantMeasurement(examples=examples, tokens=tokens, read_seconds=read - began, prepare_seconds=prepared)


MEASURES: Final[Mapping[str, Callable[[Setup], VariantMeasurement]]] = {
    "as_is": _as_it_is,
    "quiet": _timed_training,
    "logged": _timed_training,
    "held_batches": _on_held_batches,
    "one_process": _on_held_batches,
    "forward": functools.partial(_forward, with_graph=True),
    "forward_no_grad": functools.partial(_forward, with_graph=False),
    "loader": _loader_alone,
    "tokenisation": _tokenisation_alone,
    "pauses": _timed_pauses,
    "micro_batch_halved": lambda setup: _recorded_training(setup)[0],
    "micro_batch_doubled": lambda setup: _recorded_training(setup)[0],
}
