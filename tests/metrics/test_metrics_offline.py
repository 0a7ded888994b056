import numpy as np
import pytest

from hf_efficient.metrics.scores import ExactMatch, Perplexity, TokenAccuracy

METRICS = [
    (Perplexity, {"nll": [0.0], "tokens": [1]}, {"perplexity": 1.0}),
    (TokenAccuracy, {"predictions": [[1]], "references": [[1]]}, {"token_accuracy": 1.0}),
    (ExactMatch, {"predictions": ["a"], "references": ["a"]}, {"exact_match": 1.0}),
]


@pytest.mark.parametrize(("metric", "inputs", "expected"), METRICS)
def test_nothing_is_written(metric, inputs, expected, tmp_path):
    place = tmp_path / "never"
    assert metric(cache_dir=str(place)).compute(**inputs) == expected
    assert not place.exists()


@pytest.mark.parametrize(("metric", "inputs", "expected"), METRICS)
def test_files_only_on_request(metric, inputs, expected, tmp_path):
    place = tmp_path / "asked-for"
    assert metric(cache_dir=str(place), keep_in_memory=False).compute(**inputs) == expected
    assert [path.name for path in place.iterdir()] == [metric(cache_dir=str(place)).name]


@pytest.mark.parametrize(("metric", "inputs", "expected"), METRICS)
def test_numpy_random_state_is_untouched(metric, inputs, expected):
    np.random.seed(5)
    undisturbed = np.random.rand(3)
    np.random.seed(5)
    assert metric().compute(**inputs) == expected
    assert np.random.rand(3).tolist() == undisturbed.tolist()


@pytest.mark.parametrize(("metric", "inputs", "expected"), METRICS)
def test_describes_itself(metric, inputs, expected):
    (name,) = expected
    built = metric()
    assert built.name == name
    assert list(built.features) == list(inputs)
    assert built.description
    assert name in built.inputs_description
