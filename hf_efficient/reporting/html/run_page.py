"""The page of a run: its sections in their order, and those of what it was, how it ended, and of its parts."""

import shlex
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from hf_efficient.recipe.writing import ResolvedValue
from hf_efficient.records.account import ProcessAccount, RunAccount, TrainingAccount
from hf_efficient.reporting import run_rows
from hf_efficient.reporting.html import run_sections as parts
from hf_efficient.reporting.html.render import Section, render
from hf_efficient.reporting.html.run_findings import findings_section, profile_section, trace_section
from hf_efficient.reporting.labels import phase_label
from hf_efficient.reporting.plots.figure import span_data
from hf_efficient.reporting.run_data import RunData
from hf_efficient.reporting.task_scores import scores_lines, scores_table
from hf_efficient.text import seconds, share, size

_WAYS = {
    "recipe": "a recipe's run",
    "trainer": "EfficientTrainer in a script",
    "callback": "AccountCallback in a plain Trainer",
    "unknown": "records of an older version",
}
_MOST_EVALUATIONS = 40
# What the Trainer reports of the evaluation itself; its time has a column of its own.
_OF_THE_EVALUATION = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time", "epoch")


def run_page(run: RunData, written: datetime | None = None) -> str:
    sections = [
        parts.summary(run),
        findings_section(run),
        _plan_section(run),
        preflight_section(run),
        parts.time_section(run),
        parts.system_section(run),
        parts.memory_section(run),
        parts.learning_section(run),
        parts.speed_section(run),
        parts.tokens_section(run),
        parts.cost_section(run),
        trace_section(run),
        profile_section(run),
        _evaluations_section(run),
        _recipe_section(run),
        _segments_section(run),
        Section("gaps", "What was not measured", context={"gaps": run.account.not_measured}, short="Not measured"),
    ]
    kind, word, detail = _ended(run.account)
    return render(
        "run",
        sections,
        span=span_data(run.series.steps) if run.series is not None else None,
        title=f"{run.name} · hf_efficient",
        kind="run report",
        command=f"hf-efficient report {shlex.quote(run.directory)}",
        written=written,
        run=run,
        ended={"kind": kind, "word": word, "detail": detail},
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
    machine = _machine_facts(run.environment)
    facts += [text for name, text in machine if name in ("GPU", "CPU") and text != "none"][:1]
    ranks = len(run.account.ranks)
    if ranks > 1:
        facts.append(f"{ranks} ranks")
    return [*facts, _WAYS.get(run.account.recorded_by, run.account.recorded_by)]


def _plan_section(run: RunData) -> Section | None:
    plan = run.account.plan
    if plan is None:
        return None
    context = {"rows": run_rows.plan_rows(plan), "notes": run_rows.plan_notes(plan), "plan": plan}
    return Section("plan", "Planned and observed", context=context, short="Plan")


def preflight_section(run: RunData) -> Section | None:
    if run.account.preflight is None:
        return None
    lines = run_rows.preflight_words(run.account.preflight)
    return Section("preflight", "Preflight checks", context={"lines": lines}, short="Preflight")


def _evaluations_section(run: RunData) -> Section:
    held = run.account.evaluations
    names = dict.fromkeys(name for each in held for name in each.metrics if name not in _OF_THE_EVALUATION)
    rows = []
    for each in held:
        took = seconds(each.seconds) if each.seconds is not None else ""
        when = "before training" if each.step == 0 else f"step {each.step:,}"
        rows.append({"when": when, "values": [_metric(each.metrics, name) for name in names], "seconds": took})
    left_out = max(0, len(rows) - _MOST_EVALUATIONS)
    if left_out:
        rows = rows[: _MOST_EVALUATIONS // 2] + rows[-_MOST_EVALUATIONS // 2 :]
    context = {
        "columns": [name.replace("_", " ") for name in names],
        "rows": rows,
        "left_out": left_out,
        "has_recipe": run.recipe is not None,
        "scores": None if run.task_scores is None else scores_table(run.task_scores),
        "score_lines": [] if run.task_scores is None else scores_lines(run.task_scores),
        "answers": [{"asked": sample, "shown": _first_and_last(sample.generated)} for sample in run.answers],
    }
    return Section("evaluations", "Evaluations and sample answers", context=context, short="Evaluations")


def _metric(metrics: Mapping[str, float | None], name: str) -> str:
    value = metrics.get(name)
    return f"{value:.4g}" if value is not None else "not finite" if name in metrics else ""


def _first_and_last(generated: Mapping[int, str]) -> list[tuple[str, str]]:
    shown = [("before training" if step == 0 else f"after step {step:,}", text) for step, text in generated.items()]
    return shown if len(shown) < 2 else [shown[0], shown[-1]]


def _recipe_section(run: RunData) -> Section:
    recipe = run.recipe
    values = recipe.values if recipe else []
    versions = run.environment.get("versions")
    held = versions.items() if isinstance(versions, dict) else []
    context = {
        "set": [_recipe_row(value) for value in values if value.set_by is not None],
        "defaults": [_recipe_row(value) for value in values if value.set_by is None],
        "no_recipe": run.no_recipe,
        "machine": list(_machine_facts(run.environment)),
        "versions": [(str(name), str(version) if version else "not installed") for name, version in held],
    }
    return Section("recipe", "Recipe, versions and hardware", context=context, short="Recipe")


def _recipe_row(value: ResolvedValue) -> dict[str, str]:
    origin = value.set_by or ""
    parts = origin.replace("\\", "/").split("/")
    short = "/".join(["…", *parts[-2:]]) if len(parts) > 3 and origin[:1] in "/." else origin
    return {"key": value.key, "value": value.value, "origin": origin, "short": short}


def _machine_facts(environment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    gpus = environment.get("gpus")
    for gpu in gpus if isinstance(gpus, list) else []:
        if isinstance(gpu, dict):
            memory = gpu.get("memory_bytes")
            yield "GPU", f"{gpu.get('name')}" + (f", {size(memory)}" if isinstance(memory, int) else "")
    if gpus == []:
        yield "GPU", "none"
    yield from _known(environment, cpu="CPU", usable_cores="usable cores")
    if isinstance(environment.get("memory_bytes"), int):
        yield "memory", size(environment["memory_bytes"])
    yield from _known(environment, platform="system", python="Python", cuda="CUDA", driver="NVIDIA driver")
    if environment.get("git_commit") is not None:
        changed = " with changes" if environment.get("git_dirty") else ""
        yield "git commit", f"{environment['git_commit']}{changed}"


def _known(environment: Mapping[str, Any], **labels: str) -> Iterator[tuple[str, str]]:
    for key, label in labels.items():
        if environment.get(key) is not None:
            yield label, str(environment[key])


def _segments_section(run: RunData) -> Section | None:
    account = run.account
    if len(account.time.processes) < 2 and len(account.ranks) < 2 and not run_rows.has_several_trainings(account):
        return None
    rows = []
    for number, one in enumerate(account.time.processes, start=1):
        unattributed = share(one.unattributed_seconds / one.wall_seconds) if one.wall_seconds > 0 else ""
        rows.append({"number": number, **_part(one), "unattributed": unattributed})
    calls = _calls(account) if run_rows.has_several_trainings(account) else []
    context = {
        "rows": rows if len(rows) > 1 else [],
        "calls": calls,
        "ranks": run_rows.rank_table(account) if len(account.ranks) > 1 else None,
        "across": list(run_rows.across_lines(account)),
        "restarts": list(map(run_rows.restart_words, account.restarts)),
    }
    return Section("segments", "Segments" if len(rows) > 1 or calls else "Ranks", context=context)


def _part(one: ProcessAccount | TrainingAccount) -> dict[str, str]:
    return {
        "steps": f"{one.first_step:,} to {one.last_step:,}" if one.first_step is not None else "none",
        "wall": seconds(one.wall_seconds),
        "first": seconds(one.time_to_first_step_seconds) if one.time_to_first_step_seconds is not None else "",
        "ended": ended_words(one),
    }


def _calls(account: RunAccount) -> list[dict[str, str]]:
    rows = []
    for start, process in enumerate(account.time.processes, start=1):
        before = f"{start}." if len(account.time.processes) > 1 else ""
        for number, one in enumerate(process.trainings, start=1):
            called = seconds(one.called_at_seconds - process.began_at_seconds)
            rows.append({"number": f"{before}{number}", **_part(one), "called": called})
    return rows


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
