import json
import math

import msgspec
import pytest

from hf_efficient.records.steps import StepRecord, TokenCounts


def record(**changes):
    values = {
        "segment": 1,
        "rank": 0,
        "step": 7,
        "epoch": 0.5,
        "wall_seconds": 1.0,
        "started_at_seconds": 2.5,
        "phase_seconds": {"forward": 0.25, "backward": 0.5},
        "micro_batches": 2,
        "tokens": TokenCounts(10, 8, 4),
        "loss": 1.5,
    }
    return StepRecord(**{**values, **changes})


def test_unattributed_is_the_rest():
    assert record().unattributed_seconds == 0.25
    # 0.1 + 0.2 is not 0.3 in binary, but the clock counts whole nanoseconds.
    assert record(wall_seconds=0.300000001, phase_seconds={"a": 0.1, "b": 0.2}).unattributed_seconds == 1e-9


def test_json_round_trip():
    assert record().to_json() == {
        "schema_version": 1,
        "segment": 1,
        "rank": 0,
        "step": 7,
        "epoch": 0.5,
        "wall_seconds": 1.0,
        "started_at_seconds": 2.5,
        "phase_seconds": {"forward": 0.25, "backward": 0.5},
        "unattributed_seconds": 0.25,
        "micro_batches": 2,
        "tokens": {"processed": 10, "non_padding": 8, "target": 4},
        "loss": 1.5,
    }
    for original in (record(), record(epoch=None, loss=None, tokens=TokenCounts())):
        assert msgspec.convert(json.loads(json.dumps(original.to_json(), allow_nan=False)), StepRecord) == original


@pytest.mark.parametrize(("loss", "written"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_a_loss_that_is_not_finite_is_kept(loss, written):
    data = record(loss=loss).to_json()
    assert data["loss"] == written
    assert msgspec.convert(data, StepRecord).loss == written
