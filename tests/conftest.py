"""Fixtures that more than one room needs: a tiny random Llama with a real chat template, and tiny chats."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from hf_efficient.recipe.schema import Recipe

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


_STARTED = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stop-after", type=float, default=None, help="seconds after which the tests left are skipped")


def pytest_runtest_setup(item: pytest.Item) -> None:
    seconds = item.config.getoption("--stop-after")
    if seconds is not None and time.monotonic() - _STARTED > seconds:
        pytest.skip(f"no time left: {seconds:.0f} s were given (--stop-after)")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache or own facts; the tests of one worker share a cache."""
    monkeypatch.setenv("HF_EFFICIENT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "config"))
    monkeypatch.delenv("HF_EFFICIENT_FACTS", raising=False)


@pytest.fixture(autouse=True)
def _no_writer_left() -> Iterator[None]:
    """A thread that goes on after its test would warn, and write, into another one."""
    before = set(threading.enumerate())
    yield
    left = [one.name for one in set(threading.enumerate()) - before if one.name.startswith("write ")]
    assert left == []


def build_tiny_tokenizer() -> object:
    """A byte-level tokenizer with ChatML's special tokens: every text can be encoded, 259 tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(specials + alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    fast.chat_template = CHATML
    return fast


@pytest.fixture(scope="session")
def tiny_tokenizer():
    return build_tiny_tokenizer()


@pytest.fixture(scope="session")
def tiny_llama_dir(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer) -> Path:
    """A two-layer random Llama (hidden 32) with its tokenizer, as a local model folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny-llama")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tiny_tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder


def tiny_chats(count: int = 24) -> list[dict[str, object]]:
    """Chats of differing lengths: how much is a + b?"""
    return [
        {
            "messages": [
                {"role": "user", "content": f"How much is {i} + {i * i}?"},
                {"role": "assistant", "content": f"{i} + {i * i} = {i + i * i}." + " Sure." * (i % 4)},
            ]
        }
        for i in range(count)
    ]


@pytest.fixture
def chats_jsonl(tmp_path: Path) -> Path:
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in tiny_chats()), encoding="utf-8")
    return path


TINY_RECIPE = """
name: tiny
model: {{id: {model}}}
adapter: {{method: lora, r: 4, dropout: 0.1}}
data: {{train: [{{path: {chats}}}], eval_fraction: 0.2}}
train:
  max_steps: 4
  max_length: 96
  per_device_train_batch_size: 2
  learning_rate: 1.0e-2
  logging_steps: 1
  save_steps: 2
  bf16: false
  use_cpu: true
evaluate: {{metrics: [perplexity]}}
efficiency: {{plan: false}}
output_dir: {output}
"""


@pytest.fixture
def tiny_recipe_file(tiny_llama_dir: Path, chats_jsonl: Path, tmp_path: Path) -> Path:
    """A recipe of four steps on the tiny model, without a plan; it writes to ``tmp_path / "out"``."""
    path = tmp_path / "tiny.yaml"
    text = TINY_RECIPE.format(model=tiny_llama_dir, chats=chats_jsonl, output=tmp_path / "out")
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def tiny_recipe(tiny_recipe_file: Path) -> Callable[..., Recipe]:
    """Loads it with overrides."""
    from hf_efficient.recipe.load import load_recipe

    return lambda *overrides: load_recipe(tiny_recipe_file, list(overrides))


def small_recipe(**sections: Any) -> Recipe:
    """The least that is a recipe, with these sections."""
    from hf_efficient.recipe.schema import Recipe

    least = {"name": "t", "model": {"id": "m"}, "data": {"train": [{"path": "x"}]}, "output_dir": "out"}
    return Recipe(**{**least, **sections})


def read_steps(path: Path) -> list[Any]:
    """The records of a ``steps.jsonl``; broken lines are left out."""
    from hf_efficient.accounting.steps import RankSteps
    from hf_efficient.run_dir.jsonl import Tail

    found: list[Any] = []
    RankSteps.LINES.read(Tail(path), found.extend)
    return found


def own_environment(*folders: Path, **more: str) -> dict[str, str]:
    """For a process of its own: this one's environment, with these folders and all that can be imported here."""
    path = os.pathsep.join([*map(str, folders), *(one for one in sys.path if one)])
    return {**os.environ, "PYTHONPATH": path, **more}


def logged_values(output: Path, key: str = "loss") -> list[float]:
    """What a run's Trainer logged under a key, in its order."""
    state = json.loads((output / "trainer_state.json").read_text(encoding="utf-8"))
    return [entry[key] for entry in state["log_history"] if key in entry]
