"""Evaluations and saves less often.

Evaluations too often, or too slow.

Checkpoints too often, or too slow.

Logs too often, or to somebody slow.

Evaluations too often, or too slow.

Checkpoints too often, or too slow.

Logs too often, or too slow.
"""

from __future__ import annotations

import math
from typing import Any

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.rule import (
    MATTERS,
    NO_STEPS,
    SOURCE,
    Verdict,
    abstains,
    clear,
    cost,
    gain,
    part_evidence,
    share_of,
    unknown,
)
from hf_efficient.records.findings import Abstention, Evidence, Finding, Remedy
from hf_efficient.records.isolation import Isolation
from hf_efficient.text import share, short_seconds

_SCHEDULED = {"eval_steps": "evaluate_every", "save_steps": "save_every"}
"""What the run said of its schedule, in steps, also where its argument is a share of all steps or an epoch."""


def rarer(
    case: Case, spent_seconds: float, steps_key: str, strategy_key: str, allowed: float
) -> tuple[int, float] | None:
    """Every how many steps a pause takes no more than a share of the loop, and the seconds it then takes in this run.

    A run that is too short for that keeps the one at its end.

    Args:
        case: the run.
        spent_seconds: in such pauses, in the loop.
        steps_key: the argument that tells their distance: ``eval_steps``.
        strategy_key: the argument that tells how it is counted: ``eval_strategy``.
        allowed: share of the loop that they may take.

    Returns:
        None where the run is shorter than such a distance, or the pauses follow no distance (``best``).
    """
    first = case.first
    if first is None or case.argument(strategy_key) not in ("steps", "epoch"):
        return None
    steps = case.account.steps.count
    every = case.facts.get("run", {}).get(_SCHEDULED.get(steps_key, "")) or case.argument(steps_key)
    if not every or every < 1:
        every = steps
    pauses = steps // int(every)
    if pauses < 1:
        return None
    training = case.loop_seconds - spent_seconds
    planned = int(case.facts.get("run", {}).get("max_steps") or steps)
    longer = min(distance(spent_seconds / pauses, training / steps, allowed), max(planned, steps))
    # Evaluations and saves of the Trainer come after the last step as well.
    left = steps // longer if steps_key == "logging_steps" else -(-steps // longer)
    return longer, spent_seconds / pauses * min(left, pauses)


def pause_evidence(case: Case, phase: str, one: str) -> list[Evidence]:
    """What a kind of pause took of the loop, those outside it left out.

    Args:
        case: the run, with steps.
        phase: ``evaluation`` or ``checkpointing``.
        one: what each is called.
    """
    first, spent, source = case.first, case.phase_seconds(phase), f"steps.jsonl: phase_seconds.{phase}"
    count = 0 if first is None else int((first.phase(phase) > 0).sum())
    found = [
        Evidence(f"share of the loop in {one}s", case.share(spent), "share", source),
        Evidence(f"time in {one}s", spent, "seconds", source),
        Evidence("steps with one", count, "count", source),
    ]
    if count:
        found.append(Evidence(f"mean {one}", spent / count, "seconds", source))
    return found


def distance(pause_seconds: float, step_seconds: float, allowed: float) -> int:
    """After how many steps a pause takes a share of the loop: ``n = p * (1 - a) / (a * s)``.

    ``n`` steps and a pause then take ``p / a``, since ``p / (n * s + p) = a``.
    Hand-worked: pauses of 6 s, steps of 0.6 s, 10% allowed: 6 * 0.9 / (0.1 * 0.6) = 90.

    Args:
        pause_seconds: of one.
        step_seconds: of a step, without it.
        allowed: share of the loop that they may take.

    Returns:
        Rounded up to two digits, at least 1.
    """
    return max(1, _round_up(pause_seconds * (1 - allowed) / (allowed * step_seconds)))


def _round_up(steps: float) -> int:
    """To two digits: 137.2 to 140; 89.999999999 is what a division leaves of 90."""
    digit = 10 ** max(0, math.floor(math.log10(steps)) - 1)
    return math.ceil(round(steps / digit, 9)) * digit


_TOO_MUCH = 0.10
_ALLOWED = 0.05


def evaluations_cost(case: Case) -> Verdict:
    """A tenth of the loop or more is spent in evaluations; rarer ones are to take a twentieth."""
    if case.first is None:
        return abstains("evaluations_cost", NO_STEPS)
    spent = case.phase_seconds("evaluation")
    taken = case.share(spent)
    if taken < _TOO_MUCH:
        return None
    return Finding(
        rule="evaluations_cost",
        title=f"{share(taken)} of the training loop is spent in evaluations",
        severity="warning",
        confidence="measured",
        evidence=pause_evidence(case, "evaluation", "evaluation"),
        cost=case.cost(spent),
        remedies=_remedies(case, spent),
    )


def _remedies(case: Case, spent: float) -> list[Remedy]:
    found = []
    longer = rarer(case, spent, "eval_steps", "eval_strategy", _ALLOWED)
    if longer is not None:
        every, left = longer
        overrides: dict[str, Any] = {"train.eval_strategy": "steps", "train.eval_steps": every}
        if case.argument("load_best_model_at_end"):
            overrides |= {"train.save_strategy": "steps", "train.save_steps": every}
        basis = f"evaluations after every {every} steps, each as long as those that were measured"
        gain = case.gain(spent - left, basis)
        found.append(Remedy(f"evaluate every {every} steps", overrides, "the loss is seen less often", gain))
    batch, train_batch = (case.argument(f"per_device_{kind}_batch_size") for kind in ("eval", "train"))
    if case.on_cuda and batch and train_batch and batch < train_batch:
        overrides = {"train.per_device_eval_batch_size": 2 * train_batch}
        found.append(Remedy("evaluate in larger batches", overrides, "more memory in evaluations"))
    examples = case.recipe.get("data.max_eval_examples") if case.recipe is not None else None
    if case.recipe is not None and examples is None and case.evaluations:
        mean = short_seconds(sum(pause.seconds for pause in case.evaluations) / len(case.evaluations))
        what = f"evaluate on fewer examples (data.max_eval_examples); one evaluation takes {mean}"
        found.append(Remedy(what, costs="a noisier evaluation loss"))
    return found


_SAVES_COST_ALLOWED = 0.03


def saves_cost(case: Case) -> Verdict:
    """A tenth of the loop or more is spent in checkpoints; rarer ones are to take three hundredths."""
    if case.first is None:
        return abstains("saves_cost", NO_STEPS)
    spent = case.phase_seconds("checkpointing")
    taken = case.share(spent)
    if taken < _TOO_MUCH:
        return None
    return Finding(
        rule="saves_cost",
        title=f"{share(taken)} of the training loop is spent in checkpoints",
        severity="warning",
        confidence="measured",
        evidence=pause_evidence(case, "checkpointing", "checkpoint"),
        cost=case.cost(spent),
        remedies=_saves_cost_remedies(case, spent),
    )


def _saves_cost_remedies(case: Case, spent: float) -> list[Remedy]:
    found = []
    longer = rarer(case, spent, "save_steps", "save_strategy", _SAVES_COST_ALLOWED)
    if longer is not None:
        every, left = longer
        overrides: dict[str, Any] = {"train.save_strategy": "steps", "train.save_steps": every}
        if case.argument("load_best_model_at_end"):
            overrides |= {"train.eval_strategy": "steps", "train.eval_steps": every}
        basis = f"a checkpoint after every {every} steps, each as long as those that were measured"
        costs = f"a run that dies has up to {every} steps to do again"
        found.append(Remedy(f"save every {every} steps", overrides, costs, case.gain(spent - left, basis)))
    if case.argument("save_only_model") is False:
        overrides = {"train.save_only_model": True}
        costs = "training cannot go on from such a checkpoint with its optimizer state"
        found.append(Remedy("save the weights without optimizer state", overrides, costs))
    return found


_LOGGING_COST_TOO_MUCH = 0.05
_LOGGING_COST_ALLOWED = 0.01


def logging_cost(case: Case) -> Verdict:
    """A twentieth of the loop or more goes into logs; rarer ones are to take a hundredth."""
    first = case.first
    if first is None:
        return abstains("logging_cost", NO_STEPS)
    if "logging" not in first.phase_seconds and "between_steps" in first.phase_seconds:
        return abstains("logging_cost", "logging is not told from fetching data", "EfficientTrainerMixin")
    spent = case.phase_seconds("logging")
    if case.share(spent) < _LOGGING_COST_TOO_MUCH:
        return None
    logs = first.phase("logging")
    times = int((logs > 0).sum())
    each = float(logs.sum()) / times
    remedies = []
    longer = rarer(case, spent, "logging_steps", "logging_strategy", _LOGGING_COST_ALLOWED)
    if longer is not None and case.argument("logging_strategy") == "steps":
        every, left = longer
        basis = f"a log after every {every} steps, each as long as those that were measured"
        overrides = {"train.logging_steps": every}
        gain = case.gain(spent - left, basis)
        remedies.append(Remedy(f"log every {every} steps", overrides, "the loss is told less often", gain))
    remedies.append(
        Remedy("look at who is told (train.report_to, callbacks with on_log): a slow tracker holds every log")
    )
    return Finding(
        rule="logging_cost",
        title=f"{share(case.share(spent))} of the training loop goes into logs, {short_seconds(each)} each",
        severity="warning",
        confidence="measured",
        evidence=[
            Evidence("share of the loop in logs", case.share(spent), "share", "steps.jsonl: phase_seconds.logging"),
            Evidence("time in logs", spent, "seconds", "steps.jsonl: phase_seconds.logging"),
            Evidence("steps with a log", times, "count", "steps.jsonl: phase_seconds.logging"),
        ],
        cost=case.cost(spent),
        remedies=remedies,
    )


def evaluations_cost_evaluations_cost(found: Isolation) -> Finding | Abstention | None:
    """A tenth of the loop or more would be spent in evaluations; rarer ones are to take a twentieth."""
    part, each = clear(found, "evaluation"), found.pauses.evaluation_seconds
    if part is None or part.seconds is None or each is None or share_of(found, part.seconds) < _TOO_MUCH:
        return unknown(found, "evaluations_cost", "evaluation")
    every = found.schedule.evaluate_every
    assert every is not None
    longer = distance(each, found.step_seconds - part.seconds, _ALLOWED)
    overrides: dict[str, Any] = {"train.eval_strategy": "steps", "train.eval_steps": longer}
    if found.schedule.best_at_end:
        overrides |= {"train.save_strategy": "steps", "train.save_steps": longer}
    saved = part.seconds - each / longer
    evidence = [
        Evidence("an evaluation", each, "seconds", f"{SOURCE}: pauses"),
        Evidence("steps between two", every, "count", "recipe"),
        *part_evidence(found, part, "evaluations, of each step"),
    ]
    basis = f"evaluations after every {longer} steps, each as long as those that were timed"
    remedies = [
        Remedy(f"evaluate every {longer} steps", overrides, "the loss is seen less often", gain(found, saved, basis))
    ]
    return Finding(
        rule="evaluations_cost",
        title=f"{share(share_of(found, part.seconds))} of the training loop goes to evaluations",
        severity="warning",
        confidence="measured",
        evidence=evidence,
        cost=cost(found, part.seconds),
        remedies=remedies if longer > every else [],
    )


_SAVES_COST_ALLOWED_2 = 0.03


def saves_cost_saves_cost(found: Isolation) -> Finding | Abstention | None:
    """A tenth of the loop or more would be spent in checkpoints; rarer ones are to take three hundredths."""
    part, each = clear(found, "checkpointing"), found.pauses.save_seconds
    if part is None or part.seconds is None or each is None or share_of(found, part.seconds) < _TOO_MUCH:
        return unknown(found, "saves_cost", "checkpointing")
    every = found.schedule.save_every
    assert every is not None
    longer = distance(each, found.step_seconds - part.seconds, _SAVES_COST_ALLOWED_2)
    overrides: dict[str, Any] = {"train.save_strategy": "steps", "train.save_steps": longer}
    if found.schedule.best_at_end:
        overrides |= {"train.eval_strategy": "steps", "train.eval_steps": longer}
    basis = f"a checkpoint after every {longer} steps, each as long as those that were timed"
    costs = f"a run that dies has up to {longer} steps to do again"
    remedy = Remedy(f"save every {longer} steps", overrides, costs, gain(found, part.seconds - each / longer, basis))
    return Finding(
        rule="saves_cost",
        title=f"{share(share_of(found, part.seconds))} of the training loop goes to checkpoints",
        severity="warning",
        confidence="measured",
        evidence=[
            Evidence("a checkpoint", each, "seconds", f"{SOURCE}: pauses"),
            Evidence("steps between two", every, "count", "recipe"),
            *part_evidence(found, part, "checkpoints, of each step"),
        ],
        cost=cost(found, part.seconds),
        remedies=[remedy] if longer > every else [],
    )


_LOGGING_COST_ALLOWED_2 = 0.01


def logging_cost_logging_cost(found: Isolation) -> Finding | Abstention | None:
    """A twentieth of the step or more goes to logs; rarer ones are to take a hundredth."""
    part, each = clear(found, "logging"), found.pauses.log_seconds
    if part is None or part.seconds is None or each is None or share_of(found, part.seconds) < MATTERS:
        return unknown(found, "logging_cost", "logging")
    every = found.schedule.log_every
    assert every is not None
    longer = distance(each, found.step_seconds - part.seconds, _LOGGING_COST_ALLOWED_2)
    overrides = {"train.logging_strategy": "steps", "train.logging_steps": longer}
    basis = f"a log after every {longer} steps, each as long as those that were measured"
    saved = gain(found, part.seconds - each / longer, basis)
    return Finding(
        rule="logging_cost",
        title=f"{share(share_of(found, part.seconds))} of a step goes to logging",
        severity="warning",
        confidence="measured",
        evidence=[
            Evidence("a log", each, "seconds", f"{SOURCE}: logged less quiet"),
            Evidence("steps between two", every, "count", "recipe"),
            *part_evidence(found, part, "logs, of each step"),
        ],
        cost=cost(found, part.seconds),
        remedies=[Remedy(f"log every {longer} steps", overrides, "a coarser curve of the loss", saved)],
    )
