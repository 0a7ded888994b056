"""The batch script on a real Slurm, whose daemons run on this machine for as long as a test."""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from hf_efficient.curation import parts
from hf_efficient.curation.pipeline import prepare
from hf_efficient.jobs.job import job_of, load_cluster
from hf_efficient.jobs.targets import sbatch_script, srun_command
from hf_efficient.recipe.load import load_recipe
from hf_efficient.recipe.schema import Recipe
from hf_efficient.run_dir.paths import rank_files
from hf_efficient.trials.goal import Goal, Wanted
from hf_efficient.trials.process import RunFailed
from hf_efficient.trials.tune import trials_of
from tests.waiting import wait_for, wait_for_line

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo", "srun")
_STARTED_WITHIN_SECONDS = 30

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
KillWait=5
SchedulerParameters=sched_interval=1
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_NAMES = ("n0", "n1", "n2", "n3")
_NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cores}\n"


class Slurm:
    """A running Slurm; its commands find it by the environment."""

    def __init__(self, folder: Path) -> None:
        foreign = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        self.environment = {**foreign, "SLURM_CONF": str(folder / "slurm.conf")}

    def run(self, *command: str) -> str:
        """The output of one of Slurm's commands."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def job(self, number: str) -> dict[str, str]:
        """What Slurm knows of a job: ``JobState``, ``ExitCode``, ``Restarts``."""
        words = self.run("scontrol", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)


def missing() -> str:
    """Why there can be no Slurm here; empty where there can."""
    if os.geteuid() != 0:
        return "Slurm's daemons run as root"
    absent = [name for name in _PROGRAMS if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)} (Debian: slurm-wlm, munge)" if absent else ""


@contextmanager
def started_slurm(folder: Path, nodes: int) -> Iterator[Slurm | str]:
    """Slurm with so many nodes, all on this machine; or why it did not start. The folder's path must be short."""
    names = _NAMES[:nodes]
    host, cores = socket.gethostname().split(".")[0], os.cpu_count() or 1
    ports = _free_ports(nodes + 1)
    for name in ("state", *(f"spool/{name}" for name in names)):
        (folder / name).mkdir(parents=True)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    text = _CONFIGURATION.format(host=host, folder=folder, port=ports[0])
    for name, port in zip(names, ports[1:], strict=True):
        text += _NODE.format(name=name, host=host, port=port, cores=cores)
    configuration = folder / "slurm.conf"
    configuration.write_text(text)
    files = ("key-file", "socket", "pid-file", "seed-file")
    munge = [f"--{name}={folder}/munge.{name.split('-')[0]}" for name in files]
    commands = [
        ["munged", "--foreground", "--force", *munge, f"--log-file={folder}/munge.log"],
        ["slurmctld", "-D", "-f", str(configuration)],
        *(["slurmd", "-D", "-N", name, "-f", str(configuration)] for name in names),
    ]
    slurm = Slurm(folder)
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            with (folder / f"{command[0]}.out").open("ab") as out:
                daemons.append(subprocess.Popen(command, stdout=out, stderr=out, env=slurm.environment))
            time.sleep(0.5)
        yield slurm if _idle(slurm, nodes) else _last_words(folder)
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in reversed(daemons):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _idle(slurm: Slurm, nodes: int) -> bool:
    """Whether all nodes came to be idle in time."""
    until = time.monotonic() + _STARTED_WITHIN_SECONDS
    command = ["sinfo", "--noheader", "--Node", "--format=%T"]
    while time.monotonic() < until:
        done = subprocess.run(command, env=slurm.environment, capture_output=True, text=True, timeout=60, check=False)
        if done.stdout.split() == ["idle"] * nodes:
            return True
        time.sleep(0.5)
    return False


def _last_words(folder: Path) -> str:
    told = [line for path in sorted(folder.glob("*.out")) for line in path.read_text(errors="replace").splitlines()]
    return f"Slurm did not start: {' | '.join(told[-3:])}"


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing() or "there is a Slurm")]

SCRIPTS = Path(sys.executable).parent
RECIPE = """\
name: tiny
model: {{id: {model}}}
adapter: {{method: lora, r: 4}}
data: {{train: [{{path: chats.jsonl}}]}}
train: {{max_steps: 2, max_length: 96, per_device_train_batch_size: 2, bf16: false, use_cpu: true}}
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
def project(tmp_path, chats_jsonl):
    """A folder with a space in its name, and with chats."""
    folder = tmp_path / "a project"
    folder.mkdir()
    shutil.copy(chats_jsonl, folder / "chats.jsonl")
    return folder


@pytest.fixture
def recipe(project, tiny_llama_dir):
    path = project / "tiny.yaml"
    path.write_text(RECIPE.format(model=tiny_llama_dir))
    return path


def submitted(slurm, project, recipe, *overrides, path, **keys):
    """The number of a job, submitted."""
    file = project / "cluster.yaml"
    activate = f"export PATH={shlex.quote(str(path))}:/usr/sbin:/usr/bin:/sbin:/bin"
    file.write_text("".join(f"{key}: {value}\n" for key, value in {**keys, "cpus": 1, "activate": activate}.items()))
    loaded = load_recipe(recipe, overrides)
    where = {"source": str(recipe), "directory": str(project)}
    job = job_of("slurm", loaded, load_cluster(file, {}), **where, switch="", flags=[])
    script = project / "job.sbatch"
    script.write_text(sbatch_script(job))
    return slurm.run("sbatch", "--parsable", str(script)).strip()


def ended(slurm, project, number, seconds=120):
    """How a job ended, and its log."""
    wait_for(lambda: slurm.job(number)["JobState"] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"), seconds)
    (log,) = project.glob(f"*-{number}.log")
    return slurm.job(number), log.read_text(errors="replace")  # two streams may share a character


def test_a_run_from_end_to_end_and_one_that_is_refused(slurm, project, recipe):
    text = recipe.read_text()
    number = submitted(slurm, project, recipe, path=SCRIPTS, time_limit="1h")
    recipe.unlink()  # a job carries its recipe
    state, log = ended(slurm, project, number)
    assert (state["JobState"], state["ExitCode"]) == ("COMPLETED", "0:0"), log
    assert (state["TimeLimit"], state["JobName"], state["Requeue"]) == ("01:00:00", "tiny", "1")
    assert (project / "out" / "adapter_model.safetensors").is_file()
    assert (project / "out" / "efficiency" / "run.json").is_file()
    assert list(rank_files(project / "out" / "efficiency", "steps")) == [0]

    recipe.write_text(text)
    state, log = ended(slurm, project, submitted(slurm, project, recipe, path=SCRIPTS))
    assert (state["JobState"], state["ExitCode"], state["Restarts"]) == ("FAILED", "2:0", "0"), log
    assert "already holds a run" in log


def test_a_run_resumes_after_the_time_limit(slurm, project, recipe):
    overrides = ["train.max_steps=60", "train.save_steps=1000", "train.gradient_accumulation_steps=8"]
    number = submitted(slurm, project, recipe, *overrides, path=SCRIPTS)
    wait_for_line(project / "out/efficiency/steps.jsonl", 5, 90)
    slurm.run("scancel", "--batch", "--signal=USR1", number)  # as Slurm does near the limit
    state, log = ended(slurm, project, number)
    assert (state["JobState"], state["Restarts"]) == ("COMPLETED", "1"), log
    assert "the job goes back to the queue" in log
    (step,) = re.findall(r"stopped by SIGTERM after step (\d+) of 60; checkpoint-\1 is saved", log)
    assert f"resumed from checkpoint-{step}, to" in log
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


def test_a_job_that_its_user_cancels_stays_cancelled(slurm, project, stand_in, tmp_path):
    number = submitted(slurm, project, "quickstart/lora", *TWO_NODES, path=stand_in)
    wait_for(lambda: calls(tmp_path, 0) and calls(tmp_path, 1), 60)
    slurm.run("scancel", number)
    state, log = ended(slurm, project, number)
    assert (state["JobState"], state["Restarts"]) == ("CANCELLED", "0"), log
    wait_for(lambda: calls(tmp_path, 0)[1:] == calls(tmp_path, 1)[1:] == ["told to end"])


def test_data_are_prepared_by_tasks_of_a_job_array_as_in_one_process(slurm, tmp_path, tiny_tokenizer, monkeypatch):
    pytest.importorskip("datatrove")
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    monkeypatch.setenv("PATH", f"{SCRIPTS}:{os.environ['PATH']}")
    monkeypatch.setattr(parts, "_PART_BYTES", 2000)
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": f"row {number % 150}"}) + "\n" for number in range(200)))

    def prepared(**pipeline):
        data = {"train": [{"path": str(rows)}], "prepared_dir": str(tmp_path / "prepared"), "pipeline": pipeline}
        made = {"name": "r", "model": {"id": "m"}, "output_dir": "o", "data": data}
        done = prepare(Recipe.model_validate(made), tiny_tokenizer, lambda *_: None)
        return done.manifest.rows, (done.folder / "train/rows.parquet").read_bytes()

    no_memory = {"mem-per-cpu": "0"}  # the nodes of this Slurm name none
    options = {"partition": "main", "time": "10:00", "sbatch_args": no_memory}
    on_slurm = prepared(executor={"kind": "slurm", "tasks": 2, "options": options})
    shutil.rmtree(tmp_path / "prepared")
    assert on_slurm == prepared()
    assert on_slurm[0] == 150


def test_a_trial_is_a_job_and_ends_with_its_tuning(slurm, project, recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(project)
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    (tmp_path / "cluster.yaml").write_text(f"cpus: 1\nactivate: export PATH={shlex.quote(str(SCRIPTS))}:$PATH\n")
    cluster = load_cluster(tmp_path / "cluster.yaml", {})
    folder = project / "out-tuning"
    trials = trials_of(load_recipe(recipe), "tiny.yaml", [], folder, Goal(), cluster)
    last = slurm.run("squeue", "--noheader", "--states=all", "--format=%i %j").split()
    run = trials.run({}, Wanted(2, 0.0, 300.0))
    assert (len(run.step_seconds), run.device) == (2, "cpu")
    ran = slurm.run("squeue", "--noheader", "--states=all", "--format=%i %j").split()
    assert ran != last
    assert "out-tuning" in ran
    with pytest.raises(RunFailed, match="model"):
        trials.run({"model.id": "nowhere"}, Wanted(2, 0.0, 300.0))
    trials.close()
    assert [one.name for one in folder.iterdir()] == ["journal.jsonl"]
    assert not (project / "out").exists()

    started = tmp_path / "started"
    command = srun_command(cluster, "killed", ["bash", "-c", f"touch {started}; sleep 300"])
    starts = f"import subprocess, time; subprocess.Popen({command!r}); time.sleep(300)"
    parent = subprocess.Popen([sys.executable, "-c", starts])
    wait_for(started.exists, 60)
    parent.kill()
    parent.wait()
    wait_for(lambda: "killed" not in slurm.run("squeue", "--noheader", "--format=%j"), 60)
