"""What a diagnosis finds: findings with their evidence, cost and remedy, what could not be checked, the limit; and what
became of a prediction in the run that tested it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

DIAGNOSIS_SCHEMA_VERSION = 1
"""Version of ``diagnosis.json``; grows when a key changes its meaning or goes."""

Severity = Literal["critical", "warning", "info"]
"""``critical``: the training is wrong, or about to fail; ``warning``: it costs; ``info``: worth knowing."""
Confidence = Literal["measured", "likely", "possible"]
"""``measured``: the evidence is the fault; ``likely``: other causes are hard to think of; ``possible``: worth a try."""
Verdict = Literal["confirmed", "smaller", "larger", "retracted", "unknown"]
"""``confirmed``: at least half and at most twice of what was predicted came; ``unknown``: the runs do not show it."""


@dataclass(frozen=True)
class Evidence:
    """One figure that a finding rests on.

    Attributes:
        what: what it is of: ``data wait of a step``.
        value: a number, or words.
        unit: ``seconds``, ``bytes``, ``share`` (of 1), ``tokens``, ``count``, ``usd``, ...; empty for words.
        source: the place that it comes from: ``steps.jsonl: phase_seconds.data_wait``.
    """

    what: str
    value: float | int | str
    unit: str
    source: str


@dataclass(frozen=True)
class Cost:
    """What a fault takes over the run as far as it is recorded; None: not known, or not of that kind.

    Attributes:
        seconds: of the training loop, evaluations and saves included.
        bytes: of the memory that trains.
        usd: of the seconds at the run's price.
    """

    seconds: float | None = None
    bytes: int | None = None
    usd: float | None = None


@dataclass(frozen=True)
class Gain:
    """What a remedy is predicted to give. It is an estimate.

    Attributes:
        share: of the time that the training loop takes for the same tokens without padding, evaluations and saves
            included; 0.25 means that the same training takes three quarters of the time.
        seconds: the same over the run as far as it is recorded.
        bytes: of the memory that trains.
        usd: of the seconds, or of a cheaper machine.
        basis: how it was predicted.
    """

    share: float | None
    seconds: float | None
    bytes: int | None
    usd: float | None
    basis: str


@dataclass(frozen=True)
class Remedy:
    """What to change.

    Attributes:
        what: in a sentence.
        overrides: the change of the recipe, by dotted key; empty where it is one of the code or the machine. In a run
            without a recipe ``train.X`` is the argument ``X`` of its ``TrainingArguments``.
        costs: what it costs in other respects; empty where nothing.
        gain: None where it cannot be predicted.
    """

    what: str
    overrides: dict[str, Any] = field(default_factory=dict)
    costs: str = ""
    gain: Gain | None = None


@dataclass(frozen=True)
class Finding:
    """One cause.

    Attributes:
        rule: name of the rule: ``data_transform``.
        title: the cause, in a sentence.
        cost: over the run.
        remedies: the best first.
        explains: names of rules whose findings are consequences of this one, and are ranked behind it.
    """

    rule: str
    title: str
    severity: Severity = "warning"
    confidence: Confidence = "measured"
    evidence: list[Evidence] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)
    remedies: list[Remedy] = field(default_factory=list)
    explains: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Abstention:
    """A rule that could not judge: which evidence is missing, and what would give it, where anything would."""

    rule: str
    why: str
    instrument: str = ""


@dataclass(frozen=True)
class Limit:
    """What bounds the steps as they are, in a sentence, with the distance from the roofline."""

    kind: Literal["math", "bandwidth", "launch", "host", "unknown"]
    text: str
    evidence: list[Evidence] = field(default_factory=list)


@dataclass(frozen=True)
class Confirmation:
    """One prediction of a remedy that this run applied.

    Attributes:
        rule: whose remedy it is.
        run: output directory of the run that it was predicted from.
        of: ``time``: of the training loop per token that is no padding; ``memory``: at the peak; ``finding``: nothing
            was predicted but that the finding goes.
        predicted: of time the share that is saved, of memory the bytes; None of a finding.
        achieved: the same; below 0: it takes more. None where it is not known.
        spread: half of the interval in which a share of time lies, by the spread of the steps of both runs; None where
            it is not known, and of memory.
        why: the reason of the verdict, where it is not confirmed.
    """

    rule: str
    run: str
    of: Literal["time", "memory", "finding"]
    predicted: float | None
    achieved: float | None
    spread: float | None
    verdict: Verdict
    why: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """All that the rules said of a run.

    Attributes:
        ended: ``error``: an exception ended the run; ``died``: no end was recorded, it was killed or goes on.
        error: what ended it, kind and first line.
        steps: optimizer steps recorded on rank 0.
        loop_seconds: of the training loop of rank 0, evaluations and saves included: what costs and gains are held
            against.
        findings: the most important first.
        limit: None where a finding stands above ``info``.
        rules: names of all rules that were asked.
        faults: rules that failed by a defect of hf_efficient, and how.
        confirmations: what became of the predictions that the run's recipe says it tests.
    """

    schema_version: int
    hf_efficient_version: str
    ended: Literal["done", "stopped", "error", "died"]
    error: str | None
    steps: int
    loop_seconds: float
    findings: list[Finding]
    abstentions: list[Abstention]
    limit: Limit | None
    rules: list[str]
    faults: list[str] = field(default_factory=list)
    confirmations: list[Confirmation] = field(default_factory=list)

    @property
    def is_healthy(self) -> bool:
        """Whether no finding stands above ``info``."""
        return all(finding.severity == "info" for finding in self.findings)
