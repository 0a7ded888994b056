"""What a trainer sets for the whole process, put back: the run that follows a rehearsal must not notice it."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy
import torch

_LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")


@contextmanager
def process_kept() -> Iterator[None]:
    """Keeps the states of the random generators, the environment variables, and what accelerate shares.

    Inside, there is one process that nobody has launched: in one of several the rehearsal would wait for the others.
    Nor is there a process group to be asked about, or a DeepSpeed: transformers would warn of the one, and share the
    model that is built out as ZeRO-3 has it.

    transformers seeds all generators when a trainer is built, writes variables for accelerate, and resets accelerate's
    device (to the CPU here) and its precision with every new ``TrainingArguments``.
    """
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from transformers.integrations import deepspeed

    shared = [one._shared_state for one in (PartialState, AcceleratorState, GradientState)]
    held = [dict(one) for one in shared]
    variables = dict(os.environ)
    group, engine = torch.distributed.is_initialized, deepspeed._hf_deepspeed_config_weak_ref
    python, arrays = random.getstate(), numpy.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        _as_if_alone()
        deepspeed.unset_hf_deepspeed_config()
        torch.distributed.is_initialized = lambda: False
        for own in shared:
            own.clear()
        with torch.random.fork_rng(devices):
            yield
    finally:
        torch.distributed.is_initialized, deepspeed._hf_deepspeed_config_weak_ref = group, engine
        random.setstate(python)
        numpy.random.set_state(arrays)
        for added in set(os.environ) - set(variables):
            del os.environ[added]
        os.environ.update(variables)
        for own, before in zip(shared, held, strict=True):
            own.clear()
            own.update(before)


def _as_if_alone() -> None:
    for name in list(os.environ):
        if name in _LAUNCHED or name.startswith(("ACCELERATE_", "FSDP_", "TORCHELASTIC_")):
            del os.environ[name]
