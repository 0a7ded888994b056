"""``run.json``: written whole or not at all, read with a check."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from hf_efficient.account.build import build_account
from hf_efficient.account.run_records import RunReader
from hf_efficient.errors import OutputError
from hf_efficient.records import ACCOUNT_SCHEMA_VERSION, RunAccount

__all__ = ["RUN_JSON", "read_account", "to_json", "write_account"]

RUN_JSON = "run.json"


def to_json(account: RunAccount) -> str:
    """The account as strict JSON, indented, with a newline at its end."""
    return json.dumps(dataclasses.asdict(account), indent=2, allow_nan=False) + "\n"


def write_account(directory: Path, reader: RunReader | None = None) -> RunReader:
    """Build the account of the records in a folder and put it beside them.

    Args:
        directory: the ``efficiency`` folder of a run.
        reader: what an earlier call returned, so that only what is new is read.

    Returns:
        A reader that has seen all that there is.

    Raises:
        OutputError: there are no records, or they cannot be read.
        OSError: the file cannot be written; one that was there stays as it is.
    """
    reader = reader or RunReader(directory)
    account = build_account(reader.look())
    temporary = directory / f".{RUN_JSON}.{os.getpid()}"
    try:
        temporary.write_text(to_json(account), encoding="utf-8")
        temporary.replace(directory / RUN_JSON)
    finally:
        temporary.unlink(missing_ok=True)
    return reader


def read_account(path: Path) -> RunAccount:
    """The account in a ``run.json``.

    Raises:
        OutputError: the file cannot be read, is no account, or was written by a newer version.
    """
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise OutputError(f"{path}: cannot be read: {error}") from error
    version = data.get("schema_version") if isinstance(data, dict) else None
    if isinstance(version, int) and version > ACCOUNT_SCHEMA_VERSION:
        raise OutputError(
            f"{path}: schema_version {version} is newer than {ACCOUNT_SCHEMA_VERSION}, which is read here: "
            "upgrade hf-efficient"
        )
    try:
        return TypeAdapter(RunAccount).validate_python(data)
    except ValidationError as error:
        told = error.errors()[0]
        where = ".".join(map(str, told["loc"]))
        raise OutputError(f"{path}: is not the account of a run: {where}: {told['msg']}") from error
