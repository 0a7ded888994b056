import math

import pytest

from hf_efficient.metrics.scores import Perplexity


def test_every_token_weighs_the_same():
    # 3 tokens: (0.5 + 2.5 + 3.0) / 3 = 2.0; the mean of the two groups' means would be (0.5 + 2.75) / 2 =
    # 1.625.
    assert Perplexity().compute(nll=[0.5, 5.5], tokens=[1, 2]) == {
        "perplexity": pytest.approx(math.exp(2.0), rel=1e-15)
    }


def test_grouping_does_not_matter():
    per_token = Perplexity().compute(nll=[1.0, 2.0, 4.0, 5.0], tokens=[1, 1, 1, 1])
    grouped = Perplexity().compute(nll=[7.0, 5.0], tokens=[3, 1])
    assert per_token == grouped == {"perplexity": pytest.approx(20.085536923187668, rel=1e-15)}  # e^3


def test_uniform_over_the_vocabulary_gives_its_size():
    assert Perplexity().compute(nll=[5 * math.log(50)], tokens=[5])["perplexity"] == pytest.approx(50.0, rel=1e-12)


def test_groups_without_tokens_add_nothing():
    assert Perplexity().compute(nll=[0.0, math.log(8.0)], tokens=[0, 1]) == {"perplexity": pytest.approx(8.0)}


def test_without_tokens_the_value_is_missing():
    assert Perplexity().compute(nll=[0.0], tokens=[0]) == {}
    assert Perplexity().compute(nll=[], tokens=[]) == {}


def test_overflow_is_infinite_and_nan_stays():
    assert Perplexity().compute(nll=[710.0], tokens=[1]) == {"perplexity": math.inf}
    assert Perplexity().compute(nll=[709.0], tokens=[1]) == {"perplexity": math.exp(709.0)}
    assert math.isnan(Perplexity().compute(nll=[math.nan], tokens=[1])["perplexity"])


def test_in_batches():
    metric = Perplexity()
    metric.add_batch(nll=[1.0], tokens=[1])
    metric.add_batch(nll=[2.0, 6.0], tokens=[1, 1])
    assert metric.compute() == {"perplexity": pytest.approx(math.exp(3.0))}
