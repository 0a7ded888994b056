"""A checkpoint that its ranks write together: begun and ended with its manifest, and what becomes of one that fails."""

import errno
import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from hf_efficient.run_dir.checkpoints import begin_manifest, discard, end_manifest, files_in, prune, read_files
from hf_efficient.text import size

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_SAID = ("unexpected pos", "PytorchStreamWriter", "os error", "I/O error", "No space left on device")
"""What torch, safetensors and DeepSpeed say where the system could not write: an error of their own."""


@dataclass(frozen=True)
class Save:
    """One checkpoint. ``write`` does it; ``several_writers``: its ranks meet inside (DeepSpeed, FSDP), so that one
    which fails there cannot go on alone. ``keep``: of all checkpoints, the newest among them, and the one whose name
    ``best`` gives after the save."""

    folder: Path
    write: Callable[[], None]
    several_writers: bool = False
    keep: int | None = None
    best: Callable[[], str] = str


class CheckpointWriter:
    """Saves the checkpoints of one trainer; every rank has one."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._is_main = rank == 0
        self._rank, self._world_size = rank, world_size
        self._shared = world_size > 1 and dist.is_available() and dist.is_initialized()
        self._bytes = 0  # of the last one

    def save(self, save: Save, *, may_fail: bool = False) -> bool:
        """Write a checkpoint, then remove old ones; returns whether it stands. ``may_fail``: a system that does not
        write is a warning. Else ``OSError``, or a library's error, on every rank."""
        try:
            self._on_all(lambda: self._begin(save.folder) if self._is_main else None)
            if save.several_writers:
                save.write()
            self._on_all(lambda: None if save.several_writers else save.write())
            self._end(save)
        except Exception as error:
            if not is_write_error(error):
                raise
            if self._is_main:
                with suppress(OSError):  # room for the next one
                    discard(save.folder)
            if not may_fail or save.several_writers:
                raise
            if self._is_main:
                said = "%s could not be saved: %s. The run continues; the checkpoints before it stay."
                logger.warning(said, save.folder.name, _reason(error))
            return False
        if save.keep and self._is_main:
            with suppress(OSError):  # what cannot be removed now is tried again after the next save
                prune(save.folder.parent, save.keep, save.folder, save.best())
        return True

    def _begin(self, folder: Path) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder.parent).free
        if free < self._bytes:
            raise OSError(errno.ENOSPC, f"it needs {size(self._bytes)}, and {size(free)} are free", str(folder))
        begin_manifest(folder)

    def _end(self, save: Save) -> None:
        """Each rank reads a part of the files that rank 0 sees; that which it does not see, rank 0 reads."""
        names = self._on_all(lambda: files_in(save.folder) if self._is_main else [])[0]
        mine = [name for name in names[self._rank :: self._world_size] if (save.folder / name).is_file()]
        parts = self._on_all(lambda: read_files(save.folder, mine, sync=bool(save.keep)))
        files = {name: file for part in parts for name, file in part.items()}

        def end() -> None:
            files.update(read_files(save.folder, [name for name in names if name not in files]))
            self._bytes = sum(file.bytes for file in files.values())
            if files:
                end_manifest(save.folder, dict(sorted(files.items())))
            else:  # a trainer's own ``_save_checkpoint`` writes elsewhere
                discard(save.folder)

        self._on_all(lambda: end() if self._is_main else None)

    def _on_all(self, action: Callable[[], _T]) -> list[_T]:
        """What each rank's action gives; the system's error of one of them is raised on all."""
        mine: tuple[Any, int, str] = (None, 0, "")
        failure: Exception | None = None
        try:
            mine = (action(), 0, "")
        except Exception as error:
            if not is_write_error(error):
                raise
            failure = error
            mine = (None, getattr(error, "errno", None) or errno.EIO, _reason(error))
        gathered: list[Any] = [mine] * self._world_size
        if self._shared:
            dist.all_gather_object(gathered, mine)
        if failure is not None:
            raise failure
        for rank, (_, code, why) in enumerate(gathered):
            if code:
                raise OSError(code, f"rank {rank}: {why}")
        return [value for value, _, _ in gathered]


def is_write_error(error: BaseException) -> bool:
    """Whether the system could not write: a full disk, a quota, a storage that is read-only or gone."""
    return isinstance(error, OSError) or any(said in str(error) for said in _SAID)


def _reason(error: Exception) -> str:
    text = str(getattr(error, "strerror", None) or error).strip()
    return text.splitlines()[0] if text else type(error).__name__
