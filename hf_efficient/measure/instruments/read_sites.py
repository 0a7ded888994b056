"""Where in the code the host read a tensor: frames of the stack, told apart by whose they are."""

from __future__ import annotations

import functools
import sys
import sysconfig
from pathlib import Path
from types import FrameType
from typing import Literal, NamedTuple

import torch

__all__ = ["Site", "owner_of", "site_of_caller"]

Owner = Literal["torch", "optimizer", "loader", "this package", "library", "user"]

_TORCH = Path(torch.__file__).parent
_HERE = Path(__file__).parent
_PLACES: tuple[tuple[Path, Owner], ...] = (
    (_TORCH / "optim", "optimizer"),
    (_TORCH / "utils" / "data", "loader"),
    (_TORCH, "torch"),
    (_HERE, "torch"),  # which stands between torch and who called it
    (_HERE.parents[1], "this package"),
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
