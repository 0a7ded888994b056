"""A checkpoint that its ranks write together: begun and ended with its manifest, and what becomes of one that fails.

In the background, a rank copies what it would write, and a thread writes it; that of rank 0 hashes the files and ends
the manifest. So do one process and rank 0 of DDP; of FSDP2 all ranks, which write a distributed checkpoint together.
"""

import copy
import errno
import functools
import logging
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from hf_efficient.errors import first_line
from hf_efficient.run_dir import checkpoints as kept
from hf_efficient.run_dir.mirror import Mirror
from hf_efficient.text import size

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_SAID = ("unexpected pos", "PytorchStreamWriter", "iostream error", "os error", "I/O error", "No space left on device")
"""What torch, safetensors and DeepSpeed say where the system could not write: an error of their own."""


_OF_THE_HUB = ("transformers.modeling_utils", "peft.peft_model")
_WRITERS = (("torch", "save"), ("safetensors.torch", "save_file"), *((name, "safe_save_file") for name in _OF_THE_HUB))
"""By what a Trainer writes tensors: modules, and the names under which they call it."""
_TOGETHER = (("torch.distributed.checkpoint", "save"),)

Writes = list[Callable[[], Any]]


@contextmanager
def deferred(folder: Path, group: Any = None) -> Iterator[Writes]:
    """Within, mappings that this thread writes below ``folder`` by ``_WRITERS`` are copied, and nothing of them is
    written. What is yielded does that, with the same functions and so the same bytes. All else is written at once.
    With a process group so are distributed checkpoints, and they alone; its ranks then meet in it."""
    thread, writes = threading.get_ident(), Writes()

    def later(write: Callable[..., Any]) -> Callable[..., Any]:
        def call(held: Any, file: Any, *args: Any, **kwargs: Any) -> Any:
            is_mine = threading.get_ident() == thread and folder in Path(str(file)).parents
            if not is_mine or not isinstance(held, Mapping):
                return write(held, file, *args, **kwargs)
            writes.append(functools.partial(write, copied(held), file, *args, **kwargs))

        return call

    def later_together(write: Callable[..., Any]) -> Callable[..., Any]:
        def call(state_dict: Mapping[str, Any], **options: Any) -> None:
            writes.append(functools.partial(write, copied(state_dict), **{**options, "process_group": group}))

        return call

    names, wrap = (_WRITERS, later) if group is None else (_TOGETHER, later_together)
    with ExitStack() as undo:
        for module, name in ((sys.modules[module], name) for module, name in names if module in sys.modules):
            undo.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, wrap(getattr(module, name)))
        yield writes


def copied(held: Any) -> Any:
    """A copy in which tensors share storage where they did; those of a device are in the host's memory."""
    tensors = [leaf for leaf in tree_leaves(held) if isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu"]
    return copy.deepcopy(held, {id(tensor): tensor.detach().to("cpu") for tensor in tensors})


@dataclass(frozen=True)
class SavePolicy:
    """``background``: write copies while the training continues, where one process writes all, and under FSDP2.
    ``mirror``: a second place for checkpoints, a folder or a URL of fsspec."""

    background: bool = False
    mirror: str | None = None


@dataclass(frozen=True)
class Save:
    """One checkpoint. ``write`` does it; ``several_writers``: its ranks meet inside (DeepSpeed, FSDP), so that one
    which fails there cannot go on alone. ``keep``: of all checkpoints, the newest among them, and the one whose name
    ``best`` gives after the save. ``background``: return when all is copied."""

    folder: Path
    write: Callable[[], None]
    several_writers: bool = False
    keep: int | None = None
    best: Callable[[], str] = str
    background: bool = False


class CheckpointWriter:
    """Saves the checkpoints of one trainer; every rank has one. ``on_failed`` is called for a save that may fail."""

    def __init__(
        self, rank: int, world_size: int, mirror: str | None = None, on_failed: Callable[[Path], object] = str
    ) -> None:
        self._is_main = rank == 0
        self._rank, self._world_size = rank, world_size
        self._shared = world_size > 1 and dist.is_available() and dist.is_initialized()
        self._bytes = 0  # of the last one
        self.mirror = Mirror(mirror) if mirror is not None and self._is_main else None
        self._on_failed = on_failed
        self._behind: Path | None = None  # is being written in the background
        self._written: Future[None] | None = None
        self._group: Any = None  # in which ranks meet that write together in the background

    def save(self, save: Save, *, may_fail: bool = False) -> bool:
        """Write a checkpoint after the one before, then remove old ones; returns whether it stands, or will.
        ``may_fail``: a system that does not write is a warning; else it is ``OSError``, or a library's error, on every
        rank."""
        self.settle(may_fail=may_fail)
        writes_behind = save.background and (self._is_main or save.several_writers)
        if save.background and save.several_writers and self._group is None:
            self._group = dist.new_group(backend="gloo")  # of the CPU, and the training's own are busy
        copies = deferred(save.folder, self._group) if writes_behind else nullcontext(Writes())
        try:
            self._on_all(lambda: self._begin(save.folder) if self._is_main else None)
            with copies as writes:
                if save.several_writers:
                    _together(save.write)
                self._on_all(lambda: None if save.several_writers else save.write())
            if not save.background:
                self._end(save)
        except Exception as error:
            if not self._passed_over(error, save.folder, may_fail and not save.several_writers):
                raise
            return False
        best = save.best()
        if not save.background:
            self._stands(save, best)
            return True
        self._behind = save.folder
        if writes_behind:
            self._written = ThreadPoolExecutor(1, "checkpoint").submit(self._write, save, writes, best)
        return True

    def settle(self, *, may_fail: bool = False) -> None:
        """Wait for the save in the background, if any; raises as ``save`` does."""
        (folder, written), self._behind, self._written = (self._behind, self._written), None, None
        try:
            if folder is not None:
                self._on_all(lambda: written and written.result())
        except Exception as error:
            if folder is None or not self._passed_over(error, folder, may_fail):
                raise

    def _write(self, save: Save, writes: Writes, best: str) -> None:
        while writes:
            _together(writes.pop(0))
        if not self._is_main:
            return
        self._list(save.folder, kept.read_files(save.folder, kept.files_in(save.folder), sync=bool(save.keep)))
        self._stands(save, best)

    def _stands(self, save: Save, best: str) -> None:
        if self._is_main and self.mirror is not None and save.folder.is_dir():
            self.mirror.add(save.folder, save.keep, best)
        if self._is_main and save.keep:
            with suppress(OSError):  # what cannot be removed now is tried again after the next save
                kept.prune(
                    save.folder.parent, save.keep, save.folder, best, () if self.mirror is None else self.mirror.busy
                )

    def _passed_over(self, error: Exception, folder: Path, may_fail: bool) -> bool:
        """Whether the run continues after this failure of a save, of which nothing is left."""
        if not is_write_error(error):
            return False
        if self._is_main:
            with suppress(OSError):  # room for the next one
                kept.discard(folder)
        if self._is_main and may_fail:
            said = "%s could not be saved: %s. The run continues; the checkpoints before it stay."
            logger.warning(said, folder.name, _reason(error))
        if may_fail:
            self._on_failed(folder)
        return may_fail

    def _begin(self, folder: Path) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder.parent).free
        if free < self._bytes:
            raise OSError(errno.ENOSPC, f"it needs {size(self._bytes)}, and {size(free)} are free", str(folder))
        kept.begin_manifest(folder)

    def _end(self, save: Save) -> None:
        """Each rank reads a part of the files that rank 0 sees; that which it does not see, rank 0 reads."""
        names = self._on_all(lambda: kept.files_in(save.folder) if self._is_main else [])[0]
        mine = [name for name in names[self._rank :: self._world_size] if (save.folder / name).is_file()]
        parts = self._on_all(lambda: kept.read_files(save.folder, mine, sync=bool(save.keep)))
        files = {name: file for part in parts for name, file in part.items()}

        def end() -> None:
            files.update(kept.read_files(save.folder, [name for name in names if name not in files]))
            self._list(save.folder, files)

        self._on_all(lambda: end() if self._is_main else None)

    def _list(self, folder: Path, files: dict[str, kept.SavedFile]) -> None:
        self._bytes = sum(file.bytes for file in files.values())
        if files:
            kept.end_manifest(folder, dict(sorted(files.items())))
        else:  # a trainer's own ``_save_checkpoint`` writes elsewhere
            kept.discard(folder)

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


def _together(write: Callable[[], Any]) -> None:
    """Raises what a rank has failed with, which torch wraps into a ``BaseException``."""
    try:
        write()
    except BaseException as error:
        for failed, _ in getattr(error, "failures", {}).values():
            raise failed from error
        raise


def is_write_error(error: BaseException) -> bool:
    """Whether the system could not write: a full disk, a quota, a storage that is read-only or gone."""
    return isinstance(error, OSError) or any(said in str(error) for said in _SAID)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or first_line(error)
