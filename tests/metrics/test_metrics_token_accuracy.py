import pytest

from hf_efficient.metrics.scores import TokenAccuracy


def test_counts_positions_with_a_label():
    # Labelled positions: 5=5, 6!=7, 8=8, 1!=2, 3=3; position 0 of the first row is no label. 3 of 5.
    result = TokenAccuracy().compute(predictions=[[9, 5, 6, 8], [1, 3]], references=[[-100, 5, 7, 8], [2, 3]])
    assert result == {"token_accuracy": 0.6}


def test_prediction_of_the_ignored_label_is_no_match():
    assert TokenAccuracy().compute(predictions=[[-100, 4]], references=[[-100, 4]]) == {"token_accuracy": 1.0}


def test_without_labels_the_value_is_missing():
    assert TokenAccuracy().compute(predictions=[[1, 2]], references=[[-100, -100]]) == {}


def test_rows_of_different_length_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        TokenAccuracy().compute(predictions=[[1, 2]], references=[[1]])
