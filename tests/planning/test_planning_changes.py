"""Each change of a recipe: what it proposes, and where it abstains."""

import dataclasses

import pytest
from planned_recipes import device, memory, tiny_recipe

from hf_efficient.planning.changes import CHANGES, Situation
from hf_efficient.recipe.load import change_recipe
from hf_efficient.recipe.rules.settings import Settings
from hf_efficient.recipe.train_fields import train_fields

PROPOSE = {propose.__name__: propose for propose in CHANGES}
FULL = "adapter.method=full"
ROWS, STEPS = "train.per_device_train_batch_size", "train.gradient_accumulation_steps"
SEVERAL = "distributed.processes=4"
OFF = "train.gradient_checkpointing=false"
WHOLE = {"weights": 40, "activations": 20, "logits": 20, "optimizer_state": 20}


@pytest.fixture
def situation(tmp_path):
    def build(*overrides, held=WHOLE, weights="bfloat16", fits=False, capability=(8, 0), padding=0.0, phase="backward"):
        settings = Settings(tiny_recipe(tmp_path, *overrides), train_fields("sft"))
        gpu = device(1000, compute_capability=capability)
        at_peak = dataclasses.replace(memory(**held), peak_phase=phase)
        return Situation(settings, at_peak, weights, gpu, fits, padding_share=padding)

    return build


def test_a_global_batch_that_is_named_stays(situation):
    """The accumulation follows from it: 4 rows, twice; with half of the rows 4 times, with twice as many once."""
    named = ["distributed.global_batch_size=8", "train.gradient_accumulation_steps=null"]
    smaller, larger = (
        PROPOSE["smaller_micro_batch"](situation(*named)),
        PROPOSE["larger_micro_batch"](situation(*named, fits=True)),
    )
    assert smaller.overrides == {ROWS: 2}
    assert larger.overrides == {ROWS: 8}
    recipe = situation(*named).settings.recipe
    changed = [change_recipe(recipe, one.overrides).train for one in (smaller, larger)]
    assert [one["gradient_accumulation_steps"] for one in changed] == [4, 1]
    packed = PROPOSE["shorter_rows"](situation(*named, "train.packing=true"))
    assert packed.overrides == {"train.max_length": 128}
    assert packed.costs.endswith("; a step of as many packs sees half as many tokens")
    both = PROPOSE["smaller_micro_batch"](
        situation("distributed.global_batch_size=8")
    )  # the recipe names both, which agree
    assert both.overrides[STEPS] == 4


@pytest.mark.parametrize(
    ("change", "overrides", "expected"),
    [
        ("checkpoint_activations", ["train.gradient_checkpointing=false"], {"train.gradient_checkpointing": True}),
        ("checkpoint_activations", ["train.activation_checkpointing=false"], {"train.activation_checkpointing": True}),
        ("checkpoint_activations", ["train.gradient_checkpointing=true"], None),
        ("checkpoint_activations", [], None),  # TRL's default is on
        ("smaller_micro_batch", [], {ROWS: 2, STEPS: 4}),
        ("smaller_micro_batch", ["train.per_device_train_batch_size=15"], {ROWS: 5, STEPS: 6}),
        ("smaller_micro_batch", ["train.per_device_train_batch_size=1"], None),
        ("fused_optimizer", ["train.optim=adamw_torch"], {"train.optim": "adamw_torch_fused"}),
        ("fused_optimizer", [], None),
        ("eight_bit_optimizer", [], {"train.optim": "adamw_8bit"}),
        ("eight_bit_optimizer", ["train.optim=sgd"], None),
        ("eight_bit_optimizer", ["train.optim=paged_adamw_32bit"], None),
        ("paged_optimizer", [], {"train.optim": "paged_adamw_8bit"}),
        ("paged_optimizer", ["train.optim=adamw_8bit"], {"train.optim": "paged_adamw_8bit"}),
        ("paged_optimizer", ["train.optim=paged_adamw_32bit"], {"train.optim": "paged_adamw_8bit"}),
        ("paged_optimizer", ["train.optim=paged_adamw_8bit"], None),
        ("quantize_the_base", [], {"adapter.method": "qlora"}),
        ("quantize_the_base", ["adapter.method=qlora"], None),
        ("train_an_adapter", [FULL], {"adapter.method": "lora"}),
        ("train_an_adapter", [], None),
        ("fused_attention", ["model.attn_implementation=eager"], {"model.attn_implementation": "sdpa"}),
        ("fused_attention", [], None),
        ("chunked_loss", [], {"train.loss_type": "chunked_nll"}),
        ("chunked_loss", ["train.loss_type=chunked_nll"], None),
        ("chunked_loss", ["train.label_smoothing_factor=0.1"], None),
        ("chunked_loss", ["train.use_liger_kernel=true"], None),
        ("chunked_loss", ["adapter.target_modules=[q_proj, lm_head]"], None),
        ("shorter_rows", [], {"train.max_length": 128}),
        ("shorter_rows", ["train.packing=true"], {"train.max_length": 128, STEPS: 4}),
        ("shorter_rows", ["train.max_length=255"], None),
        ("shorter_rows", ["train.max_length=null"], None),
        ("shard_gradients", [SEVERAL], {"distributed.strategy": "zero2"}),
        ("shard_gradients", [], None),
        ("shard_gradients", ["distributed.processes=auto"], None),
        ("shard_gradients", [SEVERAL, "distributed.strategy=zero3"], None),
        ("shard_weights_by_zero", [SEVERAL], {"distributed.strategy": "zero3"}),
        ("shard_weights_by_zero", [SEVERAL, "distributed.strategy=zero2"], {"distributed.strategy": "zero3"}),
        ("shard_weights_by_zero", [SEVERAL, "adapter.method=qlora"], None),  # DeepSpeed leaves 4-bit weights whole
        ("shard_weights_by_zero", [SEVERAL, "distributed.strategy=fsdp2"], None),
        ("shard_weights_by_fsdp", [SEVERAL, "adapter.method=qlora"], {"distributed.strategy": "fsdp2"}),
        ("shard_weights_by_fsdp", [SEVERAL, "distributed.strategy=zero3"], None),
        ("offload_the_optimizer", [SEVERAL], {"distributed.strategy": "zero2", "distributed.offload.optimizer": True}),
        ("offload_the_optimizer", [SEVERAL, "distributed.strategy=zero3"], {"distributed.offload.optimizer": True}),
        ("offload_the_optimizer", [SEVERAL, "distributed.strategy=fsdp2"], None),
        ("offload_the_optimizer", [SEVERAL, "train.optim=adafactor"], None),
        ("offload_the_optimizer", [], None),
        ("offload_the_weights", [SEVERAL, "distributed.strategy=fsdp2"], {"distributed.offload.parameters": True}),
        ("offload_the_weights", [SEVERAL, "distributed.strategy=zero2"], None),
        ("offload_the_weights", [SEVERAL, "distributed.strategy=zero3", "distributed.offload.parameters=true"], None),
    ],
)
def test_what_is_proposed(situation, change, overrides, expected):
    found = PROPOSE[change](situation(*overrides))
    assert (None if found is None else dict(found.overrides)) == expected


@pytest.mark.parametrize(
    ("change", "held"),
    [
        ("smaller_micro_batch", {"weights": 1000, "activations": 9}),
        ("shorter_rows", {"weights": 1000, "logits": 9}),
        ("chunked_loss", {"activations": 1000, "logits": 9}),
        ("checkpoint_activations", {"weights": 1000, "activations": 9}),
        ("eight_bit_optimizer", {"weights": 1000, "optimizer_state": 9}),
        ("paged_optimizer", {"weights": 1000, "optimizer_state": 9}),
        ("quantize_the_base", {"activations": 1000, "weights": 9}),
    ],
)
def test_what_could_not_matter_is_not_proposed(situation, change, held):
    """Less than a hundredth of the peak."""
    assert PROPOSE[change](situation(OFF, held=held)) is None
    assert PROPOSE[change](situation(OFF, held=dict.fromkeys(held, 20))) is not None


EVALUATED, SAMPLING = "train.per_device_eval_batch_size=", "train.train_sampling_strategy="
KWARGS = "train.gradient_checkpointing_kwargs="
BFLOAT16, FLOAT16 = {"model.dtype": "bfloat16"}, {"train.fp16": True, "train.bf16": False}
TURING = {"capability": (7, 5)}  # which has no bfloat16
GROUPED = "group_by_length"


def every_second(**others):
    kwargs = {**others, "every_n_layers": 2}
    return {"train.gradient_checkpointing": True, "train.gradient_checkpointing_kwargs": kwargs}


@pytest.mark.parametrize(
    ("change", "here", "overrides", "expected"),
    [
        ("weights_in_bfloat16", {"weights": "float32"}, [], BFLOAT16),
        ("weights_in_bfloat16", {"weights": "float32", "capability": None}, [], BFLOAT16),
        ("weights_in_bfloat16", {"weights": "float32", **TURING}, [], None),
        ("weights_in_bfloat16", {}, [], None),
        ("mix_float16", TURING, [], FLOAT16),
        ("mix_float16", TURING, ["train.bf16=false"], None),
        ("mix_float16", {}, [], None),
        ("mix_float16", {"capability": None}, [], None),
        ("store_activations", {"fits": True}, [], {"train.gradient_checkpointing": False}),
        ("store_activations", {}, [], None),
        ("larger_micro_batch", {"fits": True}, [], {ROWS: 8, STEPS: 1}),
        ("larger_micro_batch", {}, [], None),
        ("smaller_evaluation_batch", {"phase": "evaluation"}, [EVALUATED + "8"], {EVALUATED[:-1]: 4}),
        ("smaller_evaluation_batch", {"phase": "evaluation"}, [EVALUATED + "3"], {EVALUATED[:-1]: 1}),
        ("smaller_evaluation_batch", {"phase": "evaluation"}, [EVALUATED + "1"], None),
        ("smaller_evaluation_batch", {}, [EVALUATED + "8"], None),
        ("group_by_length", {"padding": 0.05}, [], {SAMPLING[:-1]: GROUPED}),
        ("group_by_length", {"padding": 0.049}, [], None),
        ("group_by_length", {"padding": 0.3}, [SAMPLING + GROUPED], None),
        ("pack", {"padding": 0.05}, [], {"train.packing": True}),
        ("pack", {"padding": 0.049}, [], None),
        ("pack", {"padding": 0.3}, ["train.packing=true"], None),
        ("pack", {"padding": 0.3}, ["train.max_length=null"], None),
        ("checkpoint_every_second_layer", {"fits": True}, [], every_second()),
        (
            "checkpoint_every_second_layer",
            {"fits": True},
            [KWARGS + "{use_reentrant: true}"],
            every_second(use_reentrant=True),
        ),
        ("checkpoint_every_second_layer", {}, [OFF], every_second()),
        ("checkpoint_every_second_layer", {}, [], None),  # all layers need the least
        ("checkpoint_every_second_layer", {"fits": True}, [OFF], None),
        ("checkpoint_every_second_layer", {"fits": True}, [KWARGS + "{every_n_layers: 2}"], None),
    ],
)
def test_what_is_proposed_in_a_situation(situation, change, here, overrides, expected):
    found = PROPOSE[change](situation(*overrides, **here))
    assert (None if found is None else dict(found.overrides)) == expected


def test_bfloat16_changes_what_is_learned_where_all_weights_are_trained(situation):
    assert PROPOSE["weights_in_bfloat16"](situation(weights="float32")).keeps_training
    full = PROPOSE["weights_in_bfloat16"](situation(FULL, weights="float32"))
    assert not full.keeps_training
    assert "updates below the weights' last digit" in full.costs


@pytest.mark.parametrize(
    ("overlong", "fate"), [("truncate", "are cut"), ("drop", "are left out"), ("error", "end the run")]
)
def test_shorter_rows_say_what_becomes_of_the_rest(situation, overlong, fate):
    assert (
        PROPOSE["shorter_rows"](situation(f"data.overlong={overlong}")).costs
        == f"examples of more than 128 tokens {fate}"
    )


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
