import warnings
from types import SimpleNamespace

import pytest
import torch
from overhead_arms import SynchronisationCount, counted_synchronisations

TOLD = "called a synchronizing CUDA operation (Triggered internally at CUDAFunctions.cpp:201.)"


@pytest.fixture
def modes(monkeypatch):
    """A device that is not there: what the sync debug mode is set to, in order."""
    held = [0]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: held[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", held.append)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(torch.cuda.Event, "synchronize", lambda self: None)
    return held


def waits():
    warnings.warn(TOLD, stacklevel=1)


def places(found):
    return {place.rpartition("/")[2].partition(":")[0]: times for place, times in found.items()}


def test_what_torch_warns_of_is_counted_every_time(modes):
    with counted_synchronisations() as found:
        waits()
        waits()
        warnings.warn("something else", stacklevel=1)
    assert places(found) == {"test_benchmarks_synchronisations.py": 2}
    assert modes == [0, "warn", 0]


def test_only_the_steps_between_are_counted(modes):
    count = SynchronisationCount(first=2, last=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(1, 6):
            waits()
            count.on_step_end(None, SimpleNamespace(global_step=step), None)
    assert sum(count.found.values()) == 2  # those of steps 3 and 4
    assert modes == [0, "warn", 0]
