"""DeepSpeed without a GPU: told to compute on the CPU, and of the processes before ZeRO-3 shares a model out."""

from __future__ import annotations

import os

import torch

__all__ = ["choose_deepspeed_device", "join_deepspeed"]


def choose_deepspeed_device() -> None:
    """Say which device it is to use, before it is imported: else it guesses, and warns of its guess."""
    if not torch.accelerator.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")


def join_deepspeed() -> None:
    """Tell it of the process group that torch has made, before a model is loaded in shares (``zero.Init``).

    On a GPU accelerate starts the group through DeepSpeed itself; on a CPU it does not (1.15).
    """
    if torch.accelerator.is_available():
        return
    from deepspeed import comm

    if not comm.is_initialized():
        comm.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
