"""Tokens, padding and sequence lengths."""

from __future__ import annotations

from hf_efficient.report.html.sections.section import Section
from hf_efficient.report.plots.figure import Figure, Missing
from hf_efficient.report.plots.lengths import sequence_lengths
from hf_efficient.report.plots.tokens import step_tokens
from hf_efficient.report.run_data import RunData
from hf_efficient.units import share

__all__ = ["tokens_section"]


def tokens_section(run: RunData) -> Section:
    """Two plots and the counts."""
    tokens, sequences = run.account.tokens, run.account.sequences
    first: Figure | Missing
    if run.series is None:
        first = Missing("Tokens per step", "only run.json was kept of this run, not its records")
    else:
        first = step_tokens(run.series.steps, tokens)
    facts = [
        (name, f"{value:,}")
        for name, value in (
            ("tokens processed, padding included", tokens.processed),
            ("tokens without padding", tokens.non_padding),
            ("tokens that bear loss", tokens.loss_bearing),
            ("samples", sequences.samples),
            ("rows of batches", sequences.rows),
        )
        if value is not None
    ]
    if tokens.padding_share is not None:
        facts.insert(2, ("padding", share(tokens.padding_share)))
    if sequences.fill_rate is not None:
        facts.append(("packs filled to", share(sequences.fill_rate)))
    return Section("tokens", "Tokens and padding", [first, sequence_lengths(sequences)], {"facts": facts}, "Tokens")
