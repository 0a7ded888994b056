"""Runs that several tests of the page look at."""

import dataclasses

import numpy as np
import pytest
from sample_run import full, write_records

from hf_efficient.reporting.run_data import RunData, read_run


@pytest.fixture(scope="session")
def full_run(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    """120 steps on a GPU, every part of the account known."""
    return full(read_run(write_records(tmp_path_factory.mktemp("full"))))


@pytest.fixture(scope="session")
def bare_run(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    """What a callback alone leaves: no tokens, no losses, no readings, no recipe, no price, no energy."""
    folder = write_records(tmp_path_factory.mktemp("bare"), steps=12)
    (folder / "recipe.resolved.yaml").unlink()
    (folder / "system.jsonl").unlink()
    run = read_run(folder)
    assert run.series is not None
    known = run.series.steps
    nothing = [None] * len(known)
    emptied = dict.fromkeys(("loss", "loss_min", "loss_max", "learning_rate", "grad_norm"), nothing)
    emptied |= {f"{kind}_tokens": nothing for kind in ("processed", "non_padding", "target")}
    series = dataclasses.replace(run.series, steps=dataclasses.replace(known, **emptied))
    tokens = dataclasses.replace(run.account.tokens, **dict.fromkeys(vars(run.account.tokens)))
    unknown = {name: np.full(len(run.steps[0]), np.nan) for name in ("processed", "non_padding", "target", "loss")}
    steps = {0: dataclasses.replace(run.steps[0], **unknown)}
    return dataclasses.replace(run, series=series, steps=steps, account=dataclasses.replace(run.account, tokens=tokens))


@pytest.fixture(scope="session")
def crashed_run(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    """It ended by an exception after 17 steps."""
    error = "torch.OutOfMemoryError: CUDA out of memory."
    return read_run(write_records(tmp_path_factory.mktemp("crashed"), steps=17, ended="error", error=error))


@pytest.fixture(scope="session")
def resumed_run(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    """Killed after step 47, gone on with from step 31."""
    folder = tmp_path_factory.mktemp("resumed")
    write_records(folder, steps=47, ended=None)
    return full(read_run(write_records(folder, steps=30, first=31, segment=1, number=1)))


@pytest.fixture(scope="session")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    """More steps than are drawn one by one."""
    return read_run(write_records(tmp_path_factory.mktemp("long"), steps=6000, every=500))
