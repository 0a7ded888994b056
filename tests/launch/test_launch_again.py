"""A launch that is started again after a crash: how often, after which pauses, and with which command."""

import pytest

from hf_efficient.errors import SetupError
from hf_efficient.launch.restart import TRIES, Starts, next_tail, starts_of
from tests.conftest import small_recipe
from tests.launch.test_launch_output import a_checkpoint

ONE = ["accelerate", "launch", "-m", "hf_efficient.train"]


def test_pauses_grow_until_it_gives_up(tmp_path):
    starts = Starts(tmp_path, TRIES)
    assert [starts.pause_after(code) for code in (1, 137, 139, 1, 1, 1)] == [5, 10, 20, 40, 80, None]


def test_a_new_checkpoint_is_a_new_beginning(tmp_path):
    starts = Starts(tmp_path, 2)
    assert [starts.pause_after(1), starts.pause_after(1)] == [5, 10]
    a_checkpoint(tmp_path / "checkpoint-4")
    assert [starts.pause_after(137), starts.step] == [5, 4]
    assert starts.words(5.0) == (
        "Starting again in 5 seconds, from checkpoint-4 (failure 1 of at most 2 in a row without a new checkpoint)"
    )
    (tmp_path / "checkpoint-9").mkdir()  # a save that was cut off
    assert [starts.pause_after(1), starts.pause_after(1)] == [10, None]


def test_max_restarts_count_in_all(tmp_path):
    starts = Starts(tmp_path, 1, in_all=True)
    assert starts.pause_after(1) == 5
    assert starts.words(5.0) == "Starting again in 5 seconds, from the first step (failure 1 of at most 1)"
    a_checkpoint(tmp_path / "checkpoint-4")
    assert starts.pause_after(1) is None


@pytest.mark.parametrize("code", [0, 2, 129, 130, 143])
def test_what_ended_as_asked_or_by_bad_input_is_not_started_again(tmp_path, code):
    assert Starts(tmp_path, TRIES).pause_after(code) is None


def test_who_starts_what_again():
    recipe = small_recipe(distributed={"max_restarts": 3})
    assert starts_of(recipe, ONE, keep_going=False).most == 3
    assert starts_of(recipe, [*ONE, "--multi_gpu"], keep_going=False).most == 0  # torch's agent does
    assert starts_of(recipe, [*ONE, "--multi_gpu"], keep_going=True).most == TRIES
    with pytest.raises(SetupError, match=r"--keep-going: .*nodes is 2\. Write distributed\.max_restarts"):
        starts_of(small_recipe(distributed={"nodes": 2}), ONE, keep_going=True)


def test_the_next_start_resumes_and_replaces_nothing():
    assert next_tail(["a.b=1", "--overwrite", "--debug"], small_recipe(), 4) == ["a.b=1", "--debug", "--resume"]
    elsewhere = small_recipe(train={"resume_from_checkpoint": "other/checkpoint-2"})
    assert next_tail([], elsewhere, 4) == ["train.resume_from_checkpoint=null", "--resume"]
    assert next_tail([], elsewhere, 0) == ["--overwrite"]
