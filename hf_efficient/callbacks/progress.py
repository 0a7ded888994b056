"""The Trainer's progress bar with the figures of the run beside it, and its logs as lines that a person reads."""

import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerControl, TrainerState, TrainingArguments

from hf_efficient.estimate.throughput import utilization
from hf_efficient.recording.live import PREFIX, LiveRun, Outlook
from hf_efficient.recording.timeline import process_timeline
from hf_efficient.text import clock, short_count, short_seconds, usd

logger = logging.getLogger(__name__)

_EVERY_SECONDS = 1.0
BAR_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"
"""tqdm's, without its own estimate of the time left: that one knows nothing of evaluations and saves."""

_SMALLEST_BAR = 8


def progress_text(live: LiveRun, outlook: Outlook | None, room: int | None) -> str:
    """``2:31:05 left, 12.3k tok/s, 31% MFU, $1.20 of $4.80``; without room the later parts go first. Tokens are without
    padding, of all ranks."""
    recent, spent = live.figures.recent(), live.spent().usd
    seconds = recent.training_seconds
    more = ">" if outlook is not None and outlook.lower_bound else ""
    rate = f"{short_seconds(seconds / recent.steps)} a step" if recent.steps else ""
    if recent.non_padding is not None and seconds > 0:
        rate = f"{short_count(recent.non_padding / seconds * live.world_size)} tok/s"
    left = "" if outlook is None else f"{more}{clock(outlook.seconds_left)} left"
    share = utilization(recent.model_flops, seconds, live.peak_flops_per_second).share
    mfu = f"{100 * share:.2g}% MFU" if share is not None and share <= 1 else ""
    short = "" if spent is None else usd(spent)
    total = None if outlook is None else outlook.total.usd
    money = short if not short or total is None else f"{short} of {more}{usd(total)}"
    for shown in ([left, rate, mfu, money], [left, rate, mfu, short], [left, rate, short], [left, short], [left]):
        text = ", ".join(part for part in shown if part)
        if room is None or len(text) <= room:
            return text
    return ""


def room_for_figures(columns: int | None, done: int, of: int, elapsed_seconds: float) -> int | None:
    """The characters that are left beside a bar of this many columns, its counts and its clock; None: no limit."""
    if columns is None:
        return None
    taken = len("100%|") + _SMALLEST_BAR + len(f"| {done}/{of} [") + len(clock(elapsed_seconds)) + len("0, ]")
    return max(0, columns - taken)


class FigureBar(ProgressCallback):
    """Tokens per second, MFU, money, and the time left with evaluations and saves to come, once a second at most.
    Without records of the run it is transformers' own bar."""

    def __init__(self, max_str_len: int = 100, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(max_str_len)
        self._now, self._shown_at, self._faulty = now, float("-inf"), False

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        self._shown_at = float("-inf")
        if self.training_bar is not None and process_timeline().live is not None:
            self.training_bar.bar_format = BAR_FORMAT

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        now = self._now()
        if now - self._shown_at >= _EVERY_SECONDS or state.global_step >= state.max_steps:
            self._shown_at = now
            self._show(state)
        super().on_step_end(args, state, control, **kwargs)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._show(state, ended=True)
        super().on_train_end(args, state, control, **kwargs)

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        super().on_log(*args, **{**kwargs, "logs": without_figures(kwargs.get("logs") or {})})

    def _show(self, state: TrainerState, *, ended: bool = False) -> None:
        live, bar = process_timeline().live, self.training_bar
        if live is None or bar is None or bar.disable or self._faulty:
            return
        try:
            shown = bar.format_dict
            room = room_for_figures(shown["ncols"], state.global_step, state.max_steps, shown["elapsed"])
            outlook = live.outlook(state.global_step) if not ended and live.figures.is_steady() else None
            text = progress_text(live, outlook, room)
        except Exception:
            logger.warning("The progress bar shows no figures, because of a fault.", exc_info=True)
            self._faulty = True
            return
        if text:
            bar.set_postfix_str(text, refresh=False)


class FigurelessPrinter(PrinterCallback):
    """The Trainer's plain printed logs, as they are without our figures."""

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        super().on_log(*args, **{**kwargs, "logs": without_figures(kwargs.get("logs") or {})})


def show_figures(trainer: Trainer, bar: type[FigureBar] = FigureBar) -> None:
    """Give the Trainer's own bar the figures, and keep them out of its printed logs; another bar stays as it is."""
    callbacks = trainer.callback_handler.callbacks
    for index, callback in enumerate(callbacks):
        if type(callback) in (ProgressCallback, FigureBar):
            callbacks[index] = bar(callback.max_str_len)
        elif type(callback) is PrinterCallback:
            callbacks[index] = FigurelessPrinter()


def without_figures(logs: Mapping[str, Any]) -> dict[str, Any]:
    """The logs without the keys of ``recording.live.log_figures``."""
    return {key: value for key, value in logs.items() if not key.startswith(PREFIX)}


_UNSHOWN = ("epoch", "total_flos", "runtime", "samples_per_second", "steps_per_second", "num_tokens")
_DETAILS = re.compile(r"completions/(min|max|mean_terminated)|clip_ratio/|rewards/.*/std$|step_time$")
"""Of GRPO, two thirds of its two dozen figures; trainer_state.json has them."""


class ProgressLines(FigureBar):
    """The bar with its figures; a log is one line above it, and the summary at the end is left to the caller."""

    def on_log(self, args: TrainingArguments, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        logs = kwargs.get("logs")
        if self.training_bar is not None and logs and "train_runtime" not in logs:
            self.training_bar.write(log_line(state.global_step, state.max_steps, without_figures(logs)))


def log_line(step: int, of: int, logs: Mapping[str, Any]) -> str:
    """``step 5/50   loss 3.856  learning_rate 0.0008``; an evaluation's figures without prefix, no figures of speed."""
    evaluation = any(key.startswith("eval_") for key in logs)
    figures = {key.removeprefix("eval_"): value for key, value in logs.items()}
    shown = [
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in figures.items()
        if not any(key.endswith(name) for name in _UNSHOWN) and not _DETAILS.match(key)
    ]
    head = f"step {step:>{len(str(of))}}/{of}"
    return "  ".join([head, "evaluation:" if evaluation else "", *shown]).replace("    ", "  ")
