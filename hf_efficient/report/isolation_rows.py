"""What the tables about a recipe's variants say, in words."""

from __future__ import annotations

import statistics

from hf_efficient.records.isolation import Isolation, VariantOutcome
from hf_efficient.report.numbers import tokens_per_second
from hf_efficient.units import count, share, short_seconds

__all__ = ["apart_rows", "part_label", "variant_row"]

_LABELS = {
    "forward": "model forward",
    "backward_optimizer": "backward and optimizer",
    "communication": "other processes",
    "data": "data",
    "instrumentation": "our recording",
    "logging": "logging",
    "evaluation": "evaluations",
    "checkpointing": "saves",
}


def part_label(name: str) -> str:
    """``backward and optimizer``."""
    return _LABELS.get(name, name)


def apart_rows(found: Isolation) -> list[tuple[str, str]]:
    """What was measured by itself: a label, and a sentence."""
    return [row for row in (_loader(found), _tokenisation(found), _micro_batch(found), _no_graph(found)) if row]


def variant_row(outcome: VariantOutcome) -> tuple[str, str, str, str, bool]:
    """Its name, how often it ran, its median step, what it is or why there is none, and whether it failed."""
    seconds = [one for run in outcome.runs for one in run.step_seconds]
    step = short_seconds(statistics.median(seconds)) if seconds else ""
    if outcome.left_out:
        return outcome.name, "", "", f"left out: {outcome.left_out}", False
    told = f"failed: {outcome.failure}" if outcome.failure else outcome.what
    return outcome.name, str(len(outcome.runs)), step, told, bool(outcome.failure)


def _loader(found: Isolation) -> tuple[str, str] | None:
    loader = found.loader
    if loader is None:
        return None
    told = f"{short_seconds(loader.step_seconds)} for the batches of a step"
    if loader.model_step_seconds is not None:
        told += f", where the model alone takes {short_seconds(loader.model_step_seconds)}"
    return "the loader alone", told


def _tokenisation(found: Isolation) -> tuple[str, str] | None:
    one = found.tokenisation
    if one is None:
        return None
    rates = f"{count(round(one.examples_per_second))} examples/s, {tokens_per_second(one.tokens_per_second)}"
    return "tokenisation alone", f"{rates}; reading alone {short_seconds(one.read_seconds)}"


def _micro_batch(found: Isolation) -> tuple[str, str] | None:
    line = found.micro_batch
    if line is None:
        return None
    part = share(min(1.0, line.fixed_seconds / line.seconds))
    whole = short_seconds(line.seconds)
    return "a micro-batch", f"{short_seconds(line.fixed_seconds)} before it holds a token, {part} of its {whole}"


def _no_graph(found: Isolation) -> tuple[str, str] | None:
    if found.forward_without_graph_seconds is None:
        return None
    alone = short_seconds(found.forward_without_graph_seconds)
    return "the forward", f"{alone} of a step where nothing is kept for a backward (torch.no_grad)"
