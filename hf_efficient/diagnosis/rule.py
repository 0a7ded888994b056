"""What a rule is, and what rules judge: a run (``Case``), the variants of a recipe, one device of a trace."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from hf_efficient.records.findings import Abstention, Confidence, Cost, Evidence, Finding, Gain, Remedy, Severity
from hf_efficient.records.isolation import Isolation
from hf_efficient.records.trace import DeviceBreakdown, TraceBreakdown

Row = tuple[str, float | int | str | None, str, str]
"""Evidence: what, value, unit, source."""
_NOTHING: Final = Cost()
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

    def cost(self, seconds: float | None = None, held_bytes: int | None = None) -> Cost:
        return Cost(seconds, held_bytes, self._usd(seconds))

    def gain(self, seconds: float, basis: str, held_bytes: int | None = None) -> Gain:
        """``basis`` says how it was predicted; no more than all of the time is gained."""
        saved = max(0.0, min(seconds, self.loop_seconds))
        return Gain(self.share(saved), saved, held_bytes, self._usd(saved), basis)

    def _usd(self, seconds: float | None) -> float | None:
        price = self.price_usd_per_hour
        return None if price is None or seconds is None else seconds * price / 3600


S = TypeVar("S", bound=Subject)
Verdict = Finding | Abstention | None
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
                return Abstention(own, "no optimizer step is recorded")
            verdict = judge(subject)
            return None if verdict is None else dataclasses.replace(verdict, rule=own)

        judged.__name__ = own
        return judged

    return named


def finding(
    title: str,
    evidence: Iterable[Row],
    remedies: Sequence[Remedy],
    cost: Cost = _NOTHING,
    *,
    severity: Severity = "warning",
    confidence: Confidence = "measured",
    explains: Sequence[str] = (),
) -> Finding:
    """A rule's finding, without the evidence that is None; ``rule`` puts its name in."""
    known = [Evidence(what, value, unit, source) for what, value, unit, source in evidence if value is not None]
    return Finding("", title, severity, confidence, known, cost, list(remedies), list(explains))


def abstains(why: str, instrument: str = "") -> Abstention:
    """A rule that cannot judge: which evidence is missing, and what would give it."""
    return Abstention("", why, instrument)


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

    def unknown(self, name: str) -> Abstention | None:
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
