"""A run on a terminal: its account, one screen while it runs, its checkpoints, and its end in at most 40 lines."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from hf_efficient.accounting.live import RunView
from hf_efficient.records.account import PlanAccount, RunAccount, TimeAccount
from hf_efficient.records.findings import Diagnosis
from hf_efficient.records.steps import PREFERENCES
from hf_efficient.reporting import run_rows
from hf_efficient.reporting.diagnosis import gain_words, nothing_to_fix, remedy_line
from hf_efficient.reporting.labels import phase_label, signed_percent, told
from hf_efficient.reporting.profile_tables import profile_renderables
from hf_efficient.reporting.terminal import FoundTable, cut, dim_lines, drawn, grid, hanging, share_bar, table
from hf_efficient.run_dir.checkpoints import MANIFEST, CheckpointState, checkpoints, fault_of
from hf_efficient.text import clock, counted, seconds, sentence, share, short_count, short_seconds, size, usd

if TYPE_CHECKING:
    from hf_efficient.metrics.answers import Answer

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
    wall, phases = time.wall_seconds, time.phase_seconds
    shown = set(phases) if most is None else set(sorted(phases, key=lambda name: -phases[name])[:most])
    rows = [(phase_label(name), value) for name, value in phases.items() if name in shown]
    if len(shown) < len(phases):
        rows.append(("other phases", sum(value for name, value in phases.items() if name not in shown)))
    made = table("where the time went", "seconds", "share", "", words=(0, 3))
    for label, value in [*rows, ("unattributed", time.unattributed_seconds)]:
        part = value / wall if wall > 0 else 0.0
        style = "dim" if label == "unattributed" else ""
        made.add_row(Text(label, style), f"{value:.2f}", f"{100 * part:.1f}%", share_bar(part))
    made.add_row(Text("total", "bold"), f"{wall:.2f}", "100.0%" if wall > 0 else "", "")
    return made


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
    rows = [(f"  {label}", *figures) for label, *figures in run_rows.plan_rows(plan)]
    yield drawn(FoundTable(("planned and observed", "predicted", "observed", "error"), rows))
    yield from (Text(f"  {note}", "dim") for note in run_rows.plan_notes(plan))


def live_screen(view: RunView, run_dir: Path) -> RenderableType:
    times = time_table(view.account.time, most=_MOST_PHASES)
    return Group(_head(view, run_dir), *_progress(view), Text(), times, Text(), grid(_facts(view)))


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
    parts = [f"{view.step:,}/{counted(view.max_steps, 'step')}"]
    if view.rest is not None:
        parts.append(f"{'more than ' * view.rest.lower_bound}{clock(view.rest.seconds)} left")
    parts.append(told(view.account.money.cost_usd, usd, f"{{}}{told(view.total_usd, usd, ' of about {}')}"))
    row = Table.grid(padding=(0, 2, 0, 0), expand=False)
    row.add_row(ProgressBar(total=view.max_steps, completed=view.step, width=30), ", ".join(filter(None, parts)))
    return [row]


def _facts(view: RunView) -> list[tuple[str, str]]:
    losses, steps, account = view.losses, view.account.steps, view.account
    loss = f"{losses[0]:.4g} → {losses[-1]:.4g}" if losses else ""
    times = (told(steps.p50_seconds, short_seconds, "p50 {}"), told(steps.p95_seconds, short_seconds, "p95 {}"))
    evaluated = ""
    for last in account.evaluations[-1:]:
        figures = (f"{name} {value:.4g}" for name, value in last.metrics.items() if value is not None)
        evaluated = f"after step {last.step}: {', '.join(figures)}"
    tokens = (
        told(account.tokens.non_padding_tokens_per_second, short_count, "{} per second without padding"),
        told(account.tokens.padding_share, share, "{} padding"),
        told(account.work.mfu, share, "{} MFU"),
    )
    parts = {"loss": [loss], "evaluated": [evaluated], "steps": times, "tokens": tokens}
    return _filled({**parts, "memory": [run_rows.memory_peaks(account.memory)]})


def _filled(parts: Mapping[str, Iterable[str]]) -> list[tuple[str, str]]:
    rows = [(name, ", ".join(filter(None, words))) for name, words in parts.items()]
    return [(name, text) for name, text in rows if text]


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


_MOST_ANSWERS, _MOST_METRICS, _MOST_FINDINGS = 2, 3, 3
_REWARDED = ("reward", "frac_reward_zero_std", "completions/mean_length")
_LONGEST = 150  # characters: two lines of a terminal of 80 columns


def answer_rows(before: "Sequence[Answer]", after: "Sequence[Answer]") -> Iterator[RenderableType]:
    old = {answer.question: answer.generated for answer in before}
    for answer in after[:_MOST_ANSWERS]:
        columns = Column(style="dim", width=len("expected")), Column(no_wrap=True, overflow="ellipsis", ratio=1)
        made = Table.grid(*columns, padding=(0, 2, 0, 0), expand=True)
        texts = {"asked": answer.question, "expected": answer.expected, "before": old.get(answer.question)}
        for name, text in {**texts, "after": answer.generated}.items():
            if text is not None:
                made.add_row(name, cut(" ".join(text.split())))
        yield made
        yield Text()


def loss_table(
    before: Mapping[str, float], after: Mapping[str, float], training: tuple[float, float] | None
) -> Iterator[RenderableType]:
    """``training``: the first and last logged loss; where completions are rewarded, it is around 0 and says nothing."""
    if "reward" in after:
        after = {name: after[name] for name in _REWARDED if name in after}
        training = None
    first = (*_REWARDED, "loss", "ranking_accuracy", *PREFERENCES["margin"], *PREFERENCES["accuracy"])
    ranked = sorted(after, key=lambda name: first.index(name) if name in first else len(first))
    held = [(name, before.get(name), after[name]) for name in ranked[:_MOST_METRICS]]
    held += [] if training is None else [("training loss", *training)]
    rows = [
        (name, told(old, "{:.4g}".format), f"{new:.4g}", signed_percent((new - old) / abs(old)) if old else "")
        for name, old, new in held
    ]
    if rows:
        yield drawn(FoundTable(("", "before", "after", "change"), rows))
        yield Text()


def headline(account: RunAccount) -> Iterator[RenderableType]:
    steps, money, rate = account.steps, account.money, account.tokens.non_padding_tokens_per_second
    yield account_title(account)
    speed = (
        told(steps.p50_seconds, short_seconds, f"{counted(steps.count, 'step')} of {{}} (median)"),
        told(rate, "{:,.0f}".format, f"{{}} tokens per second without padding ({run_rows.STEPS_ALONE})"),
        told(account.work.mfu, share, "MFU {}"),
    )
    cost = told(money.cost_usd, usd), told(money.usd_per_million_non_padding_tokens, usd, "{} per million tokens")
    planned = [] if account.plan is None else _errors(account.plan)
    memory = [run_rows.memory_peaks(account.memory)]
    yield grid(_filled({"speed": speed, "memory": memory, "cost": cost, "planned": planned}))
    yield Text()


def _errors(plan: PlanAccount) -> list[str]:
    """The prediction against the measurement: time first, then peaks; not what is exact by construction."""
    rows = [row for row in run_rows.plan_rows(plan) if row.error and row.label.startswith(("mean step", "peak"))]
    return [f"{row.label} {row.predicted} ({row.error})" for row in rows]


def short_findings(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    nothing = nothing_to_fix(diagnosis)
    if nothing:
        yield Text(nothing, "bold green")
    for number, finding in enumerate(diagnosis.findings[:_MOST_FINDINGS], 1):
        title = _shortened(sentence(finding.title))
        yield hanging(f"{number}.", Text(title, "bold red" if finding.severity == "critical" else "bold"))
        for remedy in finding.remedies[:1]:
            gain = "" if remedy.gain is None else f" ({gain_words(remedy.gain)})"
            line = _shortened(remedy_line(remedy, recipe=diagnosis.recipe), _LONGEST - len(gain))
            yield hanging("   ->", Text(line).append(gain, "green"))
    more = [sentence(one.title) for one in diagnosis.findings[_MOST_FINDINGS:]]
    if more:
        yield Text(_shortened(f"and {len(more)} more: {'; '.join(more)}"), "dim")


def _shortened(text: str, most: int = _LONGEST) -> str:
    return text if len(text) <= most else f"{text[: most - 4].rsplit(' ', 1)[0]} ..."


def where(output_dir: Path, merged_dir: Path | None, page: Path | None) -> RenderableType:
    name = shlex.quote(str(output_dir))
    rows = [("model", f"{output_dir}" if merged_dir is None else f"{output_dir}, merged in {merged_dir}")]
    if page is not None:
        rows += [("page", str(page)), ("next", f"hf-efficient report {name}; hf-efficient diagnose {name}")]
    return grid(rows)
