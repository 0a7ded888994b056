"""The page of a run: its sections in their order, and those of what it was, how it ended, and of its parts; and that of
a prepared data set: its funnel, and rows that each stage removed beside rows that it kept."""

import shlex
from itertools import zip_longest
from pathlib import Path
from typing import Any

from hf_efficient.curation.worth import TrainingRate
from hf_efficient.recipe.load import ResolvedValue
from hf_efficient.records.account import ProcessAccount, RunAccount, TrainingAccount
from hf_efficient.records.prepared import PreparedSet
from hf_efficient.reporting import prepared as words
from hf_efficient.reporting import run_rows
from hf_efficient.reporting.html import run_sections as parts
from hf_efficient.reporting.html.render import Section, render
from hf_efficient.reporting.labels import called, phase_label
from hf_efficient.reporting.plots.figure import span_data
from hf_efficient.reporting.run_data import RunData
from hf_efficient.reporting.trained_model import scores_lines, scores_table
from hf_efficient.text import seconds

_MOST_EVALUATIONS = 40
# What the Trainer reports of the evaluation itself; its time has a column of its own.
_OF_THE_EVALUATION = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time", "epoch")


def run_page(run: RunData) -> str:
    plan, preflight = run.account.plan, run.account.preflight
    planned = {} if plan is None else {"plan": plan, "words": run_rows}
    checked = {} if preflight is None else {"lines": run_rows.preflight_words(preflight)}
    sections = [
        parts.summary(run),
        parts.findings_section(run),
        Section("plan", "Planned and observed", context=planned, short="Plan") if planned else None,
        Section("preflight", "Preflight checks", context=checked, short="Preflight") if checked else None,
        parts.time_section(run),
        parts.system_section(run),
        parts.memory_section(run),
        parts.learning_section(run),
        parts.speed_section(run),
        parts.tokens_section(run),
        parts.cost_section(run),
        _data_section(run),
        parts.trace_section(run),
        parts.profile_section(run),
        _evaluations_section(run),
        _recipe_section(run),
        _segments_section(run),
        Section("gaps", "What was not measured", context={"gaps": run.account.not_measured}, short="Not measured"),
    ]
    return render(
        "run",
        sections,
        span=span_data(run.series.steps) if run.series is not None else None,
        title=run.name,
        kind="run report",
        command=f"hf-efficient report {shlex.quote(run.directory)}",
        run=run,
        ended=dict(zip(("kind", "word", "detail"), _ended(run.account), strict=True)),
        facts=_facts(run),
    )


def _ended(account: RunAccount) -> tuple[str, str, str]:
    if account.ended == "done":
        budget = account.money.budget
        if budget and budget.reached:
            return "warn", "stopped", f"Its budget ended it: {budget.reached}"
        return "good", "finished", ""
    if account.ended == "stopped":
        return "warn", "stopped", f"It was asked to: {account.error}. Use --resume to continue."
    if account.ended == "error":
        return "bad", "failed", account.error or ""
    detail = ended_words(account.time.processes[-1])
    return "warn", "did not end", f"It was killed, or is still running: {detail}."


def _facts(run: RunData) -> list[str]:
    facts = []
    if run.recipe is not None:
        values = {value.key: value.value for value in run.recipe.values}
        facts += [values[key] for key in ("model.id", "adapter.method", "objective") if key in values]
    machine = [text for name, text in run_rows.machine_rows(run.environment) if name in ("GPU", "CPU")]
    facts += [text for text in machine if not text.startswith(("none", "unknown"))][:1]
    ranks = len(run.account.ranks)
    if ranks > 1:
        facts.append(f"{ranks} ranks")
    by = run.account.recorded_by
    return [*facts, called("recorded_by").get(by, by)]


def _evaluations_section(run: RunData) -> Section:
    held = run.account.evaluations
    half = _MOST_EVALUATIONS // 2
    context = {
        "names": list(dict.fromkeys(name for one in held for name in one.metrics if name not in _OF_THE_EVALUATION)),
        "shown": held if len(held) <= _MOST_EVALUATIONS else [*held[:half], *held[-half:]],
        "left_out": max(0, len(held) - _MOST_EVALUATIONS),
        "has_recipe": run.recipe is not None,
        "scores": None if run.task_scores is None else scores_table(run.task_scores),
        "score_lines": [] if run.task_scores is None else scores_lines(run.task_scores),
        "answers": run.answers,
    }
    return Section("evaluations", "Evaluations and sample answers", context=context, short="Evaluations")


def _recipe_section(run: RunData) -> Section:
    recipe = run.recipe
    values = recipe.values if recipe else []
    versions = run.environment.get("versions") or {}
    context = {
        "set": [_recipe_row(value) for value in values if value.set_by is not None],
        "defaults": [_recipe_row(value) for value in values if value.set_by is None],
        "no_recipe": run.no_recipe,
        "machine": list(run_rows.machine_rows(run.environment)),
        "versions": [(name, version or "not installed") for name, version in versions.items()],
    }
    return Section("recipe", "Recipe, versions and hardware", context=context, short="Recipe")


def _recipe_row(value: ResolvedValue) -> dict[str, str]:
    origin = value.set_by or ""
    parts = origin.replace("\\", "/").split("/")
    short = "/".join(["…", *parts[-2:]]) if len(parts) > 3 and origin[:1] in "/." else origin
    return {"key": value.key, "value": value.value, "origin": origin, "short": short}


def _segments_section(run: RunData) -> Section | None:
    account, starts = run.account, run.account.time.processes
    has_calls = run_rows.has_several_trainings(account)
    if len(starts) < 2 and len(account.ranks) < 2 and not has_calls:
        return None
    context = {
        "starts": starts,
        "has_calls": has_calls,
        "ended_words": ended_words,
        "ranks": run_rows.rank_table(account) if len(account.ranks) > 1 else None,
        "across": list(run_rows.across_lines(account)),
        "restarts": list(map(run_rows.restart_words, account.restarts)),
    }
    return Section("segments", "Segments" if len(starts) > 1 or has_calls else "Ranks", context=context)


def ended_words(one: ProcessAccount | TrainingAccount) -> str:
    if one.ended == "done":
        return "finished"
    if one.ended == "stopped":
        return f"stopped {one.error}"
    if one.ended == "error":
        return f"failed: {one.error}" if one.error else "failed"
    if isinstance(one, TrainingAccount):
        return "not recorded" if one.ended is None else "no end was recorded"
    doing = f", in {phase_label(one.open_phase)}" if one.open_phase else ""
    return f"no end was recorded; last heartbeat after {seconds(one.last_sign_at_seconds)}{doing}"


def _data_section(run: RunData) -> Section | None:
    """At the run's own speed and price."""
    if run.prepared is None:
        return None
    speed, price = run.account.tokens.non_padding_tokens_per_second, run.account.money.price_usd_per_hour
    context = _funnel(run.prepared, TrainingRate(speed, price, "as this run")) | {"stages": _stages(run.prepared)}
    return Section("data", "What the data were made from", context=context, short="Data")


def prepared_page(prepared: PreparedSet, folder: Path, rate: TrainingRate, command: str) -> str:
    sections = [Section("funnel", "Funnel", context=_funnel(prepared, rate))]
    for stage in _stages(prepared):
        sections.append(Section(f"stage-{stage['id']}", stage["title"], context=stage, macro="stage_rows"))
    facts = [("Folder", str(folder)), ("Key", prepared.key), ("Written", prepared.written), *prepared.versions.items()]
    sections.append(Section("facts", "Versions", context={"facts": facts}))
    title = f"{prepared.recipe}: data"
    return render("prepared", sections, title=title, kind="data", command=command, found=prepared)


def _funnel(prepared: PreparedSet, rate: TrainingRate) -> dict[str, Any]:
    table = words.funnel_table(prepared, rate, whole=True)
    return {"table": table, "sources": words.source_table(prepared), "worth": words.worth_sentence(prepared, rate)}


def _stages(prepared: PreparedSet) -> list[dict[str, Any]]:
    """Of each stage that did something: rows that it removed beside rows that it kept."""
    return [
        {
            "id": stage.name.replace(".", "-"),
            "title": words.stage_label(stage).capitalize(),
            "stage": stage,
            "pairs": pairs,
            "line": words.stage_line(stage),
        }
        for stage in prepared.stages
        if (stage.removed or stage.changed or stage.is_synthetic)
        and (pairs := list(zip_longest(stage.removed, stage.kept)))
    ]
