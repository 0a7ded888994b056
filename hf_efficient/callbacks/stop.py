"""The end of a training before its last step: a budget or a signal asks for it, one controller saves and stops. And
``train.save_steps: auto``: a checkpoint whenever the work at risk has come to the interval that costs least."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_efficient.callbacks.account import AccountCallback
from hf_efficient.errors import SetupError
from hf_efficient.estimate.cost import daly_interval, observed_mean
from hf_efficient.estimate.forecast import LimitName, Limits
from hf_efficient.facts.prices import Rates
from hf_efficient.recording.budget import Agreement, BudgetWatch
from hf_efficient.recording.live import Durations, LiveRun, RunningFigures
from hf_efficient.recording.loader import torch_loader
from hf_efficient.recording.stop import EvaluationCut, ShelteredStart, StopRequest
from hf_efficient.recording.timeline import process_timeline
from hf_efficient.text import counted, seconds, usd

logger = logging.getLogger(__name__)

# What rank 0 sends to the others; any other number is one more than the place of a limit among those given.
_GO_ON, _REFUSE = 0, -1
_METERS_WITHIN_SECONDS = 5.0


class Stopping(TrainerCallback):
    """Saves and stops one training after a step; the checkpoint is one of a training that continues. ``end_if``
    asks for the checkpoint, ``on_save`` stops, ``on_epoch_end`` keeps what would follow from being done."""

    stopping = False
    stopped_after: int | None = None
    """The step after which the training was ended; None: it was not."""
    _kept_limit: int | None = None

    def end_if(self, wanted: Callable[[], bool], args: TrainingArguments, control: TrainerControl) -> None:
        if control.should_training_stop:
            return
        if self.stopping:  # whatever kept the Trainer from saving
            control.should_training_stop = True
        elif wanted():
            self.stopping = True
            control.should_save, control.should_evaluate = True, False
            if args.save_total_limit == 1:  # the Trainer would delete this checkpoint in the end, beside the best
                self._kept_limit, args.save_total_limit = 1, 2

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stop only now, so that the checkpoint does not say that the training is over."""
        super().on_save(args, state, control, **kwargs)
        if self.stopping and self.stopped_after is None:
            control.should_training_stop = True
            self.stopped_after = state.global_step

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.stopped_after is not None:
            control.should_evaluate = control.should_save = False
        super().on_epoch_end(args, state, control, **kwargs)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self._kept_limit is not None:
            args.save_total_limit, self._kept_limit = self._kept_limit, None
        super().on_train_end(args, state, control, **kwargs)


class StopWhenAsked(Stopping):
    """Ends the training where its ranks agreed to. transformers' own ``enable_jit_checkpoint`` (5.23) saves by each
    process's own timer, perhaps between the gradients of a step and its update."""

    def __init__(self, request: StopRequest) -> None:
        self._request = request
        self._loader: Any = None
        self._sheltered: ShelteredStart | None = None

    def on_train_begin(self, args: TrainingArguments, *_: Any, **kwargs: Any) -> None:
        self._loader = torch_loader(kwargs.get("train_dataloader"))
        if getattr(self._loader, "num_workers", 0) > 0:
            self._sheltered = self._loader.worker_init_fn = ShelteredStart(self._loader.worker_init_fn)
        self._request.heard = True
        self._agreement = Agreement(args.process_index, args.world_size)  # steps may begin anew
        self._in_evaluation, self._batches = Agreement(args.process_index, args.world_size), 0

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if args.process_index == 0:
            self._request.look(Path(str(args.output_dir)))
        asked = self._agreement.anywhere(self._request.asked, state.global_step)
        self.end_if(lambda: asked, args, control)

    def on_prediction_step(self, args: TrainingArguments, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """All ranks evaluate as many batches. The mixin saves what the training has come to."""
        self._batches += 1
        if args.process_index == 0:
            self._request.look(Path(str(args.output_dir)))
        if self._in_evaluation.anywhere(self._request.asked, self._batches):
            self.end_if(lambda: True, args, control)
            control.should_save, control.should_evaluate = True, False  # in the last step too
            raise EvaluationCut(self._request.number)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        super().on_train_end(args, state, control, **kwargs)
        self.close()

    def close(self) -> None:
        self._request.heard = False
        if self._sheltered is not None and self._loader.worker_init_fn is self._sheltered:
            self._loader.worker_init_fn = self._sheltered.inner


def amount(limit: LimitName, value: float) -> str:
    """A value in the unit of a limit: ``$1.20``, ``2 h 07 min``, ``0.35 kWh``."""
    if limit == "usd":
        return usd(value)
    return seconds(3600 * value) if limit == "hours" else f"{value:.3g} kWh"


@dataclass(frozen=True)
class BudgetWords:
    """The sentences of one run, which differ by where its budget is written. ``key`` stands before a limit's name;
    ``resume`` says how a saved run resumes with ``{limit}`` raised to ``{value}``."""

    limits: Limits
    key: str = "budget: "
    steps_key: str = "max_steps"
    resume: str = "trainer.train(resume_from_checkpoint=True) with {limit}={value} continues"
    meter: str = "set a limit of usd or hours instead"

    def will_pass(
        self, limit: LimitName, total: float, steps: int, fits: int, *, at_least: bool, train_seconds: float
    ) -> str:
        """The forecast passes a limit: the whole run takes ``total``, and ``fits`` of its ``steps`` would not pass."""
        about = "at least" if at_least else "about"
        return (
            f"{self._head(limit)}: the run will take {about} {amount(limit, total)}, the rest of its "
            f"{counted(steps, 'step')} {about} {seconds(train_seconds)}. {self.steps_key}={fits} would fit; as it is, "
            f"the run is saved and stopped around step {fits:,}."
        )

    def stopped(self, limit: LimitName, spent: float, step: int, steps: int, enough: float, *, exact: bool) -> str:
        """The run ends here, and would take ``enough``; ``exact``: the checkpoint holds all that a resumption needs."""
        value = f"{_rounded_up(max(enough, self.limits.given()[limit])):g}"
        remedy = self.resume.format(limit=limit, value=value)
        if not exact:
            remedy = "with save_only_model the checkpoint holds the weights alone, and the run cannot resume from it"
        return (
            f"{self._head(limit)}: {amount(limit, spent)} are spent after step {step:,} of {steps:,}, and what comes "
            f"next does not fit. The run is saved in checkpoint-{step} and ends here; {remedy}."
        )

    def reached(self, limit: LimitName, spent: float, step: int, steps: int) -> str:
        of = amount(limit, self.limits.given()[limit])
        return f"{limit}: {amount(limit, spent)} of {of} spent after step {step} of {steps}"

    def spent_before(self, limit: LimitName, spent: float) -> str:
        return (
            f"{self._head(limit)}: the run has spent {amount(limit, spent)} before its next step, and nothing is left. "
            f"Write a larger budget, or none."
        )

    def no_price(self, why: str) -> str:
        return f"{self._head('usd')}: {why}."

    def no_meter(self) -> str:
        return f"{self._head('kwh')}: nothing here measures energy; {self.meter}."

    def _head(self, limit: LimitName) -> str:
        value = self.limits.given()[limit]
        return f"{self.key}{limit}={value:g}" + (f" ({seconds(3600 * value)})" if limit == "hours" else "")


def _rounded_up(value: float) -> float:
    """A tenth more, to two digits, upwards: 3.1 -> 3.5, 0.021 -> 0.024."""
    more = 1.1 * value
    scale = 10.0 ** (1 - math.floor(math.log10(more)))
    return math.ceil(round(more * scale, 6)) / scale


def budget_callback(limits: Mapping[str, float]) -> BudgetCallback:
    """The callback of ``{"usd": 10, "hours": 2, "kwh": 5}``, any of them; ``ValueError`` for none or an unknown one."""
    unknown = [name for name in limits if name not in get_args(LimitName)]
    if unknown:
        raise ValueError(f"budget: {', '.join(unknown)}: no such limit; give usd, hours or kwh")
    return BudgetCallback(**dict[str, Any](limits))


class BudgetCallback(Stopping, AccountCallback):
    """``Trainer(callbacks=[BudgetCallback(usd=10, rates=Rates(price_usd_per_hour=2.49))])`` spends no more than that.
    It counts the wall time of the run's processes, each from its start, those before a resumption included, and keeps
    an account like ``AccountCallback`` where nobody else does. It warns once when the forecast passes a limit, and
    again when it has become clearly worse. It ends the training after the last step that leaves room for a checkpoint,
    without the evaluation that would be due; ``reached`` and ``run.json`` say which limit. What follows the run's own
    last step is not held back. What nothing can count, or is spent already, is refused before the first step. Under
    several processes rank 0 decides; the others hear of it about every ten seconds, near the end more often."""

    def __init__(
        self,
        usd: float | None = None,
        hours: float | None = None,
        kwh: float | None = None,
        *,
        efficiency_dir: str | Path | None = None,
        rates: Rates | None = None,
        words: Callable[[Limits], BudgetWords] = BudgetWords,
        tell: Callable[[str], None] = logger.warning,
    ) -> None:
        """``usd`` needs a price, ``kwh`` a meter. ``ValueError``: no limit at all, or one that is not positive."""
        super().__init__(efficiency_dir, rates)
        self.limits = Limits(usd, hours, kwh)
        self.reached: str | None = None
        self.tell = tell
        self._words = words(self.limits)
        self._agreement: Agreement | None = None
        self._watch: BudgetWatch | None = None
        self._limit: LimitName | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """State the limits; ``SetupError`` where there is no price or no meter for one, or nothing is left to spend."""
        super().on_train_begin(args, state, control, **kwargs)
        self.reached = self._limit = self.stopped_after = None
        self._watch, self.stopping = BudgetWatch(self.limits), False
        self._timeline.state("budget", vars(self.limits))
        if self._agreement is None:
            self._agreement = Agreement(args.process_index, args.world_size)
        self._wait_for_meters()
        self._add_up_energy(self._agreement)
        problem = self._problem() if self._agreement.decides else None
        if self._agreement.settle(_REFUSE if problem else _GO_ON, state.global_step + 1) == _REFUSE:
            raise SetupError(problem or "budget: refused on the main process, which says why")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.end_if(lambda: self._is_spent(state, control), args, control)
        super().on_step_end(args, state, control, **kwargs)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        before = self.stopped_after
        super().on_save(args, state, control, **kwargs)
        if self.stopped_after != before and self._limit is not None:
            self._end(self._limit, args, state)

    def _problem(self) -> str | None:
        live = self._live()
        spent = live.spent()
        if self.limits.usd is not None and live.price_usd_per_hour is None:
            price = self._timeline.facts.get("price", {})
            return self._words.no_price(str(price.get("reason", "the price of this machine is not known")))
        if self.limits.kwh is not None and spent.kwh is None:
            return self._words.no_meter()
        for limit, value in self.limits.given().items():
            used = spent.of(limit)
            if used is not None and used >= value:
                return self._words.spent_before(limit, used)
        return None

    def _is_spent(self, state: TrainerState, control: TrainerControl) -> bool:
        """Whether a limit leaves no room, on all ranks the same after the same step."""
        agreement, names = self._agreement, list(self.limits.given())
        if agreement is None or not agreement.due(state.global_step):
            return False
        decision, next_step = _GO_ON, state.global_step + 1
        self._add_up_energy(agreement)
        if agreement.decides and self._watch is not None:
            try:
                decision, next_step = self._look(self._watch, state, control)
            except Exception:
                logger.warning("The budget is no longer watched, because of a fault.", exc_info=True)
                self._watch = None
        decision = agreement.settle(decision, next_step)
        self._limit = None if decision == _GO_ON else names[decision - 1]
        return self._limit is not None

    def _look(self, watch: BudgetWatch, state: TrainerState, control: TrainerControl) -> tuple[int, int]:
        """The decision, and the step after which the next one is worth an exchange."""
        look = watch.look(self._live(), state.global_step, evaluates=control.should_evaluate, saves=control.should_save)
        if look.passing is not None:
            self.tell(self._words.will_pass(steps=state.max_steps, **vars(look.passing)))
        place = _GO_ON if look.spent is None else 1 + list(self.limits.given()).index(look.spent)
        return place, look.next_step

    def _end(self, limit: LimitName, args: TrainingArguments, state: TrainerState) -> None:
        live, step, steps = self._live(), state.global_step, state.max_steps
        outlook = live.outlook(step, another_start=True)
        used = live.spent().of(limit) or self.limits.given()[limit]
        enough = None if outlook is None else outlook.total.of(limit)
        self.reached = self._words.reached(limit, used, step, steps)
        self._timeline.note("budget", reached=self.reached, step=step)
        if args.process_index == 0:
            exact = not args.save_only_model
            self.tell(self._words.stopped(limit, used, step, steps, enough or used, exact=exact))

    def _wait_for_meters(self) -> None:
        """Until they have been read once, in a thread of their own, right after the records were opened."""
        deadline = time.monotonic() + _METERS_WITHIN_SECONDS
        system = self._timeline.system
        while self.limits.kwh is not None and system is not None and system.energy_joules is None:
            if time.monotonic() > deadline:
                return
            time.sleep(0.05)

    def _add_up_energy(self, agreement: Agreement) -> None:
        """Each rank reads the meters of its own GPU, the first one of a machine those of its processors too."""
        if self.limits.kwh is not None:
            system, live = self._timeline.system, self._live()
            mine = (0.0 if system is None else system.energy_joules) or 0.0
            live.elsewhere_joules = agreement.total(mine) - mine

    def _live(self) -> LiveRun:
        """Of whoever records the run; where that failed, the clock alone."""
        if self._timeline.live is None:
            return LiveRun(self._timeline, RunningFigures(self._timeline.earlier))
        return self._timeline.live


FIRST_SAVE_SECONDS = 60.0
"""Of training, before the first checkpoint of a run: what one costs is not known until it is written."""

_MOST_STEPS_AHEAD = 1000


class SaveCadence(TrainerCallback):
    """Saves when the time since the last save comes nearest to Daly's interval (``estimate.cost``). The cost of a save
    is the seconds for which the run's saves have held the training so far, in earlier processes too. Rank 0 decides;
    the others hear of it when half of the time is over, and again. For ``save_strategy="steps", save_steps=0``, with
    which the Trainer itself saves at the end alone."""

    def __init__(self, hours: float, *, stated: bool = True, now: Callable[[], float] = time.monotonic) -> None:
        """``hours`` between two failures; unless they are ``stated``, the run's own failures correct them."""
        self._hours, self._stated, self._now = hours, stated, now

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        self._earlier = process_timeline().earlier
        self._saves = Durations(self._earlier.saves, self._earlier.save_seconds)
        self._agreement = Agreement(args.process_index, args.world_size)
        self._began = self._saved = self._turned = self._now()
        self._saved_step = state.global_step

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._turned = self._now()
        if self._agreement.due(state.global_step):
            look = self._look(state.global_step) if self._agreement.decides else (0, 0)
            control.should_save = bool(self._agreement.settle(*look)) or control.should_save

    def on_log(self, *_: Any, **kwargs: Any) -> None:
        self._turned = self._now()

    on_evaluate = on_log  # what comes before a save is not of it

    def on_save(self, args: TrainingArguments, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        self._saves.add(state.global_step, self._now() - self._turned)
        self._saved, self._saved_step = self._now(), state.global_step

    def interval_seconds(self) -> float:
        mean, save = self._hours * 3600, self._saves.mean_seconds
        if not self._stated:
            lived = self._earlier.wall_seconds + self._now() - self._began
            mean = observed_mean(mean, self._earlier.failures, lived)
        return FIRST_SAVE_SECONDS if save is None else daly_interval(save, mean)

    def _look(self, step: int) -> tuple[int, int]:
        """Whether to save after this step, and the step of the next look."""
        passed = self._turned - self._saved
        each, left = passed / max(1, step - self._saved_step), self.interval_seconds() - passed
        return int(left <= each / 2), step + max(1, min(_MOST_STEPS_AHEAD, int(left / (2 * each)) if each > 0 else 1))
