"""A recipe and a cluster put together: what fits, what is said where it does not, and the recipe that a job carries."""

from __future__ import annotations

import pytest

from hf_efficient.errors import RecipeError, SetupError
from hf_efficient.jobs.cluster import Gpus
from hf_efficient.jobs.job import job_of, standalone_recipe, target_of
from hf_efficient.recipe.files import list_recipes
from hf_efficient.recipe.load import load_recipe
from tests.jobs.jobs import cluster_of, job_for

AUTO = "distributed.processes=auto"


def told(target, cluster, *overrides, **more):
    with pytest.raises(RecipeError) as error:
        job_for(target, cluster, *overrides, **more)
    return [str(problem) for problem in error.value.problems]


def test_what_a_job_holds():
    cluster = cluster_of(gpus="H100:8", time_limit="12h", shared="/home/me")
    job = job_for("slurm", cluster, AUTO, "distributed.nodes=2", "distributed.max_restarts=2", "name=Llama 3.1_8B")
    assert (job.name, job.nodes, job.processes, job.gpus, job.seconds) == ("llama-3-1-8b", 2, 8, Gpus("H100", 8), 43200)
    assert job.output_dir == "/home/me/project/outputs/quickstart-lora"
    assert "distributed:\n  processes: 8\n  nodes: 2\n  max_restarts: 2\n" in job.recipe


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("7b", "run-7b"),
        ("a" * 60, "a" * 40),
        ("a" * 39 + "-bc", "a" * 39),
        ("_x_", "x"),
        ("Größe", "gr-e"),
        ("日本", "run"),
    ],
)
def test_names_that_kubernetes_takes(name, expected):
    assert job_for("slurm", cluster_of(), f"name={name}").name == expected


def test_auto_without_a_number_of_gpus():
    assert told("slurm", cluster_of(), AUTO) == [
        "command line: distributed.processes=auto: distributed.processes: is auto, one process per GPU, but nothing "
        "says how many GPUs a machine of the cluster has. Give them (--gpus H100:8), or write distributed.processes=N."
    ]


def test_more_processes_than_gpus_and_fewer():
    (more,) = told("slurm", cluster_of(gpus=2), "distributed.processes=4")
    assert "distributed.processes: is 4, but the cluster gives each machine 2 GPUs. Write distributed.pro" in more
    (fewer,) = told("slurm", cluster_of(gpus="A100:8"), "distributed.processes=4")
    assert fewer.endswith(
        "is 4, but the cluster pays for 8 GPUs on each machine. Write distributed.processes=auto, or --gpus A100:4."
    )


@pytest.mark.parametrize(
    ("target", "output", "shared", "fits"),
    [
        ("slurm", "outputs/a", None, True),
        ("slurm", "outputs/a", "/home", True),
        ("slurm", "outputs/a", "/mnt/runs", False),
        ("slurm", "/mnt/runs/a", "/mnt/runs/", True),
        ("slurm", "/mnt/runs/../a", "/mnt/runs", False),
        ("slurm", "/mnt/runs2/a", "/mnt/runs", False),
        ("skypilot", "outputs/a", "/home", False),
        ("skypilot", "/mnt/runs/a", "/mnt/runs", True),
        ("kubernetes", "/mnt/runs/a", "/mnt/runs", True),
        ("kubernetes", "outputs/a", "/mnt/runs", False),
    ],
)
def test_output_dir_lies_on_the_shared_storage(target, output, shared, fits):
    cluster = cluster_of(shared=shared)
    if fits:
        job_for(target, cluster, f"output_dir={output}")
        return
    (message,) = told(target, cluster, f"output_dir={output}")
    assert message.startswith(f"command line: output_dir={output}: output_dir: is {output}, which is not on the shared")
    assert message.endswith(f"Write output_dir={shared}/a.")


@pytest.mark.parametrize("target", ["skypilot", "kubernetes"])
def test_shared_storage_is_needed_where_machines_go_away(target):
    assert told(target, cluster_of()) == [
        "the cluster: shared: is missing: the run would be lost with its machines. Give the path at which they mount "
        "shared storage (--shared /mnt/runs)."
    ]


def test_local_files_that_no_machine_would_find(tmp_path):
    inside, outside = tmp_path / "project", tmp_path / "elsewhere"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "chats.jsonl").write_text("{}\n")
    cluster = cluster_of(shared="/mnt/runs")

    def judged(target, path):
        recipe = load_recipe("quickstart/lora", ["output_dir=/mnt/runs/a", f"data.train.0.path={path}"])
        try:
            job_of(target, recipe, cluster, source="r", directory=str(inside), debug=False)
        except RecipeError as error:
            return str(error)
        return None

    assert judged("slurm", outside / "chats.jsonl") is None
    assert judged("skypilot", "chats.jsonl") is None
    assert judged("skypilot", "/mnt/runs/chats.jsonl") is None
    assert judged("kubernetes", "gone.jsonl") is None
    assert "lies on this machine's disk; SkyPilot copies the current" in judged("skypilot", outside / "chats.jsonl")
    assert "SkyPilot copies the current" in judged("skypilot", "../elsewhere/chats.jsonl")
    assert judged("kubernetes", "chats.jsonl") == (
        "command line: data.train.0.path=chats.jsonl: data.train.0.path: is chats.jsonl, which lies on this machine's "
        "disk; no pod sees it. Copy it to /mnt/runs, and write the path that it has there."
    )


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("slrum", "Did you mean --on slurm?"),
        ("k8s", "Did you mean --on kubernetes?"),
        ("Slurm", "Did you mean --on slurm?"),
        ("aws", "Write slurm, skypilot or kubernetes."),
    ],
)
def test_an_unknown_target(said, remedy):
    with pytest.raises(SetupError) as error:
        target_of(said)
    assert str(error.value) == f"--on: {said} is no kind of cluster that a job can be written for. {remedy}"


def test_the_gpus_of_the_cluster_divide_the_global_batch():
    cluster = cluster_of(gpus="H100:8", shared="/home/me")
    batch = "distributed.global_batch_size={}".format
    job = job_for("slurm", cluster, AUTO, "distributed.nodes=2", batch(128))  # 4 rows
    assert "global_batch_size: 128" in job.recipe
    assert "gradient_accumulation_steps" not in job.recipe
    (said,) = told("slurm", cluster, AUTO, "distributed.nodes=2", batch(96))
    assert "96, which 64 sequences at a time (train.per_device_train_batch_size 4 x 16 processes)" in said


@pytest.mark.parametrize("name", [one.name for one in list_recipes()][::4])
def test_it_loads_to_the_same_recipe(name, tmp_path):
    overrides = ["train.learning_rate=3e-4", "data.train.0.weight=2.0", "evaluate.metrics=[]"]
    recipe = load_recipe(name, [*overrides, "existing_output=overwrite"])
    path = tmp_path / "alone.yaml"
    path.write_text(standalone_recipe(recipe), encoding="utf-8")
    alone = load_recipe(path)
    assert alone.resolved() == {**recipe.resolved(), "existing_output": "refuse"}
