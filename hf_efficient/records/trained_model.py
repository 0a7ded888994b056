"""What was made of a trained model: scores of benchmark tasks, before and after training; an export, and how far it is
from the model; how fast it answers."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

EVALUATION_JSON = "evaluation.json"  # inside ``efficiency``
EVALUATION_VERSION = 1
EXPORT_JSON = "export.json"  # beside the exported files
EXPORT_VERSION = 1
LATENCY_SCHEMA_VERSION = 1


@dataclass(frozen=True)
class PairedTest:
    """The same examples before and after. ``difference`` is after - before; ``low`` to ``high`` its 95% interval, by
    bootstrap; ``p_value`` that of ``method`` for no difference."""

    difference: float
    low: float
    high: float
    p_value: float
    method: str


@dataclass(frozen=True)
class TaskScore:
    """One metric of one task under one filter; ``before`` of the model without its training, where it was asked for."""

    task: str
    metric: str
    filter: str
    few_shot: int
    samples: int
    higher_is_better: bool
    after: float
    after_error: float | None
    before: float | None = None
    before_error: float | None = None
    paired: PairedTest | None = None


@dataclass(frozen=True)
class TaskScores:
    """One call of ``hf-efficient eval``. ``limit``: examples per task, where not all; ``template``: whether prompts
    went through the chat template; ``seconds`` of the evaluation, without the loading of the model."""

    schema_version: int
    model: str
    base: str | None
    lm_eval: str
    template: bool
    limit: int | None
    batch_size: int
    device: str
    seconds: float
    scores: list[TaskScore]


@dataclass(frozen=True)
class Agreement:
    """The exported model, read back, beside the trained one, over the answers that the trained one gave. ``positions``:
    tokens of all answers, the most likely one each time. ``kl_mean``, ``kl_max``: KL(trained || exported) of the next
    token, in nats. ``top1``: share of the positions at which both find the same token most likely; ``ties``: the others
    whose two tokens the trained model holds equally likely within 0.01 nats. ``same_answers``: prompts at which they
    agree throughout, so that both give the same greedy answer. ``same_prompts``: prompts that the tokenizer read back
    cuts into the same tokens. ``llama_cpp_same_answers``: greedy answers of llama.cpp that are the trained model's;
    ``llama_cpp_ties``: those whose first other token is a tie. None where llama.cpp is not here. ``kl_learnt``: the
    mean KL of the model without its adapter, what the training changed; None without one."""

    prompts: int
    positions: int
    kl_mean: float
    kl_max: float
    top1: float
    ties: int
    same_answers: int
    same_prompts: int
    llama_cpp_same_answers: int | None = None
    llama_cpp_ties: int | None = None
    kl_learnt: float | None = None


@dataclass(frozen=True)
class Rounding:
    """What writing a tensor lost, beside what the adapter had changed in it: Frobenius norms of the differences."""

    tensor: str
    type: str
    rounding: float
    change: float | None = None


@dataclass(frozen=True)
class Evaluation:
    """The recipe's evaluation data: mean loss of the target ``tokens`` of its first ``examples``, in nats, before and
    after the export. ``loss_base``: of the model without its adapter."""

    examples: int
    tokens: int
    loss_before: float
    loss_after: float
    loss_base: float | None = None

    @property
    def kept(self) -> float | None:
        """The share of what the training gained that is left in the export; None where it gained nothing."""
        if self.loss_base is None or self.loss_base <= self.loss_before:
            return None
        return (self.loss_base - self.loss_after) / (self.loss_base - self.loss_before)


@dataclass(frozen=True)
class ExportReport:
    """``predicted_bytes``: of the tensors, from the configuration; ``bytes``: of all files. ``lost``: tensors whose
    rounding is larger than the adapter's change, of ``adapted`` ones; ``rounding_to_change``: the median ratio."""

    schema_version: int
    model: str
    format: str
    quantization: str | None
    predicted_bytes: int
    parameters: int
    bytes: int
    files: list[str]
    agreement: Agreement
    remarks: list[str]
    evaluation: Evaluation | None = None
    adapted: int = 0
    lost: int = 0
    rounding_to_change: float | None = None
    worst: list[Rounding] = field(default_factory=list)


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
