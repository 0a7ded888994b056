"""``efficiency.confirms:``, the prediction that a run tests: ``hf-efficient diagnose RUN_DIR --apply`` writes it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from hf_efficient.recipe.section import Section

__all__ = ["ConfirmsSection"]


class ConfirmsSection(Section):
    """What a change of the recipe was predicted to give, and what the run without it took.

    It holds all that the second run is compared with, so that the first one may be moved or removed.
    """

    rule: str = Field(min_length=1, description="Whose remedy is tested: the name of the rule.")
    run: str = Field("", description="Output directory of the run without the change, as its recipe had it; told only.")
    predicted_saving: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="Share of the training loop's time for the same tokens that the change should save."
    )
    predicted_bytes: PositiveInt | None = Field(None, description="Of the peak memory that the change should save.")
    seconds_per_token: PositiveFloat | None = Field(
        None, description="Of the training loop without the change, per token that is no padding."
    )
    spread: Annotated[float, Field(ge=0)] | None = Field(
        None, description="Half of the interval in which seconds_per_token lies, as a share of it."
    )
    peak_bytes: PositiveInt | None = Field(
        None, description="Peak memory without the change: of the CUDA device's tensors, or of the process on a CPU."
    )
    setup: dict[str, str] = Field(
        default_factory=dict,
        description="What this run must have in common with the one without the change: model, data, processes, "
        "device, and the fields of train that bear on the time, by their dotted keys. With others nothing can be told.",
    )
