"""The text of a job for Slurm, SkyPilot and Kubernetes around one node script, and the command that submits it.

Kubernetes means Kubeflow Trainer 2.2 and newer: a TrainJob, and a TrainingRuntime of its own with a restart policy,
which the installed ``torch-distributed`` lacks.
"""

import math
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from hf_efficient.errors import Problem, RecipeError, SetupError
from hf_efficient.jobs.job import Cluster, Gpus, Job, Target, clock_time, gpus_of, seconds_of
from hf_efficient.recipe.load import dump_yaml, rendered

_SCRIPTS = Path(__file__).with_name("scripts")


def node_script(job: Job, *, remedy: str) -> str:
    """Shell lines that expect ``job``, ``attempt``, ``node_rank`` and, for several machines, ``main_address``. The last
    becomes ``hf-efficient train``, which a signal to end reaches."""
    activate = job.cluster.activate
    return rendered(
        _SCRIPTS / "node.sh",
        # Lines of sites and environments often use unset variables.
        activate=f"set +u\n{activate.rstrip()}\nset -u\n" if activate else "",
        remedy=remedy,
        name=job.name,
        document=here_document(job.recipe, "END_OF_RECIPE"),
        output_dir=shlex.quote(job.output_dir),
        nodes=job.nodes,
        gpus=job.processes if job.gpus is not None else 0,
        version=job.version,
        switch=f'"${{again:-{job.switch}}}"' if job.switch else '${again:+"$again"}',
        overrides="".join(f"{one} " for one in job.overrides),
        flags="".join(f" {one}" for one in job.flags),
        place=' --node-rank "$node_rank" --main-address "$main_address"' if job.nodes > 1 else "",
    )


def here_document(text: str, end: str, after: str = "") -> str:
    """``<<'END'``, the text as it is, and an end, made longer where a line of the text is the same."""
    lines = text.rstrip("\n").split("\n")
    while end in lines:
        end += "_"
    return "\n".join([f"<<'{end}'{after}", *lines, end])


_PORT = "$((20000 + SLURM_JOB_ID % 10000))"
"""Below the ports that Linux hands out by itself (32768 and up); jobs that share a machine get one each."""


def sbatch_script(job: Job) -> str:
    cluster = job.cluster
    if cluster.is_typed("image"):
        message = "is given, but Slurm runs containers by a plugin of the site's own."
        remedy = "Leave it out, and write the plugin's option: slurm.srun_options: [--container-image=...]."
        raise RecipeError([_problem(job, "image", message, remedy)])
    remedy = "Give the lines that activate its environment: activate, in the cluster's file."
    node = f"set -euo pipefail\nnode_rank=$SLURM_NODEID\n{node_script(job, remedy=remedy)}"
    # Without the processes of one machine a run cannot continue: --kill-on-bad-exit.
    srun_options = [f"--nodes={job.nodes}", f"--ntasks={job.nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1"]
    srun_options += ["--cpu-bind=none", *cluster.slurm.srun_options]
    return rendered(
        _SCRIPTS / "slurm.sh",
        options="\n".join(f"#SBATCH {shlex.quote(option)}" for option in _sbatch_options(job)),
        written=_written(job),
        environment="".join(f"{line}\n" for line in _exports(cluster)),
        nodes=job.nodes,
        port=cluster.port or _PORT,
        document=here_document(node, "END_OF_NODE", " || true"),
        grace=cluster.grace_seconds,
        srun_options=shlex.join(srun_options),
        restarts=cluster.restarts,
    )


def _sbatch_options(job: Job) -> Iterator[str]:
    cluster = job.cluster
    yield from (f"--job-name={job.name}", f"--nodes={job.nodes}", "--ntasks-per-node=1")
    yield from _machine_options(cluster, job.gpus)
    yield f"--signal=B:USR1@{cluster.grace_seconds}"
    yield "--requeue" if cluster.restarts else "--no-requeue"
    yield from ("--open-mode=append", f"--chdir={job.directory}", "--output=%x-%j.log", *cluster.slurm.sbatch_options)


def _machine_options(cluster: Cluster, gpus: Gpus | None) -> Iterator[str]:
    if gpus is not None:
        yield f"--gres=gpu:{f'{gpus.kind}:' if gpus.kind else ''}{gpus.count}"
    # Without either, a task gets one core.
    yield f"--cpus-per-task={cluster.cpus}" if cluster.cpus is not None else "--exclusive"
    if cluster.memory_gb is not None:
        yield f"--mem={round(cluster.memory_gb * 1000)}M"
    elif cluster.cpus is None:
        yield "--mem=0"  # all of it
    for name in ("partition", "account", "qos", "constraint", "reservation"):
        if value := getattr(cluster.slurm, name):
            yield f"--{name}={value}"
    if seconds := seconds_of(cluster.time_limit or ""):
        yield f"--time={clock_time(seconds)}"


def srun_command(cluster: Cluster, name: str, command: Sequence[str]) -> list[str]:
    """One process, with one GPU where the machines have some, as a job of Slurm's: ``srun`` waits in the queue and for
    its end, and cancels it where it is ended itself, or whoever started it was killed."""
    gpus = gpus_of(cluster.gpus)
    options = [f"--job-name={name}", "--nodes=1", "--ntasks=1", "--quiet", "--cpu-bind=none"]
    options += _machine_options(cluster, None if gpus is None else replace(gpus, count=1))
    lines = [*_exports(cluster), *([cluster.activate] if cluster.activate else []), f"exec {shlex.join(command)}"]
    ends_too = ["setpriv", "--pdeathsig", "TERM"]
    return [*ends_too, "srun", *options, *cluster.slurm.srun_options, "bash", "-c", "\n".join(lines)]


def _exports(cluster: Cluster) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in cluster.env.items()]


def skypilot_task(job: Job) -> str:
    if problems := list(_skypilot_problems(job)):
        raise RecipeError(problems)
    cluster, sky = job.cluster, job.cluster.skypilot
    remedy = "Install it in the cluster's file, skypilot.setup, or activate its environment: activate."
    start = rendered(_SCRIPTS / "skypilot.sh", nodes=job.nodes, port=cluster.port or 29500)
    script = start + node_script(job, remedy=remedy)
    (filled,) = _documents("skypilot.yaml", job=job, cluster=cluster, sky=sky, script=script)
    if sky.secrets:
        filled["secrets"] = dict.fromkeys(sky.secrets)  # null: sky takes their values from the environment
    return f"{_written(job)}sky jobs launch FILE\n" + dump_yaml(filled, blocks=True)


WRITTEN_MARK = ". Submit it by: "  # in the head of every job of ours


def _written(job: Job) -> str:
    return f"# {' '.join(job.source.split())}, written by hf_efficient {job.version}{WRITTEN_MARK}"


def _problem(job: Job, key: str, message: str, remedy: str) -> Problem:
    return Problem(job.cluster.where(key), key, message, remedy)


def _skypilot_problems(job: Job) -> Iterator[Problem]:
    cluster, sky = job.cluster, job.cluster.skypilot
    if job.gpus is not None and job.gpus.kind is None:
        remedy = f"Write --gpu H100 --num-gpus {job.gpus.count}, or gpus: H100:{job.gpus.count}."
        yield _problem(job, "gpus", f"is {job.gpus.count}, but SkyPilot needs their type.", remedy)
    if (sky.bucket is None) == (sky.volume is None):
        fault = "and a volume are both given" if sky.bucket is not None else "is missing, and no volume is given"
        message = f"{fault}: one of the two is mounted at {cluster.shared}."
        yield _problem(job, "skypilot.bucket", message, "Write bucket: s3://NAME.")
    if cluster.image is None and not sky.setup:
        remedy = (
            "Write the lines that install it, `pip install -e '.[recipes,quantization]'` in a clone for instance, or "
            "an image that holds it."
        )
        yield _problem(job, "skypilot.setup", "is missing: SkyPilot's machines start without hf_efficient.", remedy)
    if cluster.is_typed("time_limit"):
        remedy = "Write budget.hours=N in the recipe: the run saves and stops."
        yield _problem(job, "time_limit", "is given, but SkyPilot ends no job by the clock.", remedy)


def kubernetes_job(job: Job) -> str:
    if problems := list(_kubernetes_problems(job)):
        raise RecipeError(problems)
    cluster = job.cluster
    remedy = "Name an image that holds it, or activate its environment: activate, in the cluster's file."
    where = {"port": cluster.port or "$PET_MASTER_PORT", "shared": shlex.quote(str(cluster.shared))}
    documents = _documents(
        "kubernetes.yaml",
        job=job,
        cluster=cluster,
        kubernetes=cluster.kubernetes,
        cpus=str(cluster.cpus) if cluster.cpus is not None else None,
        memory=f"{math.ceil(cluster.memory_gb * 1000)}M" if cluster.memory_gb is not None else None,
        named=lambda names: [{"name": name} for name in names],
        script=rendered(_SCRIPTS / "kubernetes.sh", nodes=job.nodes, **where) + node_script(job, remedy=remedy),
    )
    texts = [dump_yaml(one, blocks=True) for one in documents]
    return f"{_written(job)}kubectl create -f FILE\n" + "---\n".join(texts)


def _documents(file: str, /, **values: Any) -> list[Any]:
    """The YAML documents of a template, without what nobody gave."""
    return [_filled(one) for one in yaml.safe_load_all(rendered(_SCRIPTS / file, **values))]


def _filled(value: Any) -> Any:
    """Without what nobody gave: None, and what is empty without it. ``torch: {}`` and the like stay as written."""
    if isinstance(value, dict):
        kept = {key: _filled(below) for key, below in value.items()}
        kept = {key: below for key, below in kept.items() if below is not None and below != []}
        return kept if kept or not value else None
    return [_filled(one) for one in value] if isinstance(value, list) else value


def _kubernetes_problems(job: Job) -> Iterator[Problem]:
    cluster, kubernetes = job.cluster, job.cluster.kubernetes
    if cluster.image is None:
        remedy = "Name one that holds hf_efficient (--image NAME)."
        yield _problem(job, "image", "is missing: a pod runs a container.", remedy)
    if kubernetes.volume_claim is None:
        message = f"is missing: nothing else is mounted at {cluster.shared}."
        remedy = "Write the name of a PersistentVolumeClaim that many pods may write to (ReadWriteMany)."
        yield _problem(job, "kubernetes.volume_claim", message, remedy)
    if job.gpus is not None and job.gpus.kind is not None and not kubernetes.node_selector:
        message = f"names {job.gpus.kind}, but Kubernetes chooses machines by their labels."
        product = "{nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}"
        remedy = f"Write gpus: {job.gpus.count}, and kubernetes.node_selector: {product}, for instance."
        yield _problem(job, "gpus", message, remedy)


_PROGRAMS: dict[Target, tuple[str, str]] = {
    "slurm": ("sbatch", "Slurm's commands are on the cluster's login machines"),
    "skypilot": ("sky", 'SkyPilot comes with `pip install "skypilot[aws]"` or another cloud'),
    "kubernetes": ("kubectl", "Kubernetes' command comes from https://kubernetes.io/docs/tasks/tools"),
}
TEXTS = {"slurm": sbatch_script, "skypilot": skypilot_task, "kubernetes": kubernetes_job}


def check_program(target: Target) -> None:
    program, home = _PROGRAMS[target]
    if shutil.which(program) is None:
        raise SetupError(
            f"--on {target}: there is no `{program}` on the PATH. {home}. Run this command there, or write the job to "
            "a file (--output FILE) and take it there."
        )


def submit_command(target: Target, job: Job, file: str, *, yes: bool = False) -> list[str]:
    """``yes``: SkyPilot starts its machines without asking."""
    if target == "slurm":
        return ["sbatch", file]
    if target == "kubernetes":
        return ["kubectl", "create", "-f", file]
    secrets = [part for name in job.cluster.skypilot.secrets for part in ("--secret", name)]
    return ["sky", "jobs", "launch", *["--yes"] * yes, "--detach-run", *secrets, file]


def submit_job(target: Target, job: Job, text: str, *, yes: bool = False) -> int:
    """The exit code of the cluster's command."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{job.name}.{'sbatch' if target == 'slurm' else 'yaml'}"
        file.write_text(text, encoding="utf-8")
        command = submit_command(target, job, str(file), yes=yes)
        print(f"$ {shlex.join(command)}", flush=True)
        return subprocess.run(command, check=False).returncode
