"""What a launcher started against what the recipe asks for, the command line of a run, and how it ends."""

import errno
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

from hf_efficient.errors import DataError, OutputError, RecipeError, SetupError
from hf_efficient.launch import exits
from hf_efficient.launch.exits import cause_of, explained_faults
from hf_efficient.launch.started import (
    STATUS_FILE,
    RunFlags,
    engine_contradiction,
    launch_contradiction,
    parse_flags,
    started_engine,
    started_recipe,
)
from hf_efficient.recipe.load import load_recipe


def test_flags_may_stand_anywhere_and_exclude_each_other(capsys):
    expected = RunFlags("r.yaml", ("a.b=1", "c=2", "existing_output=resume"), True)
    assert parse_flags(["--resume", "r.yaml", "a.b=1", "--debug", "c=2"]) == expected
    with pytest.raises(SystemExit) as caught:
        parse_flags(["r.yaml", "--resume", "--overwrite"])
    assert caught.value.code == 2
    assert "not allowed with" in capsys.readouterr().err


ZERO3 = {
    "WORLD_SIZE": "2", "ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "none", "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "none",
}  # fmt: skip
FSDP2 = {"WORLD_SIZE": "2", "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_OFFLOAD_PARAMS": "false"}
DDP = {"WORLD_SIZE": "2"}


def recipe(*distributed):
    return load_recipe("quickstart/lora", [f"distributed.{one}" for one in ("processes=2", *distributed)])


def test_what_was_started_and_agrees():
    one, two = {**ZERO3, "ACCELERATE_DEEPSPEED_ZERO_STAGE": "1"}, {"ACCELERATE_USE_DEEPSPEED": "true"}
    found = [started_engine(environment) for environment in ({}, DDP, ZERO3, FSDP2, one, two)]
    assert found == ["none", "ddp", "zero3", "fsdp2", "zero1", "zero2"]
    agree = (("auto", {}), ("auto", DDP), ("ddp", DDP), ("none", {}), ("zero3", ZERO3), ("fsdp2", FSDP2), ("ddp", {}))
    for strategy, environment in agree:
        assert engine_contradiction(recipe("processes=1", f"strategy={strategy}"), environment) is None


FSDP = "strategy=fsdp2"
ITS_OWN = {**ZERO3, "ACCELERATE_DEEPSPEED_CONFIG_FILE": "mine.json"}
TO_HOST = {**ZERO3, "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "cpu"}


def test_contradictions_name_both():
    for distributed, environment, message in (
        ("strategy=zero3", DDP, "strategy: is zero3, but the launcher started data-parallel processes"),
        ("strategy=zero3", {}, "strategy: is zero3, but the launcher started one process"),
        ("strategy=zero2", ZERO3, "strategy: is zero2, but the launcher started zero3."),
        ("strategy=ddp", FSDP2, "strategy: is ddp, but the launcher started fsdp2."),
        ("strategy=auto", ZERO3, "strategy: is auto, but the launcher started zero3."),
        (FSDP, {**FSDP2, "FSDP_VERSION": "1"}, "strategy: is fsdp2, but the launcher started FSDP version 1 (--fsdp_v"),
        (f"{FSDP} offload.parameters=true", FSDP2, "offload.parameters: is true, but --fsdp_offload_params is false."),
        ("strategy=zero3 offload.optimizer=true", ZERO3, "offload.optimizer: is true, but --offload_optimizer_device"),
        ("strategy=zero3", TO_HOST, "offload.parameters: is false, but --offload_param_device is cpu."),
        ("strategy=zero3", ITS_OWN, "the launcher names a DeepSpeed configuration of its own, mine.json."),
    ):
        said = engine_contradiction(recipe(*distributed.split()), environment)
        assert message in said
        assert "Start with `hf-efficient train`" in said


def test_fewer_processes_than_the_recipe_says():
    assert launch_contradiction(recipe(), 1) == (
        "command line: distributed.processes=2: distributed.processes: is 2, but 1 process was started. Start with "
        "`hf-efficient train`, which derives the launch from the recipe; or pass "
        "--num_processes=2 --multi_gpu to `accelerate launch`; or write distributed.processes=1."
    )
    on_two = recipe("processes=8", "nodes=2")
    assert launch_contradiction(on_two, 16, nodes=2) is None
    said = launch_contradiction(on_two, 8, nodes=2)
    assert "distributed.processes: is 8 on each of 2 machines, but 8 were started together." in said


def test_the_accumulation_of_the_processes_that_were_started():
    """A bare ``accelerate launch`` of a recipe that does not say how many: the environment does."""
    loaded = load_recipe("quickstart/lora", ["distributed.global_batch_size=64"])  # 4 rows
    found = [started_recipe(loaded, {"WORLD_SIZE": str(number)}) for number in (1, 2, 8)]
    assert [one.train["gradient_accumulation_steps"] for one in found] == [16, 8, 2]
    assert started_recipe(loaded, {}).train["gradient_accumulation_steps"] == 16
    with pytest.raises(RecipeError, match=r"is 64, which 12 sequences at a time .* 4 x 3 processes\) do not divide"):
        started_recipe(loaded, {"WORLD_SIZE": "3"})


def test_launchers_that_disagree_are_told_before_the_processes_meet():
    two = load_recipe("quickstart/lora", ["distributed.processes=2"])
    with pytest.raises(SetupError, match=r"distributed\.processes: is 2, but 3 processes were started"):
        started_recipe(two, {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"})
    with pytest.raises(SetupError, match=r"distributed\.strategy: is zero3, but the launcher started one process"):
        started_recipe(load_recipe("quickstart/lora", ["distributed.strategy=zero3"]), {})
    assert started_recipe(two, {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}) is two


UNREDUCED = "Expected to have finished reduction in the prior iteration before starting a new one."
FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("raised", "error", "told"),
    [
        (FULL, OutputError, r"no room left for out\. Make room, .*--resume"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), OutputError, "no room left"),
        (RuntimeError("unexpected pos 320 vs 214"), OutputError, "no room left"),
        (CheckpointException("write", {0: (FULL, [])}), OutputError, "no room left for out"),
        (OSError(errno.EFBIG, "File too large"), OutputError, "no room left"),
        (PermissionError(13, "Permission denied", "out/x"), OutputError, "can no longer be written"),
        (OSError(errno.EIO, "Input/output error"), OutputError, r"out could not be written: .*error\. See"),
        (RuntimeError("basic_ios::clear: iostream error"), OutputError, "out could not be written"),
        (torch.OutOfMemoryError("CUDA out of memory."), SetupError, r"per_device_train_batch_size .* adapter\.method"),
        (ModuleNotFoundError("No module named 'not_there'"), SetupError, "missing: No module named 'not_there'"),
        (RuntimeError(UNREDUCED), SetupError, r"ddp_find_unused_parameters: is false, .*took no part in a step"),
        (DataError("row 3"), DataError, "row 3"),
        (CheckpointException("read", {0: (ValueError("plain"), [])}), ValueError, "plain"),
        (KeyboardInterrupt(), KeyboardInterrupt, ""),
    ],
)
def test_faults_in_words(raised, error, told):
    with pytest.raises(error, match=told) as caught, explained_faults("out"):
        raise raised
    if error is OutputError:  # a storage may be back at another start
        assert caught.value.exit_code == (1 if "could not" in told else 2)


def test_a_real_full_disk_and_the_first_ranks_fault_of_a_sharded_checkpoint():
    with pytest.raises(OutputError, match="no room left for out"), explained_faults("out"):
        Path("/dev/full").write_text("one byte too many")
    plain = ValueError("plain")
    assert cause_of(plain) is plain
    assert cause_of(CheckpointException("write", {3: (plain, []), 1: (FULL, [])})) is FULL


@pytest.fixture
def start(tmp_path):
    """The environment of a process of the n-th start."""
    path = str(tmp_path / "status")
    return lambda count: {STATUS_FILE: path, "TORCHELASTIC_RESTART_COUNT": str(count), "MASTER_PORT": "29500"}


def test_the_first_process_of_a_start_says_why(start, tmp_path):
    assert exits.state_code(1, start(0)) is True
    assert exits.state_code(143, start(0)) is False  # what the launcher ended thereafter
    assert exits.read_code(tmp_path / "status") == 1
    assert exits.state_code(2, start(1)) is True
    assert exits.read_code(tmp_path / "status") == 2
    (tmp_path / "status").write_text("")  # half a file holds no code
    assert exits.read_code(tmp_path / "status") is None
    assert exits.state_code(1, start(0)) is True


def test_what_an_earlier_start_ended_with(start, tmp_path):
    assert exits.earlier_code(start(0)) is None
    exits.state_code(2, start(0))
    assert (exits.earlier_code(start(0)), exits.earlier_code(start(1))) == (None, 2)
    exits.forget_code(start(1))
    assert exits.earlier_code(start(1)) is None
    assert exits.read_code(tmp_path / "status") is None


def test_the_whole_run_ends_and_without_hf_efficient_train_nothing_is_left(start, tmp_path):
    assert not exits.end_is_announced(start(0))
    exits.announce_end(tmp_path / "status")
    assert exits.end_is_announced(start(0))
    exits.forget_code({})
    assert (exits.state_code(2, {}), exits.earlier_code({}), exits.end_is_announced({})) == (None, None, False)
