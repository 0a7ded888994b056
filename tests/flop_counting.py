"""What torch's ``FlopCounterMode`` counts, with formulas for the operators that it knows none of."""

from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import TrainerCallback


def counting() -> FlopCounterMode:
    """Counts what runs inside; the attention must be ``eager``, for there is no formula of SDPA on a CPU."""
    return FlopCounterMode(display=False, custom_mapping=_formulas())


class Counted(TrainerCallback):
    """Counts the FLOPs between the events that begin and end a step."""

    def __init__(self) -> None:
        self.flops: list[int] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.mode = counting()
        self.mode.__enter__()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.mode.__exit__(None, None, None)
        self.flops.append(self.mode.get_total_flops())


def gemm_4bit_flops(a_shape: Any, b_shape: Any, weight_shape: Any, *args: Any, **kwargs: Any) -> int:
    """The product with a 4-bit weight: bitsandbytes' fused operator.

    The backward unpacks the weight and calls ``matmul``, which is counted.
    """
    return 2 * prod(a_shape[:-1]) * weight_shape[0] * weight_shape[1]


def addmm_in_place_flops(self_shape: Any, a_shape: Any, b_shape: Any, *args: Any, **kwargs: Any) -> int:
    """``sum.addmm_(a, b)``, by which TRL's fused head adds up its gradients."""
    return 2 * a_shape[0] * a_shape[1] * b_shape[1]


def _formulas() -> dict[Any, Any]:
    import bitsandbytes  # noqa: F401  (registers the operator)

    found: dict[Any, Any] = {torch.ops.aten.addmm_: addmm_in_place_flops}
    operator = getattr(torch.ops.bitsandbytes, "gemm_4bit", None)
    return found if operator is None else {**found, operator: gemm_4bit_flops}
