"""Every time that the host reads a tensor's values, as torch's own dispatch tells it.

Where in the code the host read a tensor: frames of the stack, told apart by whose they are.

Census of the places where the host reads a tensor, and so waits for the device.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from hf_efficient.profilers.instrument import Instrument, Place
from hf_efficient.profilers.sync_warnings import counted_synchronisations

Told = Callable[[str, bool, float], None]
"""Called with the name of what read, whether the tensor lay on a device, and how many seconds it took."""

_READS = frozenset(
    {
        "_local_scalar_dense",  # item, float(), int(), bool(), a condition, in Python and in C++
        "nonzero",
        "masked_select",
        "unique_consecutive",
        "_unique2",
        "equal",
        "allclose",
        "is_nonzero",
        "bincount",
    }
)
_INDEXED = frozenset({"index", "index_put", "index_put_"})
_COPIES = frozenset({"_to_copy", "copy_"})
_PYTHON = frozenset({torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.cpu, torch.Tensor.__array__})


class OperatorReads(TorchDispatchMode):
    """Sees the operators, whoever calls them, also in the backward, whose threads take the mode over."""

    def __init__(self, told: Told) -> None:
        """``told``: of every read."""
        super().__init__()
        self._told = told

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operator; tell of it if it read."""
        name = func.overloadpacket.__name__
        began = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        if name in _READS or (name in _INDEXED and _by_mask(args)) or (name in _COPIES and _to_host(args, result)):
            shown = "item" if name == "_local_scalar_dense" else name
            self._told(shown, _on_device(args), time.perf_counter() - began)
        return result


class PythonReads(TorchFunctionMode):
    """Sees the calls that reach no operator where the tensor lies on the host, except within the backward."""

    def __init__(self, told: Told) -> None:
        """``told``: of every read of a tensor on the host."""
        super().__init__()
        self._told = told

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the function; tell of it if it read."""
        if func not in _PYTHON or _on_device(args):  # of a device the copy is seen
            return func(*args, **(kwargs or {}))
        began = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        self._told(func.__name__, False, time.perf_counter() - began)
        return result


def _on_device(args: tuple[Any, ...]) -> bool:
    return any(isinstance(one, torch.Tensor) and one.device.type not in ("cpu", "meta") for one in args)


def _by_mask(args: tuple[Any, ...]) -> bool:
    """Whether some index is a mask, whose true values must be counted before there is a shape."""
    indices = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else ()
    return any(isinstance(one, torch.Tensor) and one.dtype in (torch.bool, torch.uint8) for one in indices)


def _to_host(args: tuple[Any, ...], result: Any) -> bool:
    return isinstance(result, torch.Tensor) and result.device.type == "cpu" and _on_device(args)


Owner = Literal["torch", "optimizer", "loader", "this package", "library", "user"]

_TORCH = Path(torch.__file__).parent
_HERE = Path(__file__).parent
_PLACES: tuple[tuple[Path, Owner], ...] = (
    (_TORCH / "optim", "optimizer"),
    (_TORCH / "utils" / "data", "loader"),
    (_TORCH, "torch"),
    (_HERE, "torch"),  # which stands between torch and who called it
    (_HERE.parent, "this package"),
    *((Path(sysconfig.get_path(name)), "library") for name in ("purelib", "platlib", "stdlib")),
)


class Site(NamedTuple):
    """One line that read tensors.

    Attributes:
        file, line, function: of the innermost frame outside torch.
        inside_library: whether that frame is of an installed package.
        user_file, user_line: of the innermost frame of nobody's library; None where there is none.
    """

    file: str
    line: int
    function: str
    inside_library: bool
    user_file: str | None
    user_line: int | None


def site_of_caller(*, on_device: bool) -> Site | None:
    """The line that made this thread call into torch.

    None for a read that would be none on a device, since its tensor lies on the host even then: by the data loader, of
    an optimizer's own step counter, and by this package, which copies without waiting. None, too, where no code but
    torch's is on the stack.

    Args:
        on_device: the tensor lies on a device, so that every read counts.
    """
    inner: FrameType | None = None
    user: FrameType | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = owner_of(frame.f_code.co_filename)
        if not on_device and (owner == "loader" or (inner is None and owner in ("optimizer", "this package"))):
            return None
        if inner is None and owner not in ("torch", "optimizer", "loader"):
            inner = frame
        if owner == "user":
            user = frame
            break
        frame = frame.f_back
    if not on_device and user is not None and _called_by_loader(user):
        return None
    return None if inner is None else _site(inner, user)


def _called_by_loader(frame: FrameType | None) -> bool:
    while frame is not None:
        if owner_of(frame.f_code.co_filename) == "loader":
            return True
        frame = frame.f_back
    return False


def _site(inner: FrameType, user: FrameType | None) -> Site:
    code = inner.f_code
    return Site(
        file=code.co_filename,
        line=inner.f_lineno,
        function=str(getattr(code, "co_qualname", code.co_name)),  # since Python 3.11
        inside_library=owner_of(code.co_filename) != "user",
        user_file=None if user is None else user.f_code.co_filename,
        user_line=None if user is None else user.f_lineno,
    )


@functools.cache
def owner_of(file: str) -> Owner:
    """Whose code a file holds; code that lies in no file is a library's."""
    path = Path(file)
    if file.startswith("<"):
        return "library"
    return next((owner for place, owner in _PLACES if path.is_relative_to(place)), "user")


_MOST_SITES = 100
_ON_THE_HOST = (
    "there is no device here, so that nothing waited: these are the reads that would wait on one; those of the data "
    "loader and of the optimizer's step counters are left out"
)


@dataclass
class _Reads:
    """How often one line read by one operator, and how long that took."""

    count: int = 0
    seconds: float = 0.0


class Synchronisations(Instrument):
    """Counts reads by line over some optimizer steps, from the end of one to the end of a later one.

    Facts of topic ``synchronisations``: ``steps``; ``on_device``: whether the reads were of a device; ``sites``, the
    most often read from first: ``file``, ``line``, ``function`` (innermost outside torch), ``operator``,
    ``count_per_step``, ``seconds_per_step``, ``inside_library``, ``user_file``, ``user_line``; ``cuda_waits``:
    ``file:line`` to the waits per step that CUDA's own debug mode told; ``missing``: what cannot be seen.

    Seconds are those under the census, which makes every operator slower; on a device they hold the wait.
    """

    name = "synchronisations"

    def __init__(
        self,
        after_step: int = 3,
        steps: int = 2,
        state: Callable[[Mapping[str, Any]], None] = lambda facts: None,
    ) -> None:
        """Nothing is counted before ``start``.

        Args:
            after_step: optimizer steps that go by before, counted in this training.
            steps: that are counted.
            state: takes the facts.

        Raises:
            ValueError: a count is too small.
        """
        super().__init__()
        if after_step < 0 or steps < 1:
            raise ValueError(f"after_step is {after_step}, steps is {steps}; write at least 0 and 1")
        self._after, self._count, self._state = after_step, steps, state
        self._modes: contextlib.ExitStack | None = None
        self._thread = 0
        self._done = self._counted = 0
        self._reads: dict[tuple[Site, str], _Reads] = {}
        self._cuda: Counter[str] = Counter()
        self._on_device = False
        self._lock = threading.Lock()

    def start(self, place: Place) -> None:
        """Count at once, where no step is to go by."""
        self._done = self._counted = 0
        self._reads, self._cuda, self._on_device = {}, Counter(), False
        self._switch()

    def step_ends(self, step: int) -> None:
        """Begin or end, where it is time."""
        self._done += 1
        self._counted += self.active
        self._switch()

    def stop(self) -> None:
        """End a census that goes on, and state what it found."""
        if not self.active:
            return
        self.active = False
        modes, self._modes = self._modes, None
        if modes is not None and threading.get_ident() == self._thread:
            modes.close()
        if self._counted:
            self._state(self._facts())

    def _switch(self) -> None:
        wanted = self._after <= self._done < self._after + self._count
        if wanted and not self.active:
            self._begin()
        elif not wanted:
            self.stop()

    def _begin(self) -> None:
        modes = contextlib.ExitStack()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            self._cuda = modes.enter_context(counted_synchronisations())
            self._on_device = True
        modes.enter_context(OperatorReads(self._told))
        modes.enter_context(PythonReads(self._told))
        self._modes, self._thread, self.active = modes, threading.get_ident(), True

    def _told(self, operator: str, on_device: bool, seconds: float) -> None:
        if self._on_device and not on_device:
            return
        site = site_of_caller(on_device=on_device)
        if site is None:
            return
        with self._lock:  # the backward of a device runs in a thread of its own
            reads = self._reads.setdefault((site, operator), _Reads())
            reads.count += 1
            reads.seconds += seconds

    def _facts(self) -> dict[str, Any]:
        steps = self._counted
        ordered = sorted(self._reads.items(), key=lambda one: (-one[1].count, one[0]))
        facts: dict[str, Any] = {
            "steps": steps,
            "on_device": self._on_device,
            "sites": [
                {
                    **site._asdict(),
                    "operator": operator,
                    "count_per_step": reads.count / steps,
                    "seconds_per_step": round(reads.seconds / steps, 7),
                }
                for (site, operator), reads in ordered[:_MOST_SITES]
            ],
        }
        if self._on_device:
            facts["cuda_waits"] = {place: times / steps for place, times in self._cuda.most_common(_MOST_SITES)}
        else:
            self.notes.append(_ON_THE_HOST)
        return facts
