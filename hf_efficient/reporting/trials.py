"""Short trainings on a terminal: a recipe beside its peers, by its variants, tuned, and at several values."""

import statistics
from collections.abc import Iterable, Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hf_efficient.estimate.statistics import CONFIDENCE
from hf_efficient.records.bench import ArmOutcome, Comparison
from hf_efficient.records.isolation import Isolation
from hf_efficient.records.tuning import LEAST_DOUBLING, Gain, Rung, Sweep, SweptPoint, Tuning, unmeasured_beyond
from hf_efficient.reporting.diagnosis import diagnosis_renderables
from hf_efficient.reporting.html.render import templates
from hf_efficient.reporting.labels import called, or_nothing, tokens_per_second, told
from hf_efficient.reporting.terminal import FoundTable, drawn, grid, markdown_table, share_bar, table
from hf_efficient.text import count, counted, seconds, sentence, share, short_seconds, size, usd

SPEED = ("tokens/s", "x", "host memory", "GPU memory", "p50", "p95", "padding", "MFU")
_LEARNING = ("first loss", "last loss", "least gradient norm")
_OPTIONAL = ("GPU memory", "MFU")
_BARS_WIDTH = 420  # pixels of the picture


def arms_table(found: Comparison, headings: Sequence[str]) -> FoundTable:
    """The arms that ran, in their order; an optional column of which nothing is known is left out."""
    rows = [(one.name, _cells(one)) for one in found.arms if one.runs]
    kept = [name for name in headings if name not in _OPTIONAL or any(cells[name] != "-" for _, cells in rows)]
    return FoundTable(["arm", *kept], [[arm, *(cells[name] for name in kept)] for arm, cells in rows])


def _cells(one: ArmOutcome) -> dict[str, str]:
    return {
        "tokens/s": "refused" if one.refused else or_nothing(one.tokens_per_second, "{:,.0f}".format, "-"),
        "x": or_nothing(one.ratio, lambda ratio: f"{ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]", "-"),
        "host memory": or_nothing(one.peak_host_bytes, size, "-"),
        "GPU memory": or_nothing(one.peak_device_bytes, size, "-"),
        "p50": or_nothing(one.step_p50_seconds, short_seconds, "-"),
        "p95": or_nothing(one.step_p95_seconds, short_seconds, "-"),
        "padding": or_nothing(one.padding_share, "{:.0%}".format, "-"),
        "MFU": or_nothing(one.mfu, share, "-"),
        "first loss": or_nothing(one.first_loss, "{:.3f}".format, "-"),
        "last loss": or_nothing(one.last_loss, "{:.3f}".format, "-"),
        "least gradient norm": or_nothing(one.least_gradient_norm, "{:.3g}".format, "-"),
    }


def bench_lines(found: Comparison) -> Iterator[str]:
    work = found.work
    yield f"{found.recipe}: {work.model}, on {work.device_name}, one process"
    yield (
        f"{counted(found.steps, 'optimizer step')} a run, the first {found.warm_up} left out of times and rates; "
        f"{counted(found.rounds, 'round')} in alternating order"
    )
    yield (
        f"micro-batches of {work.packed_rows} x {work.max_length} packed tokens or {work.padded_rows} padded examples "
        f"(mean {work.mean_tokens:.0f} tokens); {work.accumulation} to a step"
    )
    yield "data.targets: all in every arm, as TRL trains; tokens/s without padding, data wait and logging included"
    ratio = next((one.ratio for one in found.arms if one.ratio is not None), None)
    if ratio is not None and found.rounds == 1:
        yield f"x: tokens/s over those of {found.base}; one round says nothing of the spread"
    elif ratio is not None:
        sure = "" if ratio.confidence >= CONFIDENCE else "; six rounds give 95%"
        held = f"the interval that holds it with {ratio.confidence:.1%}{sure}"
        yield f"x: tokens/s over those of {found.base}, median of the rounds and {held}"


def without_speed(found: Comparison) -> Iterator[str]:
    for one in found.arms:
        if one.refused:
            yield f"{one.name} is refused, its speed not shown: {one.reason}"
        elif one.reason:
            yield f"{one.name} was not measured: {one.reason}"


def comparison_renderables(found: Comparison) -> list[RenderableType]:
    return [
        Text("\n".join(bench_lines(found)), "dim"),
        Text(),
        drawn(arms_table(found, SPEED)),
        Text(),
        drawn(arms_table(found, _LEARNING)),
        Text(),
        *(Text(line, "yellow") for line in without_speed(found)),
        *(Text(f"{one.name}: {one.what}", "dim") for one in found.arms if one.runs),
    ]


def markdown(found: Comparison, command: str) -> str:
    made = arms_table(found, (*SPEED, *_LEARNING))
    whats = {one.name: one.what for one in found.arms}
    rows = [[f"{row[0]}: {whats[row[0]]}", *row[1:]] for row in made.rows]
    table = markdown_table(FoundTable(made.headings, rows))
    notes = [f"- {line}" for line in (*bench_lines(found), *without_speed(found))]
    return "\n".join([f"```bash\n{command}\n```", "", *notes, "", *table, "", _foot(found)]) + "\n"


def _foot(found: Comparison) -> str:
    versions = found.environment.get("versions") or {}
    named = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    load = "" if found.load_average is None else f", load average {found.load_average:.2f} at the start"
    return f"{found.started_at}{load}. hf_efficient {found.hf_efficient_version}, {named}."


def picture(found: Comparison) -> str:
    """SVG: the ratio of each arm, with its interval."""
    arms = [(one.name, one.ratio) for one in found.arms if one.ratio is not None]
    scale = _BARS_WIDTH / max((ratio.high for _, ratio in arms), default=1.0)
    return templates().get_template("ratios.svg.jinja").render(base=found.base, arms=arms, scale=scale)


_BAR = 10
_MUCH = 0.1
_LABELS = {
    "forward": "model forward", "backward_optimizer": "backward and optimizer", "communication": "other processes",
    "instrumentation": "our recording", "evaluation": "evaluations", "checkpointing": "saves",
}  # fmt: skip


def isolation_renderables(found: Isolation) -> list[RenderableType]:
    apart = list(_apart_rows(found))
    beside: list[RenderableType] = [grid(apart), Text()] if apart else []
    return [
        _headline(found),
        _parts(found),
        *(
            Text(f"{_LABELS.get(part.name, part.name)}: {part.note}", "yellow")
            for part in found.parts
            if part.note and (part.seconds is None or part.low is None)
        ),
        Text(),
        *beside,
        _variants(found),
        *(Text(f"{sentence(note)}.", "dim") for note in found.notes),
        Text(),
        *_diagnosis(found),
    ]


def _diagnosis(found: Isolation) -> Iterator[RenderableType]:
    """A step that the parts do not explain is not called a good one."""
    if found.diagnosis is None:
        return
    unexplained = found.unexplained_seconds / found.step_seconds
    if found.diagnosis.findings or unexplained < _MUCH:
        yield from diagnosis_renderables(found.diagnosis)
        return
    yield Text(f"No cause is clear: {share(unexplained)} of a step is unexplained.", "bold yellow")
    yield from (Text(f"Not judged: {one.rule}: {one.why}", "dim") for one in found.diagnosis.abstentions)


def _headline(found: Isolation) -> Text:
    rate = "" if found.tokens_per_second is None else f", {tokens_per_second(found.tokens_per_second)} with padding"
    text = Text(f"An optimizer step of {found.recipe}: {short_seconds(found.step_seconds)}{rate}", "bold")
    each = counted(found.steps, "step")
    text.append(f"\nby difference of variants, {each} each after {found.warm_up} of warm-up", "dim")
    return text


def _parts(found: Isolation) -> Table:
    made = table("part of a step", "time", "share", "", "spread", words=(0, 3))
    made.columns[4].justify = "left"
    for part in found.parts:
        nothing = part.low is not None and part.seconds == 0
        figures = (Text("no difference", "dim"), "", "") if nothing else _figures(found, part.seconds)
        spread = Text()
        if part.low is not None and part.high is not None:
            spread = Text(f"{_signed(part.low)} to {_signed(part.high)}", "dim", overflow="ellipsis")
        made.add_row(_LABELS.get(part.name, part.name), *figures, spread)
    made.add_row("unexplained", *_figures(found, found.unexplained_seconds), "")
    made.add_row(Text("total", "bold"), short_seconds(found.step_seconds), "100.0%", "", "")
    return made


def _figures(found: Isolation, took: float | None) -> tuple[str | Text, str, Text]:
    if took is None:
        return Text("not known", "yellow"), "", Text()
    part = took / found.step_seconds
    return _signed(took), f"{100 * part:.1f}%", share_bar(part, _BAR)


def _signed(value: float) -> str:
    return f"-{short_seconds(-value)}" if value < 0 else short_seconds(value)


def _apart_rows(found: Isolation) -> Iterator[tuple[str, str]]:
    loader, tokenised, line = found.loader, found.tokenisation, found.micro_batch
    if loader is not None:
        alone = told(loader.model_step_seconds, short_seconds, ", where the model alone takes {}")
        yield "the loader alone", f"{short_seconds(loader.step_seconds)} for the batches of a step{alone}"
    if tokenised is not None:
        rates = f"{count(round(tokenised.examples_per_second))} examples/s"
        rates += f", {tokens_per_second(tokenised.tokens_per_second)}"
        yield "tokenisation alone", f"{rates}; reading alone {short_seconds(tokenised.read_seconds)}"
    if line is not None:
        of = f"{share(min(1.0, line.fixed_seconds / line.seconds))} of its {short_seconds(line.seconds)}"
        yield "a micro-batch", f"{short_seconds(line.fixed_seconds)} before it holds a token, {of}"
    if found.forward_without_graph_seconds is not None:
        alone = short_seconds(found.forward_without_graph_seconds)
        yield "the forward", f"{alone} of a step where nothing is kept for a backward (torch.no_grad)"


def _variants(found: Isolation) -> Table:
    made = table("variant", "runs", "step", "", words=(0, 1, 3))
    for one in found.variants:
        took = [value for run in one.runs for value in run.step_seconds]
        note = Text(f"left out: {one.left_out}" if one.left_out else one.what, "dim")
        note = Text(f"failed: {one.failure}", "yellow") if one.failure else note
        step = short_seconds(statistics.median(took)) if took else ""
        made.add_row(Text(one.name, no_wrap=True), "" if one.left_out else str(len(one.runs)), step, note)
    return made


_VERDICTS: dict[str, str] = called("trials")


def gain_words(gain: Gain) -> str:
    """``1.42 times [1.38, 1.47]``."""
    interval = "" if gain.low is None or gain.high is None else f" [{gain.low:.2f}, {gain.high:.2f}]"
    return f"{gain.ratio:.2f} times{interval}"


def _short(gain: Gain) -> str:
    return gain_words(gain).replace(" times", "")


def ladder_table(found: Tuning) -> FoundTable:
    """A row for the recipe and for each accepted change; money only where a price is known."""
    headings = ["recipe", "tokens/s", "gain", "p50", "p95", "memory", "pauses", "$/M tokens"]
    rows = [_rung_cells(one, place) for place, one in enumerate(found.ladder)]
    if all(one.usd_per_million_tokens is None for one in found.ladder):
        headings, rows = headings[:-1], [row[:-1] for row in rows]
    return FoundTable(headings, rows, "The ladder")


def _rung_cells(one: Rung, place: int) -> list[str]:
    return [
        f"{'+ ' if place else ''}{one.what}",
        f"{one.tokens_per_second:,.0f}",
        or_nothing(one.gain, _short, ""),
        short_seconds(one.p50_seconds),
        short_seconds(one.p95_seconds),
        or_nothing(one.peak_bytes, size, "-"),
        f"{one.pause_share:.0%}",
        or_nothing(one.usd_per_million_tokens, usd, "-"),
    ]


def tried_table(found: Tuning) -> FoundTable:
    rows = [
        [
            one.knob,
            _VERDICTS[one.verdict],
            or_nothing(one.gain, _short, "-"),
            or_nothing(one.predicted, "{:.2f}".format, "-"),
            or_nothing(one.loss_ratio, lambda ratio: f"{ratio - 1:+.2%}", "-"),
            str(one.rounds or "-"),
        ]
        for one in found.tried
    ]
    return FoundTable(["change", "verdict", "gain", "predicted", "loss", "pairs"], rows, "What was tried", words=(0, 1))


def head_lines(found: Tuning) -> Iterator[str]:
    yield f"{found.recipe}, tuned for {found.objective.replace('_', ' ')} in {seconds(found.spent_seconds)} of trials"
    if found.total is not None:
        yield f"tuned beside original, in runs of their own: {gain_words(found.total)}"
    if not found.changes:
        yield "nothing was changed: no candidate gains beyond the noise, or may be taken"


def notes(found: Tuning) -> Iterator[str]:
    yield (
        "tokens/s are without padding, over steps, evaluations and saves; these two were timed once, on the recipe as "
        "it is. A gain is of the figure of the objective; its interval errs with 5% for each change, over all looks"
    )
    yield (
        "loss: on held-out rows after equal tokens, against the original; more than "
        f"{found.settings['tolerance']:+.0%} is refused"
    )
    firsts = {one.knob: one for one in reversed(found.tried)}  # a knob can be turned twice
    for one in reversed(firsts.values()):
        costs = f"; it costs {one.costs}" if one.verdict == "accepted" else ""
        yield f"{one.knob}: {one.what}{f': {one.why}' if one.why else ''}{costs}"
        if one.promised:
            came = "" if one.gain is None else f"; measured here: {gain_words(one.gain)}"
            yield f"{one.knob}: promised elsewhere: {one.promised}{came}"
    yield from found.notes


def tuning_renderables(found: Tuning) -> list[RenderableType]:
    tables = [ladder_table(found), *([tried_table(found)] if found.tried else [])]
    return _answered(head_lines(found), tables, notes(found))


def _answered(lines: Iterable[str], tables: Iterable[FoundTable], remarks: Iterable[str]) -> list[RenderableType]:
    """What it was, in bold; the answers; the tables; what the figures mean."""
    head, *answers = lines
    return [
        Text(head, "bold"),
        *(Text(line, "bold green") for line in answers),
        Text(),
        *(part for one in tables for part in (drawn(one), Text())),
        *(Text(f"{sentence(line)}.", "dim") for line in remarks),
    ]


_SHORT_KEYS = {"train.per_device_train_batch_size": "rows", "train.max_length": "length"}


def points_table(found: Sweep) -> FoundTable:
    """A row for each combination; MFU only where a peak is known."""
    headings = [*(_SHORT_KEYS.get(key, key.rpartition(".")[2]) for key in found.points[0].values)]
    headings += ["tokens/s", "x2", "p50", "p95", "p99", "steps", "memory", "MFU", ""]
    rows = [[*map(str, one.values.values()), *_point_cells(found, one)] for one in found.points]
    if all(one.mfu is None for one in found.points):
        headings, rows = [*headings[:-2], ""], [[*row[:-2], row[-1]] for row in rows]
    return FoundTable(headings, rows, "The points", words=(len(headings) - 1,))


def _point_cells(found: Sweep, one: SweptPoint) -> list[str]:
    marks = ["knee"] * one.is_knee + ["best"] * (found.answer is not None and found.points[found.answer] is one)
    said = {"measured": "", "does_not_fit": "no room", "no_time": "no time"}.get(one.verdict, "failed")
    if not one.steps:
        return ["-"] * 8 + [said]
    times = map(short_seconds, (one.p50_seconds, one.p95_seconds, one.p99_seconds))
    gain, mfu = or_nothing(one.gain_per_doubling, "{:.2f}".format, ""), or_nothing(one.mfu, share, "-")
    memory = or_nothing(one.peak_bytes, size, "-")
    return [f"{one.tokens_per_second:,.0f}", gain, *times, str(one.steps), memory, mfu, " ".join(marks) or said]


def sweep_lines(found: Sweep) -> Iterator[str]:
    yield f"{found.recipe}: {counted(len(found.points), 'point')} in {seconds(found.spent_seconds)} of trials"
    yield from (f"knee: {one.name}, {one.tokens_per_second:,.0f} tokens/s" for one in found.points if one.is_knee)
    limit = found.settings["most_p95_seconds"]
    if found.answer is not None:
        one = found.points[found.answer]
        best = f"{one.name}, {one.tokens_per_second:,.0f} tokens/s, p95 {short_seconds(one.p95_seconds)}"
        beyond = unmeasured_beyond(found.points, one)
        end = f"; it is the largest measured value, without {' and '.join(beyond)}" if beyond else ""
        yield f"most tokens/s with p95 under {short_seconds(limit)}: {best}{end}"
    elif limit is not None:
        shortest = min(one.p95_seconds for one in found.points if one.steps)
        yield f"no point has p95 under {short_seconds(limit)}; the shortest is {short_seconds(shortest)}"


def sweep_notes(found: Sweep) -> Iterator[str]:
    kept = found.settings["keeps_global_batch"]
    yield f"the global batch is {'kept, accumulation follows' if kept else 'not kept, accumulation stays'}"
    yield "tokens/s are without padding, over the steps of all trials; evaluations and saves are left out"
    yield f"knee: the last value of the first key whose doubling (x2) gives {LEAST_DOUBLING:g} times the tokens/s"
    yield "with fewer than 100 steps p99 is nearly the longest step, with fewer than 20 p95 too"
    yield from (f"{one.name}: {one.why}" for one in found.points if one.why)
    yield from found.notes


def sweep_renderables(found: Sweep) -> list[RenderableType]:
    return _answered(sweep_lines(found), [points_table(found)], sweep_notes(found))
