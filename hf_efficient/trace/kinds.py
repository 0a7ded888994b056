"""What an event of a trace is, by the category that Kineto gives it."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["DEVICE_KINDS", "KINDS", "Kind"]


class Kind(IntEnum):
    """What is told apart."""

    KERNEL = 0
    COPY = 1
    MEMSET = 2
    CALL = 3
    OPERATOR = 4
    ANNOTATION = 5
    PYTHON = 6
    OVERHEAD = 7


DEVICE_KINDS = (Kind.KERNEL, Kind.COPY, Kind.MEMSET)

# Today's categories and those of torch 1.x, which wrote them with capitals. No figure needs the others: arrows between
# events, annotations on the side of the device, its synchronisation events, the trace itself.
KINDS: dict[str | None, int] = {
    "kernel": Kind.KERNEL,
    "Kernel": Kind.KERNEL,
    "mtia_ccp_events": Kind.KERNEL,
    "gpu_memcpy": Kind.COPY,
    "Memcpy": Kind.COPY,
    "gpu_memset": Kind.MEMSET,
    "Memset": Kind.MEMSET,
    "cuda_runtime": Kind.CALL,
    "cuda_driver": Kind.CALL,
    "hip_runtime": Kind.CALL,
    "mtia_runtime": Kind.CALL,
    "xpu_runtime": Kind.CALL,
    "xpu_driver": Kind.CALL,
    "privateuse1_runtime": Kind.CALL,
    "privateuse1_driver": Kind.CALL,
    "Runtime": Kind.CALL,
    "cpu_op": Kind.OPERATOR,
    "Operator": Kind.OPERATOR,
    "user_annotation": Kind.ANNOTATION,
    "python_function": Kind.PYTHON,
    "overhead": Kind.OVERHEAD,
}
