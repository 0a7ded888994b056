"""Scores of benchmark tasks as a table: before, after, and whether the difference is more than chance."""

from hf_efficient.records.task_scores import TaskScore, TaskScores
from hf_efficient.reporting.terminal import FoundTable

_SURE = 0.05


def scores_table(found: TaskScores) -> FoundTable:
    has_base = any(one.before is not None for one in found.scores)
    headings = ["task and metric", *(["before", "after", "difference", "p"] if has_base else ["value"])]
    return FoundTable(headings, [_cells(one, has_base) for one in found.scores], "Benchmark tasks")


def scores_lines(found: TaskScores) -> list[str]:
    """What stands below the table: the verdicts, and how the numbers were made."""
    of_all = f"first {found.limit} examples of each task" if found.limit else "all examples"
    template = "with the chat template" if found.template else "without a chat template"
    lines = [_verdict(one) for one in found.scores]
    lines.append(f"lm-eval {found.lm_eval}, {of_all}, {template}, batches of {found.batch_size}, {found.seconds:.0f} s")
    return lines


def _cells(one: TaskScore, has_base: bool) -> list[str]:
    after = _with_error(one.after, one.after_error)
    if not has_base:
        return [_name(one), after]
    paired = one.paired
    tested = [f"{paired.difference:+.4f}", _p(paired.p_value)] if paired else ["n/a", "n/a"]
    return [_name(one), _with_error(one.before, one.before_error), after, *tested]


def _name(one: TaskScore) -> str:
    return f"{one.task} {one.metric}" + (f", {one.filter}" if one.filter != "none" else "")


def _with_error(value: float | None, error: float | None) -> str:
    if value is None:
        return "n/a"
    return f"{value:.4f}" + (f" ± {error:.4f}" if error is not None else "")


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _verdict(one: TaskScore) -> str:
    made = f"{_name(one)} ({one.few_shot} shots, filter {one.filter}, {one.samples:,} examples)"
    if one.paired is None:
        return made
    better = (one.paired.difference > 0) == one.higher_is_better
    sure = one.paired.p_value < _SURE
    verdict = f"{'better' if better else 'worse'} after training" if sure else "no difference beyond chance"
    interval = f"95% interval {one.paired.low:+.4f} to {one.paired.high:+.4f}"
    return f"{made}: {verdict} (p {_p(one.paired.p_value)}, {one.paired.method}; {interval})"
