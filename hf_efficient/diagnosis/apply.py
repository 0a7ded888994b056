"""A remedy as a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from hf_efficient.errors import OutputError
from hf_efficient.recipe.schema import DERIVED
from hf_efficient.recipe.yaml_dump import dump_yaml
from hf_efficient.records.findings import Diagnosis, Finding, Remedy
from hf_efficient.version import __version__

__all__ = ["applied_recipe", "remedy_of"]

RESOLVED = "recipe.resolved.yaml"


def remedy_of(diagnosis: Diagnosis, number: int | None) -> tuple[Finding, Remedy]:
    """The remedy to apply: of a finding, the first that changes a recipe.

    Args:
        diagnosis: of a run.
        number: of the finding, from 1; None: the first finding that has one.

    Raises:
        OutputError: there is none.
    """
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
    raise OutputError(f"--apply: {what} not mended in the recipe but in code or machine. No file is written.")


def applied_recipe(directory: Path, finding: Finding, remedy: Remedy, confirms: Mapping[str, Any] | None = None) -> str:
    """The text of a recipe file: what the run's recipe had set, with the remedy in it, and an output of its own.

    Args:
        directory: the ``efficiency`` folder of the run.
        finding: whose remedy it is.
        remedy: with a change of the recipe.
        confirms: what the next run is to confirm, as ``prediction`` tells it; None: nothing.

    Raises:
        OutputError: the run left no recipe, or it cannot be read.
    """
    path = directory / RESOLVED
    try:
        held = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        changes = ", ".join(f"{key.removeprefix('train.')}={value}" for key, value in remedy.overrides.items())
        raise OutputError(
            f"--apply: the run left no {RESOLVED}, so it was not a recipe's. Set in its TrainingArguments: {changes}."
        ) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise OutputError(f"{path}: cannot be read: {error}") from error
    recipe = held.get("recipe") if isinstance(held, dict) else None
    provenance = held.get("provenance") if isinstance(held, dict) else None
    if not isinstance(recipe, dict) or not isinstance(provenance, dict):
        raise OutputError(f"{path}: holds no recipe; a run writes it when its training starts")
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
