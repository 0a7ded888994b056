"""How fast models answer, at lengths of prompt and answer and numbers of requests at a time."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

LATENCY_SCHEMA_VERSION = 1


class Percentiles(NamedTuple):
    p50: float
    p95: float
    p99: float


@dataclass
class LatencyPoint:
    """A model asked for answers of ``new_tokens`` to prompts of ``prompt_tokens``, ``at_a_time`` requests at once; a
    server reports ``read_tokens`` of a prompt and ``answered_tokens``. Seconds of one request: ``first_token`` from the
    request to its first token, ``between_tokens`` the mean from a token to the next, ``whole`` to its last token.

    ``tokens_per_second``: new tokens of all requests. ``peak_bytes``: of the model's process, on a GPU of the device.
    Energy and money are of a million new tokens. ``failed``: why there are no figures."""

    model: str
    engine: str
    prompt_tokens: int
    new_tokens: int
    at_a_time: int
    requests: int = 0
    read_tokens: float = 0.0
    answered_tokens: float = 0.0
    first_token: Percentiles | None = None
    between_tokens: Percentiles | None = None
    whole: Percentiles | None = None
    tokens_per_second: float = 0.0
    peak_bytes: int | None = None
    joules_per_million: float | None = None
    energy_is_estimated: bool = False
    usd_per_million: float | None = None
    is_knee: bool = False
    failed: str = ""


@dataclass(frozen=True)
class Latency:
    """One call of ``hf-efficient latency``."""

    schema_version: int
    hf_efficient_version: str
    environment: dict[str, Any]
    settings: dict[str, Any]
    points: list[LatencyPoint]
    notes: list[str] = field(default_factory=list)


def rising(points: Iterable[LatencyPoint]) -> dict[tuple[str, int, int], list[LatencyPoint]]:
    """The measured points by requests at a time, of each model and pair of lengths."""
    found: dict[tuple[str, int, int], list[LatencyPoint]] = {}
    for one in points:
        if not one.failed:
            found.setdefault((one.model, one.prompt_tokens, one.new_tokens), []).append(one)
    return found
