"""A remedy as a recipe, or for a script; what it predicts for the next run, and what became of it there: the figures by
which two runs are compared."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from hf_efficient.accounting.steps import StepColumns
from hf_efficient.diagnosis.case import Case
from hf_efficient.errors import OutputError
from hf_efficient.estimate.significance import Outcome, judge_gain, rate_spread, saved_share, saved_spread
from hf_efficient.facts.tables import key_table
from hf_efficient.recipe.load import dump_yaml, put_nested, resolved_parts, whole_values
from hf_efficient.recipe.schema import DERIVED, ConfirmsSection
from hf_efficient.recipe.tree import flat
from hf_efficient.records.findings import Abstention, Confirmation, Diagnosis, Finding, Remedy, Verdict
from hf_efficient.run_dir.paths import RESOLVED
from hf_efficient.version import __version__

_WORDS = key_table("diagnosis_words")
INSTRUMENTS: dict[str, str] = _WORDS["instruments"]
_GLOBAL_BATCH = "distributed.global_batch_size"
ISOLATE = "hf-efficient isolate RECIPE"
_KEY = re.compile(r"(?<![\w./])(train|profile)\.(\w+)")


def for_script(found: Any, arguments: Mapping[str, Any]) -> Any:
    """What rules said of a run without a recipe, as its script has it: ``logging_steps`` for ``train.logging_steps``,
    where that is one of the run's ``arguments``, and a callback's name for ``profile.X``. Overrides keep their keys."""
    if isinstance(found, str):
        names = {f"train.{name}": name for name in arguments} | {
            f"profile.{key}": name for key, name in INSTRUMENTS.items()
        }
        return _KEY.sub(lambda key: names.get(key[0], key[0]), found).replace(ISOLATE, "a longer run on idle cores")
    if isinstance(found, list):
        return [for_script(one, arguments) for one in found]
    if not dataclasses.is_dataclass(found) or isinstance(found, type):
        return found
    parts = {field.name: for_script(getattr(found, field.name), arguments) for field in dataclasses.fields(found)}
    return dataclasses.replace(found, **parts)


def with_global_batch(finding: Finding, case: Case) -> Finding:
    """The finding with remedies that name the global batch as well, where the recipe does and they change it.
    Hand-worked: 64 sequences of 2 rows, accumulated 4 times on 8 processes; a remedy of 8 times makes it 128."""
    named = (case.recipe or {}).get(_GLOBAL_BATCH)
    if not isinstance(named, int):
        return finding
    before, remedies = case.rows * case.accumulated, []
    for remedy in finding.remedies:
        rows = int(remedy.overrides.get("train.per_device_train_batch_size", case.rows))
        after = rows * int(remedy.overrides.get("train.gradient_accumulation_steps", case.accumulated))
        overrides = {**remedy.overrides, _GLOBAL_BATCH: named * after // before}
        remedies.append(remedy if after == before else dataclasses.replace(remedy, overrides=overrides))
    return dataclasses.replace(finding, remedies=remedies)


def remedy_of(diagnosis: Diagnosis, number: int | None) -> tuple[Finding, Remedy]:
    """The remedy to apply: the first that changes a recipe, of finding ``number`` (from 1) or the first that has one.
    Raises ``OutputError`` where there is none."""
    findings = diagnosis.findings
    if number is not None:
        if not 1 <= number <= len(findings):
            have = f"there are {len(findings)}" if findings else "there is none"
            raise OutputError(f"--finding: {number} is no finding of this run: {have}.")
        findings = [findings[number - 1]]
    for finding in findings:
        for remedy in finding.remedies:
            if remedy.overrides:
                return finding, remedy
    if not findings:
        raise OutputError("--apply: there is no finding, and nothing to change. No file is written.")
    what = f"finding {number} is" if number is not None else "the findings are"
    raise OutputError(f"--apply: {what} not fixed in the recipe but in code or machine. No file is written.")


def applied_recipe(directory: Path, finding: Finding, remedy: Remedy, confirms: Mapping[str, Any] | None = None) -> str:
    """The text of a recipe file: what the run's recipe had set, with the remedy in it, and an output of its own.
    ``directory`` is the ``efficiency`` folder of the run; ``confirms`` is what the next run is to confirm (see
    ``confirmation.prediction``). Raises ``OutputError``: the run left no recipe, or it cannot be read."""
    path = directory / RESOLVED
    if not path.is_file():
        changes = ", ".join(f"{key.removeprefix('train.')}={value}" for key, value in remedy.overrides.items())
        raise OutputError(
            f"--apply: the run left no {RESOLVED}, so it was not a recipe's. Set in its TrainingArguments: {changes}."
        )
    recipe, provenance, _ = resolved_parts(path)
    values: dict[str, Any] = {}
    derived = {key for key, origin in provenance.items() if str(origin).startswith(f"{DERIVED}: ")}
    kept = whole_values(recipe, (key for key in provenance if not key.startswith("efficiency.confirms")))
    for key, value in (*kept.items(), *remedy.overrides.items()):
        if key not in derived:  # it follows from what is written
            put_nested(values, key, value)
    values["output_dir"] = f"{recipe['output_dir']}-{finding.rule.replace('_', '-')}"
    values.pop("existing_output", None)
    if confirms is not None:
        put_nested(values, "efficiency.confirms", dict(confirms))
    remark = f"# {finding.title}: {remedy.what}. By hf-efficient diagnose {__version__}."
    return f"{remark}\n{dump_yaml(values)}"


_SETUP_KEYS: Mapping[str, Sequence[str]] = _WORDS["setup_keys"]
_NO_TIME: Sequence[str] = key_table("train_fields")["no_time"]
_SECTION: Final = "efficiency.confirms."
_MEANS: Mapping[Outcome, tuple[Verdict, str]] = _WORDS["outcomes"]


@dataclass(frozen=True)
class MeasuredRun:
    """One run; None: not known. Seconds of the training loop are per token of all ranks that is no padding. ``spread``:
    half of the interval of that, as a share of it, by the steps past the warm-up. ``peak_bytes``: of the CUDA device's
    tensors, or of the process. ``setup``: values that must be alike to compare."""

    seconds_per_token: float | None
    spread: float | None
    peak_bytes: int | None
    setup: Mapping[str, str]


def measured_run(case: Case) -> MeasuredRun:
    tokens, memory, recipe = case.account.tokens.non_padding, case.account.memory, case.recipe or {}
    held = {
        "objective": recipe.get("objective"),
        "model": " ".join(str(recipe[key]) for key in _SETUP_KEYS["model"] if recipe.get(key)),
        "adapter": recipe.get("adapter.method"),
        "data": ", ".join(_sources(recipe)),
        "processes": len(case.account.ranks),
        "device": _device(case),
    }
    held = {name: value for name, value in held.items() if value}
    held |= {key: value for key, value in recipe.items() if _bears_on_time(key)}
    return MeasuredRun(
        case.loop_seconds / tokens if tokens and case.loop_seconds > 0 else None,
        _spread(case.first) if case.has_steps else None,
        (memory.device_peak_allocated_bytes if case.on_cuda else memory.peak_rss_bytes) or None,
        {name: str(value) for name, value in held.items()},
    )


def _spread(steps: StepColumns) -> float | None:
    """Of the steps past the warm-up; an epoch that starts or ends is a pause like an evaluation or a save."""
    steady = steps.steady
    if not np.isfinite(steps.non_padding[steady]).all():
        return None
    parts = [steps.loader.get(f"{name}_seconds", np.zeros(len(steps))) for name in ("start", "first_wait", "end")]
    starts, waits, ends = np.nan_to_num(parts)
    kinds = [steps.phase("evaluation"), steps.phase("checkpointing"), starts + waits, ends]
    own = steps.wall_seconds - np.sum(kinds, axis=0)
    pauses = [kind[steady & (kind > 0)].tolist() for kind in kinds]
    return rate_spread(own[steady].tolist(), steps.non_padding[steady].tolist(), pauses)


def _bears_on_time(key: str) -> bool:
    section, _, name = key.partition(".")
    free = any(name == one or (one.endswith("_") and name.startswith(one)) for one in _NO_TIME)
    return section == "train" and not free


def _sources(recipe: Mapping[str, object]) -> list[str]:
    found: list[str] = []
    while f"data.train.{len(found)}.path" in recipe:
        one = [recipe.get(f"data.train.{len(found)}.{part}") for part in ("path", "name", "split")]
        found.append(" ".join(str(part) for part in one if part))
    return found


def _device(case: Case) -> str:
    if case.device_type != "cpu":
        return str(case.settings("device").get("name") or case.device_type or "")
    cores = case.settings("host").get("cores")
    return f"cpu, {cores} cores" if cores else "cpu"


def prediction(case: Case, finding: Finding, remedy: Remedy) -> dict[str, Any] | None:
    """The section ``efficiency.confirms`` of the run with a remedy; None where nothing of it could be confirmed. What
    the remedy changes of the setup may differ between the runs; its fields of ``train:`` the next run must have.
    Figures have six digits."""
    gain, run = remedy.gain, measured_run(case)
    saving = gain.share if gain is not None and gain.share else None
    freed = gain.bytes if gain is not None and gain.bytes and gain.bytes > 0 else None
    if saving is None and freed is None and finding.severity == "info":
        return None
    changed = remedy.overrides
    setup = {name: held for name, held in run.setup.items() if not _touches(changed, _SETUP_KEYS.get(name, ()))}
    setup |= {key: str(value) for key, value in flat(changed).items() if _bears_on_time(key)}
    values = {
        "rule": finding.rule,
        "run": (case.recipe or {}).get("output_dir"),
        "predicted_saving": saving,
        "predicted_bytes": freed,
        "seconds_per_token": run.seconds_per_token if saving is not None else None,
        "spread": run.spread if saving is not None else None,
        "peak_bytes": run.peak_bytes if freed is not None else None,
        "setup": setup,
    }
    known = {name: value for name, value in values.items() if value is not None}
    return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in known.items()}


def _touches(changed: Mapping[str, Any], keys: Sequence[str]) -> bool:
    return any(one == key or one.startswith(f"{key}.") or key.startswith(f"{one}.") for one in changed for key in keys)


def asked_of(recipe: Mapping[str, Any]) -> ConfirmsSection | None:
    """The prediction that a recipe, given by dotted key, tests; None without one."""
    held = {key.removeprefix(_SECTION): value for key, value in recipe.items() if key.startswith(_SECTION)}
    values = {key: value for key, value in held.items() if not key.startswith("setup.")}
    setup = {key.removeprefix("setup."): value for key, value in held.items() if key.startswith("setup.")}
    return ConfirmsSection.model_validate({**values, "setup": setup}) if values.get("rule") else None


def confirm(
    asked: ConfirmsSection,
    run: MeasuredRun,
    findings: Sequence[Finding] = (),
    abstentions: Sequence[Abstention] = (),
    *,
    is_short: bool = False,
) -> list[Confirmation]:
    """Hold a run that applied the remedy against the prediction: its time, its memory; of a remedy that predicts
    neither, whether the finding is gone. After too few steps (``is_short``) no finding stands or goes."""
    other = _other(asked.setup, run.setup)
    found = []
    if asked.predicted_saving is not None:
        found.append(_time(asked, run, asked.predicted_saving, other))
    if asked.predicted_bytes is not None:
        found.append(_memory(asked, run, asked.predicted_bytes, other))
    if found:
        return found
    verdict: Verdict
    verdict, why = ("unknown", other) if other else _corrected(asked.rule, findings, abstentions, is_short)
    return [Confirmation(asked.rule, asked.run, "finding", None, None, None, verdict, why)]


def _time(asked: ConfirmsSection, run: MeasuredRun, predicted: float, other: str) -> Confirmation:
    before, after, achieved = asked.seconds_per_token, run.seconds_per_token, None
    missing = other or _missing(before, after, "has no count of the time and tokens of its training loop")
    if not missing and before is not None and after is not None:
        achieved = saved_share(before, after)
        missing = _missing(asked.spread, run.spread, "has too few steps past the warm-up to separate gain and chance")
    if achieved is None or asked.spread is None or run.spread is None:
        return Confirmation(asked.rule, asked.run, "time", predicted, achieved, None, "unknown", missing)
    spread = saved_spread(achieved, asked.spread, run.spread)
    verdict, why = _MEANS[judge_gain(predicted, achieved, spread)]
    return Confirmation(asked.rule, asked.run, "time", predicted, achieved, spread, verdict, why)


def _memory(asked: ConfirmsSection, run: MeasuredRun, predicted: int, other: str) -> Confirmation:
    before, after = asked.peak_bytes, run.peak_bytes
    missing = other or _missing(before, after, "has no record of its peak memory")
    if missing or before is None or after is None:
        return Confirmation(asked.rule, asked.run, "memory", predicted, None, None, "unknown", missing)
    outcome = judge_gain(predicted, before - after, 0.0)
    verdict, why = _MEANS[outcome] if outcome != "no_difference" else ("retracted", "no difference")
    return Confirmation(asked.rule, asked.run, "memory", predicted, before - after, None, verdict, why)


def _corrected(
    rule: str, findings: Sequence[Finding], abstentions: Sequence[Abstention], is_short: bool
) -> tuple[Verdict, str]:
    held = next((one for one in findings if one.rule == rule), None)
    abstained = next((one for one in abstentions if one.rule == rule), None)
    if held is not None and held.severity != "info":
        return "retracted", "the finding is still there"
    if is_short or abstained is not None:
        return "unknown", "this run has too few steps" if abstained is None else f"the rule abstains: {abstained.why}"
    return "confirmed", "" if held is None else "what is left of the finding is no more than info"


def _other(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """In what the two cannot be compared; empty where they can. A field of ``train:`` that is not set has a default."""
    fields = [name for name in dict.fromkeys([*before, *after]) if name.startswith("train.")] if before else []
    known = [name for name in before if name in after and name not in fields]
    differing = [name for name in known + fields if before.get(name) != after.get(name)]
    named = [f"its {name} ({after.get(name, 'unset')}, not {before.get(name, 'unset')})" for name in differing]
    return f"this run differs from the first one in {' and '.join(named)}" if named else ""


def _missing(before: float | None, after: float | None, what: str) -> str:
    if before is None:
        return f"the first run {what}"
    return f"this run {what}" if after is None else ""
