from __future__ import annotations

import pytest
import torch

from hf_efficient.recording.tokens import MOST_KEPT_POSITIONS, KeptBatch

IDS = torch.tensor([[5, 6, 7]])


def test_a_batch_is_kept_with_what_is_taken_out_of_it_later():
    batch = {"input_ids": IDS, "labels": IDS.clone(), "note": "text"}
    kept = KeptBatch.of(batch)
    del batch["labels"]
    assert set(kept.batch) == {"input_ids", "labels", "note"}
    assert kept.unchanged()


@pytest.mark.parametrize("write", [lambda t: t.add_(1), lambda t: t[0].fill_(0), lambda t: t.copy_(t + 1)])
def test_it_tells_what_was_written_into(write):
    mine = IDS.clone()
    kept = KeptBatch.of({"input_ids": IDS, "labels": mine})
    write(mine)
    assert not kept.unchanged()


def test_what_is_not_kept():
    with torch.inference_mode():
        silent = IDS.clone()
    large = torch.zeros(1, MOST_KEPT_POSITIONS + 1, dtype=torch.long)
    for batch in (
        {"labels": IDS},
        {"input_ids": [[1, 2]]},
        {"input_ids": large},
        {"input_ids": IDS, "attention_mask": large},
        {"input_ids": IDS, "labels": silent},
        {"input_ids": IDS, "labels": IDS.to("meta")},
    ):
        assert KeptBatch.of(batch) is None
    assert KeptBatch.of({"input_ids": large[:, 1:]}) is not None
