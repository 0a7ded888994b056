"""The description of a cluster: its amounts, its file, its flags, and what is wrong with them."""

from __future__ import annotations

import pytest

from hf_efficient.errors import RecipeError
from hf_efficient.jobs.cluster import Gpus, gpus_of, load_cluster, seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("45s", 45),
        ("90m", 5400),
        ("12h", 43200),
        ("2d", 172800),
        ("12:00:00", 43200),
        ("1-12:30:05", 131405),  # 86400 + 12 * 3600 + 30 * 60 + 5
        ("100:00:00", 360000),
        ("0h", None),
        ("00:00:00", None),
        ("12", None),
        ("1.5h", None),
        ("12:30", None),
        ("soon", None),
    ],
)
def test_times_are_read(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    ("said", "gpus"),
    [
        (8, Gpus(None, 8)),
        ("8", Gpus(None, 8)),
        ("H100:8", Gpus("H100", 8)),
        ("A100-80GB:4", Gpus("A100-80GB", 4)),
        ("H100", None),
        ("H100:", None),
        ("H100:0", None),
        ("0", None),
        ("H 100:2", None),
        ("a:b:2", None),
    ],
)
def test_gpus_are_read(said, gpus):
    assert gpus_of(said) == gpus


@pytest.fixture
def described(tmp_path):
    def write(text):
        path = tmp_path / "cluster.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def problems(path, **flags):
    with pytest.raises(RecipeError) as error:
        load_cluster(path, {f"--{name}": value for name, value in flags.items()})
    return [str(problem).replace(str(path), "cluster.yaml") for problem in error.value.problems]


def test_flags_lie_over_the_file_and_both_are_remembered(described):
    path = described("gpus: A100:8\ncpus: 32\nslurm:\n  partition: gpu\n  account: a\n")
    cluster = load_cluster(path, {"--gpus": "H100:4", "--partition": "short", "--time": None, "--infra": "aws"})
    assert (cluster.gpus, cluster.cpus, cluster.time_limit) == ("H100:4", 32, None)
    assert (cluster.slurm.partition, cluster.slurm.account, cluster.skypilot.infra) == ("short", "a", "aws")
    assert cluster.where("gpus") == "command line: --gpus H100:4"
    assert cluster.where("slurm.account") == f"{path}:5"
    assert cluster.where("image") == str(path)


def test_no_file_and_no_flags():
    cluster = load_cluster(None, {})
    assert (cluster.restarts, cluster.grace_seconds, cluster.gpus) == (3, 120, None)
    assert cluster.where("image") == "the cluster"


def test_unknown_keys_are_told_with_the_nearest_one(described):
    path = described("gpu: 8\npartition: main\nslurm:\n  acount: a\nkubernetes: {}\nlr: 1\nwhatever_it_is: 2\n")
    told = problems(path)
    assert told[0] == "cluster.yaml:1: gpu: is no key of a cluster's description. Did you mean `gpus`?"
    assert told[1] == "cluster.yaml:2: partition: is no key of a cluster's description. Did you mean `slurm.partition`?"
    assert told[2] == "cluster.yaml:4: slurm.acount: is no key of a cluster's description. Did you mean `account`?"
    assert told[3].startswith("cluster.yaml:6: lr: is no key of a cluster's description. Valid here: shared, gpus, ")
    assert "extends" not in told[4]
    assert len(told) == 5


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cpus: many", "cluster.yaml:1: cpus: is the text 'many', but must be a whole number."),
        ("restarts: -1", "cluster.yaml:1: restarts: is the number -1, but must be at least 0."),
        ("env: {A: 1}", "cluster.yaml:1: env.A: is the number 1, but must be text."),
        ("env: {a-b: x}", "cluster.yaml:1: env.a-b: is no name of an environment variable. Letters, digits and _."),
        (
            "gpus: H100",
            "cluster.yaml:1: gpus: is the text 'H100', but must be a count of at least 1, or TYPE:COUNT. Write, for "
            "instance, H100:8.",
        ),
        (
            "time_limit: soon",
            "cluster.yaml:1: time_limit: is the text 'soon', but must be a time: 90m, 12h, 2d, 12:00:00 or "
            "1-12:00:00. Write, for instance, 12h.",
        ),
        (
            "shared: runs",
            "cluster.yaml:1: shared: is the text 'runs', but must be an absolute path. Write the path at which every "
            "machine sees the storage.",
        ),
        (
            "- a",
            "cluster.yaml: holds a list; a cluster's description is a mapping of keys to values. Start with, for "
            "instance, `gpus: H100:8`.",
        ),
    ],
)
def test_wrong_values(described, text, told):
    assert problems(described(text)) == [told]


def test_a_wrong_flag_is_told_as_such(described):
    (told,) = problems(None, gpus="none")
    assert told.startswith("command line: --gpus none: gpus: is the text 'none', but must be a count")
