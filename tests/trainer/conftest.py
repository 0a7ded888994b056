import functools
import logging
import subprocess
import threading

import pytest
from tiny_training import save_tiny_model, train_causal
from transformers import Trainer

from hf_efficient.recording.timeline import process_timeline


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory, tiny_tokenizer):
    """A two-layer random Llama of width 64, saved with its tokenizer."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), tiny_tokenizer)


@pytest.fixture(scope="session")
def plain_run(tiny_dir, tmp_path_factory):
    """The finished ``Trainer`` of a number of steps, without anything of ours."""
    return functools.cache(
        lambda steps, **changes: train_causal(
            Trainer, tiny_dir, tmp_path_factory.mktemp("plain"), max_steps=steps, **changes
        )
    )


@pytest.fixture
def warned(caplog):
    """Gives the warnings of this package."""
    caplog.set_level(logging.WARNING, logger="hf_efficient")
    return lambda: [one.getMessage() for one in caplog.records if one.name.startswith("hf_efficient")]


@pytest.fixture
def writers():
    """Gives the names of the threads that write and were not there when the test began."""
    process_timeline().release()
    before = set(threading.enumerate())
    yield lambda: [one.name for one in set(threading.enumerate()) - before if one.name == "hf-efficient records"]
    process_timeline().release()


@pytest.fixture
def small_disk(request, tmp_path):
    """A file system of 64 KiB, or of another size by its parameter, mounted for the test."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={getattr(request, 'param', '64k')}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
