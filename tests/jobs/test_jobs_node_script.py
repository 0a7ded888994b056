"""The shell that every machine runs, run: by bash, with programs that write down how they were called."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import yaml

from hf_efficient.jobs.targets import here_document, kubernetes_job, sbatch_script, skypilot_task
from hf_efficient.recipe.load import load_recipe
from tests.jobs.jobs import WHOLE_CLUSTER, cluster_of, job_for

# Writes its arguments, and where it trains the recipe and the launcher's variables that it sees.
PROGRAM = """\
#!{python}
import json, os, shutil, sys
arguments = sys.argv[1:]
told = {{"arguments": arguments, "launcher": sorted(name for name in os.environ if name.startswith("PET_"))}}
told["here"] = os.getcwd()
told["greeting"] = os.environ.get("GREETING")
if arguments[0] == "train":
    shutil.copy(arguments[1], {folder!r} + "/recipe.yaml")
with open({folder!r} + "/calls", "a") as calls:
    calls.write(json.dumps(told) + "\\n")
if arguments[0] == "check-node" and os.environ.get("AGAIN"):
    print("--resume")
sys.exit(int(os.environ.get("CHECK_CODE", "0")) if arguments[0] == "check-node" else 0)
"""
SLURM = {"SLURM_JOB_ID": "41", "SLURM_NODEID": "1", "job": "41", "attempt": "0", "main_address": "n1:20041"}
SKYPILOT = {"SKYPILOT_TASK_ID": "sky-managed-2026_a-0", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
SKYPILOT |= {"SKYPILOT_INTERNAL_JOB_ID": "3", "SKYPILOT_NODE_RANK": "1"}
KUBERNETES = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "8", "PET_NODE_RANK": "1", "job": "8a-uid", "attempt": "0"}
KUBERNETES |= {"PET_MASTER_ADDR": "quickstart-lora-node-0-0.quickstart-lora", "PET_MASTER_PORT": "29500"}


@pytest.fixture
def programs(tmp_path):
    """A PATH with ``hf-efficient`` on it and nothing else but the system's."""
    program = tmp_path / "bin/hf-efficient"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(python=sys.executable, folder=str(tmp_path)))
    program.chmod(0o755)
    return f"{program.parent}:/usr/bin:/bin"


def run(script, programs, **variables):
    environment = {"PATH": programs, "HOME": os.environ.get("HOME", "/"), "HOSTNAME": "n7", **variables}
    return subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60)


def calls(tmp_path):
    return [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]


def slurm_node(job):
    """The here-document of the batch script, as bash reads it."""
    script = sbatch_script(job)
    start = script.index("IFS= read -r")
    end = script.index("\nEND_OF_NODE", start) + len("\nEND_OF_NODE\n")
    program = f'{script[start:end]}\nprintf %s "$on_each_machine"'
    return subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True).stdout


def node_of(target, job):
    if target == "slurm":
        return slurm_node(job)
    if target == "skypilot":
        return yaml.safe_load(skypilot_task(job))["run"]
    return list(yaml.safe_load_all(kubernetes_job(job)))[1]["spec"]["trainer"]["command"][2]


def job_in(tmp_path, target, *overrides, switch="", **keys):
    (tmp_path / "activate").write_text("echo $NEVER_SET > /dev/null; export GREETING=hello\n")
    whole = {**WHOLE_CLUSTER, "port": None, "env": {}, "shared": str(tmp_path), **keys}
    whole["activate"] = f"source '{tmp_path}/activate'"
    if target == "slurm":
        whole["image"] = None
    overrides = ("distributed.processes=auto", f"output_dir={tmp_path}/my run", *overrides)
    return job_for(target, cluster_of(**whole), *overrides, switch=switch)


CASES = [
    ("slurm", SLURM, "41", "0", "n1:20041"),
    ("skypilot", SKYPILOT, "sky-managed-2026_a-0", "3052695596", "10.0.0.1:29500"),
    ("kubernetes", KUBERNETES, "8a-uid", "0", "quickstart-lora-node-0-0.quickstart-lora:29500"),
]


@pytest.mark.parametrize(("target", "variables", "name", "attempt", "address"), CASES)
def test_a_machine_checks_itself_and_trains(target, variables, name, attempt, address, programs, tmp_path):
    job = job_in(tmp_path, target, "distributed.nodes=2", "distributed.max_restarts=1")
    done = run(node_of(target, job), programs, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    check, train = calls(tmp_path)
    assert check["arguments"] == [
        *("check-node", f"{tmp_path}/my run", "--job", name, "--attempt", attempt),
        *("--nodes", "2", "--node-rank", "1", "--num-gpus", "8", "--written-by", job.version),
    ]
    assert train["arguments"][0] == "train"
    assert train["arguments"][2:] == ["--node-rank", "1", "--main-address", address]
    assert (train["launcher"], train["greeting"]) == ([], "hello")
    alone = load_recipe(tmp_path / "recipe.yaml")
    assert (alone.distributed.nodes, alone.distributed.processes, alone.distributed.max_restarts) == (2, 8, 1)
    assert (alone.output_dir, alone.train["learning_rate"]) == (f"{tmp_path}/my run", 1e-3)


@pytest.mark.parametrize(("target", "variables"), [case[:2] for case in CASES])
@pytest.mark.parametrize(("switch", "again", "passed"), [
    ("", "", []), ("", "1", ["--resume"]), ("--overwrite", "", ["--overwrite"]), ("--overwrite", "1", ["--resume"]),
    ("--resume", "", ["--resume"]),
])  # fmt: skip
def test_the_first_start_and_later_ones_of_one_machine(target, variables, switch, again, passed, programs, tmp_path):
    script = node_of(target, job_in(tmp_path, target, switch=switch))
    assert run(script, programs, AGAIN=again, **variables).returncode == 0
    assert calls(tmp_path)[1]["arguments"][2:] == passed


@pytest.mark.parametrize(("target", "variables"), [case[:2] for case in CASES])
def test_a_machine_without_hf_efficient(target, variables, tmp_path):
    done = run(node_of(target, job_in(tmp_path, target)), "/usr/bin:/bin", **variables)
    assert done.returncode == 2
    assert "there is no hf-efficient on the PATH. " in done.stderr
    assert "activate" in done.stderr


def test_the_end_of_a_document_is_no_line_of_it():
    assert here_document("a\nEND\nEND_\n", "END") == "<<'END__'\na\nEND\nEND_\nEND__"


@pytest.mark.parametrize("target", ["slurm", "skypilot", "kubernetes"])
@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing(target, tmp_path):
    job = job_in(tmp_path, target, "distributed.nodes=2", switch="--overwrite")
    scripts = [f"#!/bin/bash\n{node_of(target, job)}", *([sbatch_script(job)] if target == "slurm" else [])]
    for script in scripts:
        # 1090: a file to source; 2154: variables that come from outside; 2086: what a user wrote in activate
        command = ["shellcheck", "--exclude=SC1090,SC1091,SC2154", "-"]
        done = subprocess.run(command, input=script, capture_output=True, text=True)
        assert done.stdout == ""
