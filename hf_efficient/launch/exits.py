"""How a run ends: faults of libraries in words, the exit code for `hf-efficient train`, processes that are ended.

accelerate's launcher exits with 1 for any fault, so a run leaves its code in a file, with the start that it is of.
"""

import errno
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path

import psutil

from hf_efficient.errors import HfEfficientError, OutputError, SetupError, first_line
from hf_efficient.launch.started import MET_AT, STATUS_FILE
from hf_efficient.run_dir.checkpoints import how_to_resume


def cause_of(error: BaseException) -> BaseException:
    """The first rank's fault of torch's ``CheckpointException``, a ``BaseException`` (2.13); any other as it is."""
    failures = getattr(error, "failures", None)
    if isinstance(error, Exception) or not isinstance(failures, dict) or not failures:
        return error
    first = failures[min(failures)]
    cause = first[0] if isinstance(first, tuple) else first  # with the lines of its traceback
    return cause if isinstance(cause, BaseException) else error


_NO_GRADIENT = "Expected to have finished reduction in the prior iteration"
"""What DDP says in the step after one in which a weight got no gradient."""

_LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "remote process exited", "Broken pipe")
"""What gloo and NCCL say in a process whose neighbour is gone."""
MAY_BE_LOST = re.compile(
    r"connection (was )?(reset|closed|refused|lost)|broken pipe|closed by peer|remote process", re.I
)
"""The same in a process of several, one of which has failed for sure."""

_SAID = 400
_TERM_SECONDS = 10.0
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a disk, a quota, a limit of `ulimit -f`
_FAILED = (errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT)  # of a disk, an NFS, a file system in user space
_UNWRITTEN = ("PytorchStreamWriter", "iostream error")  # in torch's words, whatever the system's reason


@contextmanager
def explained_faults(output_dir: str) -> Iterator[None]:
    """Give a full disk, too little device memory, a missing package and DDP's endless wait a remedy in words."""
    import torch

    try:
        yield
    except HfEfficientError:
        raise
    except torch.OutOfMemoryError as error:
        raise SetupError(
            f"out of device memory: {first_line(error)} Less is needed with a smaller "
            "train.per_device_train_batch_size (and a larger train.gradient_accumulation_steps), "
            "train.gradient_checkpointing: true, a shorter train.max_length, or adapter.method: qlora; "
            "`faults.on_oom: shrink` divides the step."
        ) from error
    except ImportError as error:
        raise SetupError(f"a package that the recipe needs is missing: {first_line(error)}") from error
    except BaseException as raised:
        fault = cause_of(raised)
        if not isinstance(fault, Exception):
            raise
        if is_full_disk(fault):
            raise OutputError(
                f"output_dir: no room left for {output_dir}. Make room, or write fewer checkpoints "
                f"(train.save_total_limit, train.save_steps). {how_to_resume(Path(output_dir).expanduser())}"
            ) from raised
        if _NO_GRADIENT in str(fault):
            raise SetupError(
                "train.ddp_find_unused_parameters: is false, by default for a model without experts, but some of the "
                "weights that are trained took no part in a step, and DDP waits for their gradients. Train only what "
                "the model uses (adapter.target_modules, adapter.modules_to_save), or write "
                "`train.ddp_find_unused_parameters: true`."
            ) from raised
        if isinstance(fault, OSError) and fault.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise OutputError(f"output_dir: {output_dir} can no longer be written: {fault}") from raised
        if getattr(fault, "errno", None) in _FAILED or any(said in str(fault) for said in _UNWRITTEN):
            storage = OutputError(
                f"output_dir: {output_dir} could not be written: {first_line(fault)}. See whether its storage is there "
                "and has room; --resume continues from the last whole checkpoint."
            )
            storage.exit_code = 1  # it may be back at another start
            raise storage from raised
        if fault is raised:
            raise
        raise fault from raised


def is_lost_peer(error: Exception) -> bool:
    return isinstance(error, RuntimeError) and any(said in str(error) for said in _LOST_PEER)


def is_full_disk(error: Exception) -> bool:
    """Also of libraries that write by themselves and report what the system said as text."""
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return True
    if isinstance(error, OSError) and re.search(r"\d+ requested and \d+ written", str(error)):  # NumPy's
        return True
    # "unexpected pos" is what torch.save says when its archive comes out shorter than it wrote.
    told = ("No space left on device", "Disk quota exceeded", "os error 28", "os error 27", "unexpected pos")
    return any(said in str(error) for said in told)


def state_code(code: int, environment: Mapping[str, str]) -> bool | None:
    """Whether this process is the first of its machine and start to end; None without `hf-efficient train`."""
    path = _path(environment)
    if path is None:
        return None
    words = f"{code} {_start(environment)}"
    try:
        with path.open("x", encoding="ascii") as file:
            file.write(words)
    except FileExistsError:
        if _read(path)[1] == _start(environment):
            return False
        path.write_text(words, encoding="ascii")
    return True


def earlier_code(environment: Mapping[str, str]) -> int | None:
    """What an earlier start of the same launch ended with; None where none did, or this start has ended already."""
    path = _path(environment)
    code, start = _read(path) if path is not None else (None, "")
    return code if start != _start(environment) else None


def forget_code(environment: Mapping[str, str]) -> None:
    """The run continues or is done, whatever an earlier start of it ended with."""
    path = _path(environment)
    if path is not None:
        path.unlink(missing_ok=True)


def read_code(path: Path) -> int | None:
    return _read(path)[0]


def announce_end(path: Path) -> None:
    """Record, before all processes get a signal, that the whole run is to end."""
    path.with_suffix(".end").touch()


def end_is_announced(environment: Mapping[str, str]) -> bool:
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


def _start(environment: Mapping[str, str]) -> str:
    """Of which all processes of a machine and start know the same, and those of another start something else."""
    port = environment.get(MET_AT) or environment.get("MASTER_PORT", "")
    return f"{environment.get('TORCHELASTIC_RESTART_COUNT', '')}/{port}"


@contextmanager
def ends_on_signals() -> Iterator[None]:
    """A signal that would end this process at once raises, so that what was begun inside is ended, or taken back."""
    found = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    is_main = threading.current_thread() is threading.main_thread()
    heard = [number for number in found if is_main and signal.getsignal(number) == signal.SIG_DFL]
    for number in heard:
        signal.signal(number, lambda received, frame: sys.exit(128 + received))
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, signal.SIG_DFL)


def last_words(code: int | None, log: Path) -> tuple[bool, str]:
    """Of a launch that has failed: whether one of its processes was killed; its code, with the last that the processes
    said, not the launcher, which ends with a table between two rules."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    was_killed = code in (-9, 137) or any("SIGKILL" in line or "Signal 9" in line for line in lines)
    theirs = list(takewhile(lambda line: "torch/distributed/elastic" not in line, lines))
    last = next((line.strip() for line in reversed(theirs or lines) if line.strip("=- ")), "")[:_SAID]
    return was_killed, f"exit code {code}{f': {last}' if last else ', and it said nothing'}"


@contextmanager
def ended(launcher: subprocess.Popen[bytes] | subprocess.Popen[str]) -> Iterator[None]:
    """Afterwards it and all that it started are gone: terminated, and after ten seconds killed."""
    try:
        yield
    finally:
        family: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(launcher.pid)
            family = [process, *process.children(recursive=True)]
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.terminate()
        deaf = psutil.wait_procs(family, timeout=_TERM_SECONDS)[1]
        for one in deaf:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(deaf, timeout=_TERM_SECONDS)  # their folder may go next
        launcher.wait()
