"""What `hf-efficient bench` measures: a recipe and its peers on the same rows, each in processes of their own."""

from dataclasses import dataclass, field
from typing import Any

BENCH_SCHEMA_VERSION = 1


@dataclass(frozen=True)
class ArmRun:
    """One training of one arm; lists hold an entry per optimizer step. A step lasts from the end of the one before, so
    that data wait and logging are in it; the first lasts from the begin of the training. ``non_padding``,
    ``processed``: tokens without and with padding. ``mfu``: of the steps after warm-up, where our account has FLOPs and
    a peak."""

    seconds: list[float]
    non_padding: list[int]
    processed: list[int]
    losses: list[float]
    gradient_norms: list[float]
    peak_host_bytes: int
    peak_device_bytes: int | None = None
    mfu: float | None = None


@dataclass(frozen=True)
class Ratio:
    """Of the tokens per second of two arms: the median over the rounds, and what holds it with this confidence."""

    median: float
    low: float
    high: float
    confidence: float


@dataclass(frozen=True)
class ArmOutcome:
    """An arm in the table. An arm that cannot run, fails, or does not learn has a ``reason`` and no speed. ``refused``:
    it ran, and did not learn; ``runs`` then holds no seconds. ``tokens_per_second``: without padding, median over the
    rounds; of a round, all after warm-up over their seconds. Step times are of all rounds' steps after warm-up.
    ``first_loss``, ``last_loss``: medians over the rounds. ``least_gradient_norm``: of all steps."""

    name: str
    what: str
    reason: str = ""
    refused: bool = False
    runs: list[ArmRun] = field(default_factory=list)
    tokens_per_second: float | None = None
    ratio: Ratio | None = None
    peak_host_bytes: int | None = None
    peak_device_bytes: int | None = None
    step_p50_seconds: float | None = None
    step_p95_seconds: float | None = None
    padding_share: float | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    least_gradient_norm: float | None = None
    mfu: float | None = None


@dataclass(frozen=True)
class Work:
    """What every arm trains, as it was prepared once. ``recipe``, ``rows``: files; ``rows`` holds the examples, JSONL.
    ``kind``: of the examples: messages, string_pair, text. ``padded_rows``, ``packed_rows``: examples of a padded
    micro-batch, and packs of a packed one, that hold about as many. ``mean_tokens``: of an example, cut to
    ``train.max_length``. ``device``: torch's name of the kind of device. ``overrides``: what the command line alone may
    say."""

    recipe: str
    rows: str
    kind: str
    padded_rows: int
    packed_rows: int
    accumulation: int
    max_length: int
    mean_tokens: float
    device: str
    device_name: str
    model: str
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """The arms in order; ``base`` names the one that ratios are over: the first that ran and learns."""

    schema_version: int
    hf_efficient_version: str
    recipe: str
    started_at: str
    load_average: float | None
    environment: dict[str, Any]
    work: Work
    rounds: int
    steps: int
    warm_up: int
    base: str | None
    arms: list[ArmOutcome]
