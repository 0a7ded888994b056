"""``run.json``: written whole or not at all, read with a check."""

from __future__ import annotations

from pathlib import Path

from hf_efficient.account.build import build_account
from hf_efficient.account.json_file import read_record, strict_json, write_whole
from hf_efficient.account.run_records import RunReader
from hf_efficient.records import ACCOUNT_SCHEMA_VERSION, RunAccount

__all__ = ["RUN_JSON", "read_account", "to_json", "write_account"]

RUN_JSON = "run.json"


def to_json(account: RunAccount) -> str:
    """The account as strict JSON, indented, with a newline at its end."""
    return strict_json(account)


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
    write_whole(directory / RUN_JSON, to_json(account))
    return reader


def read_account(path: Path) -> RunAccount:
    """The account in a ``run.json``.

    Raises:
        OutputError: the file cannot be read, is no account, or was written by a newer version.
    """
    return read_record(path, RunAccount, ACCOUNT_SCHEMA_VERSION, "the account of a run")
