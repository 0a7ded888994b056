"""Checkpoints of a run: which are whole, what is wrong with the others, and which one may be removed. No torch.

A save begins with a manifest that lists nothing, and ends with one that lists every file, which takes its place in one
rename. So a folder whose manifest lists nothing is half a save, and one whose files differ from the list is damaged. A
folder without a manifest was written before there were any, or by a plain Trainer: its layout alone can be checked.
"""

import hashlib
import json
import math
import os
import shutil
import zipfile
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from hf_efficient.run_dir.json_file import write_whole
from hf_efficient.text import counted

MANIFEST = "manifest.json"
_CUT_OFF = "saving was cut off"
_VERSION = 1
_STATE = "trainer_state.json"
_BLOCK_BYTES = 1 << 22
_MOST_THREADS = 8
_MOST_NAMED = 3
# What a start would read although the save did not write it; other files (notes, a merged model) do no harm.
_READ_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".distcp")
_READ_NAMES = ("latest", ".metadata", _STATE, "adapter_config.json", "model.safetensors.index.json")
_NOT_READ = "merged"
_PICKLED_WEIGHTS = ("pytorch_model.bin", "adapter_model.bin", "pytorch_model.bin.index.json")


@dataclass(frozen=True)
class SavedFile:
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """``files`` by their paths in the folder, with ``/``; None while the save is under way."""

    step: int
    files: Mapping[str, SavedFile] | None = None


@dataclass(frozen=True)
class CheckpointState:
    """``loss``: the last that was logged. ``fault``: why nothing can resume from it; ``has_manifest``: its files were
    held against a list."""

    path: Path
    step: int
    size: int  # bytes
    loss: float | None = None
    fault: str | None = None
    has_manifest: bool = True

    def to_dict(self) -> dict[str, Any]:
        named = {"name": self.path.name, "step": self.step, "loss": self.loss, "bytes": self.size}
        return {**named, "valid": self.fault is None, "fault": self.fault, "has_manifest": self.has_manifest}


def checkpoints(directory: Path) -> list[Path]:
    found = [path for path in directory.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    number = checkpoint.name.rpartition("-")[2]
    return int(number) if number.isdigit() else 0


def begin_manifest(checkpoint: Path) -> None:
    """Begin a save: afterwards the folder holds a manifest without files, and nothing else. Raises ``OSError``."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    _write(checkpoint, Manifest(step_of(checkpoint)))
    _empty(checkpoint)


def end_manifest(checkpoint: Path, files: Mapping[str, SavedFile]) -> None:
    """End a save: from here on the checkpoint counts. Raises ``OSError``."""
    _write(checkpoint, Manifest(step_of(checkpoint), files))


def discard(checkpoint: Path) -> None:
    """Remove a checkpoint; cut off in the middle of it, what is left is no checkpoint. Raises ``OSError``."""
    if not checkpoint.is_dir():
        return
    try:
        _write(checkpoint, Manifest(step_of(checkpoint)))
    except OSError:  # a full disk
        os.truncate(checkpoint / MANIFEST, 0)
    _empty(checkpoint)
    (checkpoint / MANIFEST).unlink()
    checkpoint.rmdir()


def prune(directory: Path, keep: int, saved: Path, best: str = "", busy: Collection[str] = ()) -> None:
    """Once ``saved`` is whole: remove the oldest until ``keep`` whole ones are left, and what is older than ``saved``
    and not whole. ``saved`` stays, the one that is called ``best``, and those that are ``busy``. Raises ``OSError``."""
    whole = [path for path in checkpoints(directory) if not was_cut_off(path) and damage_of(path) is None]
    if saved not in whole:
        return
    for path in checkpoints(directory):
        if path not in whole and step_of(path) < step_of(saved):
            discard(path)
    for name in surplus([path.name for path in whole], keep, {saved.name, best, *busy}):
        discard(directory / name)


def surplus(names: Sequence[str], keep: int, kept: Collection[str]) -> list[str]:
    """Of checkpoints, the oldest first: those to remove until ``keep`` are left, or ``kept`` alone."""
    others = [name for name in names if name not in kept]
    return others[: max(0, len(names) - max(keep, len(names) - len(others)))]


def files_in(checkpoint: Path) -> list[str]:
    """All files of a save but its manifest, as a manifest names them."""
    found = (path.relative_to(checkpoint).as_posix() for path in checkpoint.rglob("*") if path.is_file())
    killed = f".{MANIFEST}."  # in the middle of writing one
    return sorted(name for name in found if name != MANIFEST and not name.startswith(killed))


def read_files(checkpoint: Path, names: Sequence[str], *, sync: bool = False) -> dict[str, SavedFile]:
    """Sizes and hashes of files, read by several threads; ``sync``: once they are on the disk. Raises ``OSError``."""

    def read(name: str) -> SavedFile:
        digest, size, block = hashlib.sha256(), 0, bytearray(_BLOCK_BYTES)
        with (checkpoint / name).open("rb", buffering=0) as file:
            if sync:
                os.fsync(file.fileno())
            while count := file.readinto(block):
                digest.update(memoryview(block)[:count])
                size += count
        return SavedFile(size, digest.hexdigest())

    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as threads:
        return dict(zip(names, threads.map(read, names), strict=True))


def state_of(checkpoint: Path, *, hashes: bool = False) -> CheckpointState:
    """What there is to say of a checkpoint; ``hashes``: every byte of it is read."""
    try:
        size = sum((checkpoint / name).stat().st_size for name in files_in(checkpoint))
    except OSError:
        size = 0
    fault, is_listed = fault_of(checkpoint, hashes=hashes), (checkpoint / MANIFEST).is_file()
    return CheckpointState(checkpoint, step_of(checkpoint), size, _last_loss(checkpoint), fault, is_listed)


def fault_of(checkpoint: Path, *, hashes: bool = False) -> str | None:
    """What keeps a run from continuing exactly from here; None where weights, optimizer, schedule and random state are
    whole. DeepSpeed's own layout is left to DeepSpeed."""
    if not checkpoint.is_dir():
        return "there is no such folder"
    try:
        fault = damage_of(checkpoint, hashes=hashes) or _state_fault(checkpoint)
        if fault is not None or has_zero_shares(checkpoint):
            return fault
        return _shards_fault(checkpoint) if has_fsdp_shards(checkpoint) else _files_fault(checkpoint)
    except OSError as error:
        return f"{error.filename or checkpoint} cannot be read: {error.strerror or error}"


def damage_of(checkpoint: Path, *, hashes: bool = False) -> str | None:
    """How the folder differs from what was saved; None where it does not, or where it has no manifest."""
    if not (checkpoint / MANIFEST).is_file():
        return None
    manifest = _read(checkpoint)
    if manifest is None:
        return f"{MANIFEST} is not whole"
    if manifest.files is None:
        return f"its save did not end: {MANIFEST} lists no files"
    if checkpoint.name.startswith("checkpoint-") and manifest.step != step_of(checkpoint):
        return f"{MANIFEST} is of step {manifest.step}"
    try:
        return _difference(checkpoint, manifest.files, hashes)
    except OSError as error:
        return f"{error.filename or checkpoint} cannot be read: {error.strerror or error}"


def how_to_resume(directory: Path) -> str:
    """In words, after a run that did not come to its end."""
    if any(fault_of(one) is None for one in checkpoints(directory)):
        return "--resume continues from the last whole checkpoint."
    return "There is no whole checkpoint yet: --resume starts from the first step."


def was_cut_off(checkpoint: Path) -> bool:
    """Whether its save never ended, or its removal began: nothing that was a checkpoint is lost with it."""
    if (checkpoint / MANIFEST).is_file():
        manifest = _read(checkpoint)
        return manifest is not None and manifest.files is None
    return not (checkpoint / _STATE).is_file()


def has_zero_shares(checkpoint: Path) -> bool:
    return any(checkpoint.glob("global_step*"))


def has_fsdp_shards(checkpoint: Path) -> bool:
    return (checkpoint / "pytorch_model_fsdp_0").is_dir()


def _difference(checkpoint: Path, files: Mapping[str, SavedFile], hashes: bool) -> str | None:
    there = files_in(checkpoint)
    if missing := sorted(files.keys() - set(there)):
        return f"{_listed(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    for name, saved in files.items():
        size = (checkpoint / name).stat().st_size
        if size != saved.bytes:
            return f"{name} has {size:,} bytes, not {saved.bytes:,} as it was saved"
    if foreign := [name for name in there if name not in files and _would_be_read(PurePosixPath(name))]:
        return f"{_listed(foreign)} {'was' if len(foreign) == 1 else 'were'} not saved with it"
    if hashes:
        found = read_files(checkpoint, sorted(files))
        if changed := [name for name, saved in found.items() if saved != files[name]]:
            return f"{_listed(changed)} {'is' if len(changed) == 1 else 'are'} not as saved (another hash)"
    return None


def _would_be_read(name: PurePosixPath) -> bool:
    is_scratch = name.parts[0].startswith(".") and name.name not in _READ_NAMES
    return name.parts[0] != _NOT_READ and not is_scratch and (name.suffix in _READ_SUFFIXES or name.name in _READ_NAMES)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {counted(more, 'more file')}" if more > 0 else "")


def _state_fault(checkpoint: Path) -> str | None:
    if not (checkpoint / _STATE).is_file():
        return f"{_STATE}, its last file, is missing: {_CUT_OFF}"
    state = _trainer_state(checkpoint)
    return None if isinstance(state, dict) and "global_step" in state else f"{_STATE} is not whole"


def _shards_fault(checkpoint: Path) -> str | None:
    """FSDP's: torch writes the description of the shards after all of them."""
    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        if not (checkpoint / name / ".metadata").is_file():
            return f"{name}/.metadata, its last file, is missing: {_CUT_OFF}"
    return None if (checkpoint / "scheduler.pt").is_file() else "scheduler.pt is missing"


def _files_fault(checkpoint: Path) -> str | None:
    from safetensors import SafetensorError, safe_open

    weights = sorted(checkpoint.glob("*.safetensors"))
    if not weights and not any((checkpoint / name).is_file() for name in _PICKLED_WEIGHTS):
        return "it holds no weights"
    for path in weights:
        try:
            with safe_open(path, framework="np"):
                pass
        except SafetensorError:
            return f"{path.name} is not whole"
    random_state = "rng_state.pth" if (checkpoint / "rng_state.pth").is_file() else "rng_state_0.pth"
    for name in ("optimizer.pt", "scheduler.pt", random_state):
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing (it was saved with train.save_only_model, or a file was lost)"
        if not zipfile.is_zipfile(path):
            return f"{name} is not whole"
    return None


def _trainer_state(checkpoint: Path) -> Any:
    try:
        return json.loads((checkpoint / _STATE).read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return None


def _last_loss(checkpoint: Path) -> float | None:
    try:
        logged = _trainer_state(checkpoint)["log_history"]
        return next((float(one["loss"]) for one in reversed(logged) if math.isfinite(one.get("loss", math.nan))), None)
    except (OSError, TypeError, KeyError, ValueError, AttributeError):
        return None


def _read(checkpoint: Path) -> Manifest | None:
    try:
        return msgspec.json.decode((checkpoint / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _write(checkpoint: Path, manifest: Manifest) -> None:
    held = {"schema_version": _VERSION, **asdict(manifest)}
    write_whole(checkpoint / MANIFEST, json.dumps(held, indent=1), sync=True)


def _empty(checkpoint: Path) -> None:
    """Remove all but its manifest, which goes last."""
    for path in checkpoint.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != MANIFEST:
            path.unlink()
