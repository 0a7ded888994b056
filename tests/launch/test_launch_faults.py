from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hf_efficient.errors import DataError, OutputError, SetupError
from hf_efficient.launch.exits import explained_faults


def test_a_full_disk_names_the_ways_out():
    with pytest.raises(OutputError, match=r"no room left for out\. Make room, .*--resume"), explained_faults("out"):
        Path("/dev/full").write_text("one byte too many")


def test_a_full_disk_under_torch_and_safetensors(tmp_path):
    for text in ("I/O error: No space left on device (os error 28)", "unexpected pos 320 vs 214"):
        with pytest.raises(OutputError, match="no room left"), explained_faults("out"):
            raise RuntimeError(text)


def test_a_file_in_the_way(tmp_path):
    with pytest.raises(OutputError, match="can no longer be written"), explained_faults("out"):
        raise PermissionError(13, "Permission denied", "out/x")


def test_out_of_memory_names_the_keys():
    said = pytest.raises(SetupError, match=r"per_device_train_batch_size .* adapter\.method: qlora")
    with said, explained_faults("out"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore")


def test_a_missing_package():
    with pytest.raises(SetupError, match="missing: No module named 'not_there'"), explained_faults("out"):
        import not_there  # noqa: F401


def test_everything_else_passes_through():
    with pytest.raises(DataError, match="row 3"), explained_faults("out"):
        raise DataError("row 3")
    with pytest.raises(ZeroDivisionError), explained_faults("out"):
        raise ZeroDivisionError


def test_a_weight_that_ddp_waits_for():
    said = pytest.raises(SetupError, match=r"ddp_find_unused_parameters: is false, .*took no part in a step")
    with said, explained_faults("out"):
        raise RuntimeError("Expected to have finished reduction in the prior iteration before starting a new one.")
