"""Evaluations and sample answers."""

from __future__ import annotations

from collections.abc import Mapping

from hf_efficient.report.html.sections.section import Section
from hf_efficient.report.run_data import RunData
from hf_efficient.units import seconds

__all__ = ["evaluations_section"]

# What the Trainer reports of the evaluation itself; its time has a column of its own.
_MOST_ROWS = 40
_OF_THE_EVALUATION = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time", "epoch")


def evaluations_section(run: RunData) -> Section:
    """A table of the metrics, and what the model answered before and after."""
    held = run.account.evaluations
    names = [name for each in held for name in each.metrics if name not in _OF_THE_EVALUATION]
    columns = list(dict.fromkeys(names))
    rows = [
        {
            "when": "before training" if each.step == 0 else f"step {each.step:,}",
            "values": [_figure(each.metrics, name) for name in columns],
            "seconds": seconds(each.seconds) if each.seconds is not None else "",
        }
        for each in held
    ]
    left_out = max(0, len(rows) - _MOST_ROWS)
    if left_out:
        rows = rows[: _MOST_ROWS // 2] + rows[-_MOST_ROWS // 2 :]
    answers = []
    for sample in run.answers:
        told = [
            ("before training" if step == 0 else f"after step {step:,}", text)
            for step, text in sample.generated.items()
        ]
        answers.append({"question": sample.question, "expected": sample.expected, "told": _ends(told)})
    columns = [name.replace("_", " ") for name in columns]
    return Section(
        "evaluations",
        "Evaluations and sample answers",
        context={
            "columns": columns,
            "rows": rows,
            "left_out": left_out,
            "has_recipe": run.recipe is not None,
            "answers": answers,
        },
        short="Evaluations",
    )


def _figure(metrics: Mapping[str, float | None], name: str) -> str:
    value = metrics.get(name)
    return f"{value:.4g}" if value is not None else "not finite" if name in metrics else ""


def _ends(told: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The first and the last."""
    return told if len(told) < 2 else [told[0], told[-1]]
