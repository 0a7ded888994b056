"""A simulation against the real training: the peak by the profiler, and nothing left behind."""

import os
import random

import numpy
import pytest
import torch
import transformers
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from plan_accuracy import real_peak
from trl.kernels import chunked_logprob

from hf_efficient.errors import SetupError
from hf_efficient.model.adapter import add_adapter
from hf_efficient.model.load import load_base
from hf_efficient.planning.arguments import simulation_arguments
from hf_efficient.planning.model_config import model_config
from hf_efficient.planning.simulated_trainer import fused_kernels_of_a_gpu, is_evaluated
from hf_efficient.planning.simulation import planned_memory, simulate
from hf_efficient.planning.trainers import simulation_trainer

CASES = {
    "full": ("llama", "full", {}, {}),
    "full in mixed precision": ("llama", "full", {"bf16": True}, {"dtype": "float32"}),
    "LoRA": ("mistral", "lora", {}, {}),
    "LoRA with dropout": ("llama", "lora", {"gradient_checkpointing": False}, {"dropout": 0.1}),
    "QLoRA": ("qwen2", "qlora", {}, {}),
    "no checkpointing": ("qwen3", "full", {"gradient_checkpointing": False}, {}),
    "reentrant checkpointing": ("llama", "full", {"gradient_checkpointing_kwargs": {"use_reentrant": True}}, {}),
    "accumulation": ("llama", "full", {"gradient_accumulation_steps": 4}, {"dtype": "float32"}),
    "packing": ("llama", "lora", {"packing": True, "gradient_checkpointing": False}, {}),
    "eager attention": ("gemma2", "lora", {"gradient_checkpointing": False}, {"attention": "eager"}),
    "Adafactor": ("llama", "full", {"optim": "adafactor"}, {"dtype": "float32"}),
    "8-bit AdamW": ("llama", "full", {"optim": "adamw_8bit"}, {"dtype": "float32"}),
    "another loss": ("llama", "full", {"loss_type": "dft"}, {}),
    "a chunked loss": ("qwen2", "full", {"loss_type": "chunked_nll"}, {}),
    "a chunked loss in mixed precision": ("gemma2", "lora", {"loss_type": "chunked_nll", "bf16": True}, {}),
    "experts in 4 bits": ("mixtral", "qlora", {"bf16": True}, {}),
    "experts in 4 bits and float32": ("qwen3_moe", "qlora", {}, {"quantization": {"compute_dtype": "float32"}}),
    "experts": ("mixtral", "lora", {}, {}),
    "a head to save": ("llama", "lora", {}, {"modules_to_save": ["lm_head"]}),
}


FAST = ("full in mixed precision", "LoRA", "QLoRA", "accumulation", "a chunked loss", "experts in 4 bits")


@pytest.mark.parametrize(
    "case", [case if case in FAST else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_the_peak_is_within_two_per_cent_of_the_real_one(case, recipe, saved):
    family, method, train, more = CASES[case]
    wanted = recipe(saved(family), method, {"per_device_train_batch_size": 8, **train}, **more)
    config = model_config(wanted.model)
    planned = planned_memory(simulate(wanted, config, 64, on_gpu=False)).peak_allocated_bytes
    assert planned == pytest.approx(real_peak(wanted, config, 64), rel=0.02)


def test_a_simulation_says_what_it_simulated(recipe, saved):
    wanted = recipe(saved("llama"), "full", {"gradient_accumulation_steps": 5, "per_device_train_batch_size": 3})
    found = simulate(wanted, model_config(wanted.model))
    assert (found.rows, found.length, found.vocabulary, found.micro_batches) == (3, 64, 96, 5)
    # A step of one micro-batch, and one of two: more would add nothing.
    (one, two, three) = found.backward_starts
    assert 0 < found.first_step < one < found.second_step < two < three
    # by hand: embedding and head 2 * 96 * 64; a layer: q, o 64 * 64, k, v 64 * 32, three of 64 * 160, two norms; a norm
    parameters = 2 * 96 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160 + 2 * 64) + 64
    assert found.parameters == found.trained_parameters == parameters
    for length, found in ((48, 48), (None, 512)):
        wanted = recipe(saved("llama"), "lora", {"max_length": length, "per_device_train_batch_size": 1})
        assert simulate(wanted, model_config(wanted.model)).length == found


def test_categories_by_hand(recipe, saved):
    wanted = recipe(saved("llama"), "full", {"optim": "adamw_torch"}, dtype="float32")
    memory = planned_memory(simulate(wanted, model_config(wanted.model), 64))
    parameters = 2 * 96 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160 + 2 * 64) + 64
    tables = 2 * 4 * 8  # inverse frequencies of the rotary embedding, and the same as first computed
    assert memory.model_bytes == 4 * parameters + tables
    assert memory.categories["weights"] == 4 * parameters + tables
    assert memory.categories["optimizer_state"] == 2 * 4 * parameters + 4 * 21  # and a step count per tensor
    assert memory.category_peak_bytes["gradients"] == 4 * parameters
    assert memory.peak_step == 2
    assert sum(memory.categories.values()) == memory.peak_allocated_bytes
    assert memory.peak_allocated_bytes == max(memory.phase_peak_allocated_bytes.values())


def test_an_adapter_is_apart_from_the_weights(recipe, saved):
    wanted = recipe(saved("llama"), "qlora", r=4)
    found = simulate(wanted, model_config(wanted.model), 64)
    adapter = 4 * 2 * ((64 + 64) + (64 + 32) + (64 + 32) + (64 + 64) + 3 * (64 + 160))
    assert found.trained_parameters == adapter
    categories = planned_memory(found).categories
    assert categories["adapter"] == 4 * adapter
    linear = 2 * [64 * 64, 64 * 32, 64 * 32, 64 * 64, 64 * 160, 64 * 160, 64 * 160]
    # half a byte a value; a byte a block of 64, one float32 for all blocks; tables of 16 and 256 float32; an offset
    packed = sum(values // 2 + values // 64 + 4 * (1 + 16 + 256 + 1) for values in linear)
    assert categories["weights"] == packed + 2 * (2 * 96 * 64 + 5 * 64) + 2 * 4 * 8
    dense = 2 * 96 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160 + 2 * 64) + 64
    assert found.parameters == dense + adapter


def process_state():
    return {
        "environment": dict(os.environ),
        "torch": torch.get_rng_state().tolist(),
        "python": random.getstate(),
        "numpy": repr(numpy.random.get_state()),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "threads": torch.get_num_threads(),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "process": dict(PartialState._shared_state),
        "accelerator": dict(AcceleratorState._shared_state),
        "accumulation": dict(GradientState._shared_state),
        "log level": transformers.logging.get_verbosity(),
    }


def test_nothing_of_the_process_is_changed_and_nothing_is_written(recipe, saved, tmp_path):
    """A run's own arguments and accelerator may be there already when its plan is made."""
    folder = saved("llama")
    own = simulation_arguments(recipe(train={"bf16": False, "gradient_accumulation_steps": 3}), str(tmp_path))
    Accelerator(cpu=True, gradient_accumulation_steps=3)
    random.seed(1)
    numpy.random.seed(2)
    torch.manual_seed(3)
    before = process_state()
    wanted = recipe(folder, "qlora", {"bf16": True, "seed": 7})
    simulate(wanted, model_config(wanted.model), 32)
    after = process_state()
    assert {name: (before[name], after[name]) for name in before if before[name] != after[name]} == {}
    assert own.device == torch.device("cpu")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", ["full", pytest.param("qlora", marks=pytest.mark.slow)])
def test_a_training_after_a_simulation_is_the_training_before_it(method, recipe, saved, tmp_path):
    wanted = recipe(saved("llama"), method, {"bf16": method == "full"}, dropout=0.1, dtype="float32")
    config = model_config(wanted.model)
    other = recipe(saved("llama"), "lora", {"bf16": method != "full", "gradient_accumulation_steps": 3})

    def trained():
        torch.manual_seed(3)
        args = simulation_arguments(wanted, str(tmp_path))
        model = add_adapter(load_base(wanted), wanted.adapter, seed=1, checkpointing=args.gradient_checkpointing)
        simulation_trainer(wanted, model, args, 32).train()
        return {name: value.clone() for name, value in model.named_parameters() if value.requires_grad}

    before = trained()
    simulate(wanted, config, 32)
    simulate(other, config, 16)
    after = trained()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.slow
def test_a_batch_of_more_tokens_than_are_computed_with(recipe, saved):
    """The collator looks at each of a million token ids, of which none is lost to a tensor without values."""
    train = {"packing": True, "per_device_train_batch_size": 16_400, "gradient_checkpointing": True}
    wanted = recipe(saved("llama"), "lora", train)
    found = simulate(wanted, model_config(wanted.model))
    assert found.rows * found.length == 16_400 * 64 > 2**20
    small = simulate(
        recipe(saved("llama"), "lora", {**train, "per_device_train_batch_size": 164}), model_config(wanted.model)
    )
    logits = [planned_memory(one).category_peak_bytes["logits"] for one in (found, small)]
    assert logits[0] == 100 * logits[1]


LARGE = {"per_device_train_batch_size": 1, "per_device_eval_batch_size": 16}


@pytest.fixture
def evaluated(recipe):
    """A recipe with data to evaluate on."""

    def build(*args, metrics=(), at_end=True, fraction=None, **kwargs):
        built = recipe(*args, **kwargs)
        data = {"eval_fraction": fraction} if fraction else {"eval": built.data.train}
        return built.model_copy(
            update={
                "data": built.data.model_copy(update=data),
                "evaluate": built.evaluate.model_copy(update={"metrics": list(metrics), "at_end": at_end}),
            }
        )

    return build


@pytest.mark.parametrize(
    ("method", "metrics"),
    [("qlora", ("perplexity", "token_accuracy")), pytest.param("lora", (), marks=pytest.mark.slow)],
)
def test_its_peak_is_the_real_ones(evaluated, saved, method, metrics):
    wanted = evaluated(saved("llama"), method, LARGE, metrics=metrics)
    config = model_config(wanted.model)
    memory = planned_memory(simulate(wanted, config, 64))
    assert memory.peak_phase == "evaluation"
    assert memory.peak_allocated_bytes == pytest.approx(real_peak(wanted, config, 64), rel=0.02)


def test_what_was_evaluated(evaluated, saved):
    wanted = evaluated(saved("llama"), "lora", LARGE)
    config = model_config(wanted.model)
    found = simulate(wanted, config, 64, evaluation_length=32)
    assert (found.evaluation.rows, found.evaluation.length) == (16, 32)
    assert found.second_step < found.evaluation.start
    assert len(found.forward_ends) == len(found.backward_starts)
    flops = sum(one.flops for one in found.evaluation.operators)
    # by hand: two per weight of a matrix and position, adapters of rank 16 included; scores and values of the
    # attention, half of which the causal mask leaves out
    matrices = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160) + 96 * 64
    adapters = 2 * 16 * (2 * (64 + 64) + 2 * (64 + 32) + 3 * (64 + 160))
    attention = 2 * 2 * 2 * 16 * 32 * 32 * 64 // 2
    assert flops == 2 * 512 * (matrices + adapters) + attention
    assert simulate(wanted, config, 64).evaluation.length == 64


@pytest.mark.parametrize(
    ("fields", "train", "expected"),
    [
        ({}, {}, True),
        ({"at_end": False}, {}, False),
        ({"at_end": False}, {"eval_strategy": "steps"}, True),
        ({"at_end": False}, {"eval_on_start": True}, True),
        ({"fraction": 0.1}, {}, True),
    ],
)
def test_whether_a_run_evaluates(evaluated, fields, train, expected):
    assert is_evaluated(evaluated(train=train, **fields)) == expected


def test_without_data_nothing_is_evaluated(recipe):
    assert not is_evaluated(recipe(train={"eval_strategy": "steps"}))


ROWS, LENGTH, HIDDEN, VOCABULARY = 4, 64, 64, 96
TILE = 32768


@pytest.fixture
def simulated(recipe, saved):
    def build(loss_type, method="lora", train=None, **settings):
        fields = {"per_device_train_batch_size": ROWS, "loss_type": loss_type, **(train or {})}
        wanted = recipe(saved("llama"), method, fields)
        return simulate(wanted, model_config(wanted.model), LENGTH, **settings)

    return build


def flops(simulation):
    return sum(one.flops for one in simulation.operators)


def test_tiles_of_a_chunked_loss(simulated):
    memory = planned_memory(simulated("chunked_nll"))
    assert memory.category_peak_bytes["logits"] == ROWS * (LENGTH - 1) * TILE * 2
    assert planned_memory(simulated("nll")).category_peak_bytes["logits"] > 2 * ROWS * LENGTH * VOCABULARY * 4
    # Of its columns there are as many as the vocabulary has entries.
    positions = ROWS * (LENGTH - 1)

    def shapes(**settings):
        lives = simulated("chunked_nll", **settings).log.lives
        return [(life.shape, str(life.dtype)) for life in lives]

    on_cpu, on_gpu = shapes(on_gpu=False), shapes()
    # In each of two steps the logits in float32, and their log-probabilities, whose storage takes the gradient.
    assert on_cpu.count(((positions, VOCABULARY), "torch.float32")) == 2 * 2
    assert ((positions, TILE), "torch.bfloat16") not in on_cpu
    assert ((positions, TILE), "torch.bfloat16") in on_gpu
    assert not [one for one in on_gpu if one[0][-1:] == (VOCABULARY,) and one[1] == "torch.float32"]


@pytest.mark.parametrize(("method", "passes", "on_gpu"), [("lora", 2, True), ("full", 3, False)])
def test_the_head_is_computed_once_more(simulated, method, passes, on_gpu):
    """Beside forward and gradient of the inputs, and of the weight where that is trained."""
    head = 2 * HIDDEN * VOCABULARY
    whole, chunked = flops(simulated("nll", method)), flops(simulated("chunked_nll", method, on_gpu=on_gpu))
    # the last position of each row predicts nothing, and is left out
    assert chunked - whole == head * (ROWS * (LENGTH - 1) * (passes + 1) - ROWS * LENGTH * passes)


def test_nothing_of_trl_is_changed_afterwards(simulated):
    before = dict(vars(chunked_logprob))
    for on_gpu in (True, False):
        simulated("chunked_nll", on_gpu=on_gpu)
    assert {name for name, value in vars(chunked_logprob).items() if before.get(name) is not value} == set()


def test_another_trl_is_said_to_be_another(monkeypatch):
    monkeypatch.delattr(chunked_logprob, "_backward_kernel")
    with pytest.raises(SetupError, match=r"whose kernels are others \(_backward_kernel is gone\)"):
        fused_kernels_of_a_gpu(lambda tensor: None).__enter__()
