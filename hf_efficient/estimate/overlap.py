"""How much of a step's communication runs beside computation.

What the ranks exchange can hide behind what they compute meanwhile, and not its first or last piece: something has to
be there before the first can be sent, and nothing is left to compute beside the last. With c seconds of communication
in m messages, and w seconds of computation beside which it may run,

    hidden = min(w, c (1 - 1 / m)) / c

It may run beside (torch 2.13; DeepSpeed 0.19.8):

    ddp           the backward of the last micro-batch, about two thirds of it
    zero1         gradients as ddp's (``reduce_ready_partitions_and_remove_grads``), with ``overlap_comm``
    zero2         gradients: the backward of every micro-batch, with ``overlap_comm``
    zero3, fsdp2  everything but the optimizer's step, whose share is left in

The weights of ZeRO-1 and 2 are gathered at the end of the optimizer's step (``all_gather_dp_groups``), beside nothing.

Left out: that kernels which communicate slow those which compute down.
"""

from __future__ import annotations

from hf_efficient.estimate.parallelism import Sharding

BACKWARD_SHARE = 2 / 3
"""Of the FLOPs of a micro-batch: twice the forward's (Kaplan et al., arXiv 2001.08361, section 2.1)."""


def overlap_window_seconds(sharding: Sharding, compute_seconds: float) -> float:
    """Seconds of a step's computation beside which communication may run; of ZeRO-1 and 2, that of gradients alone.

    Hand-worked: DDP, 4 micro-batches in 6 s: 2/3 of 1.5 s. ZeRO-2: 2/3 of 6 s.

    Args:
        sharding: how the model is spread.
        compute_seconds: of the step.
    """
    if sharding.strategy in ("zero1", "zero2") and not sharding.overlap_comm:
        return 0.0
    if sharding.strategy in ("ddp", "zero1"):
        return compute_seconds / sharding.micro_batches * BACKWARD_SHARE
    return compute_seconds * (BACKWARD_SHARE if sharding.strategy == "zero2" else 1.0)


def overlap_share(seconds: float, window_seconds: float, messages: int) -> float:
    """The share of communication that is hidden, for ``communication.exposed_seconds``.

    Hand-worked: 2 s in 10 messages beside 1.2 s: 0.6; beside 5 s: 0.9, as the last fifth of a second stays.

    Args:
        seconds: of communication.
        window_seconds: of computation beside which it may run.
        messages: that it is cut into, in the whole step.

    Raises:
        ValueError: there is communication and no message.
    """
    if seconds <= 0:
        return 0.0
    if messages < 1:
        raise ValueError(f"{seconds} s of communication in {messages} messages")
    return min(window_seconds, seconds * (1 - 1 / messages)) / seconds
