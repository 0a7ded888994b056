"""A plan made by hand."""

import dataclasses

from hf_efficient.records import plan as rec

GIB = 2**30
MEMORY = rec.PlannedMemory(
    peak_allocated_bytes=20 * GIB, peak_phase="backward", peak_module="model.layers.3", peak_step=2,
    categories={"weights": 15 * GIB, "logits": 5 * GIB - 1, "rest": 1}, category_peak_bytes={"weights": 15 * GIB},
    largest=[rec.PlannedTensor(2 * GIB, "logits", "lm_head", "aten::mm", (4096, 131072), "float32")],
    phase_peak_allocated_bytes={"backward": 20 * GIB}, model_bytes=15 * GIB, paged_bytes=3 * GIB,
    timeline=rec.PlannedTimeline(
        events=[10, 25, 40, 55, 70],
        phases=["forward", "recompute", "backward", "optimizer", "forward"],
        categories={"weights": [15 * GIB] * 5, "logits": [0, GIB, 5 * GIB, 0, GIB], "activations": [0] * 5},
        second_step=60,
    ),
)  # fmt: skip
FITS = rec.PlannedGpu(
    name="L4", memory_bytes=24 * GIB, usable_memory_bytes=22 * GIB, needed_bytes=int(21.5 * GIB),
    reserved_bytes=21 * GIB, fits=True, allocation_retries=0, step_seconds=2.0, tokens_per_second=16384.0,
    bound_shares={"math": 1.0}, price_usd_per_hour=0.8, price_source="somebody, 2026-11-20",
    usd_per_million_tokens=0.0136, run_seconds=5400.0, run_usd=1.2, run_kwh=0.1, run_co2e_grams=48.0,
    kwh_per_million_tokens=0.0042, co2e_grams_per_million_tokens=2.0,
    spot=rec.PlannedSpot(0.4, "somebody, 2026-11-20", 2.1, 2**28, 2.05, 40, 0.06, 0.0072, 0.8, 5724.0, 0.636),
    on_frontier=True,
)  # fmt: skip
TOO_SMALL = dataclasses.replace(
    FITS, name="T4", memory_bytes=16 * GIB, usable_memory_bytes=int(14.5 * GIB), fits=False, step_seconds=None,
    tokens_per_second=None, notes=["no time"], spot=None, on_frontier=False,
)  # fmt: skip
PLAN = rec.Plan(
    recipe="tiny", model="some/model", adapter="lora", parameters=8_000_000_000, trained_parameters=42_000_000,
    micro_batch_rows=2, row_tokens=2048, micro_batches=8, steps=2700, flops_per_step=1_770_000_000_000_000,
    memory=MEMORY, gpus=[FITS, TOO_SMALL], assumptions=["every row is long"],
)  # fmt: skip
BEFORE = rec.PlannedOutcome(30 * GIB, False, 4.0, 8192.0)
CHANGES = [
    rec.PlannedChange(
        {"train.gradient_checkpointing": True},
        "of each layer only the input is kept for the backward",
        "each layer's forward is computed twice", True, BEFORE,
        rec.PlannedOutcome(20 * GIB, True, 5.25, 6241.5),
    ),
    rec.PlannedChange(
        {"adapter.method": "qlora", "train.max_length": 1024}, "less memory", "a rounded base", False, BEFORE,
        rec.PlannedOutcome(int(25.25 * GIB), False, None, None),
    ),
]  # fmt: skip
ADVICE = rec.PlannedAdvice("L4", 24 * GIB, 22 * GIB, BEFORE, CHANGES, ["train.optim=sgd: why not"])
