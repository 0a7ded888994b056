"""What a diagnosis finds: findings, what could not be checked, the limit, and what became of tested predictions."""

from dataclasses import dataclass, field
from typing import Any, Literal

DIAGNOSIS_SCHEMA_VERSION = 1

Severity = Literal["critical", "warning", "info"]
"""``critical``: the training is wrong, or about to fail; ``warning``: it costs; ``info``: worth knowing."""
Confidence = Literal["measured", "likely", "possible"]
"""``measured``: the evidence is the fault; ``likely``: other causes are hard to think of; ``possible``: worth a try."""
Verdict = Literal["confirmed", "smaller", "larger", "retracted", "unknown"]
"""``confirmed``: at least half and at most twice of what was predicted came; ``unknown``: the runs do not show it."""

FEWEST_STEPS = 8  # with fewer, start-up outweighs what a step costs


@dataclass(frozen=True)
class Evidence:
    """One figure that a finding rests on. ``unit`` is ``seconds``, ``bytes``, ``share`` (of 1), ``tokens``, ``count``,
    ``usd``, ...; empty for words. ``source`` is its place: ``steps.jsonl: phase_seconds.data_wait``."""

    what: str
    value: float | int | str
    unit: str
    source: str


@dataclass(frozen=True)
class Cost:
    """What a fault takes of the training loop, evaluations and saves included, and of the memory that trains."""

    seconds: float | None = None
    bytes: int | None = None
    usd: float | None = None


@dataclass(frozen=True)
class Gain:
    """What a remedy is predicted to give: an estimate. ``share`` is of the loop's time, evaluations and saves included,
    for the same tokens without padding: 0.25 means three quarters of the time."""

    share: float | None
    seconds: float | None
    bytes: int | None
    usd: float | None
    basis: str


@dataclass(frozen=True)
class Remedy:
    """What to change; ``gain`` is None where it cannot be predicted. ``overrides`` are by dotted key, empty where the
    change is one of code or machine. Without a recipe ``train.X`` is the argument ``X`` of ``TrainingArguments``."""

    what: str
    overrides: dict[str, Any] = field(default_factory=dict)
    costs: str = ""
    gain: Gain | None = None


@dataclass(frozen=True)
class Finding:
    """One cause; ``explains`` names the rules whose findings follow from it and rank behind it."""

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
    """One prediction of a remedy that this run applied. ``run`` is the output directory it was predicted from. ``of``:
    ``time`` per non-padding token of the loop; ``memory`` at the peak; ``finding``: only that it goes. Shares of time,
    bytes of memory; below 0: it takes more. ``spread`` is half of the interval of a share, by the steps of both
    runs."""

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
    """All that the rules said of a run. ``loop_seconds`` includes evaluations and saves: costs and gains are held
    against it. ``limit`` is None where a finding stands above ``info``; ``faults`` are rules that failed by a defect of
    hf_efficient. ``recipe``: False for a script's run, whose remedies are arguments."""

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
    recipe: bool = True
