"""Inside the process of a trial: its steps timed, the loss on held-out rows, one evaluation and one save.

Steps are timed one by one, the device waited for after each. After so many tokens the loss on a few rows is taken,
which are the same in every trial: the last ones of the recipe's evaluation data, else of its training data.
"""

import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import torch
from torch.nn import functional as F
from transformers import Trainer, TrainerCallback

from hf_efficient.data.build import build_sft_data
from hf_efficient.diagnosis.case import read_case
from hf_efficient.diagnosis.engine import diagnose_case
from hf_efficient.diagnosis.rules.batching import saved_by_doubling
from hf_efficient.errors import SetupError
from hf_efficient.launch.arguments import settle_choices, training_arguments
from hf_efficient.launch.build import build
from hf_efficient.launch.listener import RunListener
from hf_efficient.launch.output import write_resolved_recipe
from hf_efficient.launch.records import recipe_rates
from hf_efficient.model.load import load_tokenizer
from hf_efficient.planning.model_config import model_config, weights_dtype
from hf_efficient.profilers.calibration import cpu_is_faster_in_float32
from hf_efficient.recipe.load import NO_INSTRUMENTS, change_recipe, in_a_folder, without_pauses
from hf_efficient.recipe.rules.distributed import ACCUMULATION, with_accumulation
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.plan import RunPlan
from hf_efficient.run_dir.paths import records_folder
from hf_efficient.text import size
from hf_efficient.trials.goal import Wanted
from hf_efficient.trials.knobs import ROWS
from hf_efficient.trials.meter import on_batches, synchronise, timed
from hf_efficient.trials.process import RunFailed
from hf_efficient.trials.run_figures import token_counts
from hf_efficient.trials.variants import MOST_EXAMPLES, evaluates, saves

_NEXT_STEP = 1.5  # times the tokens of the latest step, which the next one may have
_WHERE_SET: dict[str, Any] = {"warmup_ratio": None, "lr_scheduler_kwargs": None, "auto_find_batch_size": False}


def short(recipe: Recipe, folder: Path, wanted: Wanted) -> Recipe:
    """Steps and nothing else, at a constant learning rate; everything is written into the folder, except tokenised
    data, which later trials find beside it."""
    changes = {
        **in_a_folder(recipe, folder / "run"),
        **without_pauses(recipe),
        **NO_INSTRUMENTS,
        **{f"train.{name}": value for name, value in _WHERE_SET.items() if recipe.train.get(name) is not None},
        "train.max_steps": 1_000_000,  # the clock ends it
        "train.lr_scheduler_type": "constant",
        "train.warmup_steps": 0,
        "data.cache_dir": str(folder.parent / "tokenised"),
        "data.max_train_examples": min(recipe.data.max_train_examples or MOST_EXAMPLES, MOST_EXAMPLES),
        "efficiency.plan": wanted.plan,
        "efficiency.preflight": False,
        "efficiency.record_steps": True,
    }
    return change_recipe(recipe, changes)


def trained(recipe: Recipe, folder: Path, *, changes: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """The work of a worker: one trial of the user's recipe with changes. Returns the fields of ``TrialRun``."""
    asked, processes = msgspec.convert(wanted, Wanted), int(os.environ.get("WORLD_SIZE", "1"))
    ruler = short(with_accumulation(recipe, processes), folder, asked)
    rows = _ruler_rows(ruler, asked.rows) if asked.rows else []  # whose arguments make accelerate forget others
    whole = with_accumulation(change_recipe(recipe, changes), processes)
    recipe = short(whole, folder, asked)
    args: Any = training_arguments(recipe)
    price = recipe_rates(recipe, args).get("price", {}).get("price_usd_per_hour")

    def fits(data: Any, _args: Any, plan: RunPlan | None) -> Any:
        _check_room(plan, asked.most_bytes)
        return data

    trainer = build(settle_choices(recipe, args), args, RunListener(), price, on_data=fits).trainer
    clock = TrialClock(trainer, asked, lambda: held_out_loss(trainer, rows))
    run_dir = Path(recipe.output_dir)
    trainer.train()
    if not clock.seconds:
        raise RunFailed(f"{asked.most_seconds:.0f} s passed before a step after the warm-up ended", "no_time")
    if clock.loss is not None and not math.isfinite(clock.loss):
        raise SetupError("it has a non-finite loss on held-out rows")
    recorded: dict[str, Any] = {}
    if trainer.is_world_process_zero():
        write_resolved_recipe(run_dir, recipe, {})  # which the diagnosis reads
        recorded = _recorded(run_dir, clock.loss_seconds)  # before an evaluation takes more memory
    pauses = timed_pauses(trainer, whole) if asked.pauses else {}
    on_cpu, steps = args.device.type == "cpu", whole.train.get("max_steps")
    fast = not cpu_is_faster_in_float32() if on_cpu else torch.cuda.is_bf16_supported(including_emulation=False)
    return {
        **clock.figures(),
        **pauses,
        **recorded,
        "device": args.device.type,
        "fast_bfloat16": bool(fast),
        "weights": str(weights_dtype(recipe.model, model_config(recipe.model))).removeprefix("torch."),
        "price_usd_per_hour": None if price is None else price * args.world_size,
        "processes": args.world_size,
        "steps": int(steps) if steps and steps > 0 else None,
    }


def _check_room(plan: RunPlan | None, most_bytes: int | None) -> None:
    """``RunFailed`` where the plan is above the limit, or above what the GPU, or the host of a run without one, has."""
    if plan is None:
        return
    gpu = plan.plan.gpus[0] if plan.plan.gpus else None
    needed = plan.plan.memory.peak_allocated_bytes if gpu is None else gpu.needed_bytes
    on_host = plan.run.peak_allocated_bytes is None
    has = gpu.usable_memory_bytes if gpu is not None else psutil.virtual_memory().total if on_host else sys.maxsize
    limit = min(has, most_bytes or sys.maxsize)
    if needed > limit:
        raise RunFailed(f"it is planned for {size(needed)}, and there are {size(limit)}", "no_room")


def _ruler_rows(ruler: Recipe, count: int) -> list[Any]:
    args: Any = training_arguments(ruler)
    data = build_sft_data(ruler, load_tokenizer(ruler.model, ruler.train), args)
    held = data.eval if data.eval is not None else data.train
    return [held[place] for place in range(max(0, len(held) - count), len(held))]


def _recorded(run_dir: Path, loss_seconds: float) -> dict[str, Any]:
    """What our own records and the diagnosis say of the training, without what the loss took."""
    case = read_case(records_folder(run_dir))
    account, found = case.account, diagnose_case(case)
    loop = max(account.time.training_seconds - loss_seconds, 1e-9)
    phases, memory = account.time.phase_seconds, account.memory
    whole = found.loop_seconds / max(found.loop_seconds - loss_seconds, 1e-9)
    remedies = []
    for rule, one in ((held.rule, one) for held in found.findings for one in held.remedies if one.overrides):
        share = None if one.gain is None else one.gain.share
        remedies.append({"rule": rule, "changes": one.overrides, "saving": None if share is None else share * whole})
    if (doubled := saved_by_doubling(case)) is not None:  # which the diagnosis names where it is worth a finding
        changes = {ROWS: 2 * case.rows, ACCUMULATION: case.accumulated // 2}
        remedies.append({"rule": "accumulation", "changes": changes, "saving": doubled * whole})
    return {
        "peak_bytes": memory.device_peak_allocated_bytes or memory.peak_rss_bytes,
        "model_share": (phases.get("forward", 0.0) + phases.get("backward", 0.0)) / loop,
        "data_wait_share": phases.get("data_wait", 0.0) / loop,
        "logging_share": phases.get("logging", 0.0) / loop,
        "mfu": account.work.mfu,
        "predictions": remedies,
    }


class TrialClock(TrainerCallback):
    """Ends the training as soon as all that is wanted is measured. A step lasts from the end of the one before, without
    what the loss takes. All ranks decide alike: by the tokens of all, and by the slowest."""

    def __init__(self, trainer: Trainer, wanted: Wanted, held_out: Callable[[], float]) -> None:
        self._wanted, self._held_out, self._now = wanted, held_out, time.perf_counter
        self._device, self._trainer = trainer.args.device, trainer
        self._began = self._called = self._now()
        self._counts: list[tuple[Any, int, int]] = []  # of each step: tokens, positions, rows
        self._all_tokens = 0
        self.loss: float | None = None
        self._loss_tokens = 0
        self._earlier: tuple[int, float] | None = None  # tokens and loss of the step before
        self.seconds: list[float] = []
        self.loss_seconds = 0.0
        on_batches(trainer, self._count)
        trainer.add_callback(self)

    def _count(self, batches: list[Any]) -> None:
        pairs = [token_counts(batch) for batch in batches]
        rows = sum(batch["input_ids"].shape[0] for batch in batches)
        self._counts.append((sum(int(real) for real, _ in pairs), sum(every for _, every in pairs), rows))

    def _of_all_ranks(self, took: float) -> tuple[float, float]:
        """Seconds of this step, and since the start; its counts become those of all ranks."""
        own = [*map(float, self._counts[-1]), took, self._now() - self._called]
        every = self._trainer.accelerator.gather(torch.tensor([own], dtype=torch.float64, device=self._device))
        tokens, positions, rows = every[:, :3].sum(0).long().tolist()
        self._counts[-1] = tokens, positions, rows
        took, since = every[:, 3:].max(0).values.tolist()
        return took, since

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._began = self._now()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        synchronise(self._device)
        took, since = self._now() - self._began, self._now() - self._called
        if self._trainer.args.world_size > 1:
            took, since = self._of_all_ranks(took)
        self._all_tokens += self._counts[state.global_step - 1][0]
        if state.global_step > self._wanted.warm_up:
            self.seconds.append(took)
        wanted = self._wanted
        timed = len(self.seconds) >= wanted.steps and sum(self.seconds) >= wanted.seconds
        if self.loss is None:
            began = self._now()
            self._look(timed)
            self.loss_seconds += self._now() - began
        control.should_training_stop = since > wanted.most_seconds or (timed and self.loss is not None)
        self._began = self._now()

    def _look(self, timed: bool) -> None:
        """The loss after exactly ``wanted.tokens``, on the line between the two steps around them: a loss falls by
        percents from step to step here. Else the loss at the end."""
        target, seen = self._wanted.tokens, self._all_tokens
        if not target and timed:
            self.loss, self._loss_tokens = self._held_out(), seen
        elif target and seen + _NEXT_STEP * self._counts[-1][0] >= target:
            loss = self._held_out()
            if seen >= target:
                tokens, before = self._earlier or (0, loss)
                self.loss = before + (loss - before) * (target - tokens) / (seen - tokens)
                self._loss_tokens = target
            self._earlier = seen, loss

    def figures(self) -> dict[str, Any]:
        first = self._wanted.warm_up
        measured = self._counts[first : first + len(self.seconds)]
        rows = sum(one[2] for one in measured)
        return {
            "step_seconds": self.seconds,
            "step_tokens": [one[0] for one in measured],
            "step_positions": [one[1] for one in measured],
            "row_tokens": sum(one[0] for one in measured) / max(1, rows),
            "loss": self.loss,
            "loss_tokens": self._loss_tokens,
        }


def held_out_loss(trainer: Any, rows: Sequence[Any]) -> float:
    """Mean negative log-likelihood of the target tokens of all rows, each by itself and without padding, by whole
    logits: the same arithmetic whatever the recipe trains with."""
    model, device = trainer.model, trainer.args.device
    total, count = 0.0, 0
    model.eval()
    with torch.no_grad():
        for row in rows:
            tokens = torch.tensor([row["input_ids"]], device=device)
            labels = torch.tensor(row["labels"], device=device)[1:]
            logits = model(input_ids=tokens, use_cache=False).logits[0, :-1].float()
            total += float(F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum"))
            count += int((labels != -100).sum())
    model.train()
    return total / max(1, count)


def timed_pauses(trainer: Any, recipe: Recipe) -> dict[str, float]:
    """Seconds of one evaluation and one save, where the recipe pauses for them."""
    found: list[float] = []
    actions: dict[str, Callable[[], Any]] = {}
    if evaluates(recipe):
        actions["evaluation_seconds"] = trainer.evaluate
    if saves(recipe):
        actions["save_seconds"] = lambda: trainer._save_checkpoint(trainer.model, None)
    for action in actions.values():
        timed(action, found, trainer.args.device)()
    return dict(zip(actions, found, strict=True))
