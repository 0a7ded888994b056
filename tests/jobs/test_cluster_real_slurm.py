"""The batch script on a real Slurm: a run from end to end; two machines, the time limit, the queue again."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from tests.cluster.real_slurm import missing, started_slurm

from hf_efficient.jobs.cluster import load_cluster
from hf_efficient.jobs.job import job_of
from hf_efficient.jobs.targets import sbatch_script
from hf_efficient.recipe.load import load_recipe
from hf_efficient.run_dir.reading import rank_files
from tests.waiting import wait_for, wait_for_line

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "there is a Slurm")

SCRIPTS = Path(sys.executable).parent
RECIPE = """\
name: tiny
model: {{id: {model}}}
adapter: {{method: lora, r: 4}}
data: {{train: [{{path: chats.jsonl}}]}}
train:
  max_steps: 2
  max_length: 96
  per_device_train_batch_size: 2
  bf16: false
  use_cpu: true
efficiency: {{plan: false}}
output_dir: out
"""
# In the place of a training: tells how it was called, and ends where it is told to, or where it goes on.
STANDS_IN = """\
#!/usr/bin/env bash
if [[ $1 == check-node ]]; then exec {real} "$@"; fi
echo "${{*:3}}" >> {calls}.$SLURM_NODEID
if [[ $3 == --resume ]]; then exit 0; fi
trap 'echo told to end >> {calls}.$SLURM_NODEID; exit 143' TERM
sleep 300 &
wait $!
"""


@pytest.fixture(scope="module")
def slurm():
    folder = Path(tempfile.mkdtemp(prefix="slurm", dir="/tmp"))
    folder.chmod(0o755)
    try:
        with started_slurm(folder, nodes=2) as started:
            if isinstance(started, str):
                pytest.skip(started)
            yield started
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def project(tmp_path):
    """A folder with a space in its name."""
    folder = tmp_path / "a project"
    folder.mkdir()
    return folder


def submitted(slurm, project, recipe, *overrides, path, **keys):
    """The number of a job, submitted."""
    file = project / "cluster.yaml"
    activate = f"export PATH={shlex.quote(str(path))}:/usr/sbin:/usr/bin:/sbin:/bin"
    file.write_text("".join(f"{key}: {value}\n" for key, value in {**keys, "cpus": 1, "activate": activate}.items()))
    loaded = load_recipe(recipe, overrides)
    job = job_of("slurm", loaded, load_cluster(file, {}), source=str(recipe), directory=str(project), debug=False)
    script = project / "job.sbatch"
    script.write_text(sbatch_script(job))
    return slurm.run("sbatch", "--parsable", str(script)).strip()


def ended(slurm, project, number, seconds=120):
    """How a job ended, and its log."""
    wait_for(lambda: slurm.job(number)["JobState"] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"), seconds)
    (log,) = project.glob(f"*-{number}.log")
    return slurm.job(number), log.read_text(errors="replace")  # two streams may share a character


def test_a_run_from_end_to_end_and_one_that_is_refused(slurm, project, tiny_llama_dir, chats_jsonl):
    shutil.copy(chats_jsonl, project / "chats.jsonl")
    recipe = project / "tiny.yaml"
    recipe.write_text(RECIPE.format(model=tiny_llama_dir))
    number = submitted(slurm, project, recipe, path=SCRIPTS, time_limit="1h")
    recipe.unlink()  # a job carries its recipe
    state, log = ended(slurm, project, number)
    assert (state["JobState"], state["ExitCode"]) == ("COMPLETED", "0:0"), log
    assert (state["TimeLimit"], state["JobName"], state["Requeue"]) == ("01:00:00", "tiny", "1")
    assert (project / "out" / "adapter_model.safetensors").is_file()
    assert (project / "out" / "efficiency" / "run.json").is_file()
    assert list(rank_files(project / "out" / "efficiency", "steps")) == [0]

    recipe.write_text(RECIPE.format(model=tiny_llama_dir))
    state, log = ended(slurm, project, submitted(slurm, project, recipe, path=SCRIPTS))
    assert (state["JobState"], state["ExitCode"], state["Restarts"]) == ("FAILED", "2:0", "0"), log
    assert "already holds a run" in log


def test_a_run_goes_on_after_the_time_limit(slurm, project, tiny_llama_dir, chats_jsonl):
    shutil.copy(chats_jsonl, project / "chats.jsonl")
    recipe = project / "tiny.yaml"
    recipe.write_text(RECIPE.format(model=tiny_llama_dir))
    overrides = ["train.max_steps=60", "train.save_steps=1000", "train.gradient_accumulation_steps=8"]
    number = submitted(slurm, project, recipe, *overrides, path=SCRIPTS)
    wait_for_line(project / "out/efficiency/steps.jsonl", 5, 90)
    slurm.run("scancel", "--batch", "--signal=USR1", number)  # as Slurm does near the limit
    state, log = ended(slurm, project, number)
    assert (state["JobState"], state["Restarts"]) == ("COMPLETED", "1"), log
    assert "the job goes back to the queue" in log
    (step,) = re.findall(r"stopped by SIGTERM after step (\d+) of 60; checkpoint-\1 is saved", log)
    assert f"on from checkpoint-{step}, to" in log
    history = json.loads((project / "out" / "trainer_state.json").read_text())
    assert history["global_step"] == 60


@pytest.fixture
def stand_in(tmp_path):
    """A folder with an ``hf-efficient`` that checks a machine, and does not train."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "hf-efficient"
    program.write_text(STANDS_IN.format(real=shlex.quote(str(SCRIPTS / "hf-efficient")), calls=tmp_path / "calls"))
    program.chmod(0o755)
    return folder


def calls(tmp_path, rank):
    path = tmp_path / f"calls.{rank}"
    return path.read_text().splitlines() if path.exists() else []


TWO_NODES = ("distributed.nodes=2", "distributed.processes=1", "output_dir=out")


def test_two_machines_and_the_time_limit(slurm, project, stand_in, tmp_path):
    number = submitted(slurm, project, "quickstart/lora", *TWO_NODES, path=stand_in)
    wait_for(lambda: calls(tmp_path, 0) and calls(tmp_path, 1), 60)
    slurm.run("scancel", "--batch", "--signal=USR1", number)  # as Slurm does near the limit
    state, log = ended(slurm, project, number)
    assert (state["JobState"], state["Restarts"]) == ("COMPLETED", "1"), log
    assert "the job goes back to the queue" in log
    for rank in (0, 1):
        place = f"--node-rank {rank} --main-address n0:{20000 + int(number)}"
        assert calls(tmp_path, rank) == [place, "told to end", f"--resume {place}"]


def test_the_time_limit_after_the_last_restart(slurm, project, stand_in, tmp_path):
    number = submitted(slurm, project, "quickstart/lora", *TWO_NODES, path=stand_in, restarts=0)
    wait_for(lambda: calls(tmp_path, 0) and calls(tmp_path, 1), 60)
    slurm.run("scancel", "--batch", "--signal=USR1", number)
    state, log = ended(slurm, project, number)
    assert (state["JobState"], state["ExitCode"], state["Restarts"]) == ("FAILED", "143:0", "0"), log
    assert "started again 0 times already" in log


def test_a_job_that_its_user_cancels_stays_cancelled(slurm, project, stand_in, tmp_path):
    number = submitted(slurm, project, "quickstart/lora", *TWO_NODES, path=stand_in)
    wait_for(lambda: calls(tmp_path, 0) and calls(tmp_path, 1), 60)
    slurm.run("scancel", number)
    state, log = ended(slurm, project, number)
    assert (state["JobState"], state["Restarts"]) == ("CANCELLED", "0"), log
    wait_for(lambda: calls(tmp_path, 0)[1:] == calls(tmp_path, 1)[1:] == ["told to end"])


def test_a_machine_without_the_package_ends_the_job(slurm, project, tmp_path):
    state, log = ended(slurm, project, submitted(slurm, project, "quickstart/lora", *TWO_NODES, path=tmp_path))
    assert (state["JobState"], state["ExitCode"], state["Restarts"]) == ("FAILED", "2:0", "0"), log
    assert "there is no hf-efficient on the PATH" in log
