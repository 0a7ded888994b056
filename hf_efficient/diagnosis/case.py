"""What a rule is, and what rules judge: a run by its account, facts and steps; the variants of a recipe; a trace."""

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from hf_efficient.accounting.account import AccountedRun, account_run, read_account
from hf_efficient.accounting.steps import MOST_ROWS, Column, StepColumns, columns_of
from hf_efficient.errors import OutputError
from hf_efficient.recipe.load import resolved_parts
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.tree import flat
from hf_efficient.records import findings as rec
from hf_efficient.records.account import Band, RunAccount, RunSeries
from hf_efficient.records.isolation import Isolation
from hf_efficient.records.trace import DeviceBreakdown, TraceBreakdown
from hf_efficient.run_dir.paths import RESOLVED, RUN_JSON, has_only_account
from hf_efficient.trace.breakdown import trace_breakdown

logger = logging.getLogger(__name__)

_MOST_TRACE_BYTES = 64 << 20
"""Of the compressed file; a larger one takes longer than a diagnosis at the end of a run may."""


Row = tuple[str, float | int | str | None, str, str]
"""Evidence: what, value, unit, source."""
_NOTHING: Final = rec.Cost()
MATTERS: Final = 0.05
"""Below this share of the time a cost is no warning."""


class Subject:
    """What rules judge. Costs and gains are of ``loop_seconds``, a gain for the same work."""

    @property
    def loop_seconds(self) -> float:
        raise NotImplementedError

    @property
    def price_usd_per_hour(self) -> float | None:
        return None

    @property
    def has_steps(self) -> bool:
        return True

    def share(self, seconds: float) -> float:
        return seconds / self.loop_seconds if self.loop_seconds > 0 else 0.0

    def cost(self, seconds: float | None = None, held_bytes: int | None = None) -> rec.Cost:
        return rec.Cost(seconds, held_bytes, self._usd(seconds))

    def gain(self, seconds: float, basis: str, held_bytes: int | None = None) -> rec.Gain:
        """``basis`` says how it was predicted; no more than all of the time is gained."""
        saved = max(0.0, min(seconds, self.loop_seconds))
        return rec.Gain(self.share(saved), saved, held_bytes, self._usd(saved), basis)

    def _usd(self, seconds: float | None) -> float | None:
        price = self.price_usd_per_hour
        return None if price is None or seconds is None else seconds * price / 3600


S = TypeVar("S", bound=Subject)
Verdict = rec.Finding | rec.Abstention | None
"""None: the rule looked, and found nothing."""
Rule = Callable[[S], Verdict]
"""A function with the name of the rule."""


def rule(*, name: str = "", needs_steps: bool = True) -> Callable[[Rule[S]], Rule[S]]:
    """Give the function, and its verdicts, this name, else its own; without a recorded step it abstains."""

    def named(judge: Rule[S]) -> Rule[S]:
        own = name or judge.__name__

        @functools.wraps(judge)
        def judged(subject: S) -> Verdict:
            if needs_steps and not subject.has_steps:
                return rec.Abstention(own, "no optimizer step is recorded")
            verdict = judge(subject)
            return None if verdict is None else dataclasses.replace(verdict, rule=own)

        judged.__name__ = own
        return judged

    return named


def finding(
    title: str,
    evidence: Iterable[Row],
    remedies: Sequence[rec.Remedy],
    cost: rec.Cost = _NOTHING,
    *,
    severity: rec.Severity = "warning",
    confidence: rec.Confidence = "measured",
    explains: Sequence[str] = (),
) -> rec.Finding:
    """A rule's finding, without the evidence that is None; ``rule`` puts its name in."""
    known = [rec.Evidence(what, value, unit, source) for what, value, unit, source in evidence if value is not None]
    return rec.Finding("", title, severity, confidence, known, cost, list(remedies), list(explains))


def abstains(why: str, instrument: str = "") -> rec.Abstention:
    """A rule that cannot judge: which evidence is missing, and what would give it."""
    return rec.Abstention("", why, instrument)


@dataclass(frozen=True)
class IsolatedRecipe(Subject):
    """A recipe by its variants. Its time is that of the whole run, an estimate from the measured step."""

    found: Isolation

    @property
    def loop_seconds(self) -> float:
        return self.found.loop_seconds

    @property
    def price_usd_per_hour(self) -> float | None:
        return self.found.price_usd_per_hour

    def of_steps(self, step_seconds: float) -> float:
        return step_seconds * self.found.schedule.steps

    def of_a_step(self, seconds: float) -> float:
        return seconds / self.found.step_seconds

    def taken(self, name: str) -> float:
        """Seconds of a part of each step, 0 where it is not known or lies within its spread."""
        part = self.found.part(name)
        return 0.0 if part is None else max(0.0, part.seconds or 0.0)

    def unknown(self, name: str) -> rec.Abstention | None:
        """Where a part applies and was not measured."""
        part = self.found.part(name)
        return abstains(f"{name}: {part.note}") if part is not None and part.seconds is None else None

    def evidence(self, name: str, what: str) -> list[Row]:
        part = self.found.part(name)
        assert part is not None
        return [
            (what, self.taken(name), "seconds", f"isolate: {part.how}"),
            ("at least", part.low, "seconds", "isolate: its spread"),
            ("at most", part.high, "seconds", "isolate: its spread"),
            ("its share of a step", self.of_a_step(self.taken(name)), "share", "isolate"),
        ]


@dataclass(frozen=True)
class TracedDevice(Subject):
    """A trace and its busiest device. Its time is from the device's first event to its last."""

    trace: TraceBreakdown
    device: DeviceBreakdown

    @property
    def loop_seconds(self) -> float:
        return self.device.busy.window_seconds

    @property
    def name(self) -> str:
        return f"device {self.device.device}"


@dataclass(frozen=True)
class Case(Subject):
    """A run to be diagnosed; its time is that of the training loop of rank 0, evaluations and saves included. ``steps``
    by rank, of a long run the last; ``facts`` by topic, later processes over earlier ones; ``series`` is None where
    only ``run.json`` was kept. ``recipe`` has values by dotted key."""

    directory: str
    account: RunAccount
    steps: Mapping[int, StepColumns]
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    series: RunSeries | None = None
    recipe: Mapping[str, Any] | None = None

    @cached_property
    def first(self) -> StepColumns:
        return self.steps.get(0) or columns_of([])

    @property
    def has_steps(self) -> bool:
        return len(self.first) > 0

    @property
    def is_short(self) -> bool:
        return self.account.steps.count < rec.FEWEST_STEPS

    @property
    def ranks(self) -> int:
        return max(1, len(self.account.ranks))

    @cached_property
    def loop_seconds(self) -> float:
        return float(self.first.wall_seconds.sum()) * self.unseen

    @property
    def unseen(self) -> float:
        """Steps of the run over those whose records were read, at least 1."""
        return max(1.0, self.account.steps.count / len(self.first)) if self.has_steps else 1.0

    @property
    def price_usd_per_hour(self) -> float | None:
        return self.account.money.price_usd_per_hour

    def over_the_run(self, column: Column) -> float:
        return float(np.nansum(column)) * self.unseen

    def phase_seconds(self, name: str) -> float:
        return self.over_the_run(self.first.phase(name))

    @property
    def compute_seconds(self) -> float:
        return self.over_the_run(self.first.compute_seconds)

    @property
    def flops_beyond(self) -> float | None:
        """Share of the FLOPs computed that is neither the model's nor of padding, which is taken out by its share of
        the positions: masked pairs, and recompute. None where FLOPs are not counted. Hand-worked: 800 computed, 300 of
        the model, half of the positions padding: 300 / 0.5 = 600; 200 / 800 = 0.25."""
        work, padded = self.account.work, self.account.tokens.padding_share
        if not work.hardware_flops or not work.model_flops or padded is None or padded >= 1:
            return None
        return max(0.0, 1 - work.model_flops / (1 - padded) / work.hardware_flops)

    def argument(self, name: str, default: Any = None) -> Any:
        return self.settings("arguments").get(name, default)

    @property
    def rows(self) -> int:
        return int(self.argument("per_device_train_batch_size") or 1)

    @property
    def accumulated(self) -> int:
        return int(self.argument("gradient_accumulation_steps") or 1)

    def settings(self, part: str) -> Mapping[str, Any]:
        found = self.facts.get("settings", {}).get(part)
        return found if isinstance(found, Mapping) else {}

    @property
    def device_type(self) -> str | None:
        return self.settings("device").get("type")

    @property
    def on_cuda(self) -> bool:
        return self.device_type == "cuda"

    @property
    def is_mostly_frozen(self) -> bool:
        """An adapter is trained: the backward then has about as many FLOPs as the forward, else twice as many."""
        model = self.settings("model")
        trained, parameters = model.get("trainable_parameters"), model.get("parameters")
        return bool(trained and parameters and trained < 0.5 * parameters)

    @property
    def is_qlora(self) -> bool:
        return (self.recipe or {}).get("adapter.method") == "qlora"

    @property
    def is_of_preferences(self) -> bool:
        """Whether it compared answers: its recipe says so, or its arguments are those of a trainer that does."""
        objective = (self.recipe or {}).get("objective", "sft")
        compares = OBJECTIVES[objective].is_of_preferences
        return compares or self.argument("precompute_ref_log_probs") is not None

    @property
    def generates(self) -> bool:
        """Whether it trained on completions of its own: GRPO's loss lies around 0, that of distillation compares
        others in each step."""
        return self.argument("max_completion_length") is not None

    @property
    def can_be_grouped(self) -> bool:
        """Whether examples could be grouped by length, and are not; no stream, prompt or pair of answers can be, nor
        rows that are tokenised as they are collated."""
        loader = self.facts.get("loader", {})
        has_tokens = "input_ids" in loader.get("columns", ("input_ids",))  # by whose lengths transformers groups
        is_stream = self.generates or bool(loader.get("iterable")) or not has_tokens
        grouped = self.argument("train_sampling_strategy") == "group_by_length"
        return not is_stream and not self.is_of_preferences and not grouped

    @property
    def can_be_packed(self) -> bool:
        return self.argument("packing") is False and self.argument("max_length") is not None

    @cached_property
    def system_in_the_loop(self) -> list[int]:
        """Which buckets of ``series.system`` were read from the first step to the last; empty without a sampler."""
        series = self.series
        if series is None or not len(series.steps):
            return []
        began = series.steps.started_at_seconds[0]
        ended = series.steps.started_at_seconds[-1] + series.steps.wall_seconds[-1]
        bounds = zip(series.system.started_at_seconds, series.system.ended_at_seconds, strict=True)
        return [place for place, (start, end) in enumerate(bounds) if start >= began and end <= ended]

    def host_mean(self, name: str) -> float | None:
        """Mean over the training loop of a figure that the sampler read of the host, such as ``other_cores``."""
        if self.series is None:
            return None
        mean = self.series.system.host.get(name, Band()).mean
        read = (mean[place] for place in self.system_in_the_loop if place < len(mean))
        known = [value for value in read if value is not None]
        return sum(known) / len(known) if known else None

    @cached_property
    def traced_device(self) -> DeviceBreakdown | None:
        """The busiest device in the trace that rank 0's profiler left last; None without a readable one."""
        files = Path(self.directory, "profile").glob("trace.rank0.*.json*")
        last = max(files, key=lambda path: path.stat().st_mtime, default=None)
        if last is None or last.stat().st_size > _MOST_TRACE_BYTES:
            return None
        try:
            devices = trace_breakdown(last).devices
        except OutputError as error:
            logger.debug("A trace is left out of the diagnosis: %s", error)
            return None
        return max(devices, key=lambda device: device.busy.busy_seconds, default=None)


def read_case(directory: Path) -> Case:
    """What a run left in its ``efficiency`` folder. Raises ``OutputError``: there are no records, they cannot be read,
    or were written by a newer version."""
    if has_only_account(directory):
        return Case(str(directory), read_account(directory / RUN_JSON), {}, recipe=_recipe(directory / RESOLVED))
    return case_of(account_run(directory))


def case_of(run: AccountedRun) -> Case:
    records, directory = run.records, run.records.directory
    facts: dict[str, dict[str, Any]] = {}
    for process in records.processes:
        for topic, stated in process.facts.items():
            facts.setdefault(topic, {}).update(stated)
    return Case(
        directory=str(directory),
        account=run.account,
        steps={rank.rank: rank.columns[-MOST_ROWS:] for rank in records.ranks},
        facts=facts,
        series=run.series,
        recipe=_recipe(directory / RESOLVED),
    )


def _recipe(path: Path) -> Mapping[str, Any] | None:
    """Values by dotted key; a file that cannot be read is as none, for the rules can do without."""
    try:
        return flat(resolved_parts(path)[0])
    except OutputError:
        return None
