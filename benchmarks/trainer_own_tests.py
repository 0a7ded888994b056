"""transformers' own tests of its Trainer, with it and with the mixin over it: outcomes and weights must agree.

    git clone --branch v5.23.0 https://github.com/huggingface/transformers
    python benchmarks/trainer_own_tests.py transformers --json benchmarks/results/trainer_own_tests.json

The clone gives the tests; the installed transformers is tested. No hub is needed. Tiny stand-ins take the place of some
models and tokenizers; a test that wants another one fails in both arms.
"""

import argparse
import datetime
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import transformers as hf  # before the clone's conftest.py puts its own first
from own_tests import byte_tokenizer, compared, end, outcomes, put_in_cache
from shared import write_result

TESTS = "tests/trainer"
WORDS = ["The quick brown fox jumps over the lazy dog. A sentence with words, numbers 0 1 2 3 and a sample text."]


def build(cache: Path) -> None:
    """Tiny random stand-ins for what the tests ask the hub for."""
    named = {"unk_token": "<unk>", "pad_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    llama = byte_tokenizer(WORDS, ["<unk>", "<s>", "</s>"], **named, model_max_length=2048)
    bert = byte_tokenizer(WORDS, ["[PAD]", "[UNK]"], pad_token="[PAD]", unk_token="[UNK]", model_max_length=512)
    small: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 2}
    model = hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=len(llama), num_attention_heads=4, **small))
    put_in_cache(cache, "hf-internal-testing/tiny-random-LlamaForCausalLM", model, llama)
    encoder = hf.BertModel(hf.BertConfig(vocab_size=len(bert), num_attention_heads=4, **small))
    for name in ("bert-base-cased", "bert-base-uncased", "google-bert/bert-base-uncased"):
        put_in_cache(cache, name, encoder, bert)
    put_in_cache(cache, "facebook/wav2vec2-base-960h", hf.Wav2Vec2FeatureExtractor())


def pytest_configure() -> None:
    """As a plugin of the tests: but in an arm "plain", they see our classes for transformers' own."""
    if os.environ["OWN_TESTS_ARM"] != "plain":
        from hf_efficient import EfficientTrainerMixin

        class Quiet(EfficientTrainerMixin):
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, log_metrics=False, efficiency_dir=tempfile.mkdtemp(), **options)

        mixin = Quiet if os.environ["OWN_TESTS_ARM"] == "quiet" else EfficientTrainerMixin
        package = sys.modules["transformers"]  # another than hf, since its trainer was imported
        for name in ("Trainer", "Seq2SeqTrainer"):
            mixed = type(name, (mixin, getattr(package, name)), {"__module__": "transformers"})
            setattr(package, name, mixed)


def compared_quiet(file: str, clone: Path, folder: Path) -> dict[str, Any]:
    """As ``compared``; what is otherwise under the mixin runs again with no figures in logs, its records elsewhere."""
    told = compared(file, clone, folder, "trainer_own_tests")
    plain = {test: arms["plain"] for test, arms in told["otherwise_under_the_mixin"].items()}
    quiet = outcomes("quiet", file, clone, folder, "trainer_own_tests", only=sorted(plain)) if plain else {}
    return {**told, "otherwise_when_quiet": [test for test in sorted(plain) if end(quiet[test]) != end(plain[test])]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path, help="a clone of huggingface/transformers, at the installed version")
    parser.add_argument("--only", nargs="*", help="names of test files, without .py; none: all test_trainer*.py")
    parser.add_argument("--folder", type=Path, help="keep stand-ins and outcomes here, and take those that are there")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    started, clone = datetime.datetime.now(datetime.timezone.utc), given.clone.resolve()
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=clone, capture_output=True, text=True, check=False)
    figures: dict[str, Any] = {"tests_commit": head.stdout.strip() or "not a clone"}
    with tempfile.TemporaryDirectory() as scratch:
        folder = (given.folder or Path(scratch)).resolve()
        if not (folder / "hub").is_dir():
            build(folder / "hub")
        for name in given.only or sorted(path.stem for path in (clone / TESTS).glob("test_trainer*.py")):
            figures[name] = compared_quiet(f"{TESTS}/{name}.py", clone, folder)
            print(name, {key: value for key, value in figures[name].items() if key != "failed_without_it"})
            if given.json is not None:
                write_result(given.json, "trainer_own_tests", started, figures, ("transformers", "pytest"))


if __name__ == "__main__":
    main()
