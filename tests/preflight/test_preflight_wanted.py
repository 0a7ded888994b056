"""When a run wants a preflight check, and what it says where it gets none."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hf_efficient.accounting.account import account_of
from hf_efficient.launch import build as builds
from hf_efficient.launch import preflight_wanted as wanted
from hf_efficient.launch.preflight_wanted import WISH_FILE, PreflightWanted, write_preflight
from hf_efficient.launch.run import run_recipe
from hf_efficient.records.account import Preflight
from hf_efficient.records.plan import PlannedRun, RunPlan
from hf_efficient.reporting.console import account_renderables
from tests.launch.notes import Notes


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch):
    """Plans every run for so many seconds."""

    def plan(seconds: float | None) -> None:
        reasons = {} if seconds is not None else {"time": "this CPU was not calibrated"}
        run = PlannedRun("cpu", 4, 1, 1.0, {}, training_seconds=seconds, reasons=reasons)
        held: Any = None
        monkeypatch.setattr(builds, "plan_before", lambda *args: RunPlan(held, run))

    return plan


@pytest.fixture
def wish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "wish"
    monkeypatch.setenv(WISH_FILE, str(path))
    return path


def started(recipe) -> list[str]:
    notes = Notes()
    run_recipe(recipe, notes)
    return [detail for title, detail in notes.stages if title == "Preflight"]


def test_a_long_run_ends_before_it_begins_and_leaves_nothing(planned, wish, tiny_recipe, tmp_path):
    planned(1800.0)
    with pytest.raises(PreflightWanted):
        run_recipe(tiny_recipe())
    assert wish.read_text() == "the run is planned for 30 min 00 s"
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".hf_efficient.lock"]


@pytest.mark.slow
def test_what_a_run_says_that_begins_unchecked(planned, tiny_recipe):
    planned(7200.0)
    (found,) = started(tiny_recipe())
    assert found.startswith("left out, though the run is planned for 2 h 00 min: this launch cannot check itself; ")
    assert "--preflight-only" in found
    assert started(tiny_recipe("existing_output=overwrite", "efficiency.preflight=false")) == []
    for seconds in (1799.0, None):
        planned(seconds)
        assert started(tiny_recipe("existing_output=overwrite")) == []


def test_a_check_is_remembered_for_this_recipe_alone_and_is_in_the_account(
    planned, wish, tiny_recipe, tmp_path, monkeypatch
):
    planned(7200.0)
    seen = []
    real = wanted.fingerprint_of
    monkeypatch.setattr(wanted, "fingerprint_of", lambda *args: seen.append(real(*args)) or seen[-1])
    recipe = tiny_recipe()
    write_preflight(recipe, Preflight("another", True, 3.0))
    with pytest.raises(PreflightWanted):
        run_recipe(recipe)
    held = Preflight(seen[0], True, 3.0, world_size=1, compared_tensors=5)
    write_preflight(recipe, replace(held, passed=False))
    with pytest.raises(PreflightWanted):
        run_recipe(recipe)
    write_preflight(recipe, held)
    assert started(recipe) == []
    account = account_of(tmp_path / "out/efficiency")
    assert account.preflight == held
    rows = [part for part in account_renderables(account) if hasattr(part, "columns")]
    assert "preflight" in [str(cell) for table in rows for cell in table.columns[0].cells]
    assert started(tiny_recipe("existing_output=overwrite", "train.learning_rate=1e-4")) == []  # it holds for this too
    with pytest.raises(PreflightWanted):
        run_recipe(tiny_recipe("existing_output=overwrite", "train.max_length=64"))
    assert json.loads((tmp_path / "out/efficiency/preflight.json").read_text())["fingerprint"] == seen[0]
    assert len(set(seen)) == 2
