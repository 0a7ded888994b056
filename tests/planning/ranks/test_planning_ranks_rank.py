"""What one of four ranks holds, exchanges and waits for, by numbers worked out by hand."""

import pytest

from hf_efficient.estimate.sharding import ModelStates, Sharding, host_bytes, step_collectives
from hf_efficient.planning.model_config import model_config
from hf_efficient.planning.ranks import rank as exchange_module
from hf_efficient.planning.ranks.rank import (
    bucket_bytes,
    exchange_of,
    host_bytes_moved,
    rank_operators,
    rank_remarks,
    simulate_rank,
    spread,
)
from hf_efficient.planning.simulation import Rank, planned_memory, simulate
from hf_efficient.records.device import OperatorWork

RANKS = 4
# embedding and head 2 * 96 * 64; a layer: q, o 64 * 64, k, v 64 * 32, three of 64 * 160, two norms; a norm
LAYER = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160 + 2 * 64
ALL = 2 * 96 * 64 + 2 * LAYER + 64
HEAD = 96 * 64 + 64
"""With the final norm."""
TAIL = -1
TABLES = 2 * 4 * 8
STEPS = {"zero1": 8, "zero2": 8, "zero3": 8}
"""Bytes of the step counts where there are two flat tensors; else one per parameter, which is not shared out."""
PARAMETERS = 4 * 21
BUCKET = 64 * 64
"""Elements: the width squared."""
MLP = 64 * 160
SIMULATED = {}
"""By what was asked for: a simulation serves all tests."""


@pytest.fixture
def ranked(recipe, saved):
    def build(strategy, method="full", offload=(), processes=RANKS, **train):
        key = (strategy, method, tuple(offload), processes, str(train))
        if key not in SIMULATED:
            SIMULATED[key] = simulated(strategy, method, offload, processes, train)
        return SIMULATED[key]

    def simulated(strategy, method, offload, processes, train):
        distributed = {"processes": processes, "strategy": strategy, "offload": dict.fromkeys(offload, True)}
        train = {"optim": "adamw_torch", **train}
        wanted = recipe(saved("llama"), method, train, dtype="bfloat16", distributed=distributed)
        return simulate_rank(wanted, model_config(wanted.model), 64)

    return build


@pytest.mark.parametrize(
    ("strategy", "weights", "state", "buckets"),
    [
        ("ddp", 2 * ALL, 4 * ALL, 2 * ALL),  # moments in bfloat16, as the weights; a second copy of the gradients
        ("zero1", 2 * ALL, 12 * ALL // RANKS, 2 * 3 * BUCKET),  # moments and a copy in float32; two, and one copied
        ("zero2", 2 * ALL, 12 * ALL // RANKS, 2 * 3 * BUCKET),
        ("zero3", 2 * ALL // RANKS, 12 * ALL // RANKS, 2 * 2 * BUCKET),
        # trained weights in float32; at most two layers' gradients in 16 bits and a share of one on the way
        ("fsdp2", 4 * ALL // RANKS, 8 * ALL // RANKS, 2 * LAYER + 2 * LAYER // RANKS),
    ],
)
def test_what_is_held_in_mixed_precision(ranked, strategy, weights, state, buckets):
    memory = planned_memory(ranked(strategy))
    assert memory.model_bytes == weights + TABLES
    assert memory.category_peak_bytes["optimizer_state"] == state + STEPS.get(strategy, PARAMETERS)
    assert memory.category_peak_bytes["communication"] == buckets


@pytest.mark.parametrize(
    ("strategy", "weights", "state"),
    [
        ("zero2", 2 * ALL, 8 * ALL // RANKS),  # moments in bfloat16, and a copy in float32 all the same
        ("zero3", 2 * ALL // RANKS, 4 * ALL // RANKS),
        ("fsdp2", 2 * ALL // RANKS, 4 * ALL // RANKS),
    ],
)
def test_without_mixed_precision_all_is_as_it_was_loaded(ranked, strategy, weights, state):
    memory = planned_memory(ranked(strategy, bf16=False))
    assert memory.model_bytes == weights + TABLES
    assert memory.category_peak_bytes["optimizer_state"] == state + STEPS.get(strategy, PARAMETERS)


def test_gradients_and_an_optimizer_on_the_host(ranked):
    """ZeRO-1 keeps all in 16 bits, and in the step its share in float32; ZeRO-2 its share of both, and one whole."""
    share = 4 * ALL // RANKS
    assert planned_memory(ranked("zero1")).category_peak_bytes["gradients"] == 2 * ALL + share
    assert planned_memory(ranked("zero2")).category_peak_bytes["gradients"] == 2 * ALL // RANKS + share
    found = ranked("zero2", offload=["optimizer"])
    memory = planned_memory(found)
    assert "optimizer_state" not in memory.category_peak_bytes
    assert memory.model_bytes == 2 * ALL + TABLES
    assert memory.category_peak_bytes["gradients"] == 2 * 2 * MLP  # each waits for the next one
    # moments, copy and gradient in float32 of a quarter of the elements
    assert host_bytes(found.rank.states, found.rank.sharding) == pytest.approx(16 * ALL / RANKS, abs=1000)


@pytest.mark.parametrize("strategy", ["zero3", "fsdp2"])
def test_weights_on_the_host(ranked, strategy):
    found = ranked(strategy, offload=["parameters"])
    assert planned_memory(found).model_bytes == TABLES
    assert planned_memory(ranked(strategy)).category_peak_bytes["gathered_weights"] > 0


def test_four_bit_weights_are_shared_out_by_fsdp2_alone(ranked):
    alone = planned_memory(ranked("none", "qlora", processes=1))
    zero = planned_memory(ranked("zero3", "qlora"))
    fsdp = planned_memory(ranked("fsdp2", "qlora"))
    packed = 2 * (LAYER - 2 * 64) // 2
    assert alone.category_peak_bytes["weights"] > packed
    assert zero.category_peak_bytes["weights"] > packed
    assert fsdp.category_peak_bytes["weights"] < packed
    states = ranked("zero3", "qlora").rank.states
    assert states.frozen == ALL - 2 * (LAYER - 2 * 64)
    assert ranked("fsdp2", "qlora").rank.states.frozen == ALL
    assert ranked("none", processes=1).rank is None


def test_what_fsdp2_gathers(ranked):
    found = ranked("fsdp2")
    start = found.backward_starts[0]
    there = [life.module for life in found.log.lives if life.category == "gathered_weights" and life.lives_at(start)]
    assert {"lm_head.weight", "model.norm.weight"} <= set(there)
    assert "model.embed_tokens.weight" not in there
    # In 16 bits: all for the forward; for the backward all but the head of 96 * 64 and the norm of 64.
    found = ranked("fsdp2").rank
    forward, backward, _ = step_collectives(found.states, found.sharding, found.layers)
    assert found.states.staying == 96 * 64 + 64
    assert (forward.payload_bytes, backward.payload_bytes) == (2 * ALL, pytest.approx(2 * (ALL - 96 * 64 - 64)))


def test_boundaries_move_with_the_log(ranked):
    found = ranked("fsdp2", gradient_accumulation_steps=2)
    log = found.log
    backwards = [life.born_at for life in log.lives if life.phase in ("backward", "recompute")]
    assert min(backwards) >= found.backward_starts[0]
    assert max(backwards) >= found.backward_starts[-1]
    assert found.first_step < found.backward_starts[0] < found.second_step < found.backward_starts[-1]
    live = 0
    for index, size in log.events:
        live += size
        assert live >= 0
        assert abs(size) == log.lives[index].bytes


def test_what_zero3_gathers(ranked):
    """Ten times the width, 640: the five norms of 64; what is gathered when it is needed ends, they do not."""
    log = ranked("zero3").log
    small = [life for life in log.lives if life.module.endswith("(small ones)")]
    assert sum(life.bytes for life in small) == 2 * 5 * 64
    assert all(life.freed_at is None for life in small)
    # int(0.9 * 64 * 64) = 3686 elements and one of 64 * 160; a layer's matrices are more.
    ahead = {life.bytes for life in ranked("zero3").log.lives if life.module == "gathered ahead"}
    assert ahead == {2 * (3686 + MLP)}


@pytest.mark.parametrize(
    ("reuse", "again", "kept"),
    [
        (0, False, set()),
        (1, False, {TAIL}),
        (2 * HEAD, False, {TAIL}),  # the second layer comes again after the head's forward and backward
        (2 * HEAD + 1, False, {TAIL, 1}),
        (2 * HEAD + 2 * LAYER, False, {TAIL, 1}),
        (2 * HEAD + 2 * LAYER + 1, False, {TAIL, 1, 0}),
        (2 * HEAD + 3 * LAYER, True, {TAIL, 1}),  # the second layer's forward, that again, its backward
        (2 * HEAD + 3 * LAYER + 1, True, {TAIL, 1, 0}),
    ],
)
def test_what_zero3_keeps_from_forward_to_backward(recipe, saved, reuse, again, kept):
    wanted = recipe(saved("llama"), "full", {"optim": "adamw_torch", "gradient_checkpointing": again})
    whole = simulate(wanted, model_config(wanted.model), 64)
    found = spread(whole, Sharding("zero3", RANKS, reuse_elements=reuse, persistent_elements=64), mixed=False)
    start = found.backward_starts[0]
    there = [life.module for life in found.log.lives if life.category == "gathered_weights" and life.lives_at(start)]
    projections = {f"model.layers.{one}.mlp.up_proj.weight" for one in kept if one != TAIL}
    assert {one for one in there if one.endswith(("up_proj.weight", "embed_tokens.weight"))} == projections
    assert ("lm_head.weight" in there) == (TAIL in kept)
    assert found.rank.states.layer_uses == (3 if again else 2)


def test_an_evaluation_gathers_as_well(recipe, saved):
    wanted = recipe(
        saved("llama"), "full", {"eval_strategy": "steps"}, distributed={"processes": 4, "strategy": "fsdp2"}
    )
    with_data = wanted.model_copy(update={"data": wanted.data.model_copy(update={"eval_fraction": 0.1})})
    found = simulate_rank(with_data, model_config(wanted.model), 64)
    gathered = [life for life in found.log.lives if life.category == "gathered_weights"]
    assert any(life.born_at >= found.evaluation.start for life in gathered)


MIB = 2**20


def test_each_is_closed_once_it_holds_its_limit():
    buckets = {(0.5, 0.75, 20, 10, 3): [1.25, 30, 3], (1, 25, 25): [1, 25, 25], (0.25,): [0.25], (100,): [100], (): []}
    for gradients, held in buckets.items():
        assert bucket_bytes(int(one * MIB) for one in gradients) == [int(one * MIB) for one in held]


STEP = OperatorWork("aten::_fused_adamw_", "optimizer", "fp32", 0, 800, 400, 1)
PRODUCT = OperatorWork("aten::mm", "matmul", "bf16", 1000, 80, 40, 2)


def operators(*settings, **offload):
    rank = Rank(Sharding(*settings, **offload), STATES, 1) if settings else None
    return list(rank_operators([PRODUCT, STEP], rank))


def test_whose_operators_the_device_runs():
    assert operators() == operators("ddp", 4) == [PRODUCT, STEP]
    assert operators("zero2", 4, offload_optimizer=True) == [PRODUCT]
    assert operators("fsdp2", 4, offload_parameters=True) == [PRODUCT]


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3", "fsdp2"])
def test_the_optimizer_steps_on_a_share(strategy):
    product, step = operators(strategy, 4)
    assert product == PRODUCT
    assert (step.read_bytes, step.written_bytes) == (200, 100)


@pytest.fixture
def told(recipe, saved):
    def build(method="lora", processes=2, train=None, **distributed):
        distributed = {"processes": processes, **distributed}
        wanted = recipe(saved("llama"), method, train or {}, distributed=distributed)
        return " | ".join(rank_remarks(wanted, simulate_rank(wanted, model_config(wanted.model), 32)))

    return build


def test_remarks(told):
    found = told()
    assert found.startswith("DDP: each rank holds the whole model and a second copy of the gradients, in buckets")
    assert "communication is hidden behind computation as far as its order allows" in found
    assert told(strategy="zero2").startswith("buckets of hidden_size^2 elements, as the launch sets them; the model is")
    assert "quantized weights are whole on each rank: DeepSpeed does not" in told("qlora", strategy="zero3")
    assert "that takes bnb_4bit_quant_storage" in told("qlora", strategy="fsdp2")
    assert "quantized" not in told("lora", strategy="zero3")
    # embedding, head and norms, 2 * 96 * 64 + 5 * 64, in 2 bytes; 86,016 weights in half a byte
    assert "the whole model in the host's memory, 66.6 KiB for each of 2 processes" in told("qlora", strategy="fsdp2")
    assert "bitsandbytes issue 1633" in told(strategy="fsdp2", train={"optim": "adamw_8bit"})
    assert "1633" not in told(strategy="zero2", train={"optim": "adamw_8bit"})
    # A factor of 16 rows in each of 7 linear layers, twice.
    assert "14 parameters have fewer rows than there are ranks" in told(strategy="fsdp2", processes=32)
    assert "32 GPUs exchange data as if all were in one machine" in told(strategy="fsdp2", processes=32)
    assert "the optimizer's step on the host is not in the time" in told(
        strategy="zero2", offload={"optimizer": True}, train={"optim": "adamw_torch"}
    )
    assert told(processes="auto") == "distributed.processes: auto is planned as one process; --num-gpus N plans N"
    assert told(processes=1) == ""


# 400 of 1000 million elements are trained, all in 16 bits.
STATES = ModelStates(400_000_000, 600_000_000, 2, 2, 2, 8, largest_layer=100_000_000, staying=200_000_000)
MB = 1_000_000


@pytest.fixture(autouse=True)
def _links(monkeypatch):
    """1 GB/s among ranks and with the host, and no overhead."""
    monkeypatch.setattr(exchange_module, "collective_bandwidth", lambda name, ranks: 1e9 if name == "Toy" else None)
    monkeypatch.setattr(exchange_module, "host_bandwidth", lambda name: 1e9 if name == "Toy" else None)
    monkeypatch.setattr(exchange_module, "overhead_seconds", lambda figure: 0.0)


def found(strategy, computing, device="Toy", **settings):
    return exchange_of(Rank(Sharding(strategy, 8, **settings), STATES, layers=8), device, computing)


def test_ddp_and_an_optimizer_on_the_host():
    """1400 MB in 31 messages; of 1.5 s of computation in one micro-batch 1 s is backward."""
    told = found("ddp", 1.5)
    assert told.seconds == pytest.approx(1.4)
    assert told.exposed_seconds == pytest.approx(0.4)
    # An eighth of 400 million elements: 100 MB of gradients down, 100 of weights up.
    plain, moved = found("zero2", 1.0), found("zero2", 1.0, offload_optimizer=True)
    assert moved.seconds - plain.seconds == pytest.approx(0.2)
    assert moved.exposed_seconds - plain.exposed_seconds == pytest.approx(0.2)
    rank = Rank(Sharding("zero2", 1, offload_optimizer=True), STATES, layers=8)
    assert exchange_of(rank, "Toy", 1.0).seconds == pytest.approx(1.6)
    assert exchange_of(rank, "Unknown", 1.0).notes == (
        "no time: how fast it exchanges data with the host is not known",
    )


@pytest.mark.parametrize(
    ("strategy", "computing", "seconds", "exposed"),
    [
        # ZeRO-1, 4 micro-batches in 3 s: 1400 MB of gradients beside two thirds of the last, 0.5 s; 700 of weights.
        ("zero1", 3.0, 1.4 + 0.7, 0.9 + 0.7),
        # ZeRO-2: four times 1400 MB beside two thirds of all, 2 s.
        ("zero2", 3.0, 5.6 + 0.7, 3.6 + 0.7),
        # However long it computes: the last message, and the weights.
        ("zero1", 1000.0, 1.4 + 0.7, 0.35 + 0.7),
        ("zero2", 1000.0, 5.6 + 0.7, 0.35 + 0.7),
    ],
)
def test_weights_of_zero_are_waited_for_in_full(strategy, computing, seconds, exposed):
    """400 million elements in buckets of 100 million: 4 messages of ZeRO-1, 16 of ZeRO-2, each of 0.35 s."""
    told = found(strategy, computing, micro_batches=4, overlap_comm=True, bucket_elements=100 * MB)
    assert (told.seconds, told.exposed_seconds) == (pytest.approx(seconds), pytest.approx(exposed))


@pytest.mark.parametrize(
    ("strategy", "settings", "megabytes"),
    [
        ("ddp", {}, 0),
        # an eighth of 2000 MB twice in each of 3 micro-batches, less what stays, 200 of 1000 elements; 100 of gradients
        ("fsdp2", {"offload_parameters": True, "micro_batches": 3}, 3 * 250 * 1.8 + 100),
        ("zero3", {"offload_parameters": True, "reuse_elements": 0}, 500),
        ("zero3", {"offload_parameters": True, "offload_optimizer": True, "reuse_elements": 0}, 500 + 200),
    ],
)
def test_what_crosses_to_the_host(strategy, settings, megabytes):
    assert host_bytes_moved(STATES, Sharding(strategy, 8, **settings)) == pytest.approx(megabytes * MB)


def test_what_has_no_time():
    told = found("ddp", 1.0, device="Unknown")
    assert (told.seconds, told.exposed_seconds) == (None, None)
    assert told.notes == ("no time: how fast several of it communicate is not known",)
    # What crosses PCIe goes on to an NVMe disk, of which nothing is known.
    told = found("zero3", 1.0, offload_parameters=True, to_disk=True)
    assert (told.seconds, told.exposed_seconds) == (None, None)
    assert told.notes == ("no time: the speed of the disk at distributed.offload.nvme_path is not known",)
    assert found("zero3", 1.0, to_disk=True).seconds is not None
