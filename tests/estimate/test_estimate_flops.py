"""FLOPs: the parts by hand, and whole steps against what torch's ``FlopCounterMode`` counts, to the last FLOP."""

import random

import pytest
from peft import LoraConfig, get_peft_model
from tiny_models import Work, adapter, counted, tiny_config, tiny_model, tiny_model_4bit, training_flops

from hf_efficient.estimate.flops import (
    Coefficients,
    MicroBatch,
    StepFlops,
    WorkFormula,
    attention_flops,
    causal_pairs,
    coefficients,
    linear_flops,
)
from hf_efficient.estimate.model_shape import Linear, ModelShape, Trained, linears_of_layer, shape_of

ROWS, LENGTH = 2, 48
BATCH = Work([LENGTH] * ROWS)
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
FAMILIES = {
    "llama": {},
    "mistral": {"sliding_window": 16, "head_dim": 24},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 24},
    "gemma3_text": {"head_dim": 24, "sliding_window": 16, "sliding_window_pattern": 2},
    "phi3": {},
    "olmo2": {},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {**MIXTURE, "shared_expert_intermediate_size": 56},
    "qwen3_moe": {**MIXTURE, "mlp_only_layers": [2]},
}
WAYS = ["none", "non_reentrant"]


def built(model_type: str):
    """A model whose experts are computed by plain products, which torch can count."""
    model = tiny_model(model_type, **FAMILIES[model_type])
    if shape_of(model.config).experts:
        model.set_experts_implementation("eager")
    return model


def hardware(shape: ModelShape, trained: Trained, way: str) -> int:
    return training_flops(shape, trained, BATCH, checkpointing=way)[1].total


def adapted(model, targets, way: str, **settings):
    """The model with LoRA of rank 8; a frozen base under checkpointing is made to ask for gradients."""
    model = get_peft_model(model, LoraConfig(r=8, target_modules=targets, task_type="CAUSAL_LM", **settings))
    if way != "none":
        model.enable_input_require_grads()
    return model


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", FAMILIES)
def test_full_training_is_what_torch_counts(family, way):
    model = built(family)
    assert hardware(shape_of(model.config), Trained.full(), way) == counted(model, ROWS, LENGTH, checkpointing=way)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("family", "targets", "settings"),
    [
        *(
            (family, "all-linear", {})
            for family in ("llama", "mistral", "qwen2", "qwen3", "gemma3_text", "phi3", "olmo2")
        ),
        ("llama", ["q_proj", "v_proj"], {}),
        ("llama", ["v_proj"], {"layers_to_transform": [1]}),
        ("llama", ["k_proj", "up_proj"], {"layers_to_transform": [1, 2]}),
        ("llama", ["q_proj"], {"modules_to_save": ["lm_head"]}),
        ("llama", ["o_proj"], {"modules_to_save": ["embed_tokens"]}),
        ("llama", ["down_proj", "lm_head"], {}),
        ("phi3", ["qkv_proj"], {"layers_to_transform": [0]}),
        ("gemma3_text", ["gate_proj"], {"layers_to_transform": [2]}),
        ("mixtral", ["q_proj", "v_proj"], {}),
        ("qwen2_moe", ["o_proj", "gate_proj"], {"layers_to_transform": [1]}),
        ("qwen3_moe", ["o_proj"], {"layers_to_transform": [1]}),
    ],
)
def test_lora_is_what_torch_counts(family, targets, settings, way):
    model = adapted(built(family), targets, way, **settings)
    shape = shape_of(model.config)
    layers, whole = settings.get("layers_to_transform"), settings.get("modules_to_save", ())
    trained = adapter(shape, targets, layers=layers, modules_to_save=whole, input_gradient=way != "none")
    assert hardware(shape, trained, way) == counted(model, ROWS, LENGTH, checkpointing=way)


@pytest.mark.parametrize("targets", [None, "all-linear", ["q_proj", "v_proj"]])
@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_reentrant_checkpointing_is_what_torch_counts(family, targets):
    model = built(family)
    shape = shape_of(model.config)
    trained = Trained.full()
    if targets:
        model = adapted(model, targets, "reentrant")
        trained = adapter(shape, targets, input_gradient=True)
    assert hardware(shape, trained, "reentrant") == counted(model, ROWS, LENGTH, checkpointing="reentrant")


def test_ranks_by_module_are_what_torch_counts():
    model = adapted(built("llama"), "all-linear", "none", rank_pattern={"q_proj": 3, r"layers.1.mlp.up_proj": 5})
    shape = shape_of(model.config)
    ranks = {
        name.removesuffix(".lora_A.default"): module.out_features
        for name, module in model.named_modules()
        if name.endswith("lora_A.default")
    }
    trained = Trained.of_modules(shape, ranks)
    assert sorted(trained.ranks_of_layer(1).items())[-3:] == [("q_proj", 3), ("up_proj", 5), ("v_proj", 8)]
    assert hardware(shape, trained, "none") == counted(model, ROWS, LENGTH)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "v_proj"]])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2"])
def test_qlora_is_what_torch_counts(family, targets, way, tmp_path):
    model = adapted(tiny_model_4bit(tmp_path, family, **FAMILIES[family]), targets, way)
    shape = shape_of(model.config)
    trained = adapter(shape, targets, input_gradient=way != "none")
    assert hardware(shape, trained, way) == counted(model, ROWS, LENGTH, checkpointing=way)


def test_a_projection_by_hand():
    """10 tokens, 3 -> 5: one product is 2 * 10 * 3 * 5 = 300. By whether gradients are asked for, and the rank."""
    flops = {
        (False, False, 0): StepFlops(300, 0, 0),
        (True, False, 0): StepFlops(300, 300, 0),
        (True, True, 0): StepFlops(300, 300, 300),
        (False, False, 2): StepFlops(620, 200, 320),
        (True, False, 2): StepFlops(620, 620, 320),
    }
    names = ("input_gradient", "weight_gradient", "rank")
    found = {case: linear_flops(Linear("x", 3, 5), 10, **dict(zip(names, case, strict=True))) for case in flops}
    assert found == flops


def test_attention_by_hand():
    """8 features, 10 pairs: one product is 2 * 8 * 10 = 160; in the backward those of scores and values."""
    cases = [((True, True), True), ((True, False), True), ((False, False), True), ((True, False), False)]
    backward = [640, 480, 160, 320]
    assert [attention_flops(8, 10, *case) for case in cases] == [StepFlops(320, one) for one in backward]
    assert attention_flops(8, 10, (False, False), False) == StepFlops(320)


def products(shape):
    """Parameters of the layers' products."""
    return sum(one.parameters for n in range(shape.layers) for one in linears_of_layer(shape, n).values())


def test_the_model_s_flops_leave_out_padding_masked_pairs_and_recompute():
    shape = shape_of(tiny_config("mistral", sliding_window=3))
    packed = Work([4, 2], rows=[10])
    model, hardware = training_flops(shape, Trained.full(), packed, checkpointing="reentrant")
    alone, _ = training_flops(shape, Trained.full(), Work([4, 2]))
    assert model == alone
    assert model.recompute == 0
    # Needed: 1 + 2 + 3 + 3 and 1 + 2 pairs; computed: 10 * 10. A pair costs 12 FLOPs per feature and layer.
    layers = products(shape)
    assert model.total == 6 * 6 * (layers + 96 * 64) + 3 * 12 * 64 * 12
    forward = 2 * 10 * layers + 3 * 4 * 64 * 100
    assert hardware.recompute == forward
    assert hardware.total == 6 * 10 * (layers + 96 * 64) + 3 * 12 * 64 * 100 + forward


def test_checkpointing_does_not_change_the_model_s_flops():
    shape = shape_of(tiny_config("llama"))
    plain, _ = training_flops(shape, adapter(shape), BATCH)
    asking = adapter(shape, input_gradient=True)
    model, hardware = training_flops(shape, asking, BATCH, checkpointing="non_reentrant")
    assert model == plain
    # Computed besides: the gradients of the first layer's input, through three projections and their adapters.
    masked = training_flops(shape, adapter(shape), BATCH)[1]
    assert hardware.input_gradient - masked.input_gradient == 2 * 96 * 64 * (64 + 32 + 32 + 3 * 8)


def test_a_head_on_fewer_positions_and_once_more_in_the_backward():
    shape = shape_of(tiny_config("llama"))
    everywhere, _ = training_flops(shape, Trained.full(), Work([10]))
    model, hardware = training_flops(shape, Trained.full(), Work([10], head_tokens=4), head_recomputed=True)
    product = 2 * 64 * 96
    assert everywhere.total - model.total == 3 * 6 * product
    assert hardware.recompute == 4 * product


@pytest.mark.parametrize(("length", "window", "pairs"), [(4, None, 10), (4, 2, 7), (4, 4, 10), (4, 9, 10), (1, 1, 1)])
def test_causal_pairs_by_hand(length, window, pairs):
    assert causal_pairs({length: 1}, window) == pairs


@pytest.mark.parametrize("targets", [None, ["o_proj", "lm_head"]])
@pytest.mark.parametrize(
    ("family", "way"),
    [("llama", "none"), ("mistral", "non_reentrant"), ("gemma3_text", "reentrant"), ("qwen3_moe", "non_reentrant")],
)
def test_coefficients_give_what_the_formulas_give(family, way, targets):
    """For batches drawn at random: FLOPs of model and hardware, to the last one."""
    shape = shape_of(tiny_config(family, **FAMILIES[family]))
    trained = Trained.full() if targets is None else adapter(shape, targets, input_gradient=way != "none")
    windows = set(shape.windows)
    model = coefficients(shape, trained)
    hardware = coefficients(shape, trained, checkpointing=way, head_recomputed=True)
    draw = random.Random(family + way)
    for _ in range(5):
        documents = [draw.randint(1, 20) for _ in range(draw.randint(1, 6))]
        rows = [max(documents)] * len(documents)
        work = Work(documents, rows, draw.choice([None, 3]))
        wanted = training_flops(shape, trained, work, checkpointing=way, head_recomputed=True)
        found = model.flops(work.needed(windows)), hardware.flops(work.computed(windows))
        assert found == (wanted[0].total, wanted[1].total)


def test_coefficients_of_a_part():
    shape = shape_of(tiny_config("llama"))
    work = Work([5, 9])
    amounts = work.needed([None])
    for trained in (Trained(), adapter(shape, rank=8)):
        forward = training_flops(shape, trained, work)[0].forward
        assert coefficients(shape, trained, forward_alone=True).flops(amounts) == forward
    assert coefficients(shape, Trained()) == coefficients(shape, Trained(), forward_alone=True)
    # Three layers alike, trained in full: each that is checkpointed adds as much.
    shape = shape_of(tiny_config("llama"))

    def of(layers):
        found = coefficients(shape, Trained.full(), checkpointing="reentrant", checkpointed_layers=layers)
        return found.per_token, found.per_pair[None]

    none, one, every = of(()), of({1}), of(None)
    assert every == tuple(base + 3 * (more - base) for base, more in zip(none, one, strict=True))
    assert one[1] - none[1] == 2 * 2 * 64  # a pair's score and its weighing, forward, over 64 features


ONE = Coefficients(0, {None: 1, 4: 1000}, 0)
"""Pairs in layers without a window, and a thousand for each with a window of four."""


@pytest.mark.parametrize(
    ("kernel", "batch", "pairs"),
    [
        # One row of 6 without padding: 21 causal pairs, 1 + 2 + 3 + 4 + 4 + 4 in the window, 36 in the square.
        ("square", MicroBatch(1, 6, [6]), 36_036),
        ("sdpa", MicroBatch(1, 6, [6]), 36_021),  # the window needs a mask, for the row is as long
        ("documents", MicroBatch(1, 6, [6]), 18_021),
        ("sdpa", MicroBatch(2, 4, [4, 4]), 32_020),  # as long as the window: masked
        ("sdpa", MicroBatch(2, 3, [3, 3]), 12_012),  # shorter than it: causal everywhere
        ("sdpa", MicroBatch(2, 3, [3, 2]), 18_018),  # padding: 2 * 9
        ("documents", MicroBatch(2, 3, [3, 2]), 9_009),
        ("sdpa", MicroBatch(1, 3, [2, 1]), 9_009),  # a pack
        ("documents", MicroBatch(1, 3, [2, 1]), 4_004),
    ],
)
def test_which_pairs_a_kernel_computes(kernel, batch, pairs):
    needed = WorkFormula(ONE, ONE, "documents").flops(batch)[0]
    assert WorkFormula(ONE, ONE, kernel).flops(batch) == (needed, pairs)


def test_what_is_not_known_or_always_masked():
    formula = WorkFormula(ONE, ONE, "sdpa", always_masked=True)
    assert formula.flops(MicroBatch(1, 3, [3])) == (6_006, 9_009)
    batch = MicroBatch(2, 3, [3, 2])
    assert WorkFormula(HEAD, HEAD, "square", "scored").flops(batch) is None
    assert WorkFormula(HEAD, None, "square").flops(batch) == (505, None)


HEAD = Coefficients(100, {None: 0}, 1)


@pytest.mark.parametrize(
    ("head", "model", "hardware"), [("everywhere", 505, 606), ("shifted", 503, 604), ("scored", 503, 603)]
)
def test_which_positions_the_head_projects(head, model, hardware):
    """Two rows of three with five tokens, three of which are predicted with a loss."""
    assert WorkFormula(HEAD, HEAD, "square", head).flops(MicroBatch(2, 3, [3, 2], 3)) == (model, hardware)
