"""Evaluations, checkpoints and logs that are too frequent, or too slow: in a run, and by the variants of a recipe."""

import math
from dataclasses import dataclass
from typing import Any

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.rule import MATTERS, IsolatedRecipe, Verdict, abstains, finding, rule
from hf_efficient.diagnosis.rules.own_code import with_holders
from hf_efficient.records.findings import Finding, Remedy
from hf_efficient.text import share, short_seconds

_TOO_MUCH = 0.10
_LOGS_ALLOWED = 0.01
_RARER_LOGS = "a log after every {} steps, each as long as those that were measured"
_SCHEDULED = {"eval_steps": "evaluate_every", "save_steps": "save_every"}
"""What the run said of its schedule, in steps, also where its argument is a share of all steps or an epoch."""


@dataclass(frozen=True)
class _Pause:
    """Evaluations or checkpoints, with the words and arguments (by their prefix) for them; rarer ones are to take the
    ``allowed`` share of the loop."""

    phase: str
    one: str
    an_one: str
    verb: str
    argument: str
    allowed: float
    costs: str
    basis: str

    def rarer(self, every: int, is_best_loaded: bool, measured: str) -> tuple[str, dict[str, Any], str, str]:
        """What to do, its overrides, its costs and its basis. The best checkpoint needs its evaluation."""
        names = ("eval", "save") if is_best_loaded else (self.argument,)
        overrides: dict[str, Any] = {}
        for name in sorted(names, key=lambda name: name != self.argument):
            overrides |= {f"train.{name}_strategy": "steps", f"train.{name}_steps": every}
        basis = f"{self.basis.format(every=every)}, each as long as those that were {measured}"
        return f"{self.verb} every {every} steps", overrides, self.costs.format(every=every), basis


_EVALUATIONS = _Pause(
    phase="evaluation", one="evaluation", an_one="an evaluation", verb="evaluate", argument="eval", allowed=0.05,
    costs="the loss is seen less often", basis="evaluations after every {every} steps",
)  # fmt: skip
_SAVES = _Pause(
    phase="checkpointing", one="checkpoint", an_one="a checkpoint", verb="save", argument="save", allowed=0.03,
    costs="a run that dies has up to {every} steps to do again", basis="a checkpoint after every {every} steps",
)  # fmt: skip


@rule()
def evaluations_cost(case: Case) -> Verdict:
    """A tenth of the loop or more is spent in evaluations; rarer ones are to take a twentieth."""
    return with_holders(_of_run(case, _EVALUATIONS), case, "evaluation")


@rule()
def saves_cost(case: Case) -> Verdict:
    """A tenth of the loop or more is spent in checkpoints; rarer ones are to take three hundredths."""
    return with_holders(_of_run(case, _SAVES), case, "checkpointing")


def _of_run(case: Case, pause: _Pause) -> Finding | None:
    spent = case.phase_seconds(pause.phase)
    if case.share(spent) < _TOO_MUCH:
        return None
    source, count = f"steps.jsonl: phase_seconds.{pause.phase}", int((case.first.phase(pause.phase) > 0).sum())
    remedies = []
    longer = _rarer(case, spent, pause.argument, pause.allowed)
    if longer is not None:
        every, left = longer
        what, overrides, costs, basis = pause.rarer(every, bool(case.argument("load_best_model_at_end")), "measured")
        remedies.append(Remedy(what, overrides, costs, case.gain(spent - left, basis)))
    remedies += _quicker_evaluations(case) if pause is _EVALUATIONS else _smaller_saves(case)
    return finding(
        f"{share(case.share(spent))} of the training loop is spent in {pause.one}s",
        [
            (f"share of the loop in {pause.one}s", case.share(spent), "share", source),
            (f"time in {pause.one}s", spent, "seconds", source),
            ("steps with one", count, "count", source),
            (f"mean {pause.one}", spent / count, "seconds", source),
        ],
        remedies,
        case.cost(spent),
    )


def _quicker_evaluations(case: Case) -> list[Remedy]:
    found = []
    batch, train_batch = (case.argument(f"per_device_{kind}_batch_size") for kind in ("eval", "train"))
    if case.on_cuda and batch and train_batch and batch < train_batch:
        overrides = {"train.per_device_eval_batch_size": 2 * train_batch}
        found.append(Remedy("evaluate in larger batches", overrides, "more memory in evaluations"))
    if case.recipe is not None and case.recipe.get("data.max_eval_examples") is None and case.evaluations:
        mean = short_seconds(sum(case.evaluations) / len(case.evaluations))
        what = f"evaluate on fewer examples (data.max_eval_examples); one evaluation takes {mean}"
        found.append(Remedy(what, costs="a noisier evaluation loss"))
    return found


def _smaller_saves(case: Case) -> list[Remedy]:
    if case.argument("save_only_model") is not False:
        return []
    costs = "training cannot resume from such a checkpoint with its optimizer state"
    return [Remedy("save the weights without optimizer state", {"train.save_only_model": True}, costs)]


@rule()
def logging_cost(case: Case) -> Verdict:
    """A twentieth of the loop or more goes into logs; rarer ones are to take a hundredth."""
    first = case.first
    if "logging" not in first.phase_seconds and "between_steps" in first.phase_seconds:
        return abstains("logging is not timed apart from fetching data", "EfficientTrainerMixin")
    spent = case.phase_seconds("logging")
    if case.share(spent) < MATTERS:
        return None
    logs = first.phase("logging")
    times = int((logs > 0).sum())
    each = float(logs.sum()) / times
    remedies = []
    longer = _rarer(case, spent, "logging", _LOGS_ALLOWED)
    if longer is not None and case.argument("logging_strategy") == "steps":
        every, left = longer
        gain = case.gain(spent - left, _RARER_LOGS.format(every))
        costs = "the loss is logged less often"
        remedies.append(Remedy(f"log every {every} steps", {"train.logging_steps": every}, costs, gain))
    slow = "look at where logs go (train.report_to, callbacks with on_log): a slow tracker holds every log"
    remedies.append(Remedy(slow))
    source = "steps.jsonl: phase_seconds.logging"
    found = finding(
        f"{share(case.share(spent))} of the training loop goes into logs, {short_seconds(each)} each",
        [
            ("share of the loop in logs", case.share(spent), "share", source),
            ("time in logs", spent, "seconds", source),
            ("steps with a log", times, "count", source),
        ],
        remedies,
        case.cost(spent),
    )
    return with_holders(found, case, "logging")


@rule(name="evaluations_cost")
def isolated_evaluations_cost(recipe: IsolatedRecipe) -> Verdict:
    """A tenth of the loop or more would be spent in evaluations; rarer ones are to take a twentieth."""
    pauses, schedule = recipe.found.pauses, recipe.found.schedule
    return _of_variants(recipe, _EVALUATIONS, pauses.evaluation_seconds, schedule.evaluate_every)


@rule(name="saves_cost")
def isolated_saves_cost(recipe: IsolatedRecipe) -> Verdict:
    """A tenth of the loop or more would be spent in checkpoints; rarer ones are to take three hundredths."""
    return _of_variants(recipe, _SAVES, recipe.found.pauses.save_seconds, recipe.found.schedule.save_every)


def _of_variants(recipe: IsolatedRecipe, pause: _Pause, each: float | None, every: int | None) -> Verdict:
    taken = recipe.taken(pause.phase)
    if each is None or every is None or recipe.of_a_step(taken) < _TOO_MUCH:
        return recipe.unknown(pause.phase)
    longer = _distance(each, recipe.found.step_seconds - taken, pause.allowed)
    what, overrides, costs, basis = pause.rarer(longer, recipe.found.schedule.best_at_end, "timed")
    gain = recipe.gain(recipe.of_steps(taken - each / longer), basis)
    return finding(
        f"{share(recipe.of_a_step(taken))} of the training loop goes to {pause.one}s",
        [
            (pause.an_one, each, "seconds", "isolate: pauses"),
            ("steps between two", every, "count", "recipe"),
            *recipe.evidence(pause.phase, f"{pause.one}s, of each step"),
        ],
        [Remedy(what, overrides, costs, gain)] if longer > every else [],
        recipe.cost(recipe.of_steps(taken)),
    )


@rule(name="logging_cost")
def isolated_logging_cost(recipe: IsolatedRecipe) -> Verdict:
    """A twentieth of the step or more goes to logs; rarer ones are to take a hundredth."""
    taken, each, every = recipe.taken("logging"), recipe.found.pauses.log_seconds, recipe.found.schedule.log_every
    if each is None or every is None or recipe.of_a_step(taken) < MATTERS:
        return recipe.unknown("logging")
    longer = _distance(each, recipe.found.step_seconds - taken, _LOGS_ALLOWED)
    overrides = {"train.logging_strategy": "steps", "train.logging_steps": longer}
    gain = recipe.gain(recipe.of_steps(taken - each / longer), _RARER_LOGS.format(longer))
    remedy = Remedy(f"log every {longer} steps", overrides, "a coarser curve of the loss", gain)
    return finding(
        f"{share(recipe.of_a_step(taken))} of a step goes to logging",
        [
            ("a log", each, "seconds", "isolate: logged less quiet"),
            ("steps between two", every, "count", "recipe"),
            *recipe.evidence("logging", "logs, of each step"),
        ],
        [remedy],
        recipe.cost(recipe.of_steps(taken)),
    )


def _rarer(case: Case, spent_seconds: float, argument: str, allowed: float) -> tuple[int, float] | None:
    """Every how many steps a pause takes no more than a share of the loop, and the seconds it then takes in this run.
    None where the run is shorter than the distance of now, or the pauses follow no distance (``best``)."""
    if case.argument(f"{argument}_strategy") not in ("steps", "epoch"):
        return None
    steps, schedule = case.account.steps.count, case.facts.get("run", {})
    every = schedule.get(_SCHEDULED.get(f"{argument}_steps", "")) or case.argument(f"{argument}_steps")
    if not every or every < 1:
        every = steps
    pauses = steps // int(every)
    if pauses < 1:
        return None
    training = case.loop_seconds - spent_seconds
    planned = int(schedule.get("max_steps") or steps)
    longer = min(_distance(spent_seconds / pauses, training / steps, allowed), max(planned, steps))
    # Evaluations and saves of the Trainer come after the last step as well.
    left = steps // longer if argument == "logging" else -(-steps // longer)
    return longer, spent_seconds / pauses * min(left, pauses)


def _distance(pause_seconds: float, step_seconds: float, allowed: float) -> int:
    """After how many steps a pause takes a share of the loop: ``n = p * (1 - a) / (a * s)``, rounded up to two digits.
    ``n`` steps and a pause then take ``p / a``, since ``p / (n * s + p) = a``. Hand-worked: pauses of 6 s, steps of 0.6
    s, 10% allowed: 6 * 0.9 / (0.1 * 0.6) = 90."""
    steps = pause_seconds * (1 - allowed) / (allowed * step_seconds)
    digit = 10 ** max(0, math.floor(math.log10(steps)) - 1)
    return max(1, math.ceil(round(steps / digit, 9)) * digit)  # 89.999999999 is what a division leaves of 90
