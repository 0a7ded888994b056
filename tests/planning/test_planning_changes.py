"""Each change of a recipe: what it proposes, and where it abstains."""

import dataclasses

import pytest
from planned_recipes import device, memory, tiny_recipe

from hf_efficient.planning.changes import (
    CHANGES,
    Situation,
    checkpoint_activations,
    checkpoint_every_second_layer,
    chunked_loss,
    eight_bit_optimizer,
    fused_attention,
    group_by_length,
    larger_micro_batch,
    mix_float16,
    offload_the_optimizer,
    offload_the_weights,
    pack,
    paged_optimizer,
    quantize_the_base,
    shard_gradients,
    shard_weights_by_fsdp,
    shard_weights_by_zero,
    shorter_rows,
    smaller_evaluation_batch,
    smaller_micro_batch,
    store_activations,
    train_an_adapter,
    weights_in_bfloat16,
)
from hf_efficient.recipe.load import change_recipe
from hf_efficient.recipe.rules.settings import Settings
from hf_efficient.recipe.train_fields import train_fields

FULL = "adapter.method=full"
ROWS, STEPS = "train.per_device_train_batch_size", "train.gradient_accumulation_steps"
WHOLE = {"weights": 40, "activations": 20, "logits": 20, "optimizer_state": 20}


@pytest.fixture
def situation(tmp_path):
    def build(*overrides, held=WHOLE, weights="bfloat16", fits=False, capability=(8, 0)):
        settings = Settings(tiny_recipe(tmp_path, *overrides), train_fields("sft"))
        gpu = device(1000, compute_capability=capability)
        return Situation(settings, memory(**held), weights, gpu, fits)

    return build


def test_a_global_batch_that_is_named_stays(situation):
    """The accumulation follows from it: 4 rows, twice; with half of the rows 4 times, with twice as many once."""
    named = ["distributed.global_batch_size=8", "train.gradient_accumulation_steps=null"]
    smaller, larger = smaller_micro_batch(situation(*named)), larger_micro_batch(situation(*named, fits=True))
    assert smaller.overrides == {ROWS: 2}
    assert larger.overrides == {ROWS: 8}
    recipe = situation(*named).settings.recipe
    changed = [change_recipe(recipe, one.overrides).train for one in (smaller, larger)]
    assert [one["gradient_accumulation_steps"] for one in changed] == [4, 1]
    packed = shorter_rows(situation(*named, "train.packing=true"))
    assert packed.overrides == {"train.max_length": 128}
    assert packed.costs.endswith("; a step of as many packs sees half as many tokens")
    both = smaller_micro_batch(situation("distributed.global_batch_size=8"))  # the recipe names both, which agree
    assert both.overrides[STEPS] == 4


@pytest.mark.parametrize(
    ("propose", "overrides", "expected"),
    [
        (checkpoint_activations, ["train.gradient_checkpointing=false"], {"train.gradient_checkpointing": True}),
        (checkpoint_activations, ["train.activation_checkpointing=false"], {"train.activation_checkpointing": True}),
        (checkpoint_activations, ["train.gradient_checkpointing=true"], None),
        (checkpoint_activations, [], None),  # TRL's default is on
        (smaller_micro_batch, [], {ROWS: 2, STEPS: 4}),
        (smaller_micro_batch, ["train.per_device_train_batch_size=15"], {ROWS: 5, STEPS: 6}),
        (smaller_micro_batch, ["train.per_device_train_batch_size=7"], {ROWS: 1, STEPS: 14}),
        (smaller_micro_batch, ["train.per_device_train_batch_size=1"], None),
        (eight_bit_optimizer, [], {"train.optim": "adamw_8bit"}),
        (eight_bit_optimizer, ["train.optim=adamw_torch"], {"train.optim": "adamw_8bit"}),
        (eight_bit_optimizer, ["train.optim=sgd"], None),
        (eight_bit_optimizer, ["train.optim=adamw_8bit"], None),
        (eight_bit_optimizer, ["train.optim=paged_adamw_32bit"], None),
        (paged_optimizer, [], {"train.optim": "paged_adamw_8bit"}),
        (paged_optimizer, ["train.optim=adamw_8bit"], {"train.optim": "paged_adamw_8bit"}),
        (paged_optimizer, ["train.optim=paged_adamw_32bit"], {"train.optim": "paged_adamw_8bit"}),
        (paged_optimizer, ["train.optim=paged_adamw_8bit"], None),
        (paged_optimizer, ["train.optim=adafactor"], None),
        (quantize_the_base, [], {"adapter.method": "qlora"}),
        (quantize_the_base, ["adapter.method=qlora"], None),
        (quantize_the_base, [FULL], None),
        (train_an_adapter, [FULL], {"adapter.method": "lora"}),
        (train_an_adapter, [], None),
        (fused_attention, ["model.attn_implementation=eager"], {"model.attn_implementation": "sdpa"}),
        (fused_attention, [], None),
        (chunked_loss, [], {"train.loss_type": "chunked_nll"}),
        (chunked_loss, [FULL], {"train.loss_type": "chunked_nll"}),
        (chunked_loss, ["train.loss_type=chunked_nll"], None),
        (chunked_loss, ["train.loss_type=dft"], None),
        (chunked_loss, ["train.label_smoothing_factor=0.1"], None),
        (chunked_loss, ["train.use_liger_kernel=true"], None),
        (chunked_loss, ["adapter.target_modules=[q_proj, lm_head]"], None),
        (shorter_rows, [], {"train.max_length": 128}),
        (shorter_rows, ["train.packing=true"], {"train.max_length": 128, STEPS: 4}),
        (shorter_rows, ["train.max_length=255"], None),
        (shorter_rows, ["train.max_length=null"], None),
    ],
)
def test_what_is_proposed(situation, propose, overrides, expected):
    change = propose(situation(*overrides))
    assert (None if change is None else dict(change.overrides)) == expected


@pytest.mark.parametrize(
    ("propose", "held"),
    [
        (smaller_micro_batch, {"weights": 1000, "activations": 9}),
        (shorter_rows, {"weights": 1000, "logits": 9}),
        (chunked_loss, {"activations": 1000, "logits": 9}),
        (checkpoint_activations, {"weights": 1000, "activations": 9}),
        (eight_bit_optimizer, {"weights": 1000, "optimizer_state": 9}),
        (paged_optimizer, {"weights": 1000, "optimizer_state": 9}),
        (quantize_the_base, {"activations": 1000, "weights": 9}),
    ],
)
def test_what_could_not_matter_is_not_proposed(situation, propose, held):
    """Less than a hundredth of the peak."""
    off = "train.gradient_checkpointing=false"
    assert propose(situation(off, held=held)) is None
    assert propose(situation(off, held=dict.fromkeys(held, 20))) is not None


@pytest.mark.parametrize(
    ("weights", "capability", "proposed"),
    [
        ("float32", (8, 0), True),
        ("float32", None, True),
        ("float32", (7, 5), False),  # a T4 has no bfloat16
        ("bfloat16", (8, 0), False),
        ("float16", (8, 0), False),
    ],
)
def test_weights_in_bfloat16(situation, weights, capability, proposed):
    change = weights_in_bfloat16(situation(weights=weights, capability=capability))
    assert (change is not None) == proposed
    assert change is None or dict(change.overrides) == {"model.dtype": "bfloat16"}


def test_bfloat16_changes_what_is_learned_where_all_weights_are_trained(situation):
    assert weights_in_bfloat16(situation(weights="float32")).keeps_training
    full = weights_in_bfloat16(situation(FULL, weights="float32"))
    assert not full.keeps_training
    assert "updates below the weights' last digit" in full.costs


@pytest.mark.parametrize(
    ("propose", "expected"),
    [(store_activations, {"train.gradient_checkpointing": False}), (larger_micro_batch, {ROWS: 8, STEPS: 1})],
)
def test_what_runs_faster_is_proposed_where_the_recipe_fits(situation, propose, expected):
    assert dict(propose(situation(fits=True)).overrides) == expected
    assert propose(situation(fits=False)) is None


@pytest.mark.parametrize(
    ("rows", "phase", "expected"),
    [(8, "evaluation", 4), (3, "evaluation", 1), (1, "evaluation", None), (8, "backward", None)],
)
def test_fewer_rows_are_evaluated_where_an_evaluation_takes_most(situation, rows, phase, expected):
    here = situation(f"train.per_device_eval_batch_size={rows}")
    change = smaller_evaluation_batch(
        dataclasses.replace(here, memory=dataclasses.replace(here.memory, peak_phase=phase))
    )
    assert (change and dict(change.overrides)) == (expected and {"train.per_device_eval_batch_size": expected})


@pytest.mark.parametrize(
    ("propose", "share", "overrides", "expected"),
    [
        (group_by_length, 0.05, [], {"train.train_sampling_strategy": "group_by_length"}),
        (group_by_length, 0.049, [], None),
        (group_by_length, 0.3, ["train.train_sampling_strategy=group_by_length"], None),
        (pack, 0.05, [], {"train.packing": True}),
        (pack, 0.049, [], None),
        (pack, 0.3, ["train.packing=true"], None),
        (pack, 0.3, ["train.max_length=null"], None),
    ],
)
def test_padding_is_avoided_where_there_is_much(situation, propose, share, overrides, expected):
    change = propose(dataclasses.replace(situation(*overrides), padding_share=share))
    assert (change and dict(change.overrides)) == expected


OFF = "train.gradient_checkpointing=false"
SOME = "train.gradient_checkpointing_kwargs={every_n_layers: 2}"
OTHERS = "train.gradient_checkpointing_kwargs={use_reentrant: true}"


@pytest.mark.parametrize(
    ("overrides", "fits", "expected"),
    [
        ([], True, {"every_n_layers": 2}),
        ([OTHERS], True, {"use_reentrant": True, "every_n_layers": 2}),
        ([OFF], False, {"every_n_layers": 2}),
        ([], False, None),  # all layers need the least
        ([OFF], True, None),
        ([SOME], True, None),
    ],
)
def test_every_second_layer_is_between_all_and_none(situation, overrides, fits, expected):
    change = checkpoint_every_second_layer(situation(*overrides, fits=fits))
    wanted = {"train.gradient_checkpointing": True, "train.gradient_checkpointing_kwargs": expected}
    assert (change and dict(change.overrides)) == (expected and wanted)


@pytest.mark.parametrize(
    ("overlong", "fate"), [("truncate", "are cut"), ("drop", "are left out"), ("error", "end the run")]
)
def test_shorter_rows_say_what_becomes_of_the_rest(situation, overlong, fate):
    assert shorter_rows(situation(f"data.overlong={overlong}")).costs == f"examples of more than 128 tokens {fate}"


def test_every_change_is_accepted_by_the_recipes_own_checks(situation):
    proposed = 0
    for overrides in ([], [FULL], ["train.gradient_checkpointing=false", "model.attn_implementation=eager"]):
        for fits in (True, False):
            here = situation(*overrides, weights="float32", fits=fits)
            for change in filter(None, (propose(here) for propose in CHANGES)):
                changed = change_recipe(here.settings.recipe, change.overrides)
                assert changed != here.settings.recipe
                assert change.gives
                assert change.costs
                proposed += 1
    assert proposed > 30


SEVERAL = "distributed.processes=4"


@pytest.mark.parametrize(
    ("propose", "overrides", "expected"),
    [
        (shard_gradients, [SEVERAL], {"distributed.strategy": "zero2"}),
        (shard_gradients, [], None),
        (shard_gradients, ["distributed.processes=auto"], None),
        (shard_gradients, [SEVERAL, "distributed.strategy=zero3"], None),
        (shard_weights_by_zero, [SEVERAL], {"distributed.strategy": "zero3"}),
        (shard_weights_by_zero, [SEVERAL, "distributed.strategy=zero2"], {"distributed.strategy": "zero3"}),
        (shard_weights_by_zero, [SEVERAL, "adapter.method=qlora"], None),  # DeepSpeed leaves 4-bit weights whole
        (shard_weights_by_zero, [SEVERAL, "distributed.strategy=fsdp2"], None),
        (shard_weights_by_fsdp, [SEVERAL, "adapter.method=qlora"], {"distributed.strategy": "fsdp2"}),
        (shard_weights_by_fsdp, [SEVERAL, "distributed.strategy=zero3"], None),
        (offload_the_optimizer, [SEVERAL], {"distributed.strategy": "zero2", "distributed.offload.optimizer": True}),
        (offload_the_optimizer, [SEVERAL, "distributed.strategy=zero3"], {"distributed.offload.optimizer": True}),
        (offload_the_optimizer, [SEVERAL, "distributed.strategy=fsdp2"], None),
        (offload_the_optimizer, [SEVERAL, "train.optim=adafactor"], None),
        (offload_the_optimizer, [], None),
        (offload_the_weights, [SEVERAL, "distributed.strategy=fsdp2"], {"distributed.offload.parameters": True}),
        (offload_the_weights, [SEVERAL, "distributed.strategy=zero2"], None),
        (offload_the_weights, [SEVERAL, "distributed.strategy=zero3", "distributed.offload.parameters=true"], None),
    ],
)
def test_what_is_proposed_for_several_gpus(situation, propose, overrides, expected):
    found = propose(situation(*overrides))
    assert (found.overrides if found else None) == expected


def test_float16_where_there_is_no_bfloat16(situation):
    half = {"train.fp16": True, "train.bf16": False}
    assert mix_float16(situation(capability=(7, 5))).overrides == half
    assert mix_float16(situation("train.bf16=true", capability=(7, 5))).overrides == half
    assert mix_float16(situation("train.bf16=false", capability=(7, 5))) is None
    assert mix_float16(situation("train.fp16=true", capability=(7, 5))) is None
    assert mix_float16(situation(capability=(8, 0))) is None
    assert mix_float16(situation(capability=None)) is None
