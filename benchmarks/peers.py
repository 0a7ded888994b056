"""The same chats, model, adapter and optimizer in our recipe, in TRL's ``SFTTrainer``, and in a loop by hand.

    python benchmarks/peers.py --data CHATS --model FOLDER [--only trl,recipe] [--qlora] [--dtype float32] [--json FILE]

``hf-efficient bench`` on one fixed recipe. CHATS is JSONL with ``messages``, or with ``question`` and ``answer``.
``--qlora``: the base in 4-bit NF4. ``--dtype float32`` is for processors without instructions for bfloat16, which take
fifty times as long for a product in it. A packed step trains 4 rows (``--rows``) of 512 tokens, a padded one
twice as many chats. ``--same-rows``: TRL and our recipe with all fast keys, on the same padded chats in one order,
so that the losses of all steps can be compared.
"""

import argparse
import dataclasses
import datetime
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from shared import write_result

from hf_efficient.cli.output import Lines
from hf_efficient.launch.exits import ends_on_signals
from hf_efficient.reporting.terminal import show
from hf_efficient.reporting.trials import comparison_renderables, picture
from hf_efficient.trials.arms import Arm, named_arms
from hf_efficient.trials.bench import compare

RANK, ALPHA, RATE, LENGTH, PADDED_ROWS_PER_PACK = 16, 32, 2e-4, 512, 2
DEFAULT = "trl,trl_packed,recipe_plain,recipe,bare"


def chats(path: Path) -> list[dict[str, Any]]:
    """Rows with ``messages``."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{"messages": row.get("messages") or _messages(row["question"], row["answer"])} for row in rows]


def _messages(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def settings(asked: argparse.Namespace, data: Path) -> dict[str, Any]:
    """The recipe, its fast keys on ``auto``."""
    method = "qlora" if asked.qlora else "lora"
    return {
        "name": "peer",
        "objective": "sft",
        "model": {"id": asked.model, "dtype": asked.dtype, "attn_implementation": "auto"},
        "adapter": {"method": method, "r": RANK, "alpha": ALPHA, "target_modules": "all-linear", "fused": "auto"},
        "data": {"train": [{"path": str(data)}]},
        "train": {
            **{"max_length": LENGTH, "packing": True, "per_device_train_batch_size": asked.rows, "loss_type": "auto"},
            **{"bf16": asked.dtype == "bfloat16", "gradient_checkpointing": False, "learning_rate": RATE, "seed": 42},
        },
    }


def run(benchmark: str, arms: Sequence[Arm], asked: argparse.Namespace) -> None:
    """Compare the arms; print the tables, and write the figures to ``--json``."""
    started = datetime.datetime.now(datetime.timezone.utc)
    with tempfile.TemporaryDirectory() as folder:
        data, recipe = Path(folder) / "chats.jsonl", Path(folder) / "peer.yaml"
        data.write_text("".join(json.dumps(row) + "\n" for row in chats(asked.data)), encoding="utf-8")
        recipe.write_text(json.dumps(settings(asked, data)), encoding="utf-8")  # JSON is YAML
        pythons = dict(one.split("=", 1) for one in asked.peer_python)
        options = {
            "rounds": asked.rounds,
            "steps": asked.steps,
            "padded_rows": PADDED_ROWS_PER_PACK * asked.rows,
            "pythons": pythons,
        }
        with ends_on_signals():  # and so ends the training that it started
            found = compare(str(recipe), [], arms, Lines(), **options)
    found = dataclasses.replace(found, recipe=benchmark)
    show(comparison_renderables(found))
    if asked.plot:
        asked.plot.write_text(picture(found), encoding="utf-8")
    if asked.json:
        figures = msgspec.to_builtins(found)
        del figures["environment"]  # which the file tells in its head
        write_result(asked.json, benchmark, started, figures)


def parser_of(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", required=True, help="folder of a model and its tokenizer")
    parser.add_argument("--qlora", action="store_true", help="the base in 4-bit NF4")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16", help="of weights and products")
    parser.add_argument("--only", help="names of arms, with commas; the first is what the others are compared with")
    parser.add_argument("--peer-python", action="append", default=[], metavar="NAME=PATH", help="as of bench")
    parser.add_argument("--rows", type=int, default=4, help="packed rows of a step; a padded step has twice as many")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="the ratios as SVG")
    return parser


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--same-rows", action="store_true", help="for the losses: `--steps 100 --rounds 1`")
    asked = parser.parse_args()
    arms = named_arms((asked.only or DEFAULT).split(","), "--only")
    if asked.same_rows:
        padded = {"train.packing": False, "train.per_device_train_batch_size": PADDED_ROWS_PER_PACK * asked.rows}
        arms = [
            *named_arms(["trl"], "--only"),
            Arm("recipe_padded", "hf-efficient train, padded chats", changes=padded),
        ]
    run("peers", arms, asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
