"""A diagnosis in words, the same on a terminal and on the page; and on a terminal."""

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from hf_efficient.records.findings import FEWEST_STEPS, Confirmation, Cost, Diagnosis, Evidence, Finding, Gain, Remedy
from hf_efficient.reporting.labels import called, evidence_value, told
from hf_efficient.reporting.terminal import dim_lines, hanging
from hf_efficient.text import counted, seconds, sentence, share, short_seconds, size, usd

GAINS_OVERLAP = "Gains are predictions, each of its remedy alone: of several findings they do not add up."
OF_THE_LOOP = "the loop's time"
OF_THE_TRACE = "the traced time"
VERDICTS: dict[str, str] = called("confirmations")
_NOT_JUDGED = "Nothing was found: no optimizer step is recorded that could be judged."
_LITTLE_SECONDS = 0.1
_LONGER = "a longer run"
_MOST_NAMED = 4
_STYLES = {"critical": "bold red", "warning": "bold yellow", "info": "bold"}
_VERDICT_STYLES = {"confirmed": "bold green", "larger": "bold green", "smaller": "bold yellow", "retracted": "bold red"}


def several_gains(diagnosis: Diagnosis) -> bool:
    return sum(any(remedy.gain is not None for remedy in one.remedies) for one in diagnosis.findings) > 1


def limit_words(diagnosis: Diagnosis) -> str:
    """What bounds a run that has nothing to fix, or why nothing was judged; empty where something is to fix."""
    if diagnosis.limit is not None:  # of a few steps none is known, which nothing_to_fix says
        return f"The limit that it is at: {diagnosis.limit.text}." if diagnosis.steps >= FEWEST_STEPS else ""
    return "" if diagnosis.findings else _NOT_JUDGED


def abstentions_words(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Why, and which rules: those that lack the same thing together, and many of them by their number."""
    rules: dict[str, list[str]] = {}
    for one in diagnosis.abstentions:
        by = instrument_words(one.instrument)
        rules.setdefault(f"{one.why} ({by})" if by else one.why, []).append(one.rule)
    return [(why, ", ".join(held) if len(held) <= _MOST_NAMED else f"{len(held)} rules") for why, held in rules.items()]


def cost_words(cost: Cost, loop_seconds: float = 0.0) -> str:
    """Empty where nothing is known; with the share of the loop, where that has a length."""
    of = told(cost.seconds, lambda taken: f" ({share(taken / loop_seconds)} of the loop)") if loop_seconds > 0 else ""
    parts = (told(cost.seconds, _duration) + of, usd(cost.usd) if cost.usd else "", told(cost.bytes, size))
    return ", ".join(filter(None, parts))


def gain_words(gain: Gain, of: str = OF_THE_LOOP) -> str:
    """A prediction; ``of`` is what its share is of."""
    part = told(None if gain.seconds is None else gain.share, share, f"about {{}} of {of}")
    taken = told(None if gain.share is None else gain.seconds, _duration)
    parts = (part, taken, told(gain.bytes, size, "about {}"), usd(gain.usd) if gain.usd else "")
    return ", ".join(filter(None, parts)) or "gain not predicted"


def _duration(value: float) -> str:
    return short_seconds(value) if 0 < value < _LITTLE_SECONDS else seconds(value)


def change_words(key: str, value: Any) -> str:
    shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return f"{key}={shown}"


_OF_TRL = {
    f"train.{name}"
    for name in ("packing", "packing_strategy", "padding_free", "max_length", "loss_type", "eval_packing")
}


def argument_words(key: str, value: Any) -> str:
    """As the ``TrainingArguments`` of a script take it: ``bf16=True,``; or another call in it."""
    section, _, name = key.partition(".")
    if section == "model":
        return f"from_pretrained({name}={value!r})"
    if key == "adapter.method":
        return "get_peft_model(model, LoraConfig())"
    return f"{name}={value!r}," if section == "train" else change_words(key, value)


def remedy_words(remedy: Remedy, *, recipe: bool) -> list[str]:
    """A line per change, as a recipe's command line takes it, or a script: ``TrainingArguments(bf16=True, seed=1)``."""
    if recipe:
        return [change_words(key, value) for key, value in remedy.overrides.items()]
    lines = [argument_words(key, value) for key, value in remedy.overrides.items()]
    arguments = " ".join(line for line in lines if line.endswith(","))
    kind = "SFTConfig" if any(key in _OF_TRL for key in remedy.overrides) else "TrainingArguments"
    calls = [f"{kind}({arguments[:-1]})"] if arguments else []
    return calls + [line for line in lines if not line.endswith(",")]


def remedy_line(remedy: Remedy, *, recipe: bool) -> str:
    """All of it on one line, without its gain."""
    changes = " ".join(remedy_words(remedy, recipe=recipe))
    what = f"{remedy.what}: {changes}" if changes else remedy.what
    return f"{what}, but {remedy.costs}" if remedy.costs else what


def instrument_words(instrument: str) -> str:
    """Empty of a longer run: ``longer_run_words`` says it once for all rules."""
    named = instrument.removesuffix(_LONGER).removesuffix(", or ")
    return f"{named} would show it" if named else ""


def longer_run_words(diagnosis: Diagnosis) -> str:
    waiting = sum(one.instrument.endswith(_LONGER) for one in diagnosis.abstentions)
    return f"A longer run would show what {counted(waiting, 'rule')} could not judge." if waiting else ""


def fault_words(fault: str) -> str:
    return f"A rule failed, a defect of hf_efficient: {fault}"


def confirmation_words(held: Confirmation) -> str:
    """``data_transform: 44% less time per token predicted, 41% came, ±3%: why``; without the verdict."""
    form, less = (share, "less time per token") if held.of == "time" else (size, "less at the peak")
    parts = [told(held.predicted, form, f"{{}} {less} predicted")]
    if held.achieved is not None:
        spread = told(held.spread, share, " ±{}")
        parts.append(f"{form(abs(held.achieved))}{spread} {'came' if held.achieved >= 0 else 'more came'}")
    if held.of == "finding" and held.verdict == "confirmed" and not held.why:
        parts.append("the finding is gone")
    return ": ".join(filter(None, [held.rule, ", ".join(filter(None, parts)), held.why]))


def diagnosis_renderables(diagnosis: Diagnosis, *, evidence: bool = True) -> list[RenderableType]:
    """``evidence=False``: a short form below the account, a line per finding and its first remedy."""
    abstained = [f"{rules}: {why}" for why, rules in abstentions_words(diagnosis)]
    abstained += filter(None, [longer_run_words(diagnosis)])
    return [
        *(_end(diagnosis) if evidence else []),
        *(_confirmation(held) for held in diagnosis.confirmations),
        *_headline(diagnosis, evidence),
        *finding_renderables(diagnosis.findings, evidence=evidence, recipe=diagnosis.recipe),
        *([Text(GAINS_OVERLAP, "dim")] if evidence and several_gains(diagnosis) else []),
        *(dim_lines("Not judged:", abstained) if evidence else []),
        *(Text(fault_words(fault), "red") for fault in diagnosis.faults),
    ]


def finding_renderables(
    findings: Sequence[Finding], *, evidence: bool = True, of: str = OF_THE_LOOP, recipe: bool = True
) -> Iterator[RenderableType]:
    for number, one in enumerate(findings, 1):
        title = Text(one.title, _STYLES[one.severity])
        title.append(f"  [{one.severity}, {one.confidence}: {one.rule}]", "dim")
        yield hanging(f"{number}.", title)
        if cost := cost_words(one.cost):
            yield _indented(Text(f"costs {cost}"), 3)
        if evidence:
            yield _evidence(one.evidence)
        for remedy in one.remedies if evidence else one.remedies[:1]:
            yield from _remedy(remedy, evidence, of, recipe)


def diagnosis_hint(diagnosis: Diagnosis | None, directory: str) -> list[RenderableType]:
    if diagnosis is None:
        return []
    more = Text(f"Evidence, other remedies, what was not judged: hf-efficient diagnose {shlex.quote(directory)}", "dim")
    return [Text(""), *diagnosis_renderables(diagnosis, evidence=False), more]


def _end(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    steps = counted(diagnosis.steps, "step")
    if diagnosis.ended == "error":
        yield Text(f"The run failed after {steps}: {diagnosis.error}", "bold red")
    elif diagnosis.ended == "stopped":
        yield Text(f"The run stopped {diagnosis.error}.", "bold")
    elif diagnosis.ended == "died":
        yield Text(f"The run did not end: it was killed after {steps}, or is still running.", "bold")


def _confirmation(held: Confirmation) -> Text:
    verdict = Text(f"{VERDICTS[held.verdict]}: ", _VERDICT_STYLES.get(held.verdict, "bold"))
    return verdict.append(f"{confirmation_words(held)}.", "not bold default")


def nothing_to_fix(diagnosis: Diagnosis) -> str:
    if diagnosis.limit is None:
        return ""
    if diagnosis.steps < FEWEST_STEPS:
        seen = "; what was seen:" if diagnosis.findings else "."
        return f"{counted(diagnosis.steps, 'step')}, too few to be sure{seen}"
    return "Nothing has to be fixed; what follows is worth a look." if diagnosis.findings else "Nothing to fix."


def brief_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Each finding with its first remedy."""
    yield nothing_to_fix(diagnosis) or f"The run has {counted(len(diagnosis.findings), 'finding')}:"
    for place, one in enumerate(diagnosis.findings, 1):
        yield f"{place}. {sentence(one.title)}"
        yield from (f"   -> {remedy_line(remedy, recipe=diagnosis.recipe)}" for remedy in one.remedies[:1])


def _headline(diagnosis: Diagnosis, full: bool) -> Iterator[RenderableType]:
    if diagnosis.limit is not None:
        yield Text(nothing_to_fix(diagnosis), "bold green")
        yield from (Text(line) for line in (limit_words(diagnosis),) if line)
        if full and diagnosis.limit.evidence:
            yield _evidence(diagnosis.limit.evidence)
    elif not diagnosis.findings:
        yield Text(limit_words(diagnosis), "bold")


def _indented(part: RenderableType, by: int) -> RenderableType:
    return Padding(part, (0, 0, 0, by))


def _evidence(evidence: list[Evidence]) -> RenderableType:
    made = Table.grid("", Column(justify="right"), Column(style="dim"), padding=(0, 2, 0, 0))
    for one in evidence:
        made.add_row(Text(one.what), Text(evidence_value(one.value, one.unit)), Text(one.source))
    return _indented(made, 5)


def _remedy(remedy: Remedy, full: bool, of: str, recipe: bool) -> Iterator[RenderableType]:
    text = Text(remedy.what)
    if remedy.gain is not None:
        text.append(f": {gain_words(remedy.gain, of)}", "green")
    yield hanging("   ->", text)
    for line in remedy_words(remedy, recipe=recipe):
        yield _indented(Text(line, "cyan"), 6)
    if full and remedy.gain is not None:
        yield _indented(Text(f"predicted from: {remedy.gain.basis}", "dim"), 6)
    if full and remedy.costs:
        yield _indented(Text(f"but: {remedy.costs}", "dim"), 6)
