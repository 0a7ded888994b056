"""Sharding without a GPU: DeepSpeed on the CPU, and FSDP2, which accelerate (1.15) refuses there.

accelerate's and the Trainer's own code then runs with torch's ``fully_shard`` on gloo. Runs on accelerators do without.
"""

import functools
import os
from typing import Any

import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import CPUOffloadPolicy


def choose_deepspeed_device() -> None:
    """Say which device it is to use, before it is imported: else it guesses, and warns of its guess."""
    if not torch.accelerator.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")


def join_deepspeed() -> None:
    """Give it the process group that torch has made, before a model is loaded in shares (``zero.Init``); accelerate
    (1.15) does so on a GPU only."""
    if torch.accelerator.is_available():
        return
    from deepspeed import comm

    if not comm.is_initialized():
        comm.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)


def open_fsdp2_on_cpu() -> None:
    """Let the accelerators that are made from here on shard on a CPU; does nothing where there is an accelerator."""
    if torch.accelerator.is_available() or hasattr(AcceleratorState.__init__, "__wrapped__"):
        return
    initialise = AcceleratorState.__init__

    @functools.wraps(initialise)
    def with_fsdp2(state: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        initialise(state, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is None or state.distributed_type != DistributedType.MULTI_CPU:
            return
        state.distributed_type = DistributedType.FSDP
        if state._mixed_precision != "no":
            fsdp_plugin.set_mixed_precision(state._mixed_precision)
        if isinstance(fsdp_plugin.cpu_offload, CPUOffloadPolicy):  # nothing to pin memory for
            fsdp_plugin.cpu_offload = CPUOffloadPolicy(pin_memory=False)
        state.fsdp_plugin = fsdp_plugin
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = with_fsdp2
