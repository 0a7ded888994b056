"""A plan in words, the same on a terminal and on the page; and on a terminal."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from hf_efficient.records import plan as rec
from hf_efficient.reporting import labels
from hf_efficient.reporting.diagnosis import change_words
from hf_efficient.reporting.labels import category_label, or_nothing, phase_label, short_number, tensor_shape, told
from hf_efficient.reporting.terminal import FoundTable, drawn, hanging, show, table
from hf_efficient.text import count, counted, flops, seconds, share, short_seconds, size, usd

_SMALLEST_SHARE = 0.001
_FRONTIER_MARK = "*"
_FEW = 3  # accelerators whose remarks are shown unasked
_STRATEGIES = {"ddp": "DDP", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "ZeRO-3", "fsdp2": "FSDP2"}
_OFFLOADED = {"optimizer": "optimizer state", "parameters": "weights"}


def show_plan(plan: rec.Plan, *, notes: bool = False) -> None:
    show(plan_renderables(plan, notes=notes))


def plan_renderables(plan: rec.Plan, *, notes: bool = False) -> list[RenderableType]:
    """The answer in the first line; ``notes``: the largest tensors too, all that is taken for granted,
    and spot markets, at the end."""
    gpus: list[RenderableType] = [Text(), GpuTable(plan)] if plan.gpus else []
    what = (
        f"{count(plan.trained_parameters)} of {count(plan.parameters)} parameters are trained ({plan.adapter}).\n"
        f"{'A step' if plan.data is None else 'The largest step'} is {step_words(plan)}: "
        f"{math.prod(plan.step_rows):,} tokens and {flops(plan.flops_per_step)}FLOP."
    )
    return [
        *([Text(answer(plan), "bold"), Text()] if plan.gpus else []),
        Text.assemble((f"{plan.recipe}: {plan.model}\n", "bold"), what),
        *([] if plan.ranks is None else _ranks(plan.ranks)),
        *([] if plan.data is None else data_renderables(plan.data)),
        *gpus,
        Text(),
        Text(_peak(plan), "bold"),
        _categories(plan),
        *(_largest_tensors(plan) if notes else ()),
        *_notes(plan, notes),
    ]


def answer(plan: rec.Plan) -> str:
    """``Fits 19 of 20 GPUs; cheapest RTX 3090 at $0.064 per million tokens, fastest B200``."""
    fitting = [gpu for gpu in plan.gpus if gpu.fits]
    if not fitting:
        which = plan.gpus[0].name if len(plan.gpus) == 1 else f"any of {len(plan.gpus)} GPUs"
        largest = max(plan.gpus, key=lambda gpu: gpu.usable_memory_bytes)
        doubt = f" of {in_gib(largest.needed_bytes)}{needed_error(largest)}, which is tight" if largest.tight else ""
        return f"Does not fit {which}: {_why(largest)}{doubt}"
    if len(plan.gpus) == 1:
        (gpu,) = fitting
        needs = f"needs {in_gib(gpu.needed_bytes)}{needed_error(gpu)} of {in_gib(gpu.usable_memory_bytes)} GiB"
        needs += " for tensors" * gpu.on_cpu
        each = f"{plan.ranks.count} x " if plan.ranks is not None and plan.ranks.count > 1 else ""
        error = speed_error(gpu)
        speed = f"{gpu.tokens_per_second:,.0f} tokens/s ({error})" if error else ""
        figures = ", ".join(filter(None, [*_price_and_time(gpu), speed]))
        verb = "Tight on" if gpu.tight else "Fits"
        return "; ".join(filter(None, [f"{verb} {each}{gpu.name}: {needs}", figures]))
    parts = []
    priced = [gpu for gpu in fitting if _price_and_time(gpu)[0]]
    timed = [gpu for gpu in fitting if gpu.step_seconds is not None]
    if priced:
        cheapest = min(priced, key=lambda gpu: gpu.run_usd or gpu.usd_per_million_tokens or 0.0)
        parts.append(f"cheapest {cheapest.name} at {_price_and_time(cheapest)[0]}")
    if timed:
        fastest = min(timed, key=lambda gpu: gpu.step_seconds or 0.0)
        parts.append(f"fastest {fastest.name}{told(fastest.run_seconds, seconds, ' in {}')}")
    return "; ".join(filter(None, [f"Fits {len(fitting)} of {len(plan.gpus)} GPUs", ", ".join(parts)]))


def in_gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.1f}"


def needed_error(gpu: rec.PlannedGpu) -> str:
    """`` ± 0.6``, in GiB."""
    if gpu.needed_range_bytes is None:
        return ""
    most = max(abs(one - gpu.needed_bytes) for one in gpu.needed_range_bytes)
    return f" ± {in_gib(most)}" if float(in_gib(most)) else ""


def fits_label(gpu: rec.PlannedGpu) -> str:
    return "tight" if gpu.tight else "yes" if gpu.fits else "no"


def speed_error(gpu: rec.PlannedGpu) -> str:
    """``-15% to +20%``, where a speed is planned."""
    if gpu.tokens_per_second is None or gpu.tokens_per_second_range is None:
        return ""
    return " to ".join(f"{one / gpu.tokens_per_second - 1:+.0%}" for one in gpu.tokens_per_second_range)


def _price_and_time(gpu: rec.PlannedGpu) -> tuple[str, str]:
    """Of the run; where its end is not known, of a million tokens and of a step. Empty where not known."""
    price = told(gpu.run_usd, usd) or told(gpu.usd_per_million_tokens, usd, "{} per million tokens")
    return price, told(gpu.run_seconds, seconds) or told(gpu.step_seconds, short_seconds, "{} a step")


def _why(gpu: rec.PlannedGpu) -> str:
    if gpu.fits:
        return ""
    if gpu.needed_bytes > gpu.usable_memory_bytes:
        return f"{in_gib(gpu.needed_bytes - gpu.usable_memory_bytes)} GiB short"
    lacking = next((note for note in gpu.notes if note.startswith("model.attn_implementation: ")), None)
    return "no bfloat16" if lacking is None else f"no {lacking.split()[1]}"


def step_words(plan: rec.Plan) -> str:
    """``8 micro-batches of 2 rows of 2,048 tokens on each of 4 GPUs``."""
    on = "" if plan.ranks is None or plan.ranks.count == 1 else f" on each of {plan.ranks.count} GPUs"
    micro_batches, rows = counted(plan.micro_batches, "micro-batch"), counted(plan.micro_batch_rows, "row")
    return f"{micro_batches} of {rows} of {counted(plan.row_tokens, 'token')}{on}"


def _ranks(ranks: rec.PlannedRanks) -> Iterator[RenderableType]:
    yield Text(f"On {counted(ranks.count, 'GPU')} with {strategy_label(ranks.strategy)}; memory is that of each.")
    if ranks.offloaded:
        label, held = offload_figure(ranks)
        yield Text(f"{label}: {held} in the machine for the {offloaded_label(ranks.offloaded)} of all.")


def strategy_label(name: str) -> str:
    return _STRATEGIES.get(name, name)


def offload_figure(ranks: rec.PlannedRanks) -> tuple[str, str]:
    if ranks.disk_bytes:
        return "NVMe disk", size(ranks.disk_bytes)
    return "Host memory", size(ranks.host_bytes)


def offloaded_label(offloaded: Sequence[str]) -> str:
    return " and ".join(_OFFLOADED.get(one, one) for one in offloaded)


def data_renderables(data: rec.PlannedData) -> list[RenderableType]:
    parts: list[RenderableType] = [Text(f"\nData: {data_sentence(data)}")]
    if data.batchings:
        rows = [(f"  {one.name}{' (the recipe)' * one.chosen}", *batching_cells(one)) for one in data.batchings]
        parts.append(drawn(FoundTable(("an epoch's batches", "positions", "padding", "steps"), rows)))
    return parts


def data_sentence(data: rec.PlannedData) -> str:
    text = (
        f"{counted(data.examples, 'example')}, {data.tokens:,} tokens in all, {data.longest_tokens:,} in the longest; "
        f"{share(data.padding_share)} of a step is padding."
    )
    if data.evaluations:
        times = "once" if data.evaluations == 1 else f"{data.evaluations:,} times"
        verb = "is" if data.evaluation_rows == 1 else "are"
        of = told(data.evaluation_examples, lambda packed: f" of {counted(packed, 'packed example')}")
        text += f" {counted(data.evaluation_rows, 'row')}{of} {verb} evaluated {times}."
    return text


def batching_cells(one: rec.PlannedBatching) -> tuple[str, str, str]:
    return f"{one.epoch_positions:,}", share(one.padding_share), f"{one.epoch_steps:,}"


def _peak(plan: rec.Plan) -> str:
    memory = plan.memory
    module = f", in {memory.peak_module}" if memory.peak_module else ""
    paged = f"; besides, {size(memory.paged_bytes)} of paged optimizer state" if memory.paged_bytes else ""
    where = peak_phase(memory, "of every step after the first")
    return f"Memory: {size(memory.peak_allocated_bytes)} allocated at the peak, in the {where}{module}{paged}"


def peak_phase(memory: rec.PlannedMemory, later: str) -> str:
    """The phase in which most is allocated, and of which step; ``later`` names the steps after the first."""
    step = "of the first step" if memory.peak_step == 1 else later
    return phase_label(memory.peak_phase) + ("" if memory.peak_phase == "evaluation" else f" {step}")


def _categories(plan: rec.Plan) -> Table:
    made = Table.grid("", Column(justify="right"), Column(justify="right"), padding=(0, 2, 0, 0))
    whole = plan.memory.peak_allocated_bytes
    for name, held in sorted(plan.memory.categories.items(), key=lambda item: -item[1]):
        if held >= _SMALLEST_SHARE * whole:
            made.add_row(f"  {category_label(name)}", size(held), share(held / whole))
    return made


def _largest_tensors(plan: rec.Plan) -> list[RenderableType]:
    rows = [
        (f"  {category_label(one.category)}", f"{one.count:,}", size(one.bytes), tensor_shape(one.shape), one.dtype)
        for one in plan.memory.largest
    ]
    headings = ("largest tensors at the peak", "number", "of each", "shape", "dtype")
    return [Text(), drawn(FoundTable(headings, rows, words=(0, 3, 4)))]


def _notes(plan: rec.Plan, every: bool) -> Iterator[RenderableType]:
    yield Text()
    notes = [*taken_for_granted(plan), *unknown_of(plan.gpus)]
    shown = notes if every else [one for one in notes if "spot" not in one]
    if not every and len(plan.gpus) > _FEW:
        names = tuple(f"{gpu.name}:" for gpu in plan.gpus)
        shown = [one for one in shown if one in plan.assumptions and not one.startswith(names)]
    yield from (hanging("-", Text(one)) for one in shown)
    on_cpu = any(gpu.on_cpu for gpu in plan.gpus)
    if on_cpu or not every:
        spot = "." if on_cpu else " at list prices. --notes adds how they are made, large tensors, and spot markets."
        yield Text(f"Estimates{spot}", "dim")
        return
    notes = ["Times and costs are estimates: the roofline of each device at published efficiencies, list prices."]
    energy = "nergy is that of the GPU at its thermal design power."
    notes.append(f"/M is per million tokens; e{energy}" if plan.steps is None else f"E{energy}")
    notes.append("GiB: what PyTorch's allocator reserves of these allocations, and the CUDA context.")
    yield from (Text(note, "dim") for note in notes)


def taken_for_granted(plan: rec.Plan) -> list[str]:
    return list(filter(None, [*plan.assumptions, spot_saves(plan.gpus, plan.steps)]))


def unknown_of(gpus: Sequence[rec.PlannedGpu]) -> list[str]:
    found: dict[str, list[str]] = {}
    for gpu in gpus:
        for note in gpu.notes:
            found.setdefault(note, []).append(gpu.name)
    return [f"{', '.join(names)}: {note}" for note, names in found.items()]


def spot_saves(gpus: Sequence[rec.PlannedGpu], steps: int | None = None) -> str:
    """How long a save on spot machines takes, and after how many steps it is cheapest; empty where not known."""
    found = [(gpu.name, gpu.spot, gpu.spot.save_every_steps) for gpu in gpus if gpu.fits and gpu.spot is not None]
    known = [(name, every) for name, _, every in found if every is not None]
    if not known:
        return ""
    spot = found[0][1]
    parts = [f"spot: a save writes {size(spot.checkpoint_bytes)} in {short_seconds(spot.checkpoint_seconds)}"]
    within = [f"{every:,} on {name}" for name, every in known if steps is None or every < steps]
    beyond = [name for name, every in known if steps is not None and every >= steps]
    if within:
        parts.append(f"train.save_steps that costs least: {', '.join(within)}")
    if beyond:
        parts.append(f"no save before the end of the run costs least on {', '.join(beyond)}")
    return "; ".join(parts)


def advice_renderables(advice: rec.PlannedAdvice) -> list[RenderableType]:
    parts: list[RenderableType] = [Text(), Text(advice_title(advice), "bold")]
    if not advice.changes:
        return parts
    made = table("GiB", "", "step", "tokens/s", words=())
    made.add_column("change", overflow="fold")
    made.add_row(*_outcome(advice.before), Text("as it is"))
    for change in advice.changes:
        text = Text("\n".join(override_lines(change)))
        if not change.keeps_training:
            text.append("\nchanges what is learned", "yellow")
        made.add_row(*_outcome(change.after), text.append(f"\n+ {change.gives}\n- {change.costs}", "dim"))
    parts.append(made)
    if not any(change.after.fits for change in advice.changes):
        parts.append(Text("None of them makes it fit: it takes a smaller model or a larger accelerator."))
    return [*parts, *(hanging("-", Text(f"left out: {why}", "dim")) for why in advice.left_out)]


def advice_title(advice: rec.PlannedAdvice) -> str:
    what = "To run faster on" if advice.before.fits else "To fit"
    head = f"{what} {advice.accelerator} ({in_gib(advice.usable_memory_bytes)} GiB)"
    if not advice.changes:
        return f"{head}: no change of the recipe is known that would help."
    return f"{head}, each change simulated, the best first"


def outcome_speed(outcome: rec.PlannedOutcome) -> tuple[str, str]:
    return or_nothing(outcome.step_seconds, short_seconds), or_nothing(outcome.tokens_per_second, "{:,.0f}".format)


def _outcome(outcome: rec.PlannedOutcome) -> list[str | Text]:
    needed = Text(in_gib(outcome.needed_bytes), "green" if outcome.fits else "red")
    return [needed, "fits" if outcome.fits else "no", *outcome_speed(outcome)]


def override_lines(change: rec.PlannedChange) -> list[str]:
    return [change_words(key, value) for key, value in change.overrides.items()]


def largest_renderables(largest: rec.PlannedLargest, rows: int, tokens: int) -> list[RenderableType]:
    head = Text(f"The most that fits {largest.accelerator}", "bold")
    return [Text(), head, *(Text(f"  {line}") for line in largest_lines(largest, rows, tokens))]


def largest_lines(largest: rec.PlannedLargest, rows: int, tokens: int) -> tuple[str, str]:
    fits, longest = largest.micro_batch_rows, largest.row_tokens
    more = " or more" if largest.rows_bounded else ""
    most = f"{fits:,}{more} row{'' if fits == 1 else 's'} of {tokens:,} tokens"
    most += f": train.per_device_train_batch_size={fits}"
    held = f"not even {counted(rows, 'row')} of {largest.row_tokens_step} tokens"
    if longest:
        bound = ", as far as the model's positions go" if largest.tokens_bounded else ""
        held = f"{counted(rows, 'row')} of {longest:,} tokens{bound}: train.max_length={longest}"
    return most if fits else f"not even one row of {tokens:,} tokens", held


class _Column(NamedTuple):
    """``left_out`` where there is no room: 1 goes first; 0 always stays."""

    head: str
    cell: Callable[[rec.PlannedGpu], str | Text]
    left_out: int = 0


class GpuTable:
    """A row per accelerator. Where the terminal is narrow, gaps shrink, and what others say too is left out."""

    def __init__(self, plan: rec.Plan) -> None:
        self._gpus = plan.gpus
        self._columns = gpu_columns(plan)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        made = self._table(2, self._columns)
        for gone in range(4):
            if Measurement.get(console, options.update(max_width=1000), made).maximum <= options.max_width:
                break
            made = self._table(1, [one for one in self._columns if not 0 < one.left_out <= gone])
        yield made
        if len(self._gpus) > 1 and any(gpu.on_frontier for gpu in self._gpus):
            yield Text(f"{_FRONTIER_MARK} none of the others that fit is at least as fast and as cheap", "dim")

    def _table(self, gap: int, columns: Sequence[_Column]) -> Table:
        made = table("accelerator", *(column.head for column in columns), gap=gap)
        if columns[-1] is _WHY:
            made.columns[-1].justify = "left"
        made.columns[0].overflow = "fold"
        for gpu in self._gpus:
            name = f"{gpu.name} {_FRONTIER_MARK}" if gpu.on_frontier else gpu.name
            made.add_row(name, *(column.cell(gpu) for column in columns), style=None if gpu.fits else "dim")
        return made


def _short(value: float | None, scale: float = 1.0) -> str:
    return or_nothing(value, lambda known: short_number(known / scale))


def _usd(value: float | None) -> str:
    return or_nothing(value, lambda paid: usd(paid).removeprefix("$"))


_COLORS = {"yes": "green", "tight": "yellow", "no": "red"}
_COMMON = [
    _Column("needs", lambda gpu: in_gib(gpu.needed_bytes)),
    _Column("has GiB", lambda gpu: in_gib(gpu.usable_memory_bytes)),
    _Column("fits", lambda gpu: Text(fits_label(gpu), _COLORS[fits_label(gpu)])),
    _Column("step", lambda gpu: or_nothing(gpu.step_seconds, short_seconds), 1),
    _Column("tokens/s", lambda gpu: or_nothing(gpu.tokens_per_second, "{:,.0f}".format), 3),
    _Column("USD/h", lambda gpu: or_nothing(gpu.price_usd_per_hour, "{:.2f}".format), 2),
]
_WHY = _Column("why", _why)
_EXPOSED = _Column("comm", lambda gpu: or_nothing(gpu.bound_shares.get("communication"), share), 2)


def gpu_columns(plan: rec.Plan) -> list[_Column]:
    """Memory, time, price; then money and energy of the whole run, or of a million tokens where the run has no end.
    What is known of no accelerator has no column."""
    spot = any(gpu.market == "spot" for gpu in plan.gpus)
    beside = not spot and any(gpu.spot is not None for gpu in plan.gpus)
    columns = [*_COMMON, *([] if plan.ranks is None else [_EXPOSED])]
    why = [] if all(gpu.fits for gpu in plan.gpus) else [_WHY]
    if plan.steps is None:
        columns.append(_Column("spot/M" if spot else "USD/M", lambda gpu: _short(gpu.usd_per_million_tokens)))
        on_spot = _Column("spot/M", lambda gpu: _short(gpu.spot.usd_per_million_tokens if gpu.spot else None))
        energy = _Column("kWh/M", lambda gpu: _short(gpu.kwh_per_million_tokens), 1)
        gas = _Column("gCO2e/M", lambda gpu: _short(gpu.co2e_grams_per_million_tokens), 1)
    else:
        columns.append(_Column("hours", lambda gpu: _short(gpu.run_seconds, 3600)))
        columns.append(_Column("spot USD" if spot else "USD", lambda gpu: _usd(gpu.run_usd)))
        on_spot = _Column("spot", lambda gpu: _usd(gpu.spot.run_usd if gpu.spot else None))
        energy = _Column("kWh", lambda gpu: _short(gpu.run_kwh), 1)
        gas = _Column("kgCO2e", lambda gpu: _short(gpu.run_co2e_grams, 1000), 1)
    columns += [*([on_spot] if beside else []), energy, gas]
    return [*(one for one in columns if any(str(one.cell(gpu)) != labels.NOTHING for gpu in plan.gpus)), *why]
