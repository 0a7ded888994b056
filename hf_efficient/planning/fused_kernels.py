"""The Triton kernels of TRL's fused LM head, for a rehearsal of a GPU: what they read, write and allocate.

On a GPU the head scores each tile of logits with two kernels that work inside the tile, and adds up its gradients with
a product that rounds nothing. On a CPU it does the same with torch's operators, whose copies of a tile in float32 take
more memory than all the rest of the head: a rehearsal, whose tensors say ``cpu``, would take those for the GPU's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from trl.kernels import chunked_logprob

from hf_efficient.data.sources import replaced
from hf_efficient.errors import SetupError


@contextmanager
def fused_kernels_of_a_gpu(on_logits: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """TRL's fused head computes as on a GPU.

    Args:
        on_logits: is shown each tile of logits.

    Raises:
        SetupError: the installed TRL has no such kernels.
    """
    stood_in: dict[str, Any] = {
        "_use_triton": lambda device: True,
        "_forward_kernel": _Launched(lambda tile: tile.amax(-1), on_logits),
        "_backward_kernel": _Launched(lambda tile: tile.neg_(), on_logits),
        "_addmm_fp32": _addmm_fp32,
    }
    missing = [name for name in stood_in if not hasattr(chunked_logprob, name)]
    if missing:
        raise SetupError(
            "train.loss_type: chunked_nll cannot be planned with this version of TRL, whose kernels are others "
            f"({missing[0]} is gone). Plan `train.loss_type=nll` as an upper bound."
        )
    with ExitStack() as stack:
        stack.enter_context(_triton())
        for name, value in stood_in.items():
            stack.enter_context(replaced(chunked_logprob, name, value))
        yield


@contextmanager
def _triton() -> Iterator[None]:
    """Where Triton is not installed, what TRL calls of it beside the kernels."""
    if hasattr(chunked_logprob, "triton"):
        yield
        return
    vars(chunked_logprob)["triton"] = SimpleNamespace(cdiv=lambda total, size: -(-total // size))
    try:
        yield
    finally:
        del vars(chunked_logprob)["triton"]


class _Launched:
    """A kernel on a grid of programs, its first argument the tile."""

    def __init__(self, touch: Callable[[torch.Tensor], Any], on_logits: Callable[[torch.Tensor], None]) -> None:
        """A kernel.

        Args:
            touch: an operator that reads the tile, or reads and writes it, as the kernel does.
            on_logits: is shown the tile.
        """
        self._touch, self._on_logits = touch, on_logits

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self._run

    def _run(self, tile: torch.Tensor, *args: Any, **settings: Any) -> None:
        self._on_logits(tile)
        self._touch(tile)


def _addmm_fp32(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """``total += left @ right`` in float32, without a copy of either: the product that torch has for GPUs since 2.8."""
    if left.dtype in (torch.float16, torch.bfloat16):
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(left, right)
