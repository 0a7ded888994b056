"""A remedy as a recipe, or for a script; the global batch that remedies keep or change."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_efficient.diagnosis.case import RESOLVED, Case
from hf_efficient.errors import OutputError
from hf_efficient.recipe.schema import DERIVED
from hf_efficient.recipe.writing import dump_yaml, resolved_parts
from hf_efficient.records.findings import Diagnosis, Finding, Remedy
from hf_efficient.version import __version__

INSTRUMENTS = {
    "trace": "TorchTraceCallback",
    "memory": "MemoryHistoryCallback",
    "python": "PythonProfileCallback",
    "lines": "LineTimesCallback",
    "host_memory": "HostMemoryCallback",
    "nvtx": "NvtxCallback",
    "capture": "CaptureCallback",
    "synchronisations": "SynchronisationsCallback",
}
"""The package's own deeper instruments: callbacks, by the keys of ``profile``."""
_GLOBAL_BATCH = "distributed.global_batch_size"
_KEY = re.compile(r"(?<![\w./])(train|profile)\.(\w+)")


def for_script(found: Any, arguments: Mapping[str, Any]) -> Any:
    """What rules said of a run without a recipe, as its script has it: ``logging_steps`` for ``train.logging_steps``,
    where that is one of the run's ``arguments``, and a callback's name for ``profile.X``. Overrides keep their keys."""
    if isinstance(found, str):
        names = {f"train.{name}": name for name in arguments} | {
            f"profile.{key}": name for key, name in INSTRUMENTS.items()
        }
        return _KEY.sub(lambda key: names.get(key[0], key[0]), found)
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
    return dataclasses.replace(finding, remedies=[_with_batch(remedy, case, named) for remedy in finding.remedies])


def _with_batch(remedy: Remedy, case: Case, named: int) -> Remedy:
    rows = int(remedy.overrides.get("train.per_device_train_batch_size", case.rows))
    after = rows * int(remedy.overrides.get("train.gradient_accumulation_steps", case.accumulated))
    before = case.rows * case.accumulated
    if after == before:
        return remedy
    return dataclasses.replace(remedy, overrides={**remedy.overrides, _GLOBAL_BATCH: named * after // before})


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
    for key in provenance:
        if key not in derived:
            _put(values, recipe, key)
    for key, value in remedy.overrides.items():
        if key not in derived:  # it follows from what is written
            _set(values, key, value)
    values["output_dir"] = f"{recipe['output_dir']}-{finding.rule.replace('_', '-')}"
    values.pop("existing_output", None)
    _confirm(values, confirms)
    remark = f"# {finding.title}: {remedy.what}. By hf-efficient diagnose {__version__}."
    return f"{remark}\n{dump_yaml(values)}"


def _confirm(values: dict[str, Any], confirms: Mapping[str, Any] | None) -> None:
    """Put it in; what the run itself confirmed is over."""
    efficiency = {key: value for key, value in values.pop("efficiency", {}).items() if key != "confirms"}
    if confirms is not None:
        efficiency["confirms"] = dict(confirms)
    if efficiency:
        values["efficiency"] = efficiency


def _put(values: dict[str, Any], recipe: dict[str, Any], key: str) -> None:
    """Copy what a key of the recipe holds; of a list the whole, which is how recipes replace it."""
    held: Any = recipe
    parts: list[str] = []
    for part in key.split("."):
        if not isinstance(held, dict) or part not in held:
            break
        held = held[part]
        parts.append(part)
    if parts:
        _set(values, ".".join(parts), held)


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    place = values
    for section in sections:
        place = place.setdefault(section, {})
    held = place.get(last)
    place[last] = {**held, **value} if isinstance(held, dict) and isinstance(value, dict) else value
