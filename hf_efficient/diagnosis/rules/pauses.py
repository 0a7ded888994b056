"""Evaluations, checkpoints and logs that are too frequent or too slow, in a run and by the variants of a recipe. Time
that callbacks and the user's own methods take, or that nobody is known to take. Epochs that start slowly."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hf_efficient.diagnosis.case import MATTERS, Case, IsolatedRecipe, Row, Subject, Verdict, abstains, finding, rule
from hf_efficient.diagnosis.remedies import INSTRUMENTS
from hf_efficient.records.account import HeldTime
from hf_efficient.records.findings import Finding, Remedy
from hf_efficient.text import counted, share, short_seconds

_TOO_MUCH = 0.10
_WORTH_A_ROW = 0.01
_LEAST_KEPT = 0.25
"""Of the evaluated examples, so that the loss still says something."""
_NOISIER = "a noisier evaluation loss"
_FEW_ROWS = 16
"""A loss of fewer examples says little already."""
_MOST_ROWS = 5
_WITHOUT_WORK = ("bookkeeping", "unattributed")
_OTHER_RULES = ("logging", "evaluation", "checkpointing")
_COMPUTES = ("compute_loss", "prediction_step")
_RARELY = 10
_SOURCE = "run.json: time.held"
_RARER = (
    "do the work of {} every tenth step (`if state.global_step % 10: return`), or give it to a thread of its own: the "
    "training waits for every callback"
)
_SHORTER = "make {} quicker: time its lines (profile.lines), and do its slow part more rarely or in a thread"
_UNKNOWN = (
    "no callback and none of your methods holds most of it: profile Python to see the functions that take it "
    "(profile.python)"
)
_WITHOUT_INSTRUMENT = "leave {} out of runs that you do not look into: an instrument belongs to a short run of its own"
_NAMES_NOTHING = "use EfficientTrainer or EfficientTrainerMixin: the account then names each callback and method"
_MOSTLY = 0.5


@dataclass(frozen=True)
class _Pause:
    """Evaluations, checkpoints or logs, with the words and arguments (by their prefix) for them. From the share
    ``much`` of the loop on they cost; rarer ones are to take the share ``allowed``."""

    phase: str
    one: str
    an_one: str
    verb: str
    argument: str
    allowed: float
    costs: str
    basis: str
    much: float = _TOO_MUCH

    def rarer(self, subject: Subject, every: int, saved_seconds: float, is_best_loaded: bool, measured: str) -> Remedy:
        """The best checkpoint needs its evaluation."""
        both = is_best_loaded and self.argument != "logging"
        overrides: dict[str, Any] = {}
        for name in sorted(("eval", "save") if both else (self.argument,), key=lambda name: name != self.argument):
            overrides |= {f"train.{name}_strategy": "steps", f"train.{name}_steps": every}
        distance = counted(every, "step")
        basis = f"{self.basis.format(every=distance)}, each as long as those that were {measured}"
        gain, costs = subject.gain(saved_seconds, basis), self.costs.format(every=distance)
        return Remedy(f"{self.verb} every {distance}", overrides, costs, gain)


_EVALUATIONS = _Pause(
    phase="evaluation", one="evaluation", an_one="an evaluation", verb="evaluate", argument="eval", allowed=0.05,
    costs="the loss is seen less often", basis="evaluations after every {every}",
)  # fmt: skip
_SAVES = _Pause(
    phase="checkpointing", one="checkpoint", an_one="a checkpoint", verb="save", argument="save", allowed=0.03,
    costs="a run that dies has up to {every} to do again", basis="a checkpoint after every {every}",
)  # fmt: skip
_LOGS = _Pause(
    phase="logging", one="log", an_one="a log", verb="log", argument="logging", allowed=0.01,
    costs="the loss is logged less often", basis="a log after every {every}", much=MATTERS,
)  # fmt: skip


@rule()
def evaluations_cost(case: Case) -> Verdict:
    """A tenth of the loop or more is spent in evaluations; rarer ones are to take a twentieth."""
    return _of_run(case, _EVALUATIONS, _quicker_evaluations(case))


@rule()
def saves_cost(case: Case) -> Verdict:
    """A tenth of the loop or more is spent in checkpoints; rarer ones are to take three hundredths."""
    costs = "training cannot resume from such a checkpoint with its optimizer state"
    other = Remedy("save the weights without optimizer state", {"train.save_only_model": True}, costs)
    if case.argument("save_only_model") is not False:
        other = Remedy("write checkpoints to a faster disk (output_dir), or less often")
    return _of_run(case, _SAVES, [other])


def _of_run(case: Case, pause: _Pause, others: list[Remedy]) -> Finding | None:
    """With the callbacks and methods of the user's own that take a part of it; one that takes half has a remedy."""
    spent = case.phase_seconds(pause.phase)
    if case.share(spent) < pause.much:
        return None
    source, count = f"steps.jsonl: phase_seconds.{pause.phase}", int((case.first.phase(pause.phase) > 0).sum())
    remedies = []
    longer = _rarer(case, spent, pause)
    if longer is not None:
        every, left = longer
        is_best_loaded = bool(case.argument("load_best_model_at_end"))
        remedies.append(pause.rarer(case, every, spent - left, is_best_loaded, "measured"))
    remedies += others
    holders = [one for one in case.account.time.held if one.phase == pause.phase]
    if holders and holders[0].seconds >= spent / 2:
        remedies += _remedies(case, holders[:1])
    return finding(
        f"{share(case.share(spent))} of the training loop is spent in {pause.one}s",
        [
            (f"share of the loop in {pause.one}s", case.share(spent), "share", source),
            (f"time in {pause.one}s", spent, "seconds", source),
            ("steps with one", count, "count", source),
            (f"mean {pause.one}", spent / count, "seconds", source),
            *_rows(case, holders),
        ],
        remedies,
        case.cost(spent),
    )


def _quicker_evaluations(case: Case) -> list[Remedy]:
    spent = case.phase_seconds("evaluation")
    if not spent:
        return []
    found = []
    batch, train_batch = (case.argument(f"per_device_{kind}_batch_size") for kind in ("eval", "train"))
    if case.on_cuda and batch and train_batch and batch < train_batch:
        overrides = {"train.per_device_eval_batch_size": 2 * train_batch}
        found.append(Remedy("evaluate in larger batches", overrides, "more memory in evaluations"))
    each = spent / int((case.first.phase("evaluation") > 0).sum())
    took = f"; one evaluation takes {short_seconds(each)}"
    what = "evaluate on fewer examples"
    if case.recipe is None:
        return [*found, Remedy(f"{what}: give the trainer a smaller eval_dataset{took}", costs=_NOISIER)]
    allowed = _EVALUATIONS.allowed * (case.loop_seconds - spent) / (1 - _EVALUATIONS.allowed)
    return [*found, *_fewer_examples(case, case.recipe, max(_LEAST_KEPT, allowed / spent), what, took)]


def _fewer_examples(case: Case, recipe: Mapping[str, Any], kept: float, what: str, took: str) -> Iterator[Remedy]:
    """``kept``: the share of them."""
    most, rows = recipe.get("data.max_eval_examples"), next((one.rows for one in case.account.evaluations), None)
    evaluated = min((number for number in (most, rows) if number), default=None)
    if evaluated is not None and evaluated < _FEW_ROWS:
        if case.argument("eval_on_start"):
            overrides = {"train.eval_on_start": False}
            yield Remedy("leave out the evaluation before the first step", overrides, "no loss before the training")
        return
    fewer = {} if evaluated is None else {"data.max_eval_examples": int(evaluated * kept)}
    if "exact_match" in (value for key, value in recipe.items() if key.startswith("evaluate.metrics.")):
        fewer["evaluate.generate.examples"] = max(1, int(recipe.get("evaluate.generate.examples", 1) * kept))
    named = "" if "data.max_eval_examples" in fewer else " (data.max_eval_examples)"
    yield Remedy(f"{what}{named}{took}", fewer, _NOISIER)


@rule()
def logging_cost(case: Case) -> Verdict:
    """A twentieth of the loop or more goes into logs; rarer ones are to take a hundredth."""
    first = case.first
    if "logging" not in first.phase_seconds and "between_steps" in first.phase_seconds:
        return abstains("logging is not timed apart from fetching data", "EfficientTrainerMixin")
    slow = "look at where logs go (train.report_to, callbacks with on_log): a slow tracker holds every log"
    return _of_run(case, _LOGS, [Remedy(slow)])


def _of_variants(name: str, pause: _Pause, seconds: str, says: str) -> Callable[[IsolatedRecipe], Verdict]:
    """The rule with the same shares as that of a run; ``seconds`` names what one takes, ``says`` what is found."""

    @rule(name=name)
    def judged(recipe: IsolatedRecipe) -> Verdict:
        each, taken = getattr(recipe.found.pauses, seconds), recipe.taken(pause.phase)
        every = getattr(recipe.found.schedule, f"{pause.verb}_every")
        if each is None or every is None or recipe.of_a_step(taken) < pause.much:
            return recipe.unknown(pause.phase)
        longer = _distance(each, recipe.found.step_seconds - taken, pause.allowed)
        saved, is_best_loaded = recipe.of_steps(taken - each / longer), recipe.found.schedule.best_at_end
        return finding(
            f"{share(recipe.of_a_step(taken))} of the training loop goes to {pause.one}s",
            [
                (pause.an_one, each, "seconds", "isolate: pauses"),
                ("steps between two", every, "count", "recipe"),
                *recipe.evidence(pause.phase, f"{pause.one}s, of each step"),
            ],
            [pause.rarer(recipe, longer, saved, is_best_loaded, "timed")] if longer > every else [],
            recipe.cost(recipe.of_steps(taken)),
        )

    judged.__doc__ = f"{says} of the loop or more; rarer ones are to take {pause.allowed:.0%}."
    return judged


isolated_evaluations_cost = _of_variants(
    "evaluations_cost", _EVALUATIONS, "evaluation_seconds", "Evaluations would take a tenth"
)
isolated_saves_cost = _of_variants("saves_cost", _SAVES, "save_seconds", "Checkpoints would take a tenth")
isolated_logging_cost = _of_variants("logging_cost", _LOGS, "log_seconds", "Logs would take a twentieth")


def _rarer(case: Case, spent_seconds: float, pause: _Pause) -> tuple[int, float] | None:
    """Every how many steps a pause takes no more than a share of the loop, and the seconds it then takes in this run.
    None where the run is shorter than the distance of now, or the pauses follow no distance (``best``)."""
    argument, steps, schedule = pause.argument, case.account.steps.count, case.facts.get("run", {})
    if case.argument(f"{argument}_strategy") not in (("steps",) if argument == "logging" else ("steps", "epoch")):
        return None
    # The run said so in steps, also where its argument is a share of all steps or an epoch.
    every = schedule.get(f"{pause.verb}_every") or case.argument(f"{argument}_steps")
    if not every or every < 1:
        every = steps
    pauses = steps // int(every)
    if pauses < 1:
        return None
    if argument != "logging":
        pauses = -(-steps // int(every))  # one after the last step as well
    training = case.loop_seconds - spent_seconds
    planned = int(schedule.get("max_steps") or steps)
    longer = min(_distance(spent_seconds / pauses, training / steps, pause.allowed), max(planned, steps))
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


@rule()
def own_code(case: Case) -> Verdict:
    """A tenth of the loop or more is bookkeeping, callbacks or unattributed; the method or callback behind it is named.
    Callbacks within logs, evaluations and checkpoints belong to the rules of those."""
    idle = {"bookkeeping": case.phase_seconds("bookkeeping")}
    idle["unattributed"] = max(0.0, case.loop_seconds - math.fsum(map(case.phase_seconds, case.first.phase_seconds)))
    holders = [
        one
        for one in case.account.time.held
        if one.phase in _WITHOUT_WORK or (one.is_callback and one.phase not in _OTHER_RULES)
    ]
    elsewhere = math.fsum(one.seconds for one in holders if one.phase not in _WITHOUT_WORK)
    spent = math.fsum(idle.values()) + elsewhere
    if case.share(spent) < _TOO_MUCH:
        return None
    title = f"{share(case.share(spent))} of the training loop is bookkeeping, callbacks and unattributed time"
    if holders and holders[0].seconds >= spent / 2:
        first, key = holders[0], _instrument(holders[0])
        name = first.name if key is None else f"the instrument {key}"
        each = short_seconds(first.seconds / case.account.steps.count)
        title = f"{share(case.share(first.seconds))} of the training loop is spent in {name}, {each} a step"
    evidence: list[Row] = [
        ("bookkeeping, callbacks and unattributed", case.share(spent), "share", "steps.jsonl: phase_seconds"),
        ("bookkeeping", idle["bookkeeping"], "seconds", "steps.jsonl: phase_seconds.bookkeeping"),
        ("unattributed", idle["unattributed"], "seconds", "steps.jsonl: wall_seconds less the phases"),
        ("callbacks in other phases", elsewhere or None, "seconds", _SOURCE),
    ]
    remedies = _remedies(case, holders) or [Remedy(_UNKNOWN)]
    if math.fsum(one.seconds for one in holders) <= spent / 2:
        remedies = [Remedy(_NAMES_NOTHING if case.account.recorded_by == "callback" else _UNKNOWN)]
    return finding(title, [*evidence, *_rows(case, holders)], remedies, case.cost(spent))


def _instrument(one: HeldTime) -> str | None:
    callback = one.name.partition(".")[0]
    return next((f"profile.{key}" for key, name in INSTRUMENTS.items() if name == callback), None)


def _rows(case: Case, holders: list[HeldTime]) -> list[Row]:
    long = [one for one in holders if case.share(one.seconds) >= _WORTH_A_ROW][:_MOST_ROWS]
    return [(f"{one.name}, in {one.phase}", one.seconds, "seconds", _SOURCE) for one in long]


def _remedies(case: Case, holders: list[HeldTime]) -> list[Remedy]:
    found = []
    for one in holders[:_MOST_ROWS]:
        if one.seconds < holders[0].seconds / 4 or case.share(one.seconds) < _WORTH_A_ROW:
            continue
        if key := _instrument(one):
            gain = case.gain(one.seconds, "all of the time that was measured in it")
            found.append(Remedy(_WITHOUT_INSTRUMENT.format(key), gain=gain))
        elif one.is_callback and one.phase not in _OTHER_RULES and not one.name.startswith("BudgetCallback."):
            rarer = one.seconds * (1 - 1 / _RARELY)
            gain = case.gain(rarer, "every tenth step, each as long as those that were measured")
            found.append(Remedy(_RARER.format(one.name), costs="it sees one step in ten", gain=gain))
        elif not one.name.endswith(_COMPUTES):
            found.append(Remedy(_SHORTER.format(one.name)))
    return found


@rule()
def worker_start(case: Case) -> Verdict:
    """A twentieth of the loop or more goes into starting and joining workers, which could live on."""
    return _epochs_cost(case, of_workers=True)


@rule()
def epoch_boundary(case: Case) -> Verdict:
    """A twentieth of the loop or more goes into the first batches of epochs: a sampler, a shuffle, files, a buffer."""
    return _epochs_cost(case, of_workers=False)


def _epochs_cost(case: Case, *, of_workers: bool) -> Verdict:
    """What epochs take on rank 0 beside the loading that any batch needs: iterators and workers are started, workers
    that do not persist end, first batches are late, in part by the data set: it opens files, shuffles. What a batch
    takes is its mean in the steps in which no epoch starts: an epoch's first batch waits for one."""
    loader, facts, source = case.first.loader, case.facts.get("loader", {}), "steps.jsonl: loader"
    if "start_seconds" not in loader:
        return abstains("the data loader was not watched", "EfficientTrainerMixin, or hf_efficient.callbacks")
    starts = loader["start_seconds"] > 0
    fetched, *of_all = (np.nansum(loader[name][~starts]) for name in ("fetched", "fetch_seconds", "collate_seconds"))
    fetch, collate = (float(seconds / fetched) if fetched else 0.0 for seconds in of_all)
    late = max(0.0, float(np.nansum(loader["first_wait_seconds"])) - int(starts.sum()) * (fetch + collate))
    by_dataset = float(np.nansum(loader["fetch_seconds"][starts] - fetch * loader["fetched"][starts]))
    by_dataset = min(late, max(0.0, by_dataset)) * case.unseen
    late *= case.unseen
    epochs = round(int(starts.sum()) * case.unseen)
    started, ended = (case.over_the_run(loader[name]) for name in ("start_seconds", "end_seconds"))
    spent = started + ended + late
    if epochs < 2 or case.share(spent) < MATTERS:
        return None
    workers = facts.get("workers", case.argument("dataloader_num_workers"))
    persistent = facts.get("persistent_workers", case.argument("dataloader_persistent_workers"))
    of_dataset = by_dataset >= _MOSTLY * spent
    if of_workers != bool(workers and not persistent and not of_dataset):
        return None
    each = spent / epochs
    if of_workers:
        title = f"goes into starting data loader workers anew for each of {epochs} epochs, {short_seconds(each)} each"
        gain, costs = case.gain(each * (epochs - 1), "workers start once"), "they hold memory in evaluations too"
        overrides = {"train.dataloader_persistent_workers": True}
        remedy = Remedy("keep the workers from epoch to epoch", overrides, costs, gain)
    else:
        where = "the data set starts over" if of_dataset else "the loader and its sampler start over"
        title = f"is spent where epochs meet: {where} for {short_seconds(each)}, {counted(epochs, 'time')}"
        what = "make the sampler cheaper (what it sorts or draws, once), or repeat the rows so that an epoch is longer"
        if of_dataset:
            what = "open files and fill buffers once, not at the start of each epoch; of a small data set, repeat the "
            what += "rows so that an epoch is longer"
        remedy = Remedy(what, gain=case.gain(each * (epochs - 1), "all epochs but the first start at once"))
    return finding(
        f"{share(case.share(spent))} of the training loop {title}",
        [
            ("share of the loop in starts of epochs", case.share(spent), "share", source),
            ("epochs started", epochs, "count", f"{source}.start_seconds"),
            ("starting iterators and workers", started, "seconds", f"{source}.start_seconds"),
            ("ending workers", ended, "seconds", f"{source}.end_seconds"),
            ("first batches, beyond loading them", late, "seconds", f"{source}.first_wait_seconds"),
            ("of that: the data set's own", by_dataset, "seconds", f"{source}.fetch_seconds"),
            ("workers", workers, "count", "spans.jsonl: loader.workers"),
        ],
        [remedy],
        case.cost(spent),
    )
