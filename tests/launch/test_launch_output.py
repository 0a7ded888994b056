from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from hf_efficient.errors import OutputError
from hf_efficient.launch.output import OutputPlan, follow_output, prepare_output, write_resolved_recipe
from hf_efficient.recipe.schema import Recipe


def recipe(folder: Path, existing="refuse", rank=16, **train) -> Recipe:
    return Recipe(
        name="t",
        model={"id": "m"},
        adapter={"r": rank},
        data={"train": [{"path": "x"}]},
        train=train,
        output_dir=str(folder),
        existing_output=existing,
    )


def a_run(folder: Path, *steps: int) -> None:
    write_resolved_recipe(folder, recipe(folder), {"torch": "2"})
    for step in steps:
        (folder / f"checkpoint-{step}").mkdir()
        (folder / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")


def test_a_new_directory_starts_from_the_beginning(tmp_path):
    assert prepare_output(recipe(tmp_path / "new")) == OutputPlan(tmp_path / "new", None)


def test_files_that_are_no_run_do_not_matter_and_survive(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    assert prepare_output(recipe(tmp_path, "overwrite")).checkpoint is None
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_another_run_is_refused_with_both_ways_out(tmp_path):
    a_run(tmp_path, 2, 10)
    with pytest.raises(OutputError, match=r"already holds a run \(its last checkpoint is checkpoint-10\)") as caught:
        prepare_output(recipe(tmp_path))
    assert "--resume" in str(caught.value)
    assert "--overwrite" in str(caught.value)


def test_resume_takes_the_last_whole_checkpoint(tmp_path):
    a_run(tmp_path, 2, 10)
    (tmp_path / "checkpoint-12").mkdir()  # its saving was cut off
    plan = prepare_output(recipe(tmp_path, "resume"))
    assert plan.checkpoint == tmp_path / "checkpoint-10"
    assert follow_output(recipe(tmp_path, "resume")) == plan


def test_resume_of_a_run_without_checkpoint_starts_again(tmp_path):
    a_run(tmp_path)
    (tmp_path / "checkpoint-1").mkdir()
    assert prepare_output(recipe(tmp_path, "resume")).checkpoint is None
    assert not (tmp_path / "efficiency").exists()
    assert not (tmp_path / "checkpoint-1").exists()


def test_resume_with_another_adapter_names_the_difference(tmp_path):
    a_run(tmp_path, 2)
    with pytest.raises(OutputError, match=r"adapter\.r \(was 16, is 8\)"):
        prepare_output(recipe(tmp_path, "resume", rank=8))
    with pytest.raises(OutputError, match=r"adapter\.r \(was 16, is 8\)"):
        prepare_output(recipe(tmp_path, rank=8, resume_from_checkpoint=str(tmp_path / "checkpoint-2")))


def test_overwrite_removes_the_run_and_nothing_else(tmp_path):
    a_run(tmp_path, 2)
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("mine")
    assert prepare_output(recipe(tmp_path, "overwrite")).checkpoint is None
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_named_checkpoint(tmp_path):
    a_run(tmp_path, 2, 4)
    named = recipe(tmp_path, resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert prepare_output(named).checkpoint == tmp_path / "checkpoint-2"
    wrong = recipe(tmp_path, resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    with pytest.raises(OutputError, match=r"checkpoint-3 is not a whole checkpoint.*checkpoint-2, .*checkpoint-4"):
        prepare_output(wrong)


def test_unwritable_output_says_why(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(OutputError, match=r"output_dir: .* cannot be written: Not a directory"):
        prepare_output(recipe(blocked / "out"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to a read-only folder")
def test_a_read_only_folder(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="Permission denied"):
        prepare_output(recipe(tmp_path))


def test_the_resolved_recipe_can_be_read_back(tmp_path):
    path = write_resolved_recipe(tmp_path, recipe(tmp_path, learning_rate=1e-4), {"torch": "2.13.0"})
    stored = yaml.safe_load(path.read_text())
    assert Recipe(**stored["recipe"]) == recipe(tmp_path, learning_rate=1e-4)
    assert stored["environment"] == {"torch": "2.13.0"}
