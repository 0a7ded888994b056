"""One real training on the device that is here: its memory by torch's own counters, and its speed.

    python benchmarks/plan_accuracy_gpu_real.py MODEL_FOLDER NUMBER OUT.json [--steps N] [--warm-up N] [--tiny]

A process of its own for each, so that nothing of another training is left in the allocator.
"""

import argparse
import gc
import json
import time
from pathlib import Path
from typing import Any

import torch
from plan_accuracy import Case, recipe_of
from plan_accuracy_gpu import GPU_CASES, TINY_CASES
from transformers import PrinterCallback, TrainerCallback
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from hf_efficient.facts.environment import quieten_libraries
from hf_efficient.launch.arguments import training_arguments
from hf_efficient.launch.build import RecipeTrainer
from hf_efficient.model.adapter import add_adapter
from hf_efficient.model.load import load_base
from hf_efficient.model.recipe_trainer import apply_sft_fields, objective
from hf_efficient.planning.trainers import longest_rows
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.train_fields import is_padding_free

__all__ = ["measure"]


def measure(case: Case, model: str, folder: Path, *, steps: int, warm_up: int) -> dict[str, Any]:
    """Train, and tell the memory at most and the tokens per second.

    Args:
        case: what to train.
        model: folder with its weights.
        folder: for what is written.
        steps: that are timed, all together, the device waited for before the first and after the last.
        warm_up: steps before them.
    """
    recipe = _located(recipe_of(case, folder), model, warm_up + steps)
    args = training_arguments(recipe)
    base = load_base(recipe)
    adapted = add_adapter(base, recipe.adapter, seed=args.seed, checkpointing=args.gradient_checkpointing)
    clock = _Clock(warm_up, warm_up + steps)
    trainer = _trainer(recipe, adapted, args, case.length, clock)
    gc.collect()
    on_cuda = args.device.type == "cuda"
    if on_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    trainer.train()
    tokens = args.per_device_train_batch_size * args.gradient_accumulation_steps * case.length
    return {
        "allocated_bytes": torch.cuda.max_memory_allocated() if on_cuda else None,
        "reserved_bytes": torch.cuda.max_memory_reserved() if on_cuda else None,
        "allocation_retries": torch.cuda.memory_stats()["num_alloc_retries"] if on_cuda else None,
        "step_seconds": clock.seconds / steps,
        "tokens_per_second": tokens * steps / clock.seconds,
    }


def _located(recipe: Recipe, model: str, steps: int) -> Recipe:
    silent = {
        "max_steps": steps,
        "report_to": [],
        "disable_tqdm": True,
        "logging_strategy": "no",
        "save_strategy": "no",
        "eval_strategy": "no",
    }
    section = recipe.model.model_copy(update={"id": model})
    return recipe.model_copy(update={"model": section, "train": {**recipe.train, **silent}})


def _trainer(recipe: Recipe, model: Any, args: Any, length: int, clock: TrainerCallback) -> RecipeTrainer:
    apply_sft_fields(model, args)
    args.remove_unused_columns = False
    rows = args.max_steps * args.gradient_accumulation_steps * args.per_device_train_batch_size
    trainer = RecipeTrainer(
        model=model,
        args=args,
        data_collator=DataCollatorForLanguageModeling(pad_token_id=0, padding_free=is_padding_free(args)),
        train_dataset=longest_rows(args, length, rows, packed=args.packing),
        compute_loss_func=objective(args),
        callbacks=[clock],
        record_steps=False,
        check_gradients=False,
        log_metrics=False,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


class _Clock(TrainerCallback):
    """The time between two steps' ends, the device waited for at both and nowhere between."""

    def __init__(self, first: int, last: int) -> None:
        self._first, self._last = first, last
        self._began = 0.0
        self.seconds = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step not in (self._first, self._last):
            return
        if args.device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        if state.global_step == self._first:
            self._began = now
        else:
            self.seconds = now - self._began


def main() -> None:
    """Measure one case and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of the weights")
    parser.add_argument("number", type=int, help="of the case, from 0")
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="of the tiny cases")
    options = parser.parse_args()
    quieten_libraries(debug=False)
    case = (TINY_CASES if options.tiny else GPU_CASES)[options.number]
    found = measure(case, options.model, options.out.parent, steps=options.steps, warm_up=options.warm_up)
    options.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
