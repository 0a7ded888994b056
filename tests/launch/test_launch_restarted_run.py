"""Two processes of one machine: one is killed, and the run goes on; one is told to end, and the run saves and stops."""

import re
import shutil

import pytest
from launched_runs import train, written

from hf_efficient.accounting.account import load_run
from tests.conftest import logged_values as losses

pytestmark = pytest.mark.slow


@pytest.fixture
def recipe(tmp_path, tiny_llama_dir):
    return written(tmp_path, tiny_llama_dir)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tiny_llama_dir):
    """What the same run gives that nothing happens to."""
    folder = tmp_path_factory.mktemp("whole")
    done = train(written(folder, tiny_llama_dir))
    assert done.returncode == 0, done.stderr
    return losses(folder / "out")


def test_a_rank_is_killed_and_the_run_goes_on(recipe, tmp_path, whole):
    """At step 33, three after the checkpoint; an old run is replaced once, and not again by the restart."""
    out = tmp_path / "out"
    (out / "efficiency").mkdir(parents=True)
    (out / "efficiency/recipe.resolved.yaml").write_text("recipe: {}\nlaunched_by: [another/1/2.00]\n")
    (out / "checkpoint-39").mkdir()
    done = train(recipe, "--overwrite", PLANTED="1:33:1:kill")
    assert done.returncode == 0, done.stderr
    assert "Output      the launcher started the processes again\n" in done.stdout
    assert "resumed from checkpoint-30, to" in done.stdout
    assert losses(out) == whole
    assert sorted(path.name for path in out.glob("checkpoint-*")) == ["checkpoint-30", "checkpoint-40"]

    account = load_run(out)
    (restart,) = account.restarts
    assert (restart.last_step_before, restart.resumed_after_step, restart.steps_again) == (32, 30, 2)
    assert restart.cost_usd == pytest.approx((restart.seconds_again + restart.start_seconds) / 100)
    assert [(one.ended, one.steps) for one in account.time.processes] == [("error", 32), ("done", 10)]
    assert account.time.wall_seconds == pytest.approx(sum(one.wall_seconds for one in account.time.processes))


@pytest.mark.parametrize(
    ("harm", "said"),
    [("stop", "no heartbeat for "), ("sleep", "no step for "), ("kill", " without a report (SIGKILL): it was killed")],
)
def test_a_rank_that_hangs_or_dies_is_named_and_the_others_stop(recipe, tmp_path, harm, said):
    words = ("distributed.max_restarts=0", "train.save_steps=10", "faults.hang_minutes=0.1")
    done = train(recipe, *words, PLANTED=f"1:33:1:{harm}", PLANTED_SLEEP="0.1")
    assert done.returncode == (137 if harm == "kill" else 1), done.stderr
    how = {"stop": "hangs, last heard of", "sleep": "hangs", "kill": "ended"}[harm]
    assert re.search(rf"error: rank 1 {how} in (\w+ of )?step \d+(:| without)", done.stderr)  # heard of a second ago
    assert said in done.stderr
    if harm == "kill":
        return
    assert re.search(r"The others: rank 0 in (\w+ of )?step 33\.", done.stderr)
    if harm == "sleep":  # a stopped process may not wake in time to write its stack
        assert "in do_harm\n" in done.stderr
    stacks = sorted((tmp_path / "out/efficiency/faults").glob("hang.step33.rank*.txt"))
    assert [path.name for path in stacks] == ["hang.step33.rank0.txt", "hang.step33.rank1.txt"]
    assert "in harmed" in stacks[0].read_text()


def test_one_rank_is_told_to_end_and_both_stop_after_the_same_step(recipe, tmp_path, whole):
    """The launcher, which would start again what fails, does not; the run goes on bit for bit."""
    out = tmp_path / "out"
    done = train(recipe, "train.save_steps=1000", PLANTED="1:3:1:terminate", PLANTED_SLEEP="0.1")
    assert done.returncode == 143, done.stderr
    (checkpoint,) = out.glob("checkpoint-*")
    step = int(checkpoint.name.removeprefix("checkpoint-"))
    assert 3 <= step < 40
    assert f"stopped by SIGTERM after step {step} of 40; {checkpoint.name} is saved. The same command" in done.stderr
    assert len(list(checkpoint.glob("rng_state_*.pth"))) == 2
    stopped = load_run(out)
    assert (stopped.ended, stopped.error) == ("stopped", f"after step {step} of 40; {checkpoint.name} is saved")

    resumed = train(recipe, "train.save_steps=1000", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert losses(out) == whole
    (restart,) = load_run(out).restarts
    assert (restart.resumed_after_step, restart.steps_again) == (step, 0)


def test_one_process_is_killed_twice_and_keeps_going(recipe, tmp_path):
    """At step 33, and again after it was resumed: the losses are those of a run that nothing happened to."""
    alone = ("distributed.processes=1", "distributed.max_restarts=0", "train.max_steps=36")
    whole = train(recipe, *alone, f"output_dir={tmp_path / 'whole'}")
    assert whole.returncode == 0, whole.stderr
    done = train(recipe, *alone, "--keep-going", PLANTED="0:33:2:kill")
    assert done.returncode == 0, done.stderr
    first, second = (line for line in done.stderr.splitlines() if line.startswith("Starting again"))
    assert first.endswith(
        "in 5 seconds, from checkpoint-30 (failure 1 of at most 5 in a row without a new checkpoint)."
    )
    assert "(failure 2 of at most 5" in second
    assert losses(tmp_path / "out") == losses(tmp_path / "whole")
    assert len(load_run(tmp_path / "out").restarts) == 2


def test_bad_input_is_not_started_again(recipe):
    done = train(recipe, "distributed.processes=1", "--keep-going", "data.train=[{path: nowhere.jsonl}]")
    assert done.returncode == 2
    assert "Starting again" not in done.stderr


@pytest.mark.parametrize("strategy", ["auto", "fsdp2", "zero2", "zero3"])
@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 2)])
def test_another_number_of_processes_continues_with_the_same_rows(recipe, tmp_path, strategy, first, second):
    """Twelve steps, five of them by others: the losses are those of a run that nothing happened to."""
    if strategy.startswith("zero"):
        pytest.importorskip("deepspeed")
    words = ["distributed.max_restarts=0", f"distributed.strategy={strategy}", "distributed.global_batch_size=8"]
    words += ["adapter={method: full}", "train.weight_decay=0.3", "train.learning_rate=1e-3"]
    words += ["train.max_steps=12", "train.save_steps=7", f"checkpoints.background={strategy == 'fsdp2'}"]
    whole = train(recipe, *words, f"distributed.processes={first}")
    assert whole.returncode == 0, whole.stderr
    expected = losses(tmp_path / "out")
    shutil.rmtree(tmp_path / "out/checkpoint-12")
    done = train(recipe, *words, f"distributed.processes={second}", "--resume")
    assert done.returncode == 0, done.stderr
    assert f"distributed.processes: was {first} for checkpoint-7, is {second}: each step has the rows" in done.stdout
    assert losses(tmp_path / "out") == [pytest.approx(value, rel=1e-5) for value in expected]
    (restart,) = load_run(tmp_path / "out").restarts
    assert restart.resumed_after_step == 7
