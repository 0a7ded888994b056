"""The diagnosis of a run by the name of its folder, and its file."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from hf_efficient.account.load import records_folder
from hf_efficient.account.run_records import RunReader
from hf_efficient.diagnosis.engine import diagnose_case
from hf_efficient.diagnosis.read_case import read_case
from hf_efficient.errors import OutputError
from hf_efficient.records.findings import DIAGNOSIS_SCHEMA_VERSION, Diagnosis

__all__ = ["DIAGNOSIS_JSON", "diagnose", "read_diagnosis", "to_json", "write_diagnosis"]

DIAGNOSIS_JSON = "diagnosis.json"


def diagnose(run_dir: str | Path) -> Diagnosis:
    """What is wrong with a run, what to change, and what that would give.

    Args:
        run_dir: output directory of a run, or its ``efficiency`` folder; the run may go on, have ended or died.

    Raises:
        OutputError: there is no such folder, no record in it, they cannot be read, or are of a newer version.
    """
    return diagnose_case(read_case(records_folder(run_dir)))


def to_json(diagnosis: Diagnosis) -> str:
    """As strict JSON, indented, with a newline at its end."""
    return json.dumps(dataclasses.asdict(diagnosis), indent=2, allow_nan=False) + "\n"


def write_diagnosis(directory: Path, reader: RunReader | None = None) -> Diagnosis:
    """Diagnose the run whose records lie in a folder, and put ``diagnosis.json`` beside them.

    Args:
        directory: the ``efficiency`` folder of the run.
        reader: one that has read the records before, so that only what is new is read.

    Raises:
        OutputError: there are no records, or they cannot be read.
        OSError: the file cannot be written; one that was there stays as it is.
    """
    found = diagnose_case(read_case(directory, reader))
    temporary = directory / f".{DIAGNOSIS_JSON}.{os.getpid()}"
    try:
        temporary.write_text(to_json(found), encoding="utf-8")
        temporary.replace(directory / DIAGNOSIS_JSON)
    finally:
        temporary.unlink(missing_ok=True)
    return found


def read_diagnosis(path: Path) -> Diagnosis:
    """What ``write_diagnosis`` wrote.

    Raises:
        OutputError: the file cannot be read, is no diagnosis, or was written by a newer version.
    """
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise OutputError(f"{path}: cannot be read: {error}") from error
    version = data.get("schema_version") if isinstance(data, dict) else None
    if isinstance(version, int) and version > DIAGNOSIS_SCHEMA_VERSION:
        raise OutputError(
            f"{path}: schema_version {version} is newer than {DIAGNOSIS_SCHEMA_VERSION}, which is read here: "
            "upgrade hf-efficient"
        )
    try:
        return TypeAdapter(Diagnosis).validate_python(data)
    except ValidationError as error:
        told = error.errors()[0]
        raise OutputError(f"{path}: is no diagnosis: {'.'.join(map(str, told['loc']))}: {told['msg']}") from error
