"""What can be planned, and not launched."""

from __future__ import annotations

import pytest

from hf_efficient.errors import SetupError
from hf_efficient.launch.run import run_recipe
from hf_efficient.launch.strategy import check_launchable
from hf_efficient.recipe.load import load_recipe


@pytest.mark.parametrize("strategy", ["auto", "none", "ddp"])
def test_what_is_launched(strategy):
    check_launchable(load_recipe("quickstart/lora", [f"distributed.strategy={strategy}"]))


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3", "fsdp2"])
def test_what_is_planned_alone(strategy):
    recipe = load_recipe("quickstart/lora", ["distributed.processes=2", f"distributed.strategy={strategy}"])
    with pytest.raises(SetupError) as error:
        check_launchable(recipe)
    assert str(error.value).startswith(
        f"command line: distributed.strategy={strategy}: distributed.strategy: {strategy} can be planned "
        "(`hf-efficient plan`), but not launched yet. Write distributed.strategy=ddp"
    )


def test_a_run_that_a_launcher_started_is_refused_as_well(tmp_path):
    recipe = load_recipe("quickstart/lora", ["distributed.strategy=fsdp2", f"output_dir={tmp_path / 'out'}"])
    with pytest.raises(SetupError, match="can be planned"):
        run_recipe(recipe)
    assert not (tmp_path / "out").exists()
