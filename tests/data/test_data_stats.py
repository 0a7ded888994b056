from datasets import Dataset

from hf_efficient.data.stats import answer_lengths, document_lengths, largest_token_id, lengths, target_counts


def test_the_first_label_bears_no_loss():
    labels = [[5, 6, 7], [-100, 6, -100], [5], [], [8, -100]]
    rows = Dataset.from_dict({"input_ids": [[5, 6, 7], [5, 6, 7], [5], [], [8, 9]], "labels": labels})
    assert lengths(rows).tolist() == [3, 3, 1, 0, 2]
    assert target_counts(rows).tolist() == [2, 1, 0, 0, 0]
    labels = [[1, 2, 3, 4, 5], [1, 2, 3], [1, -100, 3, 4]]
    rows = Dataset.from_dict({"labels": labels, "seq_lengths": [[2, 3], [1, 1, 1], [2, 2]]})
    assert target_counts(rows).tolist() == [3, 0, 1]
    assert target_counts(rows, by_document=True).tolist() == [1, 2, 0, 0, 0, 0, 1]
    assert target_counts(rows.select([2, 0])).tolist() == [1, 3]


def test_lengths():
    packs = Dataset.from_dict({"input_ids": [[0] * 5, [0] * 3], "seq_lengths": [[2, 3], [3]]})
    assert document_lengths(packs).tolist() == [2, 3, 3]
    assert document_lengths(Dataset.from_dict({"input_ids": [[0] * 5, [0]]})).tolist() == [5, 1]
    sides = {"prompt_ids": (3, 1), "chosen_ids": (4, 1), "rejected_ids": (1, 9)}
    rows = Dataset.from_dict({name: [[0] * count for count in counts] for name, counts in sides.items()})
    assert answer_lengths(rows, None).tolist() == [[7, 4], [2, 10]]
    assert answer_lengths(rows, 6).tolist() == [[6, 4], [2, 6]]
    rows = Dataset.from_dict({"input_ids": [[3, 9], []], "other": [[1], [12]]})
    assert largest_token_id(rows) == 9
    assert largest_token_id(rows, ["input_ids", "other"]) == 12
    assert [largest_token_id(rows.select(kept)) for kept in ([1], [])] == [-1, -1]
