"""A library's own tests in two arms, as they are and with the mixin over its trainers: outcomes and weights compared.

As a plugin of pytest, in both arms: the seed and the time of each test, its outcome, the weights of each training.
"""

import collections
import functools
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

SECONDS_PER_TEST = 600
HUB = re.compile(r"huggingface\.co|offline|on the Hub", re.IGNORECASE)
DIGESTS: list[str] = []  # of the test that runs: a line for each training that ended
MIXED: list[bool] = []  # of each of them: whether the mixin is over its trainer


def byte_tokenizer(words: Sequence[str], special: Sequence[str], **named: Any) -> Any:
    """A small tokenizer that knows every byte, as a stand-in for one of the hub."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    how = trainers.BpeTrainer(vocab_size=2000, special_tokens=list(special), initial_alphabet=alphabet)
    raw.train_from_iterator(words, how)
    return PreTrainedTokenizerFast(tokenizer_object=raw, **named)


def put_in_cache(cache: Path, name: str, *parts: Any) -> None:
    """Save a model, its tokenizer and the like as if the hub's ``name`` had been fetched."""
    cached = cache / f"models--{name.replace('/', '--')}"
    (cached / "refs").mkdir(parents=True, exist_ok=True)
    (cached / "refs" / "main").write_text("0" * 40)
    for part in parts:
        if part is not None:
            part.save_pretrained(cached / "snapshots" / ("0" * 40))


def pytest_configure() -> None:
    """Every training that ends tells the digest of its model's weights."""
    from transformers.trainer import Trainer

    trained: Any = Trainer.train

    @functools.wraps(trained)
    def train(self: Any, *args: Any, **options: Any) -> Any:
        output = trained(self, *args, **options)
        DIGESTS.append(f"{self.state.global_step} steps, {digest(self.model)}")
        MIXED.append(any(kind.__name__ == "EfficientTrainerMixin" for kind in type(self).__mro__))
        return output

    setattr(Trainer, "train", train)  # noqa: B010  mypy knows the method
    signal.signal(signal.SIGALRM, _too_long)


def _too_long(*_: object) -> None:
    raise TimeoutError(f"the test took more than {SECONDS_PER_TEST} s")


def digest(model: Any) -> str:
    """SHA-256 of all parameters and buffers, in the order of their names."""
    import torch

    total = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        if isinstance(value, torch.Tensor):
            total.update(name.encode())
            total.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:16]


def pytest_runtest_setup() -> None:
    DIGESTS.clear()
    MIXED.clear()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call() -> Iterator[None]:
    """A test draws the same numbers in both arms, and ends."""
    from transformers import set_seed

    set_seed(0)
    signal.alarm(SECONDS_PER_TEST)
    try:
        yield
    finally:
        signal.alarm(0)


def pytest_runtest_logreport(report: Any) -> None:
    """A line per phase of a test that ends otherwise than passed, and one per test that passed."""
    if report.when == "call" or not report.passed:
        crash = getattr(getattr(report.longrepr, "reprcrash", None), "message", None)
        reason = str(crash or report.longrepr or "").strip().split("\n")[0][:300]
        with Path(os.environ["OWN_TESTS_OUTCOMES"]).open("a", encoding="utf-8") as lines:
            trained = {"trained": list(DIGESTS), "under_the_mixin": sum(MIXED)}
            lines.write(
                json.dumps({"id": report.nodeid, "outcome": report.outcome, "reason": reason, **trained}) + "\n"
            )


def outcomes(
    arm: str,
    file: str,
    clone: Path,
    folder: Path,
    plugin: str,
    environment: Mapping[str, str] | None = None,
    only: Sequence[str] = (),
) -> dict[str, dict[str, Any]]:
    """By test of one file, or only of some: outcome, reason, and the weights of each training."""
    lines, here = folder / f"{Path(file).stem}_{arm}.jsonl", Path(__file__).resolve().parent
    if not lines.is_file():
        begun = lines.with_suffix(".begun")
        begun.unlink(missing_ok=True)
        environment = {
            **os.environ, **(environment or {}), "OWN_TESTS_ARM": arm, "OWN_TESTS_OUTCOMES": str(begun),
            "HF_HUB_CACHE": str(folder / "hub"), "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")]),
        }  # fmt: skip
        command = [sys.executable, "-m", "pytest", "-q", "-p", "own_tests", "-p", plugin, "-m", "not slow", "--tb=line"]
        subprocess.run([*command, *(only or [file])], cwd=clone, env=environment, check=False)
        begun.rename(lines)
    return {line["id"]: line for line in map(json.loads, lines.read_text().splitlines())}


def compared(
    file: str, clone: Path, folder: Path, plugin: str, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Of one file: how its tests ended, and those that end or train otherwise under the mixin.

    Args:
        file: of the tests, in the clone.
        clone: of the library.
        folder: keeps outcomes, and takes those that are there; its ``hub`` is the hub's cache.
        plugin: of pytest, which puts the mixin over the trainers where ``OWN_TESTS_ARM`` is "mixin".
        environment: of both arms, beside ours.
    """
    plain, mixin = (outcomes(arm, file, clone, folder, plugin, environment) for arm in ("plain", "mixin"))
    both = plain.keys() & mixin.keys()
    other = [test for test in sorted(both) if end(plain[test]) != end(mixin[test])]
    trained = [test for test in both if plain[test]["trained"]]
    passed = [test for test in trained if plain[test]["outcome"] == "passed"]
    failed = collections.Counter(line["reason"] for line in plain.values() if line["outcome"] == "failed")
    return {
        "tests": len(plain.keys() | mixin.keys()),
        "in_one_arm_alone": sorted(plain.keys() ^ mixin.keys()),
        "same_outcome": sum(plain[test]["outcome"] == mixin[test]["outcome"] for test in both),
        "without_the_mixin": dict(collections.Counter(line["outcome"] for line in plain.values())),
        "with_the_mixin": dict(collections.Counter(line["outcome"] for line in mixin.values())),
        "that_train": len(trained),
        "that_train_and_pass": len(passed),
        "that_train_under_the_mixin": sum(line["under_the_mixin"] > 0 for line in mixin.values()),
        "same_weights": sum(plain[test]["trained"] == mixin[test]["trained"] for test in trained),
        "otherwise_under_the_mixin": {test: {"plain": plain[test], "mixin": mixin[test]} for test in other},
        "failed_for_want_of_the_hub": sum(times for reason, times in failed.items() if HUB.search(reason)),
        "failed_without_it": dict(failed),
    }


def end(line: dict[str, Any]) -> tuple[Any, Any]:
    """Outcome and weights."""
    return line["outcome"], line["trained"]
