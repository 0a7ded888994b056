"""The exit code that a run leaves for `hf-efficient train`: accelerate's launcher passes on no other than 1.

The file holds the code and which start of the processes it is of; the launcher may have started them again since.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hf_efficient.launch.flags import STATUS_FILE
from hf_efficient.launch.identity import MET_AT

__all__ = ["earlier_code", "forget_code", "is_told_to_end", "read_code", "state_code", "tell_to_end"]


def state_code(code: int, environment: Mapping[str, str]) -> bool | None:
    """Leave the code.

    Returns:
        Whether this process is the first of this machine and start to end, whose reason is the one to tell; None
        without `hf-efficient train`.
    """
    path = _path(environment)
    if path is None:
        return None
    try:
        with path.open("x", encoding="ascii") as file:
            file.write(_words(code, environment))
    except FileExistsError:
        if _read(path)[1] == _start(environment):
            return False
        path.write_text(_words(code, environment), encoding="ascii")
    return True


def earlier_code(environment: Mapping[str, str]) -> int | None:
    """What an earlier start of the same launch ended with; None where none did, or this start has ended already."""
    path = _path(environment)
    code, start = _read(path) if path is not None else (None, "")
    return code if start != _start(environment) else None


def forget_code(environment: Mapping[str, str]) -> None:
    """The run goes on or is done, whatever an earlier start of it ended with."""
    path = _path(environment)
    if path is not None:
        path.unlink(missing_ok=True)


def read_code(path: Path) -> int | None:
    """What a run left there; None where it left none."""
    return _read(path)[0]


def tell_to_end(path: Path) -> None:
    """Say, before all processes are sent a signal, that it is the whole run that is to end.

    Args:
        path: where the run leaves its code.
    """
    path.with_suffix(".end").touch()


def is_told_to_end(environment: Mapping[str, str]) -> bool:
    """Whether the signal was for the whole run; else the launcher may have ended this process for another's sake."""
    path = _path(environment)
    return path is not None and path.with_suffix(".end").exists()


def _path(environment: Mapping[str, str]) -> Path | None:
    return Path(environment[STATUS_FILE]) if environment.get(STATUS_FILE) else None


def _read(path: Path) -> tuple[int | None, str]:
    try:
        code, _, start = path.read_text(encoding="ascii").partition(" ")
        return int(code), start
    except (OSError, ValueError):  # there is none, or only half of one
        return None, ""


def _words(code: int, environment: Mapping[str, str]) -> str:
    return f"{code} {_start(environment)}"


def _start(environment: Mapping[str, str]) -> str:
    """Of which all processes of a machine and start know the same, and those of another start something else."""
    port = environment.get(MET_AT) or environment.get("MASTER_PORT", "")
    return f"{environment.get('TORCHELASTIC_RESTART_COUNT', '')}/{port}"
