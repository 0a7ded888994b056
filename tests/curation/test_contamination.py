import pytest

from hf_efficient.curation.duplicates import contaminated
from hf_efficient.errors import DataError

LONG = "Ann has seven red apples and gives two of them to each of her three brothers today."
SHORT = "How many legs do three cats and a hen have?"


def test_a_shared_run_of_words_is_told_without_case_and_punctuation():
    texts = [
        "Nothing of the kind stands in this row at all, however long it may be made to look.",
        f"Q: {LONG.upper()} A: 1",
    ]
    assert contaminated(texts, [LONG]) == {1: "ann has seven red apples and gives two of them to each of"}


def test_a_run_one_word_shorter_is_no_match():
    words = LONG.split()
    assert contaminated([" ".join(words[:12])], [LONG]) == {}
    assert contaminated([" ".join(words[:12])], [LONG], ngram=12) != {}


def test_a_text_shorter_than_the_run_is_found_as_a_whole_inside_a_row():
    assert contaminated([f"Think. {SHORT} Fourteen.", SHORT.replace("hen", "dog")], [SHORT]) == {
        0: "how many legs do three cats and a hen have"
    }


def test_a_very_short_text_is_found_where_it_is_the_whole_row():
    assert contaminated(["Yes.", "yes, but why?", ""], ["Yes", "", "?"]) == {0: "yes"}


def test_a_set_against_itself_is_wholly_contaminated():
    texts = [LONG, SHORT, "Yes"]
    assert list(contaminated(texts, texts)) == [0, 1, 2]


def test_a_run_below_one_word_is_refused():
    with pytest.raises(DataError, match="ngram: 0"):
        contaminated([], [], ngram=0)
