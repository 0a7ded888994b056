from hf_efficient.metrics.scores import ExactMatch, normalise


def test_normalise_strips_and_collapses_whitespace_and_nothing_else():
    assert normalise("  The\n\tcapital   of\u00a0France. \r\n") == "The capital of France."
    assert normalise("Paris") != normalise("paris")
    assert normalise("Paris.") != normalise("Paris")


def test_share_of_equal_answers():
    predictions = ["Paris ", "four\n\nfive", "Rome", "rome"]
    references = ["Paris", "four five", "Rome.", "Rome"]
    assert ExactMatch().compute(predictions=predictions, references=references) == {"exact_match": 0.5}


def test_empty_answers_can_match():
    assert ExactMatch().compute(predictions=[" ", ""], references=["", "x"]) == {"exact_match": 0.5}


def test_without_answers_the_value_is_missing():
    assert ExactMatch().compute(predictions=[], references=[]) == {}
