"""Short trainings on a terminal: a recipe beside its peers, by its variants, and tuned."""

import statistics
from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hf_efficient.estimate.statistics import CONFIDENCE
from hf_efficient.records.bench import ArmOutcome, Comparison
from hf_efficient.records.isolation import Isolation, StepPart
from hf_efficient.records.tuning import Gain, Rung, Tuning
from hf_efficient.reporting.diagnosis import diagnosis_renderables
from hf_efficient.reporting.html.render import templates
from hf_efficient.reporting.labels import called, or_nothing, tokens_per_second
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
    apart = _apart_rows(found)
    beside: list[RenderableType] = [grid(apart), Text()] if apart else []
    return [
        _headline(found),
        _parts(found),
        *_part_notes(found),
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
        made.add_row(_LABELS.get(part.name, part.name), *figures, _spread(part))
    made.add_row("unexplained", *_figures(found, found.unexplained_seconds), "")
    made.add_row(Text("total", "bold"), short_seconds(found.step_seconds), "100.0%", "", "")
    return made


def _part_notes(found: Isolation) -> Iterator[Text]:
    for part in found.parts:
        if part.note and (part.seconds is None or part.low is None):
            yield Text(f"{_LABELS.get(part.name, part.name)}: {part.note}", "yellow")


def _figures(found: Isolation, took: float | None) -> tuple[str | Text, str, Text]:
    if took is None:
        return Text("not known", "yellow"), "", Text()
    part = took / found.step_seconds
    return _signed(took), f"{100 * part:.1f}%", share_bar(part, _BAR)


def _spread(part: StepPart) -> Text:
    if part.low is None or part.high is None:
        return Text()
    return Text(f"{_signed(part.low)} to {_signed(part.high)}", "dim", overflow="ellipsis")


def _signed(value: float) -> str:
    return f"-{short_seconds(-value)}" if value < 0 else short_seconds(value)


def _apart_rows(found: Isolation) -> list[tuple[str, str]]:
    rows = []
    loader, tokenised, line = found.loader, found.tokenisation, found.micro_batch
    if loader is not None:
        text = f"{short_seconds(loader.step_seconds)} for the batches of a step"
        if loader.model_step_seconds is not None:
            text += f", where the model alone takes {short_seconds(loader.model_step_seconds)}"
        rows.append(("the loader alone", text))
    if tokenised is not None:
        rates = f"{count(round(tokenised.examples_per_second))} examples/s"
        rates += f", {tokens_per_second(tokenised.tokens_per_second)}"
        rows.append(("tokenisation alone", f"{rates}; reading alone {short_seconds(tokenised.read_seconds)}"))
    if line is not None:
        of = f"{share(min(1.0, line.fixed_seconds / line.seconds))} of its {short_seconds(line.seconds)}"
        rows.append(("a micro-batch", f"{short_seconds(line.fixed_seconds)} before it holds a token, {of}"))
    if found.forward_without_graph_seconds is not None:
        alone = short_seconds(found.forward_without_graph_seconds)
        rows.append(("the forward", f"{alone} of a step where nothing is kept for a backward (torch.no_grad)"))
    return rows


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
    head, *rest = head_lines(found)
    tried: list[RenderableType] = [drawn(tried_table(found)), Text()] if found.tried else []
    return [
        Text(head, "bold"),
        *(Text(line, "bold green") for line in rest),
        Text(),
        drawn(ladder_table(found)),
        Text(),
        *tried,
        *(Text(f"{sentence(line)}.", "dim") for line in notes(found)),
    ]
