import datasets

from hf_efficient.data.stats import answer_lengths, document_lengths, largest_token_id, lengths, loss_bearing


def dataset(rows: list[dict]) -> datasets.Dataset:
    return datasets.Dataset.from_list(rows)


def test_the_first_label_bears_no_loss():
    rows = dataset(
        [
            {"input_ids": [5, 6, 7], "labels": [5, 6, 7]},
            {"input_ids": [5, 6, 7], "labels": [-100, 6, -100]},
            {"input_ids": [5], "labels": [5]},
            {"input_ids": [], "labels": []},
            {"input_ids": [8, 9], "labels": [8, -100]},
        ]
    )
    assert lengths(rows).tolist() == [3, 3, 1, 0, 2]
    assert loss_bearing(rows).tolist() == [2, 1, 0, 0, 0]
    rows = dataset(
        [
            {"labels": [1, 2, 3, 4, 5], "seq_lengths": [2, 3]},
            {"labels": [1, 2, 3], "seq_lengths": [1, 1, 1]},
            {"labels": [1, -100, 3, 4], "seq_lengths": [2, 2]},
        ]
    )
    assert loss_bearing(rows).tolist() == [3, 0, 1]
    assert loss_bearing(rows, by_document=True).tolist() == [1, 2, 0, 0, 0, 0, 1]
    assert loss_bearing(rows.select([2, 0])).tolist() == [1, 3]


def test_lengths():
    packs = dataset([{"input_ids": [0] * 5, "seq_lengths": [2, 3]}, {"input_ids": [0] * 3, "seq_lengths": [3]}])
    assert document_lengths(packs).tolist() == [2, 3, 3]
    assert document_lengths(dataset([{"input_ids": [0] * 5}, {"input_ids": [0]}])).tolist() == [5, 1]
    rows = dataset(
        [
            {"prompt_ids": [0] * 3, "chosen_ids": [0] * 4, "rejected_ids": [0]},
            {"prompt_ids": [0], "chosen_ids": [0], "rejected_ids": [0] * 9},
        ]
    )
    assert answer_lengths(rows, None).tolist() == [[7, 4], [2, 10]]
    assert answer_lengths(rows, 6).tolist() == [[6, 4], [2, 6]]
    rows = dataset([{"input_ids": [3, 9], "other": [1]}, {"input_ids": [], "other": [12]}])
    assert largest_token_id(rows) == 9
    assert largest_token_id(rows, ["input_ids", "other"]) == 12
    assert largest_token_id(rows.select([1])) == -1
    assert largest_token_id(rows.select([])) == -1
