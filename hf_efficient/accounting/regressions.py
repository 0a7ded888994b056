"""Whether a comparison shows a figure that is worse than it may be."""

from collections.abc import Mapping
from dataclasses import replace

from hf_efficient.accounting.compared_run import THROUGHPUT
from hf_efficient.accounting.comparison import BY_STEPS
from hf_efficient.errors import OutputError
from hf_efficient.estimate.significance import FEWEST_STEPS, needed, visible
from hf_efficient.estimate.statistics import WARM_UP_STEPS
from hf_efficient.records.comparison import Regression, RunComparison


def figure_names(found: RunComparison) -> dict[str, str]:
    """Names that ``--threshold`` takes, short ones too, and the figure of each."""
    names = {one.name: one.name for one in found.figures if one.better}
    memory = next((one for one in ("device_peak_allocated_bytes", "peak_rss_bytes") if one in names), "peak_rss_bytes")
    short = {"tokens_per_second": THROUGHPUT, "usd_per_million_tokens": "usd_per_million_non_padding_tokens"}
    return {**names, **{name: one for name, one in {**short, "peak_memory": memory}.items() if one in names}}


def with_regressions(found: RunComparison, allowed: Mapping[str, float]) -> RunComparison:
    """Figures that are worse than A's by more than a share allows, by ``figure_names``; one with a spread has to lie
    outside the noise too. Raises ``OutputError``: a side lacks the figure, or has too few steps for its spread."""
    names, regressions, notes = figure_names(found), [], list(found.notes)
    for given, most in allowed.items():
        figure = next((one for one in found.figures if one.name == names.get(given)), None)
        if figure is None:
            raise _no_figure(found, given, names)
        for side, value, change in zip(found.sides, figure.values, figure.changes, strict=True):
            if value is None or figure.values[0] is None:
                lacking = "A" if figure.values[0] is None else side.letter
                raise OutputError(f"--threshold {given}: {lacking} has no such figure. {_known_names(found)}")
            if change is None or change.relative is None:
                continue
            compared = change.compared
            if compared is None and figure.name in BY_STEPS[:3]:
                raise OutputError(
                    f"--threshold {given}: {min(one.steps for one in (found.sides[0], side))} steps after warm-up are "
                    f"too few. Train {FEWEST_STEPS + WARM_UP_STEPS} steps or more on each side."
                )
            worse = -change.relative if figure.better == "more" else change.relative
            if worse > most and change.judgement != "alike":
                regressions.append(Regression(side.letter, figure.name, change.relative, most))
            elif compared is not None and change.judgement == "alike" and (visible(compared) or 0) > most > 0:
                notes.append(
                    f"{side.letter}, {given}: {most:.2%} may hide in the noise; {needed(compared, most):,} steps on "
                    "each side would show it"
                )
    return replace(found, regressions=regressions, notes=notes)


def _no_figure(found: RunComparison, given: str, names: Mapping[str, str]) -> OutputError:
    if given in found.left_out:
        return OutputError(f"--threshold {given}: it is not compared: {found.left_out[given]}. {_known_names(found)}")
    return OutputError(
        f"--threshold {given}: these runs have no such figure that can be better or worse. {_known_names(found)}"
    )


def _known_names(found: RunComparison) -> str:
    return f"Write one of {', '.join(sorted(figure_names(found)))}."
