from pathlib import Path

from planted_runs.cases import CASES, PlantedCase, Setup
from planted_runs.summary import prescription

from hf_efficient.diagnosis.rules import RULES
from hf_efficient.records.findings import Diagnosis, Finding, Gain, Remedy

GAIN = Gain(0.3, 3.0, None, None, "measured")


def arguments(tmp_path, overrides, **fields):
    from planted_runs.training import arguments as made

    return made(Setup(tmp_path, tmp_path, "", overrides), **fields)


def diagnosis(*remedies):
    finding = Finding("data_collation", "the collator is slow", "warning", "measured", [], remedies=list(remedies))
    return Diagnosis(1, "0", "done", None, 60, 10.0, [finding], [], None, ["data_collation"])


def case(code_remedy="", expected="data_collation"):
    return PlantedCase("slow", "is slow", (expected,), lambda setup: None, code_remedy=code_remedy)


def test_a_remedy_is_set_over_what_the_run_sets_and_as_many_examples_are_trained_on(tmp_path):
    made = arguments(tmp_path, {"train.save_steps": 50, "model.attn_implementation": "sdpa"}, save_steps=2)
    assert (made.save_steps, made.max_steps) == (50, 60)
    overrides = {"train.per_device_train_batch_size": 8, "train.gradient_accumulation_steps": 4}
    fields = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 16, "max_steps": 40}
    assert arguments(tmp_path, overrides, **fields).max_steps == 20  # 16 examples a step become 32


def test_the_top_remedy_is_applied_where_a_recipe_can():
    change = {"train.dataloader_num_workers": 2}
    chosen = prescription(case("better code"), diagnosis(Remedy("take workers", change, gain=GAIN), Remedy("other")))
    assert (chosen.overrides, chosen.gain) == (change, GAIN)


def test_the_code_is_changed_where_the_top_remedy_is_no_change_of_a_recipe():
    chosen = prescription(case("better code"), diagnosis(Remedy("write it better", gain=GAIN)))
    assert (chosen.overrides, chosen.gain, chosen.what) == ({}, GAIN, "write it better (better code)")


def test_the_code_is_not_changed_for_another_cause():
    assert prescription(case("better code", "memory_growth"), diagnosis(Remedy("write it better", gain=GAIN))) is None


def test_the_corpus_is_cut_into_rows_and_read_back(tmp_path, monkeypatch):
    from planted_runs import data

    chat = {
        "prompt": [{"role": "user", "content": "Write the docstring of open_file. " * 40}],
        "completion": [{"role": "assistant", "content": "Opens a file and gives it back to its caller."}],
    }
    monkeypatch.setattr(data, "build_docstring_chats", lambda: [chat] * 5)
    monkeypatch.setattr(data, "_documents", lambda: ["import os"])
    folder = Path(tmp_path, "corpus")
    data.make_corpus(folder)
    told, rows = data.examples(folder), data.read_rows(folder)
    joined = [token for one in told for token in one]
    assert len(told) == 5
    assert rows.shape == (len(joined) // 128, 128)
    assert rows.ravel().tolist() == joined[: rows.size]
    assert data.tokenizer(folder).decode(told[0]).endswith("back to its caller.<|end|>")


def test_what_is_expected_is_the_name_of_a_rule():
    assert {rule for one in CASES.values() for rule in one.expected} <= {rule.__name__ for rule in RULES}
