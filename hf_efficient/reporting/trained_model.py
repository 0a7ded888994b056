"""What was made of a trained model: scores of benchmark tasks before and after training, exports and their sizes; and
how fast models answer."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from hf_efficient.estimate.gguf_size import MIXES, WRITTEN
from hf_efficient.records.trained_model import (
    Evaluation,
    ExportReport,
    Latency,
    LatencyPoint,
    Percentiles,
    TaskScore,
    TaskScores,
)
from hf_efficient.records.tuning import LEAST_DOUBLING
from hf_efficient.reporting.labels import or_nothing
from hf_efficient.reporting.terminal import FoundTable, drawn
from hf_efficient.text import counted, sentence, share, short_seconds, size

_SURE = 0.05
_MUCH = 0.1
"""Of the KL between the trained model and its base. In lab 10, 0.4 of it costs a third of the gain, 0.002 nothing."""


def scores_table(found: TaskScores) -> FoundTable:
    has_base = any(one.before is not None for one in found.scores)
    headings = ["task and metric", *(["before", "after", "difference", "p"] if has_base else ["value"])]
    return FoundTable(headings, [_cells(one, has_base) for one in found.scores], "Benchmark tasks")


def scores_lines(found: TaskScores) -> list[str]:
    of_all = f"first {counted(found.limit, 'example')} of each task" if found.limit else "all examples"
    template = "with the chat template" if found.template else "without a chat template"
    lines = [_verdict(one) for one in found.scores]
    lines.append(f"lm-eval {found.lm_eval}, {of_all}, {template}, batches of {found.batch_size}, {found.seconds:.0f} s")
    return lines


def scores_renderables(found: TaskScores) -> list[RenderableType]:
    return [drawn(scores_table(found)), *scores_lines(found)]


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
    made = f"{_name(one)} ({counted(one.few_shot, 'shot')}, filter {one.filter}, {counted(one.samples, 'example')})"
    if one.paired is None:
        return made
    better = (one.paired.difference > 0) == one.higher_is_better
    sure = one.paired.p_value < _SURE
    verdict = f"{'better' if better else 'worse'} after training" if sure else "no difference beyond chance"
    interval = f"95% interval {one.paired.low:+.4f} to {one.paired.high:+.4f}"
    return f"{made}: {verdict} (p {_p(one.paired.p_value)}, {one.paired.method}; {interval})"


def export_lines(path: Path, report: ExportReport) -> list[str]:
    found = report.agreement
    what = report.format if report.quantization is None else f"{report.format} {report.quantization}"
    lines = [
        f"{path}: {what}, {size(report.bytes)} in {counted(len(report.files), 'file')} (tensors predicted "
        f"{size(report.predicted_bytes)})",
        f"Read back: {share(found.top1)} of {found.positions:,} answer tokens as the trained model's (top-1), KL mean "
        f"{found.kl_mean:.2g}, largest {found.kl_max:.2g} nats; {found.same_answers} of {found.prompts} greedy answers "
        f"are the same.{_ties(found.ties, 'token')}",
    ]
    if report.evaluation:
        lines.append(_evaluation_line(report.evaluation))
    if found.llama_cpp_same_answers is not None:
        same = f"llama.cpp gives {found.llama_cpp_same_answers} of {found.prompts} greedy answers the same."
        lines.append(same + _ties(found.llama_cpp_ties or 0, "answer"))
    if found.same_prompts < found.prompts:
        lines.append(
            f"warning: the tokenizer read back cuts {found.prompts - found.same_prompts} of {found.prompts} prompts "
            "into other tokens."
        )
    lines += filter(None, [_rounding_warning(report)])
    serve = {
        "vllm": f"vllm serve {path} --served-model-name {report.model}",
        "ollama": f"ollama create {report.model} -f {path / 'Modelfile'}",
    }
    return [*lines, *report.remarks, *([f"Serve it: {serve[report.format]}"] if report.format in serve else [])]


def _evaluation_line(one: Evaluation) -> str:
    base = "" if one.loss_base is None else f", {one.loss_base:.4f} of the base"
    kept = "" if one.kept is None else f" The export keeps {share(max(one.kept, 0.0))} of what training gained."
    return (
        f"Loss on {counted(one.examples, 'example')} of the recipe's evaluation data: {one.loss_before:.4f} of the "
        f"trained model, {one.loss_after:.4f} of the export ({one.loss_after - one.loss_before:+.4f}){base}.{kept}"
    )


def _rounding_warning(report: ExportReport) -> str | None:
    found, rounding = report.agreement, f"warning: the rounding to {report.quantization or report.format}"
    if found.kl_learnt is not None and found.kl_mean > _MUCH * found.kl_learnt:
        larger = f"larger than the adapter's change in {report.lost} of {report.adapted} matrices, and "
        return (
            f"{rounding} is {larger * bool(report.lost)}large in the answers: {found.kl_mean:.2g} nats (KL), where the "
            f"training moved them by {found.kl_learnt:.2g}. Export with more bits."
        )
    kept = report.evaluation.kept if report.evaluation else None
    if report.adapted and kept is not None and kept < 1 - _MUCH:
        median = report.rounding_to_change or 0.0
        return (
            f"{rounding} takes {share(1 - kept)} of what training gained on the evaluation data: it is "
            f"{share(median)} of the adapter's change in the median matrix. Export with more bits, or serve the "
            "adapter beside its base."
        )
    return None


def _ties(number: int, what: str) -> str:
    """Said where the trained model itself holds two tokens equally likely: agreement.TIE_NATS."""
    return f" Of the others, {counted(number, what)} differ{'s' * (number == 1)} at a tie." if number else ""


def sizes_lines(sizes: Mapping[str, int]) -> list[str]:
    tools = {"onnx": "  needs onnxruntime", "gptq": "  needs GPTQModel", "awq": "  needs GPTQModel"}
    tools |= dict.fromkeys(set(MIXES) - set(WRITTEN), "  needs llama.cpp")
    return [f"{name:<12}{size(number):>11}{tools.get(name, '')}" for name, number in sizes.items()]


_ASKED = ["model", "engine", "prompt", "new", "at once"]
_FIGURES = ["", "tokens/s", "first", "p95", "between", "p95", "whole", "p95", "p99", "memory", "kWh/M", "USD/M"]
_SHORT = (0, 1, 2, 4, 6, 7, 9, 11)
"""Of the figures, those for which a terminal has room."""


def latency_table(found: Latency, *, short: bool = False) -> FoundTable:
    """What is the same, or not known, at all points has no column; ``short``: for a terminal."""
    asked = zip(_ASKED, *map(_asked, found.points), strict=True)
    columns = [column for column in asked if column[0] == "at once" or len(set(column[1:])) > 1]
    figures = enumerate(zip(_FIGURES, *map(_figures, found.points), strict=True))
    known = [column for place, column in figures if set(column[1:]) - {"-", ""} and (not short or place in _SHORT)]
    headings, *rows = zip(*columns, *known, strict=True)
    words = [place for place, heading in enumerate(headings) if heading in ("model", "engine", "")]
    return FoundTable(headings, rows, "The points", words=words)


def _asked(one: LatencyPoint) -> list[str]:
    name = one.model if one.engine == "server" else one.model.rstrip("/").rpartition("/")[2]
    return [name, one.engine, *(f"{number:,}" for number in (one.prompt_tokens, one.new_tokens, one.at_a_time))]


def _figures(one: LatencyPoint) -> list[str]:
    if one.failed:
        return ["failed", *["-"] * 11]
    times = [*_times(one.first_token)[:2], *_times(one.between_tokens)[:2], *_times(one.whole)]
    memory = or_nothing(one.peak_bytes, size, "-")
    kwh = or_nothing(one.joules_per_million, lambda joules: f"{joules / 3.6e6:.3g}", "-")
    usd = or_nothing(one.usd_per_million, "{:.3g}".format, "-")
    return ["knee" * one.is_knee, f"{one.tokens_per_second:,.1f}", *times, memory, kwh, usd]


def _times(found: Percentiles | None) -> list[str]:
    return ["-"] * 3 if found is None else [short_seconds(one) for one in found]


def latency_notes(found: Latency) -> Iterator[str]:
    yield "first, between, whole: medians; --json and --html have all percentiles"
    yield "first: from a request to its first token; between: the mean time from one token of an answer to the next"
    yield "whole: to the last token; tokens/s: new tokens of all requests together; memory: the model's process at most"
    if any(one.is_knee for one in found.points):
        yield f"knee: the last number at a time whose doubling gives {LEAST_DOUBLING:g} times the tokens/s"
    few = min((one.requests for one in found.points if not one.failed), default=0)
    if few < 100:
        yield f"with {few} requests at a point p99 is nearly the longest; more --seconds make it surer"
    if any(one.energy_is_estimated for one in found.points):
        yield "energy is estimated from the time that the CPUs were busy, for no meter was read"
    for one in found.points:
        if not one.failed and abs(one.answered_tokens - one.new_tokens) > 0.5:
            yield f"{one.model} ended answers after {one.answered_tokens:.0f} of {one.new_tokens} tokens"
        if not one.failed and abs(one.read_tokens - one.prompt_tokens) > 0.1 * one.prompt_tokens:
            yield f"{one.model} reads the prompts as {one.read_tokens:,.0f} tokens, not {one.prompt_tokens:,}"
    for one in (each for each in found.points if each.failed):
        asked = f"{one.new_tokens:,} new tokens after {one.prompt_tokens:,}, {one.at_a_time} at once"
        yield f"failed: {one.model}, {asked}: {one.failed.rstrip('.')}"
    yield from found.notes


def latency_renderables(found: Latency) -> Iterator[RenderableType]:
    for model in dict.fromkeys(one.model for one in found.points):
        points = [one for one in found.points if one.model == model]
        asked = {(one.prompt_tokens, one.new_tokens) for one in points}
        lengths = [f"answers of {new:,} tokens to prompts of {prompt:,}" for prompt, new in asked]
        yield Text(f"{model} on {points[0].engine}{': ' + lengths[0] if len(asked) == 1 else ''}", "bold")
        yield drawn(latency_table(replace(found, points=points), short=True))
        yield Text()
    yield from (Text(f"{sentence(one)}.", "dim") for one in latency_notes(found))
