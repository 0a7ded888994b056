"""Nothing is searched for garbage in the block, and afterwards all is as before."""

from __future__ import annotations

import gc

import pytest
from planned_recipes import tiny_recipe

from hf_efficient.planning.arguments import collector_paused
from hf_efficient.planning.model_config import model_config
from hf_efficient.planning.simulation import simulate


def test_the_collector_is_off_in_the_block_and_on_after_it():
    with collector_paused():
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_is_on_again_after_an_error():
    with pytest.raises(ValueError, match="in here"), collector_paused():
        raise ValueError("in here")
    assert gc.isenabled()


def test_one_that_was_off_stays_off():
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_simulation_is_not_interrupted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe, searched = tiny_recipe(tmp_path), []
    config = model_config(recipe.model)

    def note(phase, told):
        if phase == "start":
            searched.append(told["generation"])

    gc.callbacks.append(note)
    try:
        simulate(recipe, config)
    finally:
        gc.callbacks.remove(note)
    assert len(searched) < 10  # the trainer's own, which it asks for; without the block some 60
