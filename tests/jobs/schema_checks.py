"""Published schemas, and a check as strict as the cluster's own: no field that it does not know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

__all__ = ["kubernetes_faults", "skypilot_faults"]

_FOLDER = Path(__file__).with_name("schemas")


def kubernetes_faults(document: dict[str, Any]) -> list[str]:
    """What the API server of Kubernetes would refuse in a TrainJob or a TrainingRuntime."""
    name = {"TrainJob": "trainjobs", "TrainingRuntime": "trainingruntimes"}[document["kind"]]
    return _faults(_closed(_read(f"kubeflow_{name}.json")), document)


def skypilot_faults(task: dict[str, Any]) -> list[str]:
    """What SkyPilot would refuse in a task: in it, in its resources, in what it mounts."""
    schemas = _read("skypilot.json")
    mounts = [one for one in task.get("file_mounts", {}).values() if isinstance(one, dict)]
    return [
        *_faults(schemas["task"], task),
        *_faults(schemas["resources"], task.get("resources", {})),
        *(fault for mount in mounts for fault in _faults(schemas["storage"], mount)),
    ]


def _read(name: str) -> Any:
    return json.loads((_FOLDER / name).read_text(encoding="utf-8"))


def _faults(schema: Any, value: Any) -> list[str]:
    Draft202012Validator.check_schema(schema)
    found = Draft202012Validator(_with_names(schema)).iter_errors(value)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in found]


def _closed(schema: Any) -> Any:
    """Kubernetes refuses fields that a schema does not name, unless it says that it keeps them."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(below) for key, below in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        # ``metadata`` is any object's own, which the schema of a custom resource leaves out.
        free = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
        if not free:
            closed["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        closed.pop("anyOf", None)
        closed["type"] = ["integer", "string"]
    return closed


def _with_names(schema: Any) -> Any:
    """SkyPilot's own keywords for enumerations, which JSON Schema does not know."""
    if isinstance(schema, list):
        return [_with_names(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    read = {key: _with_names(below) for key, below in schema.items()}
    if names := read.pop("case_insensitive_enum", None):
        read["enum"] = [*names, *(name.upper() for name in names), *(name.lower() for name in names)]
    return read
