"""An export of a trained model: what was written, and how far it is from the model that was trained."""

from dataclasses import dataclass, field

EXPORT_JSON = "export.json"
"""Beside the exported files."""
EXPORT_VERSION = 1


@dataclass(frozen=True)
class Agreement:
    """The exported model, read back, beside the trained one, over the answers that the trained one gave.

    Attributes:
        positions: tokens of all answers, the most likely one each time.
        kl_mean, kl_max: KL(trained || exported) of the next token, in nats.
        top1: share of the positions at which both find the same token most likely.
        same_answers: prompts at which they do so throughout, so that both give the same greedy answer.
        same_prompts: prompts that the tokenizer read back cuts into the same tokens.
        llama_cpp_same_answers: greedy answers of llama.cpp that are the trained model's; None where it is not here.
    """

    prompts: int
    positions: int
    kl_mean: float
    kl_max: float
    top1: float
    same_answers: int
    same_prompts: int
    llama_cpp_same_answers: int | None = None


@dataclass(frozen=True)
class Rounding:
    """What writing a tensor lost, beside what the adapter had changed in it: Frobenius norms of the differences."""

    tensor: str
    type: str
    rounding: float
    change: float | None = None


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
    bytes: int = 0
    files: list[str] = field(default_factory=list)
    agreement: Agreement | None = None
    adapted: int = 0
    lost: int = 0
    rounding_to_change: float | None = None
    worst: list[Rounding] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
