import numpy as np
import pytest

from hf_efficient.curation.duplicates import (
    band_keys,
    exact_duplicates,
    groups_of,
    keep_best,
    near_duplicates,
    semantic_duplicates,
)
from hf_efficient.errors import DataError


def sentences(rng, count, length=60):
    return [" ".join(f"w{number}" for number in rng.integers(0, 3000, length)) for _ in range(count)]


def with_replaced(text, places):
    return " ".join("other" if place in places else word for place, word in enumerate(text.split()))


def test_exact_duplicates_are_equal_to_the_letter_and_the_first_is_kept():
    assert exact_duplicates(["a b", "c", "a b", "A b", "a  b", "c"]) == {2: 0, 5: 1}


def test_a_text_with_one_word_replaced_is_found_and_its_first_copy_kept():
    texts = sentences(np.random.default_rng(1), 200)
    texts += [with_replaced(text, {0}) for text in texts[:50]]
    assert near_duplicates(texts, bands=20, rows=5) == {200 + row: row for row in range(50)}


def test_case_punctuation_and_spaces_do_not_matter():
    assert near_duplicates(["One, two; three four FIVE six.", "one two three  four five\nsix"]) == {1: 0}


def test_short_texts_are_compared_as_a_whole_and_texts_without_words_as_they_are():
    texts = ["yes", "no", "Yes.", "???", "!!!", "???", "", "", "\ud800", "\ud801"]
    assert near_duplicates(texts) == {2: 0, 5: 3, 7: 6}


def test_scripts_without_spaces_are_compared_by_character():
    text = "今日はとても良い天気なので公園まで散歩に行きましょう"
    assert near_duplicates([text, text + "ね", "明日は雨が降るそうですから家で本を読みます"], bands=30, rows=2) == {
        1: 0
    }


def test_the_keys_do_not_depend_on_how_the_texts_are_cut_into_tasks():
    texts = sentences(np.random.default_rng(2), 30)
    whole = band_keys(texts)
    apart = np.concatenate([band_keys(iter(texts[:7])), band_keys(texts[7:])])
    assert whole.shape == (30, 14)
    assert (whole == apart).all()
    assert (band_keys(texts, seed=1) != whole).any()


def test_rows_that_a_third_one_joins_are_one_group():
    keys = np.array([[1, 10], [2, 20], [1, 20], [3, 30]], np.uint64)  # 2 agrees with 0 in a band, with 1 in the other
    assert groups_of(keys) == {1: 0, 2: 0}
    assert groups_of(np.empty((0, 2), np.uint64)) == {}


def test_another_rule_keeps_the_best_of_each_group():
    lengths = [3, 9, 5, 1, 1]
    assert keep_best({1: 0, 2: 0, 4: 3}, lengths.__getitem__) == {0: 1, 2: 1, 4: 3}


def test_planted_pairs_are_found_as_often_as_the_curve_says():
    rng = np.random.default_rng(3)
    firsts = sentences(rng, 600, 44)
    pairs = [text for first in firsts for text in (first, with_replaced(first, {10, 30}))]
    # 40 shingles of five words each, ten of them changed: 30 shared of 50
    found = len(near_duplicates(pairs, bands=20, rows=4)) / len(firsts)
    assert found == pytest.approx(1 - (1 - 0.6**4) ** 20, abs=0.03)


def by_table(table):
    return lambda texts: np.array([table[text] for text in texts])


def test_texts_of_one_meaning_are_found_by_their_vectors():
    vectors = {"a": [1.0, 0.0], "b": [0.0, 2.0], "c": [3.0, 0.1], "d": [1.0, 1.0]}
    assert semantic_duplicates(["a", "b", "c", "d"], 0.9, by_table(vectors)) == {2: 0}


def test_a_row_is_compared_with_kept_rows_alone(monkeypatch):
    # 30 degrees apart each: the second goes because of the first, the third is 60 degrees from the first and stays
    vectors = {str(number): [np.cos(number * np.pi / 6), np.sin(number * np.pi / 6)] for number in range(4)}
    together = semantic_duplicates("0123", 0.8, by_table(vectors))
    monkeypatch.setattr("hf_efficient.curation.duplicates._BATCH_ROWS", 1)
    assert together == semantic_duplicates("0123", 0.8, by_table(vectors)) == {1: 0, 3: 2}


@pytest.mark.parametrize("threshold", [0, 1.5, -1])
def test_a_threshold_that_is_no_cosine_is_refused(threshold):
    with pytest.raises(DataError, match="above 0 and at most 1"):
        semantic_duplicates(["a"], threshold, by_table({"a": [1.0]}))


def test_a_parameter_below_one_is_refused_by_name():
    with pytest.raises(DataError, match="bands: 0"):
        near_duplicates(["a"], bands=0)
