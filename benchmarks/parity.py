"""Do all strategies train alike? The loss of every step, against one process with the same global batch.

    python benchmarks/parity.py [--only STRATEGY ...] [--steps 50] [--json FILE]

A tiny Llama with random weights on two CPU processes (gloo), each strategy in a launch of its own, which its recipe
generates; FSDP2 through the door that a run on GPUs does not use (``launch/arguments.py``).
"""

import argparse
import datetime
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from rich.console import Console
from rich.table import Table
from shared import load_average, run_to_end, write_result

from hf_efficient.launch.command import accelerate_command, layout_of
from hf_efficient.recipe.load import load_recipe

_WORDS = ["<pad>", "<end>", "<unknown>", "plus", "is", *map(str, range(200))]
_EXAMPLES = 400


def make_inputs(folder: Path) -> None:
    """Write ``model/`` and ``sums.jsonl``, the same ones on every machine."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(_WORDS)}, unk_token="<unknown>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<end>", unk_token="<unknown>"
    )
    tokenizer.save_pretrained(folder / "model")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(_WORDS),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    rows = [_example(7 * index % 100, 3 * index % 90) for index in range(_EXAMPLES)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _example(first: int, second: int) -> dict[str, str]:
    chain = " is ".join(str(first + second - part) for part in range(1 + first % 4))  # so that lengths differ
    return {"prompt": f"{first} plus {second} is", "completion": f" {chain}"}


REFERENCE = "none"
STRATEGIES: dict[str, dict[str, Any]] = {
    "none": {"strategy": "none", "processes": 1},
    "ddp": {"strategy": "ddp", "processes": 2},
    "zero1": {"strategy": "zero1", "processes": 2},
    "zero2": {"strategy": "zero2", "processes": 2},
    "zero3": {"strategy": "zero3", "processes": 2},
    "zero3+offload": {"strategy": "zero3", "processes": 2, "offload": {"optimizer": True, "parameters": True}},
    "fsdp2": {"strategy": "fsdp2", "processes": 2},
}
"""``distributed`` of each recipe."""
_ADAPTERS: dict[str, dict[str, Any]] = {
    "full": {"method": "full"},
    "lora": {"method": "lora", "r": 8},
    "qlora": {"method": "qlora", "r": 8, "quantization": {"compute_dtype": "float32"}},
}
_NO_QLORA = ("zero3", "zero3+offload")
"""ZeRO-3 cannot share packed 4-bit weights out."""
_PRECISIONS = {"fp32": False, "bf16": True}
_ROWS_PER_STEP, _ROWS_PER_MICRO_BATCH = 8, 2
_SECONDS = 900


def trainings_of(strategy: str) -> list[str]:
    """``METHOD-PRECISION`` of each; QLoRA, whose weights are 4-bit anyway, in float32 alone."""
    methods = [name for name in _ADAPTERS if not (name == "qlora" and strategy in _NO_QLORA)]
    return [
        f"{name}-{precision}" for name in methods for precision in _PRECISIONS if (name, precision) != ("qlora", "bf16")
    ]


def run_strategy(strategy: str, folder: Path, steps: int, trainings: Sequence[str] | None = None) -> None:
    """Train one after the other, in a launch.

    Args:
        strategy: of ``STRATEGIES``.
        folder: that holds the inputs, and takes the runs.
        steps: of each training.
        trainings: default: all.

    Raises:
        RuntimeError: the launch failed; tells the end of what it printed.
    """
    names = trainings or trainings_of(strategy)
    launch([write_recipe(strategy, name, folder, max_steps=steps) for name in names], folder)


def launch(recipes: Sequence[Path], folder: Path, overrides: Sequence[str] = ()) -> None:
    """Run recipes in two processes, or one, as ``hf-efficient train`` would launch the first of them.

    Raises:
        RuntimeError: the launch failed; tells the end of what it printed.
    """
    recipe = load_recipe(recipes[0], overrides)
    command = accelerate_command(recipe, "", [], layout_of(recipe, device_count=0, cores=2))
    command[0] = str(Path(sys.executable).with_name("accelerate"))  # it may be told relative to the current folder
    here = Path(__file__).resolve().parent
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_EFFICIENT_CACHE": str(folder / "cache")}
    environment["PYTHONPATH"] = os.pathsep.join([str(here.parent), os.environ.get("PYTHONPATH", "")])
    port = ["--main_process_port=0"]  # a free one: another launch may begin at this moment
    worker = [str(here / "parity_worker.py"), *map(str, recipes), *overrides]
    status, printed = run_to_end([*command[: command.index("-m")], *port, *worker], folder, _SECONDS, environment)
    if status != 0:
        raise RuntimeError(f"{recipe.name} ended with {status}: {printed[-4000:]}")


def losses_of(strategy: str, folder: Path) -> dict[str, list[float]]:
    """The loss of every step, by training."""
    told = {}
    for run in sorted((folder / strategy).iterdir()):
        state = json.loads((run / "trainer_state.json").read_text(encoding="utf-8"))
        told[run.name] = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    return told


def write_recipe(strategy: str, training: str, folder: Path, **train: Any) -> Path:
    """A recipe of a training, with more fields of ``train``."""
    method, precision = training.split("-")
    recipe = {
        "name": f"parity-{training}",
        "model": {"id": str(folder / "model"), "dtype": "float32"},
        "adapter": _ADAPTERS[method],
        "data": {"train": [{"path": str(folder / "sums.jsonl")}]},
        "train": {
            "max_length": 32,
            "per_device_train_batch_size": _ROWS_PER_MICRO_BATCH,
            "gradient_checkpointing": False,
            "learning_rate": 1e-3,
            "bf16": _PRECISIONS[precision],
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            **train,
        },
        "distributed": {**STRATEGIES[strategy], "global_batch_size": _ROWS_PER_STEP},
        "efficiency": {"plan": False},
        "output_dir": str(folder / strategy / training),
    }
    path = folder / f"{strategy}-{training}.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


TOLERANCES = {"fp32": 1e-5, "bf16": 1e-2}
"""Relative; what a loss may differ by from that of one process."""


class Parity(NamedTuple):
    """One training.

    Attributes:
        strategy, method, precision: of it.
        worst: relative difference of a step's loss, the largest.
        last: loss of the last step.
        holds: whether every step's difference is within the tolerance of the precision.
    """

    strategy: str
    method: str
    precision: str
    worst: float
    last: float
    holds: bool


def compared(
    strategy: str, losses: Mapping[str, Sequence[float]], reference: Mapping[str, Sequence[float]]
) -> list[Parity]:
    """A row for each training, named ``METHOD-PRECISION``.

    Raises:
        ValueError: a training has another number of steps than that of the reference.
    """
    rows = []
    for name, series in losses.items():
        method, precision = name.split("-")
        pairs = zip(series, reference[name], strict=True)
        worst = max(abs(one - other) / abs(other) for one, other in pairs)
        rows.append(Parity(strategy, method, precision, worst, series[-1], worst <= TOLERANCES[precision]))
    return rows


def parity_table(rows: Sequence[Parity], steps: int) -> Table:
    """For the terminal."""
    table = Table(title=f"Largest relative difference of a step's loss from one process's, {steps} steps")
    table.add_column("strategy")
    for name in ("method", "precision"):
        table.add_column(name)
    for name in ("difference", "last loss", "within"):
        table.add_column(name, justify="right")
    for row in rows:
        within = f"{TOLERANCES[row.precision]:g}" if row.holds else f"NOT {TOLERANCES[row.precision]:g}"
        table.add_row(row.strategy, row.method, row.precision, f"{row.worst:.2e}", f"{row.last:.4f}", within)
    return table


def main() -> None:
    """Run the strategies asked for, print the table, and exit with 1 where one does not hold."""
    options = _options()
    started, load = datetime.datetime.now(datetime.timezone.utc), load_average()
    rows: list[Parity] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_inputs(folder)
        run_strategy(REFERENCE, folder, options.steps)
        reference = losses_of(REFERENCE, folder)
        for strategy in options.only or [one for one in STRATEGIES if one != REFERENCE]:
            run_strategy(strategy, folder, options.steps)
            rows += compared(strategy, losses_of(strategy, folder), reference)
    Console(width=None if sys.stdout.isatty() else 120).print(parity_table(rows, options.steps))
    if options.json is not None:
        figures = {
            "steps": options.steps,
            "processes": 2,
            "tolerances": TOLERANCES,
            "load_average_at_start": load,
            "rows": [row._asdict() for row in rows],
        }
        write_result(options.json, "parity", started, figures, packages=["deepspeed", "accelerate", "peft"])
    if not all(row.holds for row in rows):
        sys.exit(1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[one for one in STRATEGIES if one != REFERENCE])
    parser.add_argument("--steps", type=int, default=50, help="optimizer steps of each training")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table")
    return parser.parse_args()


if __name__ == "__main__":
    main()
