"""The end of a training on a terminal, in at most 40 lines; ``hf-efficient report`` prints the whole account."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from hf_efficient.metrics.answers import Answer
from hf_efficient.records.account import PlanAccount, RunAccount
from hf_efficient.records.findings import Diagnosis, Finding
from hf_efficient.records.steps import PREFERENCES
from hf_efficient.reporting.console import account_title
from hf_efficient.reporting.diagnosis import gain_words, nothing_to_fix, remedy_words
from hf_efficient.reporting.labels import signed_percent
from hf_efficient.reporting.run_rows import memory_peaks, plan_rows
from hf_efficient.reporting.terminal import cut, grid, table
from hf_efficient.text import counted, share, short_seconds, usd

_MOST_ANSWERS, _MOST_METRICS, _MOST_FINDINGS = 2, 3, 3
_REWARDED = ("reward", "frac_reward_zero_std", "completions/mean_length")
_LONGEST = 150  # characters: two lines of a terminal of 80 columns


def answer_rows(before: Sequence[Answer], after: Sequence[Answer]) -> Iterator[RenderableType]:
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
    rows = [(name, before.get(name), after[name]) for name in ranked[:_MOST_METRICS]]
    rows += [] if training is None else [("training loss", *training)]
    if not rows:
        return
    made = table("", "before", "after", "change")
    for name, old, new in rows:
        change = "" if not old else signed_percent((new - old) / abs(old))
        made.add_row(Text(name), "" if old is None else f"{old:.4g}", f"{new:.4g}", change)
    yield made
    yield Text()


def headline(account: RunAccount) -> Iterator[RenderableType]:
    steps, mfu, money = account.steps, account.work.mfu, account.money
    yield account_title(account)
    speed = (
        [] if steps.p50_seconds is None else [f"{counted(steps.count, 'step')} of {short_seconds(steps.p50_seconds)}"]
    )
    rate = account.tokens.non_padding_tokens_per_second
    speed += [] if rate is None else [f"{rate:,.0f} tokens per second without padding"]
    speed += [] if mfu is None else [f"MFU {share(mfu)}"]
    cost = [] if money.cost_usd is None else [usd(money.cost_usd)]
    if cost and money.usd_per_million_non_padding_tokens is not None:
        cost.append(f"{usd(money.usd_per_million_non_padding_tokens)} per million tokens")
    planned = [] if account.plan is None else _errors(account.plan)
    rows = {"speed": speed, "memory": [memory_peaks(account.memory)], "cost": cost, "planned": planned}
    yield grid([(name, ", ".join(words)) for name, words in rows.items() if words])
    yield Text()


def _errors(plan: PlanAccount) -> list[str]:
    """The prediction against the measurement: time first, then peaks; not what is exact by construction."""
    rows = [row for row in plan_rows(plan) if row.error and row.label.startswith(("mean step", "peak"))]
    return [f"{row.label} {row.predicted} ({row.error})" for row in rows]


def short_findings(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    nothing = nothing_to_fix(diagnosis)
    if nothing:
        yield Text(nothing, "bold green")
    for number, finding in enumerate(diagnosis.findings[:_MOST_FINDINGS], 1):
        title = f"{finding.title[:1].upper()}{finding.title[1:]}"
        yield Text(f"{number}. {_shortened(title)}", "bold red" if finding.severity == "critical" else "bold")
        yield from _first_remedy(finding, diagnosis.recipe)
    more = len(diagnosis.findings) - _MOST_FINDINGS
    if more > 0:
        yield Text(f"and {more} more", "dim")


def _first_remedy(finding: Finding, recipe: bool) -> Iterator[RenderableType]:
    for remedy in finding.remedies[:1]:
        changes = " ".join(remedy_words(remedy, recipe=recipe))
        gain = "" if remedy.gain is None else f" ({gain_words(remedy.gain)})"
        line = f"{remedy.what}: {changes}" if changes else remedy.what
        yield Text(f"   -> {_shortened(line, _LONGEST - len(gain))}").append(gain, "green")


def _shortened(text: str, most: int = _LONGEST) -> str:
    return text if len(text) <= most else f"{text[: most - 4].rsplit(' ', 1)[0]} ..."


def where(output_dir: Path, merged_dir: Path | None, page: Path | None) -> RenderableType:
    name = shlex.quote(str(output_dir))
    rows = [("model", f"{output_dir}" if merged_dir is None else f"{output_dir}, merged in {merged_dir}")]
    if page is not None:
        rows += [("page", str(page)), ("next", f"hf-efficient report {name}; hf-efficient diagnose {name}")]
    return grid(rows)
