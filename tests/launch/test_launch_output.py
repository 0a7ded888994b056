"""What becomes of an output directory, and which checkpoints a run can go on from."""

import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from hf_efficient.errors import OutputError
from hf_efficient.launch.arguments import settle_compute_dtype
from hf_efficient.launch.checkpoints import CheckpointLayout, check_layout, layout_of_checkpoint
from hf_efficient.launch.output import OutputPlan, clear_output, locked, plan_output, write_resolved_recipe
from hf_efficient.recipe.rules.distributed import with_accumulation
from hf_efficient.recipe.schema import AdapterSection, DistributedSection, QuantizationSection, Recipe
from hf_efficient.run_dir.checkpoints import fault_of


def recipe(folder: Path, existing="refuse", rank=16, data="x", model="m", **train) -> Recipe:
    sections = {"model": {"id": str(model)}, "adapter": {"r": rank}, "data": {"train": [{"path": str(data)}]}}
    return Recipe(name="t", **sections, train=train, output_dir=str(folder), existing_output=existing)


def a_checkpoint(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text('{"global_step": 1}')
    save_file({"w": np.zeros(4, np.float32)}, folder / "adapter_model.safetensors")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr("data", "x")
    return folder


def a_run(folder: Path, *steps: int, **train) -> None:
    write_resolved_recipe(folder, recipe(folder, **train), {"torch": "2"})
    for step in steps:
        a_checkpoint(folder / f"checkpoint-{step}")


@pytest.mark.parametrize("name", ["README.md", "model.safetensors"])
def test_what_is_not_ours_is_never_replaced(tmp_path, name):
    (tmp_path / name).write_text("mine")
    for existing in ("refuse", "resume", "overwrite"):
        with pytest.raises(OutputError, match=f"holds {name}, which this run would replace and no run of hf_effic"):
            plan_output(recipe(tmp_path, existing))


def test_resume_of_nothing_says_so(tmp_path):
    assert plan_output(recipe(tmp_path, "resume")).remark == "there is no run to resume: it starts from the first step"
    assert plan_output(recipe(tmp_path)).remark == ""


def test_another_run_is_refused_with_both_ways_out(tmp_path):
    a_run(tmp_path, 2, 10)
    held = r"already holds a run \(its last checkpoint is checkpoint-10\)"
    with pytest.raises(OutputError, match=f"{held}.*--resume.*--overwrite"):
        plan_output(recipe(tmp_path))


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("optimizer.pt", b"PK", "optimizer.pt is not whole"),
        ("scheduler.pt", None, "scheduler.pt is missing"),
        ("rng_state.pth", None, "rng_state_0.pth is missing"),
        ("trainer_state.json", b"{", "trainer_state.json is not whole"),
        ("trainer_state.json", b"[]", "trainer_state.json is not whole"),
        ("trainer_state.json", None, "trainer_state.json, its last file, is missing: saving was cut off"),
        ("adapter_model.safetensors", None, "it holds no weights"),
        ("adapter_model.safetensors", "cut", "adapter_model.safetensors is not whole"),
    ],
)
def test_a_damaged_checkpoint_is_no_checkpoint(tmp_path, file, content, said):
    a_run(tmp_path, 2, 4)
    path = tmp_path / "checkpoint-4" / file
    path.write_bytes(path.read_bytes()[:-1] if content == "cut" else content or b"")
    if content is None:
        path.unlink()
    plan = plan_output(recipe(tmp_path, "resume"))
    assert (plan.checkpoint, plan.replaces) == (tmp_path / "checkpoint-2", False)
    assert plan.remark.startswith(f"checkpoint-4 is passed over: {said}")
    with pytest.raises(OutputError, match=f"{said}.*Beside it these are whole: .*checkpoint-2"):
        plan_output(recipe(tmp_path, resume_from_checkpoint=str(tmp_path / "checkpoint-4")))


def test_resume_of_a_run_without_checkpoint_starts_again(tmp_path):
    a_run(tmp_path)
    plan = plan_output(recipe(tmp_path, "resume"))
    assert (plan.checkpoint, plan.replaces, plan.keeps_records) == (None, True, True)
    assert plan.remark == "there is no checkpoint yet: it starts again, and what it has spent so far counts"
    save_file({"w": np.zeros(1)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(OutputError, match="is finished and kept no checkpoint"):  # which it never replaces
        plan_output(recipe(tmp_path, "resume"))


def test_a_run_that_starts_again_keeps_the_records_of_its_lost_starts(tmp_path):
    a_run(tmp_path, 2)
    (tmp_path / "checkpoint-2/trainer_state.json").unlink()
    (tmp_path / "efficiency/spans.jsonl").write_text("spent\n")
    clear_output(plan_output(recipe(tmp_path, "resume")))
    assert not (tmp_path / "checkpoint-2").exists()
    assert (tmp_path / "efficiency/spans.jsonl").read_text() == "spent\n"
    clear_output(plan_output(recipe(tmp_path, "overwrite")))
    assert list(tmp_path.iterdir()) == []


CHANGES = {
    r"adapter\.r \(was 16, is 8\)": {"rank": 8},
    r"data\.train ": {"data": "y"},
    r"train\.learning_rate \(was None, is 0\.5\)": {"learning_rate": 0.5},
    r"train\.seed \(was 3, is 1\)": {"seed": 1},
}


def test_resume_with_another_recipe_names_the_difference(tmp_path):
    a_run(tmp_path, 2, seed=3)
    for way in ({"existing": "resume"}, {"resume_from_checkpoint": str(tmp_path / "checkpoint-2")}):
        for difference, change in CHANGES.items():
            with pytest.raises(OutputError, match=f"cannot continue with another {difference}"):
                plan_output(recipe(tmp_path, **{"seed": 3, **way, **change}))


def test_the_accumulation_that_follows_from_the_global_batch_is_no_difference(tmp_path):
    """Whether other processes may go on is a question of the checkpoint's layout."""

    def of(batch: int, processes: int) -> Recipe:
        distributed = {"distributed": DistributedSection(global_batch_size=batch)}
        return with_accumulation(recipe(tmp_path, "resume").model_copy(update=distributed), processes)

    write_resolved_recipe(tmp_path, of(16, 1), {})
    checkpoint = a_checkpoint(tmp_path / "checkpoint-2")
    assert plan_output(of(16, 2)).checkpoint == checkpoint
    with pytest.raises(OutputError, match=r"another distributed\.global_batch_size \(was 16, is 32\)\. Put"):
        plan_output(of(32, 2))


def test_overwrite_removes_the_run_and_nothing_else_and_only_when_told(tmp_path):
    a_run(tmp_path, 2)
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("mine")
    plan = plan_output(recipe(tmp_path, "overwrite"))
    assert plan == OutputPlan(tmp_path, replaces=True)
    assert (tmp_path / "checkpoint-2/optimizer.pt").is_file()  # deciding changes nothing
    clear_output(plan)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    clear_output(OutputPlan(tmp_path))
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(("method", "merges", "others"), [
    ("lora", False, ("config.json", "merged/x", "model.safetensors")), ("lora", True, ("config.json",)),
    ("full", False, ("adapter_config.json", "merged/x")),
])  # fmt: skip
def test_overwrite_removes_what_its_recipe_writes_and_refuses_what_somebody_put_beside_it(
    tmp_path, method, merges, others
):
    held = recipe(tmp_path, "overwrite")
    held = held.model_copy(update={"adapter": AdapterSection(method=method, merge=merges)})
    write_resolved_recipe(tmp_path, held, {})
    ours = ["README.md", "adapter_model.safetensors" if method == "lora" else "config.json"]
    ours += ["merged/model.safetensors"] if merges else []
    stays = ["checkpoint-thesis/text", "notes.txt", "efficiency/notes.md", "efficiency/figures/1.png"]
    for name in (*ours, *stays, "efficiency/steps.rank1.jsonl", "efficiency/profile/a.json", "checkpoint-7/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    clear_output(plan_output(held))
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == sorted(stays)
    write_resolved_recipe(tmp_path, held, {})
    for name in others:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
        with pytest.raises(OutputError, match=rf"holds .*{name.split('/')[0]}.* no run of hf_efficient wrote"):
            plan_output(held)


def test_a_folder_with_any_file_of_that_name_is_no_run(tmp_path):
    (tmp_path / "efficiency").mkdir()
    (tmp_path / "efficiency/recipe.resolved.yaml").write_text("x")
    (tmp_path / "config.json").touch()
    with pytest.raises(OutputError, match=r"holds config\.json, which this run would replace and no run"):
        plan_output(recipe(tmp_path, "overwrite"))


def test_overwrite_refuses_to_remove_what_it_reads(tmp_path):
    a_run(tmp_path, 2)
    (tmp_path / "merged").mkdir()
    (tmp_path / "efficiency/steps.jsonl").touch()
    for changed, key in (
        ({"model": tmp_path / "merged"}, r"model\.id"),
        ({"model": tmp_path}, r"model\.id"),
        ({"data": tmp_path / "efficiency/steps.jsonl"}, r"data\.train\.0\.path"),
    ):
        with pytest.raises(OutputError, match=f"^{key}: .* is in output_dir, which --overwrite would clear"):
            plan_output(recipe(tmp_path, "overwrite", **changed))


def test_a_named_checkpoint_elsewhere_obeys_the_rules_of_the_output_directory(tmp_path):
    a_run(tmp_path / "one", 2)
    a_run(tmp_path / "three", 2)
    named = {"resume_from_checkpoint": str(tmp_path / "one/checkpoint-2")}
    assert plan_output(recipe(tmp_path / "two", **named)) == OutputPlan(tmp_path / "two", tmp_path / "one/checkpoint-2")
    with pytest.raises(OutputError, match="already holds a run"):
        plan_output(recipe(tmp_path / "three", **named))


def test_a_named_checkpoint_in_its_own_run(tmp_path):
    a_run(tmp_path, 2, 4)

    def plan(step):
        return plan_output(recipe(tmp_path, resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}")))

    assert plan(4) == OutputPlan(tmp_path, tmp_path / "checkpoint-4")
    with pytest.raises(OutputError, match="checkpoint-4 in the same directory would belong to another future"):
        plan(2)
    with pytest.raises(OutputError, match=r"checkpoint-3: there is no such folder\. .*checkpoint-2, .*checkpoint-4"):
        plan(3)


def test_one_run_at_a_time(tmp_path):
    out = tmp_path / "out"
    with locked(out), pytest.raises(OutputError, match=r"another run is writing to .* right now"), locked(out):
        pass
    with locked(out):
        pass


def test_unwritable_output_says_why(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(OutputError, match=r"output_dir: .* cannot be written: Not a directory"):
        plan_output(recipe(blocked / "out"))


def qlora(folder: Path, **quantization) -> Recipe:
    """As it is read, before a machine has settled what its 4-bit layers multiply in."""
    made = recipe(folder, existing="resume")
    section = QuantizationSection(**quantization) if quantization else None
    return made.model_copy(update={"adapter": AdapterSection(method="qlora", quantization=section)})


@pytest.mark.parametrize("quantization", [{}, {"compute_dtype": "auto"}])
def test_what_a_machine_has_settled_goes_on_as_the_recipe_that_leaves_it_open(tmp_path, quantization):
    started = settle_compute_dtype(qlora(tmp_path, **quantization), torch.device("cpu"))
    write_resolved_recipe(tmp_path, started, {"torch": "2"})
    checkpoint = a_checkpoint(tmp_path / "checkpoint-1")
    assert plan_output(qlora(tmp_path, **quantization)).checkpoint == checkpoint
    assert plan_output(started).checkpoint == checkpoint
    for other in ({"compute_dtype": "float16"}, {"double_quant": False}):
        with pytest.raises(OutputError, match=r"cannot continue with another adapter\.quantization"):
            plan_output(qlora(tmp_path, **other))


def test_what_auto_of_the_fast_step_meant_is_no_difference(tmp_path):
    def of(fused, attention):
        made = qlora(tmp_path)
        adapter = made.adapter.model_copy(update={"fused": fused})
        model = made.model.model_copy(update={"attn_implementation": attention})
        return made.model_copy(update={"adapter": adapter, "model": model})

    write_resolved_recipe(tmp_path, of(True, "documents"), {"torch": "2"})
    checkpoint = a_checkpoint(tmp_path / "checkpoint-1")
    assert plan_output(of("auto", "auto")).checkpoint == checkpoint
    with pytest.raises(OutputError, match=r"another adapter\.fused \(was True, is False\)"):
        plan_output(of(False, "auto"))


DDP = ["model.safetensors", "rng_state_0.pth", "rng_state_1.pth"]
ZERO = [f"global_step4/bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1)]
ZERO += ["global_step4/zero_pp_rank_0_mp_rank_00_model_states.pt"]
FSDP = ["pytorch_model_fsdp_0/.metadata", "optimizer_0/.metadata", "rng_state_0.pth", "rng_state_1.pth", "scheduler.pt"]


@pytest.fixture
def checkpoint(tmp_path):
    def make(names):
        for path in (tmp_path / "checkpoint-4" / name for name in names):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return tmp_path / "checkpoint-4"

    return make


@pytest.mark.parametrize(("names", "kind", "processes"), [
    (["model.safetensors", "rng_state.pth"], "whole", 1), (["model.safetensors"], "whole", None), (DDP, "whole", 2),
    (ZERO, "zero3", 2), (ZERO[:2], "zero", 2), (FSDP, "fsdp2", 2),
])  # fmt: skip
def test_who_wrote_it(checkpoint, names, kind, processes):
    assert layout_of_checkpoint(checkpoint(names)) == CheckpointLayout(kind, processes)


OTHERS = {
    "is fsdp2, but checkpoint-4 was written by whole models (one process, or DDP)": (DDP, "fsdp2", 2),
    "zero_to_fp32.py": (ZERO, "ddp", 2),
    "accelerate merge-weights": (FSDP, "zero3", 2),
    "distributed.processes: 4 train, but checkpoint-4 was written by 2: other rows": (ZERO, "zero3", 4),
    "distributed.processes: 1 train, but checkpoint-4 was written by 2": (DDP, "none", 1),
}


@pytest.mark.parametrize("message", OTHERS)
def test_another_does_not(checkpoint, message):
    names, *wanted = OTHERS[message]
    with pytest.raises(OutputError, match=re.escape(message)):
        check_layout(checkpoint(names), recipe(Path("out")), *wanted)


def test_a_global_batch_lets_other_processes_continue(tmp_path):
    a_run(tmp_path, 4, per_device_train_batch_size=2, gradient_accumulation_steps=3)
    folder = tmp_path / "checkpoint-4"
    (folder / "rng_state.pth").rename(folder / "rng_state_0.pth")
    shutil.copy(folder / "rng_state_0.pth", folder / "rng_state_1.pth")
    held = recipe(tmp_path, "resume", per_device_train_batch_size=2, gradient_accumulation_steps=3)
    with pytest.raises(
        OutputError, match=r"on\. Keep 2 .* or write distributed\.global_batch_size=12, which keeps the rows"
    ):
        check_layout(folder, held, "none", 1)

    def of(batch: int) -> Recipe:
        distributed = {"distributed": DistributedSection(global_batch_size=batch)}
        plain = recipe(tmp_path, "resume", per_device_train_batch_size=2)
        return with_accumulation(plain.model_copy(update=distributed), 1)

    assert plan_output(of(12)).checkpoint == folder  # the stored run named no global batch: it follows
    assert check_layout(folder, of(12), "none", 1).startswith("distributed.processes: was 2 for checkpoint-4, is 1: ")
    with pytest.raises(OutputError, match=r"global_batch_size \(was 12, is 24\)"):
        plan_output(of(24))


def test_shards_that_were_cut_off(checkpoint):
    folder = checkpoint(FSDP)
    (folder / "trainer_state.json").write_text('{"global_step": 4}')
    assert fault_of(folder) is None
    (folder / "optimizer_0/.metadata").unlink()
    assert fault_of(folder) == "optimizer_0/.metadata, its last file, is missing: saving was cut off"
