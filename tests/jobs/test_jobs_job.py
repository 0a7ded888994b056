"""A cluster's description, and a recipe put together with it: what fits, what is said where it does not."""

import pytest

from hf_efficient.errors import RecipeError, SetupError
from hf_efficient.jobs.job import Gpus, gpus_of, job_of, load_cluster, seconds_of, standalone_recipe, target_of
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
    assert job.output_dir == "/home/me/project/outputs/Llama 3.1_8B"
    assert "distributed:\n  processes: 8\n  nodes: 2\n  max_restarts: 2\n" in job.recipe


@pytest.mark.parametrize(("name", "expected"), [
    ("7b", "run-7b"), ("a" * 60, "a" * 40), ("a" * 39 + "-bc", "a" * 39), ("_x_", "x"), ("Größe", "gr-e"),
    ("日本", "run"),
])  # fmt: skip
def test_names_that_kubernetes_takes(name, expected):
    assert job_for("slurm", cluster_of(), f"name={name}").name == expected


def test_auto_without_a_number_of_gpus():
    assert told("slurm", cluster_of(), AUTO) == [
        "command line: distributed.processes=auto: distributed.processes: is auto, one process per GPU, but the "
        "number of GPUs of a machine is not given. Write --gpu H100 --num-gpus 8, or distributed.processes=N."
    ]


def test_more_processes_than_gpus_and_fewer():
    (more,) = told("slurm", cluster_of(gpus=2), "distributed.processes=4")
    assert "distributed.processes: is 4, but the cluster gives each machine 2 GPUs. Write distributed.pro" in more
    (fewer,) = told("slurm", cluster_of(gpus="A100:8"), "distributed.processes=4")
    remedy = "Write distributed.processes=auto, or --num-gpus 4."
    assert fewer.endswith(f"is 4, but the cluster pays for 8 GPUs on each machine. {remedy}")


@pytest.mark.parametrize(("target", "output", "shared"), [
    ("slurm", "outputs/a", None), ("slurm", "outputs/a", "/home"), ("slurm", "/mnt/runs/a", "/mnt/runs/"),
    ("skypilot", "/mnt/runs/a", "/mnt/runs"), ("kubernetes", "/mnt/runs/a", "/mnt/runs"),
])  # fmt: skip
def test_output_dir_on_the_shared_storage(target, output, shared):
    job_for(target, cluster_of(shared=shared), f"output_dir={output}")


@pytest.mark.parametrize(("target", "output", "shared"), [
    ("slurm", "outputs/a", "/mnt/runs"), ("slurm", "/mnt/runs/../a", "/mnt/runs"), ("skypilot", "outputs/a", "/home"),
    ("slurm", "/mnt/runs2/a", "/mnt/runs"), ("kubernetes", "outputs/a", "/mnt/runs"),
])  # fmt: skip
def test_output_dir_elsewhere(target, output, shared):
    (message,) = told(target, cluster_of(shared=shared), f"output_dir={output}")
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
            job_of(target, recipe, cluster, source="r", directory=str(inside), switch="", flags=[])
        except RecipeError as error:
            return str(error)
        return None

    assert judged("slurm", outside / "chats.jsonl") is None
    assert judged("skypilot", "chats.jsonl") is None
    assert judged("skypilot", "/mnt/runs/chats.jsonl") is None
    assert judged("kubernetes", "gone.jsonl") is None
    assert "is on the disk of this machine; SkyPilot copies the current" in judged("skypilot", outside / "chats.jsonl")
    assert "SkyPilot copies the current" in judged("skypilot", "../elsewhere/chats.jsonl")
    assert judged("kubernetes", "chats.jsonl") == (
        "command line: data.train.0.path=chats.jsonl: data.train.0.path: is chats.jsonl, which is on the disk of "
        "this machine; no pod sees it. Copy it to /mnt/runs, and write the path that it has there."
    )


@pytest.mark.parametrize(("said", "meant"), [("slrum", "slurm"), ("k8s", "kubernetes"), ("aws", "")])
def test_an_unknown_target(said, meant):
    with pytest.raises(SetupError) as error:
        target_of(said)
    remedy = f"Did you mean --on {meant}?" if meant else "Write slurm, skypilot or kubernetes."
    assert str(error.value) == f"--on: {said} is not a known kind of cluster. {remedy}"


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


@pytest.mark.parametrize(("text", "seconds"), [
    ("45s", 45), ("90m", 5400), ("12h", 43200), ("2d", 172800), ("12:00:00", 43200), ("100:00:00", 360000),
    ("1-12:30:05", 131405),  # 86400 + 12 * 3600 + 30 * 60 + 5
    *((wrong, None) for wrong in ("0h", "00:00:00", "12", "1.5h", "12:30", "soon")),
])  # fmt: skip
def test_times_are_read(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(("said", "gpus"), [
    (8, Gpus(None, 8)), ("8", Gpus(None, 8)), ("H100:8", Gpus("H100", 8)), ("A100-80GB:4", Gpus("A100-80GB", 4)),
    *((wrong, None) for wrong in ("H100", "H100:", "H100:0", "0", "H 100:2", "a:b:2")),
])  # fmt: skip
def test_gpus_are_read(said, gpus):
    assert gpus_of(said) == gpus


@pytest.fixture
def described(tmp_path):
    """Writes ``cluster.yaml``, and returns its path."""
    path = tmp_path / "cluster.yaml"
    return lambda text: path.write_text(text, encoding="utf-8") and path


def problems(path, **flags):
    with pytest.raises(RecipeError) as error:
        load_cluster(path, {f"--{name.replace('_', '-')}": value for name, value in flags.items()})
    return [str(problem).replace(str(path), "cluster.yaml") for problem in error.value.problems]


def test_flags_lie_over_the_file_and_both_are_remembered(described):
    path = described("gpus: A100:8\ncpus: 32\nslurm:\n  partition: gpu\n  account: a\n")
    cluster = load_cluster(
        path, {"--gpu": "H100", "--num-gpus": "4", "--partition": "short", "--time": None, "--infra": "aws"}
    )
    assert (cluster.gpus, cluster.cpus, cluster.time_limit) == ("H100:4", 32, None)
    assert (cluster.slurm.partition, cluster.slurm.account, cluster.skypilot.infra) == ("short", "a", "aws")
    assert cluster.where("gpus") == "command line: --gpu H100 --num-gpus 4"
    assert cluster.where("slurm.account") == f"{path}:5"
    assert cluster.where("image") == str(path)


def test_no_file_and_no_flags():
    cluster = load_cluster(None, {})
    assert (cluster.restarts, cluster.grace_seconds, cluster.gpus) == (3, 120, None)
    assert cluster.where("image") == "the cluster"


def test_unknown_keys_are_named_with_the_nearest_one(described):
    text = "gpu: 8\npartition: main\nslurm:\n  acount: a\nkubernetes: {}\nlr: 1\nwhatever_it_is: 2\n"
    told = problems(described(text))
    unknown = "is no key of a cluster's description."
    assert told[:3] == [
        f"cluster.yaml:1: gpu: {unknown} Did you mean `gpus`?",
        f"cluster.yaml:2: partition: {unknown} Did you mean `slurm.partition`?",
        f"cluster.yaml:4: slurm.acount: {unknown} Did you mean `account`?",
    ]
    assert told[3].startswith(f"cluster.yaml:6: lr: {unknown} Valid here: shared, gpus, ")
    assert ("extends" in told[4], len(told)) == (False, 5)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cpus: many", "cpus: is the text 'many', but must be a whole number."),
        ("restarts: -1", "restarts: is the number -1, but must be at least 0."),
        ("env: {A: 1}", "env.A: is the number 1, but must be text."),
        ("env: {a-b: x}", "env.a-b: is the text 'a-b', but must be a name of letters, digits and _."),
        (
            "kubernetes: {namespace: My Team}",
            "kubernetes.namespace: is the text 'My Team', but must be lower-case letters,",
        ),
        (
            "kubernetes: {volume_claim: a/b}",
            "kubernetes.volume_claim: is the text 'a/b', but must be lower-case letters,",
        ),
        ("kubernetes: {secrets: [ok, No]}", "kubernetes.secrets.1: is the text 'No', but must be lower"),
        (
            "skypilot: {bucket: my-runs}",
            "skypilot.bucket: is the text 'my-runs', but must be a bucket's address, s3://",
        ),
        ("skypilot: {secrets: [A B]}", "skypilot.secrets.0: is the text 'A B', but must be a name of letters, digits"),
        ("gpus: H100", "gpus: is the text 'H100', but must be a count of at least 1, or TYPE:COUNT. Write, for "),
        ("time_limit: soon", "time_limit: is the text 'soon', but must be a time: 90m, 12h, 2d, 12:00:00 or 1-12:00"),
        ("shared: runs", "shared: is the text 'runs', but must be an absolute path. Write the path at which every "),
        ("- a", "holds a list; a cluster's description is a mapping of keys to values. Start with, for instance, "),
    ],
)
def test_wrong_values(described, text, told):
    (said,) = problems(described(text))
    assert said.startswith(f"cluster.yaml: {told}" if text == "- a" else f"cluster.yaml:1: {told}")


def test_a_wrong_flag_is_named_as_such():
    (said,) = problems(None, num_gpus="none")
    assert said.startswith("command line: --num-gpus none: gpus: is the text 'none', but must be a count")
