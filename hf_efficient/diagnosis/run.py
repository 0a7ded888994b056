"""The diagnosis of a run by the name of its folder, and its file."""

from __future__ import annotations

from pathlib import Path

from hf_efficient.account.json_file import read_record, strict_json, write_whole
from hf_efficient.account.load import records_folder
from hf_efficient.account.run_records import RunReader
from hf_efficient.diagnosis.engine import diagnose_case
from hf_efficient.diagnosis.read_case import read_case
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
    return strict_json(diagnosis)


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
    write_whole(directory / DIAGNOSIS_JSON, to_json(found))
    return found


def read_diagnosis(path: Path) -> Diagnosis:
    """What ``write_diagnosis`` wrote.

    Raises:
        OutputError: the file cannot be read, is no diagnosis, or was written by a newer version.
    """
    return read_record(path, Diagnosis, DIAGNOSIS_SCHEMA_VERSION, "a diagnosis")
