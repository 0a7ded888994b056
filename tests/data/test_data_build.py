import json
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from made_data import arguments, recipe

from hf_efficient.data import build as build_module
from hf_efficient.data.build import build_sft_data


def cached(train, folder, **more):
    return recipe(train, cache_dir=str(folder / "cache"), **more)


def test_chats_with_a_held_out_share(chats_jsonl, tmp_path, tokenizer):
    data = build_sft_data(
        cached(chats_jsonl, tmp_path, show=2, eval_fraction=0.25), tokenizer, arguments(max_length=128)
    )
    assert (len(data.train), len(data.eval), data.cached) == (18, 6, False)
    assert (data.stats.examples, data.eval_stats.examples) == (18, 6)
    assert data.train.column_names == data.eval.column_names == ["input_ids", "labels"]
    assert data.collator.pad_token_id == 0
    rows = [json.loads(line)["messages"] for line in chats_jsonl.read_text().splitlines()]
    held_out = [tokenizer.decode(ids) for ids in data.eval["input_ids"][:]]
    assert len(data.eval_examples) == 2
    for example in data.eval_examples:
        chat = [*example["prompt"], {"role": "assistant", "content": example["answer"]}]
        assert chat in rows
        assert tokenizer.apply_chat_template(chat, tokenize=False) in held_out
    batch = data.collator([data.train[0], data.train[1]])
    assert sorted(batch) == ["attention_mask", "input_ids", "labels"]


def test_an_eval_source_packed_as_its_setting_says(chats_jsonl, tmp_path, tokenizer):
    made = cached(chats_jsonl, tmp_path, eval=[{"path": str(chats_jsonl)}], max_eval_examples=4)
    both = build_sft_data(made, tokenizer, arguments(max_length=200, packing=True))
    assert both.eval.column_names == ["input_ids", "labels", "seq_lengths"]
    assert sum(len(pack) for pack in both.eval["seq_lengths"][:]) == 4
    one = build_sft_data(made, tokenizer, arguments(max_length=200, packing=True, eval_packing=False))
    assert (one.eval.column_names, len(one.eval)) == (["input_ids", "labels"], 4)
    assert (one.eval_stats.packs, one.stats.packs) == (None, len(one.train))
    assert one.collator.padding_free


def test_the_second_start_tokenises_nothing(chats_jsonl, tmp_path, tokenizer, monkeypatch):
    made = cached(chats_jsonl, tmp_path, eval_fraction=0.25)
    first = build_sft_data(made, tokenizer, arguments(max_length=128))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("tokenised again")

    for name in ("__call__", "apply_chat_template", "_encode_plus"):
        monkeypatch.setattr(type(tokenizer), name, refuse)
    monkeypatch.setattr(build_module, "build_raw", refuse)
    second = build_sft_data(made, tokenizer, arguments(max_length=128))
    assert (first.cached, second.cached) == (False, True)
    assert second.train[:] == first.train[:]
    assert second.eval[:] == first.eval[:]
    assert (second.stats, second.eval_stats) == (first.stats, first.eval_stats)
    assert second.eval_examples == first.eval_examples
    assert asdict(second.collator) == asdict(first.collator)


@pytest.mark.parametrize("damage", ["arrow", "manifest", "missing"])
def test_a_damaged_entry_is_made_again(damage, chats_jsonl, tmp_path, tokenizer):
    made = cached(chats_jsonl, tmp_path)
    first = build_sft_data(made, tokenizer, arguments(max_length=128))
    [entry] = (tmp_path / "cache").iterdir()
    if damage == "arrow":
        [arrow] = (entry / "train").glob("*.arrow")
        arrow.write_bytes(arrow.read_bytes()[:100])
    elif damage == "manifest":
        (entry / "entry.json").write_text("{")
    else:
        (entry / "train" / "state.json").unlink()
    second = build_sft_data(made, tokenizer, arguments(max_length=128))
    assert (second.cached, second.train[:]) == (False, first.train[:])
    assert build_sft_data(made, tokenizer, arguments(max_length=128)).cached
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [entry.name]


def test_a_cache_that_cannot_be_written_is_done_without(chats_jsonl, tmp_path, tokenizer, caplog):
    (tmp_path / "cache").write_text("a file where the folder should be")
    made = cached(chats_jsonl, tmp_path)
    for _ in range(2):
        data = build_sft_data(made, tokenizer, arguments(max_length=128))
        assert (len(data.train), data.cached) == (24, False)
    warnings = [record.getMessage() for record in caplog.records if record.name == "hf_efficient.data.cache"]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"The tokenised data cannot be cached in {tmp_path / 'cache'}: ")


@pytest.mark.slow
def test_the_embedded_docstrings(tmp_path, tokenizer):
    sources = [{"path": "builtin:python-docstrings"}]
    evaluation = [{"path": "builtin:python-docstrings", "split": "eval"}]
    made = cached(sources, tmp_path, eval=evaluation, max_train_examples=10, max_eval_examples=5)
    data = build_sft_data(made, tokenizer, arguments(max_length=4096))
    assert (len(data.train), len(data.eval), len(data.eval_examples)) == (10, 5, 5)
    answers = {tokenizer.decode([token for token in row if token != -100]) for row in data.eval["labels"][:]}
    assert answers == {f"{example['answer']}<|im_end|>\n" for example in data.eval_examples}
    assert build_sft_data(made, tokenizer, arguments(max_length=4096)).cached


@pytest.fixture
def process(monkeypatch):
    """What a process does and when it waits for the others, in order."""

    def build(first):
        log = []
        state = SimpleNamespace(is_local_main_process=first, wait_for_everyone=lambda: log.append("barrier"))
        monkeypatch.setattr(build_module, "PartialState", lambda: state)
        return log

    return build


def test_the_first_process_of_a_machine_builds_before_the_others(process):
    for first, expected in ((True, ["work", "barrier"]), (False, ["barrier", "work"])):
        log = process(first)
        assert build_module._local_main_first(lambda log=log: log.append("work") or 3) == 3
        assert log == expected
    log = process(True)
    with pytest.raises(ZeroDivisionError):
        build_module._local_main_first(lambda: 1 // 0)
    assert log == ["barrier"]  # the others do not wait for ever
