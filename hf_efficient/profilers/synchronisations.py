"""Census of the places where the host reads a tensor's values, and so waits for the device."""

import contextlib
import functools
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from hf_efficient.profilers.instrument import Place, WindowedInstrument

_MOST_SITES = 100
_ON_THE_HOST = (
    "there is no device here, so nothing waited: these are the reads that would wait on one. Those of the data loader "
    "and of the optimizer's step counters are left out"
)


class Synchronisations(WindowedInstrument):
    """Counts reads by line over some optimizer steps, from the end of one to the end of a later one. Facts of topic
    ``synchronisations``, handed to ``state``: ``steps``; ``on_device``: whether the reads were of a device; ``sites``,
    the most often read from first: ``file``, ``line``, ``function`` (innermost outside torch), ``inside_library``,
    ``operator``, ``count_per_step``, ``seconds_per_step`` (of the slower census; on a device with the wait)."""

    name = "synchronisations"

    def __init__(
        self, after_step: int = 3, steps: int = 2, state: Callable[[Mapping[str, Any]], None] = lambda facts: None
    ) -> None:
        super().__init__(after_step, steps)
        self._state = state
        self._seconds: dict[tuple[Site, str], list[float]] = {}
        self._lock = threading.Lock()

    def begin(self, place: Place) -> None:
        self._seconds, self._on_device = {}, torch.cuda.is_available() and torch.cuda.is_initialized()
        self._modes, self._thread = contextlib.ExitStack(), threading.get_ident()
        self._modes.enter_context(OperatorReads(self._saw))
        self._modes.enter_context(PythonReads(self._saw))

    def finish(self, place: Place) -> None:
        if threading.get_ident() == self._thread:  # modes are of a thread
            self._modes.close()
        if self._measured:
            steps = self._measured
            ordered = sorted(self._seconds.items(), key=lambda one: (-len(one[1]), one[0]))
            if not self._on_device:
                self.notes.append(_ON_THE_HOST)
            sites = []
            for (site, operator), each in ordered[:_MOST_SITES]:
                taken = {"count_per_step": len(each) / steps, "seconds_per_step": round(sum(each) / steps, 7)}
                sites.append({**site._asdict(), "operator": operator, **taken})
            self._state({"steps": steps, "on_device": self._on_device, "sites": sites})

    def _saw(self, operator: str, on_device: bool, seconds: float) -> None:
        if self._on_device and not on_device:
            return
        site = site_of_caller(on_device=on_device)
        if site is None:
            return
        with self._lock:  # the backward of a device runs in a thread of its own
            self._seconds.setdefault((site, operator), []).append(seconds)


_Saw = Callable[[str, bool, float], None]
"""Called with the name of what read, whether the tensor lay on a device, and how many seconds it took."""

_READS = frozenset(
    [
        "_local_scalar_dense",  # item, float(), int(), bool(), a condition, in Python and in C++
        *("nonzero", "masked_select", "unique_consecutive", "_unique2", "equal", "allclose", "is_nonzero", "bincount"),
    ]
)
_INDEXED = frozenset({"index", "index_put", "index_put_"})
_COPIES = frozenset({"_to_copy", "copy_"})
_PYTHON = frozenset({torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.cpu, torch.Tensor.__array__})


class OperatorReads(TorchDispatchMode):
    """Sees the operators, whoever calls them, also in the backward, whose threads take the mode over."""

    def __init__(self, saw: _Saw) -> None:
        super().__init__()
        self._saw = saw

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        began = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        if name in _READS or (name in _INDEXED and _by_mask(args)) or (name in _COPIES and _to_host(args, result)):
            shown = "item" if name == "_local_scalar_dense" else name
            self._saw(shown, _on_device(args), time.perf_counter() - began)
        return result


class PythonReads(TorchFunctionMode):
    """Sees the calls that reach no operator where the tensor lies on the host, except within the backward."""

    def __init__(self, saw: _Saw) -> None:
        super().__init__()
        self._saw = saw

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func not in _PYTHON or _on_device(args):  # of a device the copy is seen
            return func(*args, **(kwargs or {}))
        began = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        self._saw(func.__name__, False, time.perf_counter() - began)
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
    """One line that read tensors: the innermost frame outside torch."""

    file: str
    line: int
    function: str
    inside_library: bool


def site_of_caller(*, on_device: bool) -> Site | None:
    """The line outside torch that made this thread call into it, if any. Unless ``on_device`` none of the data loader,
    an optimizer's step counter or this package, whose tensors always lie on the host."""
    frames = list(traceback.walk_stack(sys._getframe(1)))
    owners = [owner_of(frame.f_code.co_filename) for frame, _ in frames]
    place = next((at for at, owner in enumerate(owners) if owner not in ("torch", "optimizer", "loader")), None)
    if place is None:
        return None
    if not on_device and ("loader" in owners or not {"optimizer", "this package"}.isdisjoint(owners[: place + 1])):
        return None
    frame, line = frames[place]
    name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)  # since Python 3.11
    return Site(frame.f_code.co_filename, line, str(name), inside_library=owners[place] != "user")


@functools.cache
def owner_of(file: str) -> Owner:
    """Whose code a file holds; code that lies in no file is a library's."""
    if file.startswith("<"):
        return "library"
    path = Path(file)
    return next((owner for place, owner in _PLACES if path.is_relative_to(place)), "user")
