"""Does what `tune` predicts come? Small recipes with planted slownesses are tuned; predicted against achieved gains.

    python benchmarks/tune_predictions.py [--only NAME ...] [--minutes 2.5] [--json FILE] [TUNING.json ...]

Each case is a Llama of a few million random weights on random words, slow in two or three ways. Only knobs that undo
these are tried. Counted are changes that were accepted, measured and predicted; `cadence`, whose gain is computed, is
not. ``TUNING.json``: further tunings, whose changes are counted too. Trials are kept in ``--folder``, where
a later call goes on.

``--cpu-time``, for a busy machine: trials train in forks of one process with one thread, and all clocks in them are
that of the process's CPU time, which does not count while others have the core.
"""

import argparse
import contextlib
import datetime
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from shared import load_average, write_result

from hf_efficient.cli.output import Lines
from hf_efficient.facts.environment import replaced
from hf_efficient.records.tuning import Tuning
from hf_efficient.trials import search as search_module
from hf_efficient.trials import tune as tune_module
from hf_efficient.trials.goal import Goal
from hf_efficient.trials.knobs import KNOBS
from hf_efficient.trials.process import RESULT, RunFailed
from hf_efficient.trials.tune import tune

WANTED = (0.7, 1.4)
_EXAMPLES, _WORDS = 1200, 1000


@dataclass(frozen=True)
class Planted:
    """A recipe that is slow on purpose. ``tokens``: of an example, from and to, mostly short ones."""

    knobs: tuple[str, ...]
    tokens: tuple[int, int]
    train: dict[str, Any]
    method: str = "full"
    attention: str | None = None
    words: int = _WORDS


CASES: dict[str, Planted] = {
    "padded": Planted(
        ("padding", "precision", "micro_batch"),
        (20, 200),
        {"max_length": 256, "pad_to_multiple_of": 256, "per_device_train_batch_size": 1},
    ),
    "checkpointed": Planted(
        ("checkpointing", "precision", "grouping"),
        (20, 250),
        {
            "max_length": 256,
            "gradient_checkpointing": True,
            "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 1,
        },
        method="lora",
    ),
    "one_short_row": Planted(
        ("micro_batch", "precision"),
        (8, 40),
        {"max_length": 64, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 16},
    ),
    "not_packed": Planted(
        ("packing", "checkpointing", "precision"),
        (10, 150),
        {
            "max_length": 256,
            "pad_to_multiple_of": 256,
            "gradient_checkpointing": True,
            "per_device_train_batch_size": 2,
        },
    ),
    "eager": Planted(
        ("attention", "precision", "checkpointing"),
        (250, 500),
        {
            "max_length": 512,
            "gradient_checkpointing": True,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 1,
        },
        method="lora",
        attention="eager",
    ),
    "one_longer_row": Planted(
        ("micro_batch", "grouping"),
        (30, 120),
        {"max_length": 128, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 8},
        method="lora",
    ),
    "unlike_lengths": Planted(
        ("grouping", "checkpointing"),
        (10, 250),
        {"max_length": 256, "gradient_checkpointing": True, "per_device_train_batch_size": 4},
    ),
    "padded_rows": Planted(
        ("packing", "micro_batch"),
        (50, 150),
        {"max_length": 512, "pad_to_multiple_of": 512, "per_device_train_batch_size": 1},
        method="lora",
    ),
    "slow_optimizer": Planted(
        ("optimizer", "precision"),
        (20, 120),
        {"max_length": 128, "optim": "adamw_torch", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1},
        words=20_000,
    ),
}


@dataclass(frozen=True)
class Came:
    """A change that was accepted. ``predicted``, ``achieved``: times the tokens/s; ``of_predicted``: the share of time
    that it saved over the share that it should save."""

    case: str
    knob: str
    predicted: float
    achieved: float
    low: float
    high: float
    of_predicted: float


def came(case: str, found: Tuning) -> Iterator[Came]:
    for one in found.tried:
        gain = one.gain
        if one.verdict == "accepted" and one.predicted and gain and gain.low is not None and gain.high is not None:
            share = (1 - 1 / gain.ratio) / (1 - 1 / one.predicted)
            yield Came(case, one.knob, one.predicted, gain.ratio, gain.low, gain.high, share)


def summary(found: Iterable[Came]) -> dict[str, Any]:
    held = list(found)
    if not held:
        return {"changes": 0}
    middle = statistics.median(one.of_predicted for one in held)
    return {
        "changes": len(held),
        "median_of_predicted": middle,
        "median_ratio_of_times": statistics.median(one.achieved / one.predicted for one in held),
        "within": sum(WANTED[0] <= one.of_predicted <= WANTED[1] for one in held),
        "is_met": len(held) >= 12 and WANTED[0] <= middle <= WANTED[1],
    }


def make_inputs(one: Planted, folder: Path) -> Path:
    """The model, the examples and the recipe, the same ones on every machine."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["<pad>", "<end>", "<unknown>", *(f"w{number}" for number in range(one.words))]
    plain = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<unknown>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<unknown>"}
    PreTrainedTokenizerFast(tokenizer_object=plain, **names).save_pretrained(folder / "model")
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
    }
    more: dict[str, Any] = {
        "num_key_value_heads": 8,
        "max_position_embeddings": 1024,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }
    LlamaForCausalLM(LlamaConfig(vocab_size=len(words), **shape, **more)).save_pretrained(folder / "model")
    draw = random.Random(0)
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(_EXAMPLES):
            count = round(one.tokens[0] + (one.tokens[1] - one.tokens[0]) * draw.random() ** 2)
            text = " ".join(f"w{draw.randrange(one.words)}" for _ in range(count))
            file.write(json.dumps({"prompt": "w0 ", "completion": text}) + "\n")
    train: dict[str, Any] = {
        "bf16": False,  # slower where the machine multiplies in it
        "packing": False,
        "gradient_checkpointing": False,
        "gradient_accumulation_steps": 4,
    }
    train |= {"loss_type": "nll", "optim": "adamw_torch_fused", "max_steps": 1000, "learning_rate": 1e-4, "seed": 1}
    recipe = {
        "model": {"id": str(folder / "model"), "dtype": "float32", "attn_implementation": one.attention},
        "adapter": {"method": one.method},
        "data": {"train": [{"path": str(folder / "rows.jsonl")}]},
        "train": {**train, "eval_strategy": "no", "save_strategy": "no", **one.train},
        "output_dir": str(folder / "out"),
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(recipe), encoding="utf-8")  # JSON is YAML
    return path


@contextlib.contextmanager
def by_cpu_time() -> Iterator[None]:
    """Within, trials are forks whose clock is their CPU time."""
    plain: Any = time
    with (
        replaced(plain, "perf_counter", time.process_time),
        replaced(plain, "perf_counter_ns", time.process_time_ns),
        replaced(tune_module, "run_to_end", _forked),
        replaced(search_module, "_SECONDS", (_CPU_SECONDS, _CPU_SECONDS)),
    ):
        import hf_efficient.trials.trial_run  # noqa: F401  takes its clocks from `time` now

        yield


_CPU_SECONDS = 6.0  # some 15 steps, which a line over tokens needs


def _forked(command: Sequence[str], folder: Path, threads: int, **variables: str) -> Any:
    child = os.fork()
    if not child:
        import torch

        from hf_efficient.trials import worker

        torch.set_num_threads(1)
        said = os.open(folder / "said.txt", os.O_WRONLY | os.O_CREAT)
        for stream in (1, 2):
            os.dup2(said, stream)
        os._exit(worker.main([str(folder)]))
    os.waitpid(child, 0)
    found = json.loads((folder / RESULT).read_bytes())
    if "failure" in found:
        raise RunFailed(found["failure"], found["kind"])
    return found["result"]


def tuned(one: Planted, minutes: float, folder: Path | None) -> Tuning:
    others = frozenset(knob.name for knob in KNOBS if knob.name not in one.knobs)
    with tempfile.TemporaryDirectory() if folder is None else contextlib.nullcontext(folder) as place:
        recipe = make_inputs(one, Path(place))
        return tune(str(recipe), [], Goal(minutes=minutes, without=others, tolerance=0.05), Lines())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tunings", nargs="*", type=Path, metavar="TUNING.json")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES), metavar="NAME")
    parser.add_argument("--minutes", type=float, default=2.5, help="for each case")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    started, load = datetime.datetime.now(datetime.timezone.utc), load_average()
    found: list[Came] = []
    tried: dict[str, Any] = {}
    for path in asked.tunings:
        found += came(path.stem, msgspec.json.decode(path.read_bytes(), type=Tuning))
    for name in asked.only:
        print(f"--- {name}", file=sys.stderr)
        with by_cpu_time() if asked.cpu_time else contextlib.nullcontext():
            tuning = tuned(CASES[name], asked.minutes, asked.folder and asked.folder / name)
        found += came(name, tuning)
        tried[name] = {"tried": [asdict(one) for one in tuning.tried], "spent_seconds": tuning.spent_seconds}
    table = Table("case", "knob", "predicted", "achieved", "of the predicted saving", box=None)
    for one in found:
        interval = f"{one.achieved:.2f} [{one.low:.2f}, {one.high:.2f}]"
        table.add_row(one.case, one.knob, f"{one.predicted:.2f}", interval, f"{one.of_predicted:.2f}")
    Console(width=100).print(table, summary(found))
    if asked.json:
        loads = {"load_average_at_start": load, "load_average_at_end": load_average(), "cpu_time": asked.cpu_time}
        write_result(
            asked.json,
            "tune_predictions",
            started,
            {**loads, "summary": summary(found), "changes": [asdict(one) for one in found], "cases": tried},
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
