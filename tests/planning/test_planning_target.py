"""Plans for software that is not installed here, and kernels that a device cannot run."""

import pytest
import torch
from planned_recipes import device, tiny_recipe, write_model
from transformers import modeling_flash_attention_utils, modeling_utils
from transformers.models.llama import modeling_llama

from hf_efficient.errors import ModelError, SetupError
from hf_efficient.facts.tables import accelerator
from hf_efficient.planning.gpu import demand_of, planned_gpu
from hf_efficient.planning.model_config import model_config
from hf_efficient.planning.simulation import planned_memory, simulate
from hf_efficient.planning.target import FLASH, target_remarks, unsuited

PACKED = ("train.packing=true", "train.max_length=256", "train.gradient_checkpointing=false", "train.loss_type=nll")


@pytest.fixture
def planned(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def plan(*overrides, **model):
        recipe = tiny_recipe(tmp_path, "adapter.method=full", *overrides)
        write_model(tmp_path / "model", **model)
        return recipe, simulate(recipe, model_config(recipe.model))

    return plan


def peak(simulation):
    return planned_memory(simulation).peak_allocated_bytes


def attention_flops(simulation):
    return sum(work.flops for work in simulation.operators if work.family == "attention")


@pytest.mark.parametrize("name", ["flash_attention_2", "flex_attention"])
def test_packed_documents_are_attended_to_one_by_one(planned, name):
    """Rows of two documents of 128 tokens: under a mask all 4 x 256 tokens see each other."""
    _, masked = planned(*PACKED, "model.attn_implementation=sdpa")
    _, apart = planned(*PACKED, f"model.attn_implementation={name}")
    kernels = {work.name for work in apart.operators if work.family == "attention"}
    assert kernels == {"aten::_flash_attention_forward", "aten::_flash_attention_backward"}
    positions, layers, micro_batches, heads, width = 4 * 256, 2, 2, 4, 32
    pairs = 8 * 128 * 128 / 2
    assert attention_flops(apart) == layers * micro_batches * 14 * heads * width * pairs
    assert attention_flops(masked) == layers * micro_batches * 14 * heads * width * positions**2
    masks = [life for life in apart.log.lives if life.shape[-2:] == (positions, positions)]
    assert masks == []
    assert peak(apart) < peak(masked)


def test_padded_rows_are_laid_end_to_end(planned, tmp_path):
    recipe, _ = planned("model.attn_implementation=flash_attention_2", "train.packing=false")
    simulation = simulate(recipe, model_config(recipe.model), 64, padded=True)
    (forward,) = [one for one in simulation.operators if one.name == "aten::_flash_attention_forward"]
    layers, micro_batches, times = 2, 2, 2  # once more for each checkpointed layer
    assert forward.flops == layers * micro_batches * times * 4 * 4 * 32 * (3 * 64**2 + 63**2) / 2


def test_ligers_kernels_take_less(planned):
    train = ("train.packing=false", "train.loss_type=nll", "train.gradient_checkpointing=false")
    _, plain = planned(*train)
    _, whole = planned(
        *train, "train.use_liger_kernel=true", "train.liger_kernel_config={fused_linear_cross_entropy: false}"
    )
    _, fused = planned(*train, "train.use_liger_kernel=true")
    assert peak(fused) < peak(whole) < peak(plain)
    rows, words = 4 * 256, 2048
    assert not [life for life in fused.log.lives if life.shape[-1:] == (words,) and life.bytes >= 2 * rows * words]


def test_nothing_of_transformers_is_changed_afterwards(planned):
    names = {
        modeling_flash_attention_utils: "lazy_import_flash_attention",
        modeling_utils.PreTrainedModel: "_check_and_adjust_attn_implementation",
        modeling_llama: "apply_rotary_pos_emb",
    }
    before = {owner: getattr(owner, name) for owner, name in names.items()}
    before_flex = modeling_utils.ALL_ATTENTION_FUNCTIONS["flex_attention"]
    planned("model.attn_implementation=flash_attention_2", "train.use_liger_kernel=true", "train.loss_type=nll")
    planned("model.attn_implementation=flex_attention")
    assert {owner: getattr(owner, name) for owner, name in names.items()} == before
    assert modeling_utils.ALL_ATTENTION_FUNCTIONS["flex_attention"] is before_flex


def test_what_is_taken_for_installed_is_said(planned):
    recipe, _ = planned(
        "model.attn_implementation=flash_attention_2", "train.use_liger_kernel=true", "train.loss_type=nll"
    )
    assert [remark.split()[0] for remark in target_remarks(recipe)] == ["flash_attention_2", "liger-kernel"]
    assert list(target_remarks(planned()[0])) == []


def test_software_that_does_not_exist(planned):
    with pytest.raises(SetupError, match=r"flash_attention_9 is no attention kernel .* Write one of sdpa"):
        planned("model.attn_implementation=flash_attention_9", "train.packing=false")
    with pytest.raises(SetupError, match=r"liger_kernel_config: Liger has no kernel warp\. Write some of: rope"):
        planned("train.use_liger_kernel=true", "train.liger_kernel_config={warp: true}", "train.loss_type=nll")


def test_an_architecture_that_liger_does_not_know(planned, tmp_path):
    (tmp_path / "model").mkdir()
    recipe = tiny_recipe(tmp_path, "adapter.method=full", "train.use_liger_kernel=true", "train.loss_type=nll")
    config = model_config(recipe.model)
    config.model_type = "other"
    with pytest.raises(ModelError, match=r"kernels for other are not planned\. Plan train\.use_liger_kernel=false"):
        simulate(recipe, config)


@pytest.mark.parametrize(
    ("name", "gpu", "instead"),
    [
        ("flash_attention_3", "A100 80GB SXM", "flash_attention_2"),
        ("flash_attention_2", "T4", "sdpa"),
        ("flash_attention_4", "RTX 4090", "flash_attention_2"),
    ],
)
def test_a_kernel_that_the_gpu_cannot_run(planned, name, gpu, instead):
    why = unsuited(name, accelerator(gpu))
    assert why is not None
    assert why.startswith(f"model.attn_implementation: {name} needs a")
    assert why.endswith(f", which {gpu} is not. Write {instead}.")
    recipe, simulation = planned(f"model.attn_implementation={name}", "train.bf16=false", "train.packing=false")
    made = planned_gpu(demand_of(recipe, simulation), accelerator(gpu))
    assert (made.fits, made.step_seconds) == (False, None)
    assert why in made.notes


def test_kernels_that_the_gpu_can_run(planned):
    for name, gpu in (("flash_attention_2", "A10"), ("flash_attention_3", "H100 SXM"), ("sdpa", "T4"), (None, "T4")):
        assert unsuited(name, accelerator(gpu)) is None
    assert unsuited(FLASH[0], device(1024, compute_capability=None)) is None


@pytest.mark.parametrize(("optimizer", "copies"), [("adamw_torch", 5), ("adamw_torch_fused", 4)])
def test_a_gpu_steps_on_all_parameters_at_once(planned, optimizer, copies):
    """Weights, gradients, two moments, and torch's temporary of all of them, which a fused step does not have."""
    train = ("train.bf16=false", "train.packing=false", "train.max_length=16", f"train.optim={optimizer}")
    recipe, simulation = planned(*train, "train.per_device_train_batch_size=1", "model.dtype=float32")
    weights = 4 * simulation.parameters
    found = planned_memory(simulation).phase_peak_allocated_bytes["optimizer"]
    assert found == pytest.approx(copies * weights, rel=0.01)
    on_cpu = simulate(recipe, model_config(recipe.model), on_gpu=False)
    largest = 4 * 2048 * 128
    assert planned_memory(on_cpu).phase_peak_allocated_bytes["optimizer"] < 4 * weights + 3 * largest
    assert torch.get_default_dtype() == torch.float32


def test_offloaded_activations_leave_the_device(planned):
    """Of eight saved inputs of checkpointed layers at most five are on the device while their copies are under way."""
    train = (
        "train.packing=false",
        "train.gradient_checkpointing=true",
        "train.loss_type=chunked_nll",
        "model.dtype=float32",
    )
    held = {}
    for offloaded in (False, True):
        _, simulation = planned(*train, f"train.activation_offloading={str(offloaded).lower()}", num_hidden_layers=8)
        start, inputs = simulation.backward_starts[-1], 4 * 256 * 128 * 4
        kept = [
            one
            for one in simulation.log.lives
            if one.lives_at(start) and one.bytes == inputs and one.phase == "forward"
        ]
        held[offloaded] = len(kept)
    assert held[False] >= 8
    assert held[True] <= 5 + 2  # and what the head and the last norm hold
