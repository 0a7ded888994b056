"""A run's account by the name of its folder."""

from __future__ import annotations

from pathlib import Path

from hf_efficient.account.build import account_of
from hf_efficient.account.files import RUN_JSON, read_account
from hf_efficient.account.reading import rank_files
from hf_efficient.errors import OutputError
from hf_efficient.records import RunAccount

__all__ = ["load_run", "records_folder"]


def records_folder(run_dir: str | Path) -> Path:
    """The folder of a run's records: ``RUN_DIR/efficiency``, or ``RUN_DIR`` itself where it has none.

    Raises:
        OutputError: there is no such folder.
    """
    directory = Path(run_dir).expanduser()
    if (directory / "efficiency").is_dir():
        directory = directory / "efficiency"
    if not directory.is_dir():
        raise OutputError(f"{run_dir}: no such folder; name the OUTPUT_DIR of a run")
    return directory


def load_run(run_dir: str | Path) -> RunAccount:
    """The account of a run, from its records as they are now: while it goes on, when it ended, after a crash.

    Where the records are gone it is what ``run.json`` holds.

    Args:
        run_dir: output directory of a run, or its ``efficiency`` folder.

    Raises:
        OutputError: there is no such folder, no record in it, or they cannot be read.
    """
    directory = records_folder(run_dir)
    if not rank_files(directory, "spans") and not rank_files(directory, "steps") and (directory / RUN_JSON).exists():
        return read_account(directory / RUN_JSON)
    return account_of(directory)
