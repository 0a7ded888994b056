"""A run on a terminal: its account when it is over, one screen while it runs, its checkpoints."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hf_efficient.accounting.live import RunView
from hf_efficient.records.account import PlanAccount, RunAccount, TimeAccount
from hf_efficient.reporting import run_rows
from hf_efficient.reporting.labels import phase_label
from hf_efficient.reporting.profile_tables import profile_renderables
from hf_efficient.reporting.terminal import FoundTable, dim_lines, drawn, grid, share_bar, table
from hf_efficient.run_dir.checkpoints import MANIFEST, CheckpointState, checkpoints, fault_of
from hf_efficient.text import clock, seconds, share, short_count, short_seconds, size, usd

_BLOCKS = "▁▂▃▄▅▆▇█"
_SPARKS = 40
_MOST_PHASES = 6
_MOST_RANKS = 16


def account_renderables(account: RunAccount) -> list[RenderableType]:
    return [
        account_title(account),
        time_table(account.time),
        *map(drawn, filter(None, [run_rows.held_table(account)])),
        grid(run_rows.run_rows(account)),
        *rank_renderables(account),
        *([] if account.plan is None else plan_table(account.plan)),
        *([] if account.profile is None else profile_renderables(account.profile)),
        *dim_lines("Not measured:", [f"{gap.what}: {gap.why}" for gap in account.not_measured]),
    ]


def account_title(account: RunAccount) -> Text:
    parts = run_rows.times_run(account)
    if account.ended == "died":
        last = seconds(account.time.processes[-1].last_sign_at_seconds)
        how = f"its last heartbeat is {last} after its start{_doing(account)}{parts}"
        return Text(f"The run did not end: {how}", "bold red")
    if account.ended in ("stopped", "error"):
        words, style = _end(account, parts)
        return Text(f"The run {words}", style)
    budget = account.money.budget
    why = f"; its budget ended it ({budget.reached})" if budget is not None and budget.reached is not None else ""
    return Text(f"The run took {seconds(account.time.wall_seconds)}{parts}{why}", "bold")


def _doing(account: RunAccount) -> str:
    phase = account.time.processes[-1].open_phase
    return f", in {phase_label(phase)}" if phase else ""


def time_table(time: TimeAccount, most: int | None = None) -> Table:
    wall = time.wall_seconds
    made = table("where the time went", "seconds", "share", "", words=(0, 3))
    for label, value in [*_phases(time, most), ("unattributed", time.unattributed_seconds)]:
        part = value / wall if wall > 0 else 0.0
        style = "dim" if label == "unattributed" else ""
        made.add_row(Text(label, style), f"{value:.2f}", f"{100 * part:.1f}%", share_bar(part))
    made.add_row(Text("in all", "bold"), f"{wall:.2f}", "100.0%" if wall > 0 else "", "")
    return made


def _phases(time: TimeAccount, most: int | None) -> list[tuple[str, float]]:
    phases = time.phase_seconds
    shown = set(phases) if most is None else set(sorted(phases, key=lambda name: -phases[name])[:most])
    rows = [(phase_label(name), value) for name, value in phases.items() if name in shown]
    others = sum(value for name, value in phases.items() if name not in shown)
    return [*rows, ("other phases", others)] if len(shown) < len(phases) else rows


def rank_renderables(account: RunAccount) -> Iterator[RenderableType]:
    if account.across is None:
        return
    found = run_rows.rank_table(account)
    made = table(*found.headings[:2], gap=1, words=(0, 1))
    for name in found.headings[2:]:
        made.add_column(name, justify="right", no_wrap=name == "memory", overflow="fold")
    for row in found.rows[:_MOST_RANKS]:
        made.add_row(*map(Text, row))
    yield made
    if len(found.rows) > _MOST_RANKS:
        yield Text(f"and {len(found.rows) - _MOST_RANKS} more ranks: report.html, run.json", "dim")
    yield from map(Text, run_rows.across_lines(account))


def plan_table(plan: PlanAccount) -> Iterator[RenderableType]:
    made = table("planned and observed", "predicted", "observed", "error")
    for row in run_rows.plan_rows(plan):
        made.add_row(f"  {row.label}", row.predicted, row.observed, row.error)
    yield made
    for note in run_rows.plan_notes(plan):
        yield Text(f"  {note}", "dim")


def live_screen(view: RunView, run_dir: Path) -> RenderableType:
    times = time_table(view.account.time, most=_MOST_PHASES)
    return Group(_head(view, run_dir), *_progress(view), Text(), times, Text(), grid(_facts(view)))


def sparkline(values: Sequence[float], width: int = _SPARKS) -> str:
    """Bars between the smallest and the largest value, each the mean of its share of them: ``█▆▅▃▂▁``."""
    count = min(width, len(values))
    means = []
    for index in range(count):
        part = values[index * len(values) // count : (index + 1) * len(values) // count]
        means.append(sum(part) / len(part))
    low, high = min(means, default=0.0), max(means, default=0.0)
    if high <= low:
        return _BLOCKS[0] * count
    return "".join(_BLOCKS[round((mean - low) / (high - low) * (len(_BLOCKS) - 1))] for mean in means)


def _head(view: RunView, run_dir: Path) -> Text:
    time, silence = view.account.time, seconds(view.silent_seconds)
    starts = f", {len(time.processes)} starts" if len(time.processes) > 1 else ""
    ran = f"for {seconds(time.wall_seconds)}{starts}{_doing(view.account)}"
    name = Text(f"{run_dir}  ", "bold")
    if view.state == "running":
        return name.append(f"running {ran}", "green")
    if view.state == "ended":
        return name.append(*_end(view.account, starts))
    killed = ": it was killed, or its machine stands still" if view.state == "gone" else ""
    return name.append(f"no heartbeat for {silence}{killed}; it had run {ran}", "bold red")


def _end(account: RunAccount, starts: str) -> tuple[str, str]:
    after, budget = f"after {seconds(account.time.wall_seconds)}{starts}", account.money.budget
    if account.ended == "stopped":
        return f"stopped {after}: {account.error}", "bold yellow"
    if account.ended == "error":
        return f"failed {after}: {account.error}", "bold red"
    if budget is not None and budget.reached is not None:
        return f"ended by its budget {after}: {budget.reached}", "bold yellow"
    return f"ended {after}", "bold"


def _progress(view: RunView) -> list[RenderableType]:
    if view.max_steps is None:
        return []
    parts = [f"{view.step:,}/{view.max_steps:,} steps"]
    if view.rest is not None:
        more = "more than " if view.rest.lower_bound else ""
        parts.append(f"{more}{clock(view.rest.seconds)} left")
    cost = view.account.money.cost_usd
    if cost is not None:
        parts.append(usd(cost) if view.total_usd is None else f"{usd(cost)} of about {usd(view.total_usd)}")
    row = Table.grid(padding=(0, 2, 0, 0), expand=False)
    row.add_row(ProgressBar(total=view.max_steps, completed=view.step, width=30), ", ".join(parts))
    return [row]


def _facts(view: RunView) -> list[tuple[str, str]]:
    losses, steps, account = view.losses, view.account.steps, view.account
    loss = f"{losses[0]:.4g} {sparkline(losses)} {losses[-1]:.4g}" if losses else ""
    rows = [("loss", loss), ("evaluated", _evaluated(account))]
    if steps.p50_seconds is not None and steps.p95_seconds is not None:
        rows.append(("steps", f"p50 {short_seconds(steps.p50_seconds)}, p95 {short_seconds(steps.p95_seconds)}"))
    rows += [("tokens", _tokens(account)), ("memory", run_rows.memory_peaks(account.memory))]
    return [(name, text) for name, text in rows if text]


def _evaluated(account: RunAccount) -> str:
    if not account.evaluations:
        return ""
    last = account.evaluations[-1]
    figures = ", ".join(f"{name} {value:.4g}" for name, value in last.metrics.items() if value is not None)
    return f"after step {last.step}: {figures}"


def _tokens(account: RunAccount) -> str:
    tokens, parts = account.tokens, []
    if tokens.non_padding_tokens_per_second is not None:
        parts.append(f"{short_count(tokens.non_padding_tokens_per_second)} per second without padding")
    if tokens.padding_share is not None:
        parts.append(f"{share(tokens.padding_share)} padding")
    if account.work.mfu is not None:
        parts.append(f"{share(account.work.mfu)} MFU")
    return ", ".join(parts)


def checkpoint_table(states: Sequence[CheckpointState], *, hashes: bool) -> list[RenderableType]:
    held = "hashes" if hashes else "sizes"
    rows = [
        (
            state.path.name,
            f"{state.step:,}",
            "" if state.loss is None else f"{state.loss:.4g}",
            size(state.size),
            "no" if state.fault else "yes" if state.has_manifest else f"yes, without {MANIFEST}",
        )
        for state in states
    ]
    columns = ("checkpoint", "step", "loss", "size", f"whole (by {held})")
    faults = [Text(f"{state.path.name}: {state.fault}.", "red") for state in states if state.fault]
    whole = [state.path.name for state in states if state.fault is None]
    resumed = f"--resume continues from {whole[-1]}." if whole else "None of them can be resumed from."
    return [drawn(FoundTable(columns, rows, words=(0, 4))), *faults, Text(resumed)]


def damage_lines(run_dir: Path) -> list[RenderableType]:
    """A line for each checkpoint of a run that is not whole by the sizes of its files; none where all are."""
    faults = {path: fault_of(path) for path in checkpoints(run_dir)}
    return [Text(f"{path.name} cannot be resumed from: {fault}.", "red") for path, fault in faults.items() if fault]
