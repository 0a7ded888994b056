"""Perplexity, token accuracy and exact match by hand, and that no metric touches the disk."""

import math

import numpy as np
import pytest

from hf_efficient.metrics.answers import normalise
from hf_efficient.metrics.for_trainer import Perplexity, TokenAccuracy

METRICS = [
    (Perplexity, {"nll": [0.0], "tokens": [1]}, {"perplexity": 1.0}),
    (TokenAccuracy, {"predictions": [[1]], "references": [[1]]}, {"token_accuracy": 1.0}),
]


@pytest.mark.parametrize(("metric", "inputs", "expected"), METRICS)
def test_files_are_written_on_request_alone_and_numpys_generator_is_left_alone(metric, inputs, expected, tmp_path):
    np.random.seed(5)
    undisturbed = np.random.rand(3)
    np.random.seed(5)
    never, asked_for = tmp_path / "never", tmp_path / "asked-for"
    assert metric(cache_dir=str(never)).compute(**inputs) == expected
    assert not never.exists()
    assert metric(cache_dir=str(asked_for), keep_in_memory=False).compute(**inputs) == expected
    assert [path.name for path in asked_for.iterdir()] == [metric(cache_dir=str(asked_for)).name]
    assert np.random.rand(3).tolist() == undisturbed.tolist()


def test_normalise_strips_and_collapses_whitespace_and_nothing_else():
    assert normalise("  The\n\tcapital   of\u00a0France. \r\n") == "The capital of France."
    assert normalise("Paris") != normalise("paris")
    assert normalise("Paris.") != normalise("Paris")


def test_exact_match():
    predictions = ["Paris ", "four\n\nfive", "Rome", "rome", " ", ""]
    references = ["Paris", "four five", "Rome.", "Rome", "", "x"]
    pairs = zip(predictions, references, strict=True)
    assert [normalise(one) == normalise(other) for one, other in pairs] == [True, True, False, False, True, False]


@pytest.mark.parametrize(
    ("nll", "tokens", "expected"),
    [
        # Every token weighs the same: (0.5 + 2.5 + 3.0) / 3 = 2; the mean of the groups' means would be 1.625.
        ([0.5, 5.5], [1, 2], math.exp(2.0)),
        ([1.0, 2.0, 4.0, 5.0], [1, 1, 1, 1], 20.085536923187668),  # e^3, and the same in groups
        ([7.0, 5.0], [3, 1], 20.085536923187668),
        ([5 * math.log(50)], [5], 50.0),  # uniform over the vocabulary: its size
        ([0.0, math.log(8.0)], [0, 1], 8.0),
        ([710.0], [1], math.inf),
        ([709.0], [1], math.exp(709.0)),
        ([math.nan], [1], math.nan),
    ],
)
def test_perplexity(nll, tokens, expected):
    found = Perplexity().compute(nll=nll, tokens=tokens)["perplexity"]
    assert found == pytest.approx(expected, rel=1e-12, nan_ok=True)


def test_perplexity_without_tokens_is_missing_and_in_batches_the_same():
    assert Perplexity().compute(nll=[0.0], tokens=[0]) == {}
    assert Perplexity().compute(nll=[], tokens=[]) == {}
    metric = Perplexity()
    metric.add_batch(nll=[1.0], tokens=[1])
    metric.add_batch(nll=[2.0, 6.0], tokens=[1, 1])
    assert metric.compute() == {"perplexity": pytest.approx(math.exp(3.0))}


def test_token_accuracy():
    # Labelled positions: 5=5, 6!=7, 8=8, 1!=2, 3=3; position 0 of the first row is no label. 3 of 5.
    found = TokenAccuracy().compute(predictions=[[9, 5, 6, 8], [1, 3]], references=[[-100, 5, 7, 8], [2, 3]])
    assert found == {"token_accuracy": 0.6}
    # A prediction of the ignored label is no match.
    assert TokenAccuracy().compute(predictions=[[-100, 4]], references=[[-100, 4]]) == {"token_accuracy": 1.0}
    assert TokenAccuracy().compute(predictions=[[1, 2]], references=[[-100, -100]]) == {}
    with pytest.raises(ValueError, match="shorter"):
        TokenAccuracy().compute(predictions=[[1, 2]], references=[[1]])
