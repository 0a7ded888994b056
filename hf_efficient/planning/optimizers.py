"""bitsandbytes' optimizers, which a machine without their kernels cannot run: the state that they keep, no update.

An 8-bit one keeps, for a parameter of 4,096 values or more, each moment in one byte per value and a float32 constant
per block of 256; for a smaller one in float32, and so for the weight of every embedding: transformers'
``Trainer.create_optimizer`` asks for that. AdEMAMix keeps its two averages in one tensor. Source: Dettmers et al. 2021
(8-bit optimizers via block-wise quantization), ``init_state`` of ``bitsandbytes.optim.optimizer.Optimizer2State`` and
``bitsandbytes.optim.ademamix.AdEMAMix`` (0.50). Paged ones keep the moments of parameters of 100,000 values or more in
memory that the driver moves between device and host, outside torch's allocator (``Optimizer8bit.get_state_buffer``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hf_efficient.recipe.schema import Recipe

_SMALL = 4096
_BLOCK = 256
_PAGED_FROM = 100_000
_KINDS = {"adamw": (1, 1), "ademamix": (2, 1), "lion": (1,), "rmsprop": (1,)}
"""Moments in each tensor of the state."""
_NAMES = {
    **dict.fromkeys(("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit"), "adamw"),
    **dict.fromkeys(("ademamix", "ademamix_8bit", "paged_ademamix_32bit", "paged_ademamix_8bit"), "ademamix"),
    **dict.fromkeys(("lion_32bit", "lion_8bit", "paged_lion_32bit", "paged_lion_8bit"), "lion"),
    **dict.fromkeys(("rmsprop_bnb", "rmsprop_bnb_8bit", "rmsprop_bnb_32bit"), "rmsprop"),
}
"""What ``train.optim`` calls them (``transformers.trainer_optimizer``, 5.23). Others are of other packages."""


def is_bitsandbytes(name: str) -> bool:
    """Whether a name of ``train.optim`` is one of bitsandbytes' optimizers."""
    return name in _NAMES


def stand_in(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer | None:
    """What takes the place of the recipe's optimizer; None where that itself runs."""
    name = str(recipe.train.get("optim", ""))
    if not is_bitsandbytes(name):
        return None
    return BitsAndBytesState(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        moments=_KINDS[_NAMES[name]],
        eight_bit="8bit" in name,
        paged="paged" in name,
        in_float32=frozenset(id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)),
    )


class BitsAndBytesState(torch.optim.Optimizer):
    """Allocates the state in the first step and does nothing else.

    Attributes:
        paged_bytes: of the state that lies outside torch's allocator.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        *,
        moments: tuple[int, ...],
        eight_bit: bool,
        paged: bool,
        in_float32: frozenset[int] = frozenset(),
    ) -> None:
        """Args:
        parameters: what is trained.
        moments: in each tensor of the state.
        eight_bit: whether moments are quantized.
        paged: whether large ones lie outside torch's allocator.
        in_float32: ``id`` of each parameter whose moments are not quantized.
        """
        super().__init__(parameters, {"lr": 0.0})
        self._moments, self._eight_bit, self._paged, self._in_float32 = moments, eight_bit, paged, in_float32
        self.paged_bytes = 0

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Allocate what is not there yet."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter not in self.state:
                    self.state[parameter] = self._state_of(parameter)

    def _state_of(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        values = parameter.numel()
        eight_bit = self._eight_bit and values >= _SMALL and id(parameter) not in self._in_float32
        dtype = torch.uint8 if eight_bit else torch.float32
        state = {}
        for place, moments in enumerate(self._moments, 1):
            if self._paged and values >= _PAGED_FROM:
                self.paged_bytes += moments * values * dtype.itemsize
            else:
                state[f"state{place}"] = parameter.new_zeros((moments, *parameter.shape), dtype=dtype)
            if eight_bit:
                blocks = math.ceil(values / _BLOCK)
                state[f"absmax{place}"] = parameter.new_zeros((moments, blocks), dtype=torch.float32)
        return state
