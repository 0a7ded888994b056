import random

import curation
import pytest
from curation_peers import ours
from curation_private import planted_private

from hf_efficient.curation.private_data import REGULAR_KINDS, replace_private

QUESTIONS = [" ".join(f"q{row}w{place}" for place in range(60)) for row in range(400)]


def test_two_words_of_each_planted_copy_differ_from_its_original():
    texts, copies = curation.planted_near(QUESTIONS, seed=3)
    assert texts[:400] == QUESTIONS
    assert sorted(copies) == list(range(400, 700))
    for copy, original in copies.items():
        pairs = zip(texts[copy].split(), texts[original].split(), strict=True)
        assert sum(one != other for one, other in pairs) == 2


def test_planted_copies_are_found_by_ours():
    texts, copies = curation.planted_near(QUESTIONS, seed=3)
    assert ours(texts, 3, 20, 5, 0) == set(copies)


def test_planted_test_questions_are_found_in_every_frame():
    found = curation.contamination_figures(QUESTIONS[:50], QUESTIONS[50:])
    assert (found["found"], found["clean_rows_removed"]) == (300, 0)


def test_every_planted_kind_is_found_between_words():
    for kind, item in planted_private(random.Random(5), 600):
        assert replace_private(f"It is {item} here", REGULAR_KINDS) == (f"It is [{kind.upper()}] here", {kind: 1}), item


def test_rows_that_change_without_planting_are_counted():
    figures = curation.private_figures(QUESTIONS, ["Write to a@b.org or 8.8.8.8.", "Nothing.", "c@d.org"])
    assert figures["found_percent"] == 100
    assert figures["in_docstrings"]["rows_changed"] == 2
    assert figures["in_docstrings"]["rows_changed_by_other_than_mail"] == 1


def test_words_are_as_frequent_as_zipf_says():
    assert list(curation.weights_of(3)) == pytest.approx([1, 1.5, 1.8333], abs=1e-4)
