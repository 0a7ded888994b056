"""Run something in the middle of a training so that the training does not notice."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

__all__ = ["kept_modes", "kept_random_state", "random_state"]


def random_state(device: torch.device | str = "cpu") -> Callable[[], None]:
    """Remember the generators of python, numpy, torch and its current device of this type; reads nothing back from it.

    Returns:
        What puts them back as they are now.
    """
    device_type = torch.device(device).type
    accelerator = None if device_type in ("cpu", "meta") else torch.get_device_module(device_type)
    python_state, numpy_state, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    device_state = None if accelerator is None else accelerator.get_rng_state()

    def restore() -> None:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        if accelerator is not None:
            accelerator.set_rng_state(device_state)

    return restore


@contextmanager
def kept_random_state(device: torch.device | str = "cpu") -> Iterator[None]:
    """Afterwards the generators of python, numpy, torch and its current device of this type are as before.

    A data loader alone draws from torch's generator, so even an evaluation without dropout would shift all
    later dropout masks.
    """
    restore = random_state(device)
    try:
        yield
    finally:
        restore()


@contextmanager
def kept_modes(model: nn.Module) -> Iterator[None]:
    """Afterwards every module that the model had before is in training or eval mode as before."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
