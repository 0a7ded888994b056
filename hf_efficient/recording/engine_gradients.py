"""What ZeRO's gradients take, which DeepSpeed takes from the parameters inside the backward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from hf_efficient.recording.activations import tensors_in
from hf_efficient.recording.guard import guard

_HELD = ("averaged_gradients", "all_grad_tensors", "grads_in_partition", "grad_partitions_flat_buffer")
"""Where ZeRO's optimizers keep a rank's share (DeepSpeed 0.19, ``stage_1_and_2.py`` and ``stage3.py``)."""
_LOOKS = 64
"""In a micro-batch at most: each looks at every parameter."""
_MICRO_BATCHES = 2
"""After the second one what is accumulated lies where it stays."""


class EngineGradients:
    """Counts gradients when every few of hundreds are made; ``most_bytes`` keeps the highest moment by device. A
    gradient counts whole from when it is made until the engine releases it, copies in the buckets included."""

    def __init__(self, model: nn.Module, engine_optimizer: Any) -> None:
        self.most_bytes: dict[str, int] = {}
        self.broken = False
        self._optimizer = engine_optimizer
        self._trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._made_so_far, self._every = 0, -(-len(self._trained) // _LOOKS)
        self._hooks = [parameter.register_hook(self._made) for parameter in self._trained]

    @classmethod
    def of(cls, model: nn.Module, optimizer: Any) -> EngineGradients | None:
        """Counts where the optimizer, as accelerate has wrapped it, is ZeRO's; None where it is another."""
        inner = getattr(optimizer, "optimizer", None)
        return cls(model, inner) if hasattr(inner, "averaged_gradients") else None

    @property
    def is_sampled(self) -> bool:
        """Whether some gradients were made without a look, so that there may have been more for a moment."""
        return self._every > 1

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    @guard("The memory of the gradients is no longer counted")
    def _made(self, gradient: torch.Tensor) -> None:
        self._made_so_far += 1
        if self._made_so_far > _MICRO_BATCHES * len(self._trained) or self._made_so_far % self._every:
            return
        found = occupied_bytes((gradient, *self._held()))
        if sum(found.values()) > sum(self.most_bytes.values()):
            self.most_bytes = found

    def _held(self) -> Iterator[torch.Tensor]:
        for parameter in self._trained:
            for name in ("grad", "grad_accum"):
                if (held := getattr(parameter, name, None)) is not None:
                    yield held
        for name in _HELD:
            yield from tensors_in(getattr(self._optimizer, name, None))


def occupied_bytes(tensors: Iterable[torch.Tensor]) -> dict[str, int]:
    """Bytes that contiguous tensors take on each device, overlaps once. Hand-worked: elements 0 to 5 and 3 to 9 of one
    tensor of float32 take 10 * 4 bytes."""
    found: dict[str, int] = {}
    reached: dict[str, int] = {}
    for tensor in sorted(tensors, key=lambda one: one.data_ptr()):
        device, end = str(tensor.device), tensor.data_ptr() + tensor.nbytes
        taken = max(0, end - max(tensor.data_ptr(), reached.get(device, 0)))
        found[device] = found.get(device, 0) + taken
        reached[device] = max(end, reached.get(device, 0))
    return {device: size for device, size in found.items() if size}
