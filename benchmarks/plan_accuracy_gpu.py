"""How near are a plan's memory and speed to those of the training on the GPU that is here?

    python benchmarks/plan_accuracy_gpu.py [--case WORDS] [--models FOLDER] [--json FILE] [--tiny]

The device is calibrated first where it is not (``hf-efficient env --calibrate`` does the same). Each model of
``GPU_CASES`` is then made once with random weights (``--models``: where; 40 GB for all). Each case is
planned, and trained in a process of its own by the recipe's trainer: the peaks are those of
``torch.cuda.max_memory_allocated`` and ``max_memory_reserved``, the speed that of eight steps after three others.
"""

import argparse
import datetime
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from plan_accuracy import Case, recipe_of
from rich.console import Console
from rich.table import Table
from shared import load_average, write_result

from hf_efficient.errors import HfEfficientError
from hf_efficient.facts.environment import quieten_libraries

_1B, _3B, _8B = "meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-3B", "meta-llama/Llama-3.1-8B"
_7B = "mistralai/Mistral-7B-v0.3"


def _train(rows: int, checkpointing: bool = False, **fields: Any) -> dict[str, Any]:
    return {"per_device_train_batch_size": rows, "gradient_checkpointing": checkpointing, "bf16": True, **fields}


def _chunked(rows: int, **fields: Any) -> dict[str, Any]:
    return _train(rows, checkpointing=True, loss_type="chunked_nll", **fields)


GPU_CASES: tuple[Case, ...] = (
    Case(_1B, "full", 1024, _train(2)),
    Case(_1B, "full", 2048, _train(4, True)),
    Case(_1B, "full", 2048, _train(2, optim="adamw_8bit")),
    Case(_1B, "full", 1024, _train(2), dtype="float32"),
    Case(_1B, "lora", 2048, _train(2)),
    Case(_1B, "lora", 1024, _train(8, True)),
    Case(_1B, "lora", 1024, _train(2), attention="eager"),
    Case(_1B, "lora", 1024, _train(2, gradient_accumulation_steps=4)),
    Case(_1B, "lora", 2048, _train(2, packing=True)),
    Case(_1B, "lora", 2048, _chunked(4)),
    Case(_1B, "qlora", 2048, _train(4)),
    Case(_1B, "qlora", 1024, _train(2, True, optim="paged_adamw_8bit")),
    Case(_3B, "full", 1024, _train(1, True, optim="adamw_8bit")),
    Case(_3B, "lora", 2048, _train(2)),
    Case(_3B, "lora", 2048, _train(4, True)),
    Case(_3B, "qlora", 2048, _train(2)),
    Case(_3B, "qlora", 2048, _chunked(4)),
    Case(_8B, "lora", 1024, _train(1)),
    Case(_8B, "lora", 2048, _train(2, True)),
    Case(_8B, "lora", 1024, _train(1, True), attention="eager"),
    Case(_8B, "lora", 2048, _chunked(2)),
    Case(_8B, "qlora", 2048, _train(1)),
    Case(_8B, "qlora", 2048, _train(2, True)),
    Case(_8B, "qlora", 2048, _train(2, True, optim="adamw_8bit")),
    Case(_8B, "qlora", 4096, _chunked(2)),
    Case(_7B, "lora", 2048, _train(2, True)),
    Case(_7B, "qlora", 2048, _train(2, True)),
    Case(_7B, "qlora", 4096, _train(1, True)),
)
"""Ordered by model, so that each is made once."""

TINY_CASES: tuple[Case, ...] = (
    Case("llama", "full", 64, _train(2)),
    Case("llama", "lora", 64, _train(2, True)),
    Case("llama", "qlora", 64, _train(2)),
)
"""For ``--tiny``, which tries the same way on a CPU."""


console = Console(width=150)
MEASURES = ("allocated_bytes", "reserved_bytes", "tokens_per_second")
_LIMIT_SECONDS = 240


def main() -> None:
    """Plan and measure the cases asked for, print and write them."""
    options = _options()
    quieten_libraries(debug=False)
    started = datetime.datetime.now(datetime.timezone.utc)
    device = None if options.tiny else _calibrated_device()
    cases = TINY_CASES if options.tiny else GPU_CASES
    chosen = [number for number, case in enumerate(cases) if all(one in case.name for one in options.case.split())]
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=options.models) as folder:
        for number in chosen:
            found.append(_compared(cases[number], number, Path(folder), device))
            console.print(line(found[-1]), highlight=False)
            if options.json is not None:  # after each, so that what is there survives an end of the machine's time
                figures = {"device": device, **summary(found), "load": load_average(), "found": found}
                write_result(options.json, "plan_accuracy_gpu", started, figures)
    console.print(table(found))
    console.print_json(data=summary(found))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="", metavar="WORDS", help="only cases whose name holds all of these words")
    parser.add_argument("--models", metavar="FOLDER", help="where the models are made; default: the temporary folder")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every case")
    parser.add_argument("--tiny", action="store_true", help="three tiny cases on the CPU, which has no GPU's memory")
    return parser.parse_args()


def _calibrated_device() -> str:
    """Its name, once its rates are measured and stored for the plans."""
    import torch

    from hf_efficient.profilers.calibration import calibrate, load_calibration, save_calibration

    if not torch.cuda.is_available():
        sys.exit("plan_accuracy_gpu.py: there is no CUDA device here; benchmarks/plan_accuracy.py measures on a CPU.")
    name = torch.cuda.get_device_name(0)
    if load_calibration(name) is None:
        save_calibration(calibrate(torch.device("cuda", 0)))
        torch.cuda.empty_cache()
    return name


def _compared(case: Case, number: int, folder: Path, device: str | None) -> dict[str, Any]:
    """``device``: None of a tiny case."""
    model, out = _model(case, folder), folder / f"{number}.json"
    script = Path(__file__).with_name("plan_accuracy_gpu_real.py")
    command = [sys.executable, str(script), str(model), str(number), str(out), *(["--tiny"] if device is None else [])]
    failed: list[str] = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as training:
        try:
            predicted: dict[str, Any] | None = _planned(case, folder, device)  # meanwhile, on the CPU
        except HfEfficientError as error:
            predicted, failed = None, [f"plan: {error}"]
        try:
            _, errors = training.communicate(timeout=_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            training.kill()
            _, errors = training.communicate()
    measured = json.loads(out.read_text()) if out.exists() else None
    failed += [] if measured is not None else errors.strip().splitlines()[-1:]
    plain = {"name": case.name, "predicted": predicted, "measured": measured}
    return {**plain, "failed": failed or None, "case": asdict(case)}


def _model(case: Case, folder: Path) -> Path:
    """The folder of the case's model, made where it is not there yet; one of another model goes."""
    import shutil

    import torch
    from transformers import AutoModelForCausalLM

    from hf_efficient.planning.model_config import model_config

    place = folder / f"{case.model.replace('/', '_')}-{case.dtype}"
    if place.exists():
        return place
    for other in folder.iterdir():
        if other.is_dir() and (other / "config.json").exists():
            shutil.rmtree(other)
    config = model_config(recipe_of(case, folder).model)
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, case.dtype))
    model.save_pretrained(place)
    del model
    gc.collect()
    torch.cuda.empty_cache()
    return place


def _planned(case: Case, folder: Path, device: str | None) -> dict[str, Any]:
    from hf_efficient.facts.tables import accelerator_of_device
    from hf_efficient.planning.plan import plan

    known = None if device is None else accelerator_of_device(device)
    if device is not None and known is None:
        sys.exit(f"plan_accuracy_gpu.py: {device} is not among the known accelerators (hf_efficient/facts/data).")
    began = time.perf_counter()
    planned = plan(recipe_of(case, folder), "cpu" if known is None else [known.name], read_data=False)
    (gpu,) = planned.gpus
    return {**{name: getattr(gpu, name) for name in MEASURES}, "plan_seconds": round(time.perf_counter() - began, 2)}


def error(one: dict[str, Any], measure: str) -> float | None:
    """Of a prediction, relative to what was measured; None where one of the two is missing."""
    if not one["measured"] or not one["predicted"] or not one["measured"][measure] or not one["predicted"][measure]:
        return None
    return float(one["predicted"][measure] / one["measured"][measure] - 1)


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Median and worst of the magnitudes of each measure's errors, and how many cases have one."""
    told: dict[str, Any] = {}
    for measure in MEASURES:
        errors = [abs(value) for one in found if (value := error(one, measure)) is not None]
        told[measure] = {
            "cases": len(errors),
            "median_error": statistics.median(errors) if errors else None,
            "worst_error": max(errors, default=None),
        }
    return told


def line(one: dict[str, Any]) -> str:
    """A case with its three errors."""
    errors = "  ".join("    n/a" if (value := error(one, each)) is None else f"{value:+7.1%}" for each in MEASURES)
    return f"{errors}  {one['name']}" + (f"  FAILED: {one['failed']}" if one["failed"] is not None else "")


def table(found: list[dict[str, Any]]) -> Table:
    """All cases, predicted and measured."""
    made = Table("case", "allocated GiB", "", "reserved GiB", "", "tokens/s", "", box=None)
    for one in found:
        cells = []
        for measure in MEASURES:
            scale = 2**30 if measure.endswith("_bytes") else 1
            both = [(one[side] or {}).get(measure) for side in ("predicted", "measured")]
            cells.append(" / ".join("n/a" if value is None else f"{value / scale:,.1f}" for value in both))
            cells.append("" if (value := error(one, measure)) is None else f"{value:+.1%}")
        made.add_row(one["name"], *cells)
    return made


if __name__ == "__main__":
    main()
