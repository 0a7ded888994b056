"""What was proven, in words."""

from __future__ import annotations

import dataclasses

from hf_efficient.records.account import Preflight, PreflightFailure
from hf_efficient.reporting.html.run_page import preflight_section, run_page
from hf_efficient.reporting.run_rows import preflight_words

GIB = 1 << 30
WHOLE = Preflight(
    "f", True, 93.0, world_size=2, device="a GPU", batch_rows=4, batch_tokens=2048, micro_batches=2,
    recipe_micro_batches=8, memory_bytes=24 * GIB, training_peak_bytes=12 * GIB, evaluation_peak_bytes=3 * GIB,
    evaluation_rows=2, checkpoint_bytes=GIB // 2, model_bytes=1000, save_seconds=2.0, load_seconds=5.0,
    compared_tensors=40, next_loss=1.25, next_loss_after_load=1.25, checkpoints_to_come=12, needed_bytes=6 * GIB,
    free_bytes=90 * GIB,
)  # fmt: skip


def test_what_passed():
    assert preflight_words(WHOLE) == [
        "longest batch 4 x 2,048 tokens (2 of 8 micro-batches a step): peak 12.00 GiB of 24.00 GiB; 2 rows evaluated: "
        "peak 3.00 GiB",
        "saved 512.0 MiB in 2.00 s, loaded back in 5.00 s: 40 tensors of weights and optimizer are equal, and the next "
        "loss, 1.25, bit for bit",
        "12 checkpoints to come and the model need 6.00 GiB, 90.00 GiB are free",
        "passed in 1 min 33 s",
    ]


def test_a_loss_that_kernels_round_otherwise_is_not_called_equal():
    told = preflight_words(dataclasses.replace(WHOLE, next_loss_after_load=1.250001))
    assert told[1].endswith("are equal; the next loss is 1.250001, it was 1.25")
    told = preflight_words(dataclasses.replace(WHOLE, next_loss=None))
    assert told[1].endswith("are equal")


def test_what_failed_is_told_as_far_as_it_came():
    failure = PreflightFailure("memory", "the evaluation of the longest batch", "out of memory", 1)
    found = Preflight("", False, 20.0, batch_rows=1, batch_tokens=9, training_peak_bytes=GIB, failure=failure)
    assert preflight_words(found) == [
        "longest batch 1 x 9 tokens: peak 1.00 GiB",
        "failed in 20.0 s, in the evaluation of the longest batch",
    ]
    unloaded = dataclasses.replace(WHOLE, load_seconds=None)
    assert preflight_words(unloaded)[1].endswith("not loaded back: train.save_only_model keeps no optimizer")


def test_the_page_tells_it_where_there_is_one(full_run):
    assert preflight_section(full_run) is None
    assert "Proven before the run" not in run_page(full_run)
    proven = dataclasses.replace(full_run, account=dataclasses.replace(full_run.account, preflight=WHOLE))
    assert "<p>passed in 1 min 33 s</p>" in run_page(proven)
