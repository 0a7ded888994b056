"""Answers of a trained model: chats with a history, the base beside it, files of prompts."""

import io
import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_efficient.cli.app import main
from hf_efficient.errors import DataError, ModelError, SetupError
from hf_efficient.launch.trained import Answerer, Conversation, Sampling, generate, read_prompts


@pytest.fixture(scope="module")
def run(tiny_llama_dir, tmp_path_factory):
    """An adapter that changes every answer."""
    folder = tmp_path_factory.mktemp("run")
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(tiny_llama_dir), LoraConfig(target_modules="all-linear")
    )
    torch.manual_seed(1)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=1.0)
    model.save_pretrained(folder)
    return folder


def by_hand(model, folder, chat, count):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        new = model.eval().generate(**ids, do_sample=False, max_new_tokens=count, pad_token_id=0)
    return tokenizer.decode(new[0, ids["input_ids"].shape[1] :], skip_special_tokens=True).strip()


SAID = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hello"}]


def test_a_chat_remembers_and_the_base_answers_for_itself(run, tiny_llama_dir):
    answerer = Answerer(str(run), Sampling(max_new_tokens=12))
    trained, base = Conversation(answerer, "Be short."), Conversation(answerer, "Be short.", as_base=True)
    pieces = []
    first = trained.ask("Hello", on_text=pieces.append)
    assert "".join(pieces).strip() == first
    assert len(pieces) > 1
    plain = AutoModelForCausalLM.from_pretrained(tiny_llama_dir)
    assert base.ask("Hello") == by_hand(plain, tiny_llama_dir, SAID, 12) != first
    second = trained.ask("Again")
    whole = [*SAID, {"role": "assistant", "content": first}, {"role": "user", "content": "Again"}]
    assert second == by_hand(answerer.model, tiny_llama_dir, whole, 12)
    assert trained.messages == [*whole, {"role": "assistant", "content": second}]
    trained.messages = []
    assert trained.ask("Hello") == first


def test_sampling_draws(tiny_llama_dir):
    greedy = Conversation(Answerer(str(tiny_llama_dir), Sampling(16))).ask("Hello")
    drawn = [
        (torch.manual_seed(seed), Conversation(Answerer(str(tiny_llama_dir), Sampling(16, 2.0))).ask("Hello"))[1]
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert Conversation(Answerer(str(tiny_llama_dir), Sampling(16, 2.0, top_p=1e-6))).ask("Hello") == greedy


def test_a_file_of_prompts(run, tiny_llama_dir, tmp_path, capsys):
    rows = [{"prompt": "Hello", "id": 7}, {"messages": SAID}, {"prompt": "A longer prompt than the others"}]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    with pytest.raises(SystemExit):
        main(["generate", str(run), "--prompts", str(tmp_path / "in.jsonl"), "--max-new-tokens", "8", "--json"])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [{key: row[key] for key in given} for row, given in zip(found, rows, strict=True)] == rows
    asked = ["--prompts", str(tmp_path / "in.jsonl"), "--compare", "base", "--max-new-tokens", "8", "--json"]
    with pytest.raises(SystemExit):
        main(["chat", str(run), *asked])
    both = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    first, *_ = [row.pop("base_answer") for row in both]
    assert first != found[0]["answer"]
    assert both == found
    answerer = Answerer(str(run), Sampling(max_new_tokens=8))
    chat = [{"role": "user", "content": "Hello"}]
    assert found[0]["answer"] == by_hand(answerer.model, tiny_llama_dir, chat, 8)
    assert 0 < found[0]["new_tokens"] <= 8
    (tmp_path / "in.txt").write_text("Hello\n")
    with pytest.raises(SystemExit):
        main(["generate", str(run), "--prompts", str(tmp_path / "in.txt"), "--max-new-tokens", "8"])
    assert capsys.readouterr().out == f"> Hello\n{found[0]['answer']}\n\n"


def test_the_chat_in_a_terminal(run, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n/reset\n\nHello\n" + "word " * 400 + "\n/exit\nnever read\n"))
    with pytest.raises(SystemExit) as ended:
        main(["chat", str(run), "--max-new-tokens", "8"])
    assert ended.value.code in (0, None)
    out = capsys.readouterr().out
    answers = out.split("> ")
    assert answers[1] == answers[4] != "\n"
    assert "error: the prompt has 2,0" in out
    assert "never" not in out


def test_both_models_side_by_side(run, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n"))
    with pytest.raises(SystemExit):
        main(["chat", str(run), "--compare", "base", "--max-new-tokens", "4"])
    heading = capsys.readouterr().out.splitlines()[1].split()
    assert heading == [">", "trained", "base"]


def test_what_cannot_answer(run, tiny_llama_dir, tmp_path):
    answerer = Answerer(str(tiny_llama_dir), Sampling(max_new_tokens=400))
    with pytest.raises(ModelError, match="--compare base: the model has no adapter"):
        Conversation(answerer, as_base=True).ask("a")
    with pytest.raises(
        DataError, match=r"^--prompts: row 2: the prompt has \d+ tokens, .* leave room for 112 beside 400 new"
    ):
        list(generate(answerer, [{"prompt": ""}, {"prompt": "a" * 200}], None, 1))
    with pytest.raises(SetupError, match=r"--max-new-tokens: 512 new tokens leave .* Write 256 or fewer"):
        Answerer(str(tiny_llama_dir), Sampling(max_new_tokens=512))
    for text, told in (
        ("", "is empty. Write a prompt on each line."),
        ("nonsense", "in.jsonl:1: not valid JSON "),
        ('{"prompt": "a"}\n{"text": "b"}', "in.jsonl:2 holds neither "),
        ('{"messages": []}', "in.jsonl:1 holds neither "),
        ('{"prompt": ""}', "in.jsonl:1 holds neither "),
        ('{"messages": "x", "prompt": "hi"}', "in.jsonl:1 holds neither "),
        ('{"messages": [{"role": "user"}]}', 'in.jsonl:1: each message is to have a "role" and a "content"'),
        (
            '{"messages": [{"role": "user", "content": 5}]}',
            'in.jsonl:1: each message is to have a "role" and a "content"',
        ),
    ):
        (tmp_path / "in.jsonl").write_text(text)
        with pytest.raises(DataError, match=told):
            read_prompts(tmp_path / "in.jsonl")
    with pytest.raises(DataError, match=r"--prompts: \S+ cannot be read"):
        read_prompts(tmp_path / "nowhere.txt")
