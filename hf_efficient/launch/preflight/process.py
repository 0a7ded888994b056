"""One process of a proof: in the first launch it trains, evaluates and saves; in the second it loads and goes on."""

from __future__ import annotations

import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from hf_efficient.data.build import PreferenceData, SftData
from hf_efficient.errors import SetupError
from hf_efficient.launch.arguments import training_arguments
from hf_efficient.launch.build import Built, build
from hf_efficient.launch.checkpoint_faults import cause_of
from hf_efficient.launch.checkpoints import checkpoints
from hf_efficient.launch.listener import SilentListener
from hf_efficient.launch.lock import locked
from hf_efficient.launch.output import plan_output
from hf_efficient.launch.precision import settle_compute_dtype
from hf_efficient.launch.preflight.digests import full_elements
from hf_efficient.launch.preflight.failure import describe_failure
from hf_efficient.launch.preflight.fingerprint import fingerprint_of
from hf_efficient.launch.preflight.notes import Part, RankNotes, Stage, write_notes
from hf_efficient.launch.preflight.proof_recipe import STEPS, preflight_folder, proof_recipe
from hf_efficient.launch.preflight.rows import longest_data
from hf_efficient.launch.preflight.saved import folder_bytes, saved_fault
from hf_efficient.launch.preflight.watch import ProofWatch
from hf_efficient.launch.run_files import replaced_by_a_run
from hf_efficient.launch.whole_model import gather_when_saved
from hf_efficient.launch.world import launch_contradiction, started_recipe
from hf_efficient.planning.run_shapes import rows_of, run_shapes
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.planned_run import RunPlan

if TYPE_CHECKING:
    from torch import nn
    from transformers import Trainer
    from trl import DPOConfig, SFTConfig

__all__ = ["prove_part"]


def prove_part(recipe: Recipe, part: Part) -> None:
    """Do this process's share of a proof, and leave notes in the folder of the proof.

    Args:
        recipe: of the run, as the user wants it.
        part: ``save`` first, then, in a new launch, ``load``.

    Raises:
        Exception: whatever failed; the notes tell it in words.
    """
    process = _Process(recipe, part)
    process.enter("starting")
    try:
        process.prove()
    except BaseException as raised:
        error = cause_of(raised)
        if not isinstance(error, Exception):
            raise
        notes = process.notes
        notes.kind, notes.message = describe_failure(error, notes, recipe, process.args)
        notes.exit_code = 2 if notes.kind == "input" else 1
        if notes.kind == "save":  # a full disk then has room for the notes
            shutil.rmtree(process.folder / "run", ignore_errors=True)
        process.write()
        if error is raised:
            raise
        raise error from raised


class _Process:
    def __init__(self, recipe: Recipe, part: Part) -> None:
        self.recipe, self.part = recipe, part
        self.folder = preflight_folder(recipe)
        self.notes = RankNotes(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
        self.args: SFTConfig | DPOConfig | None = None

    def write(self) -> None:
        write_notes(self.folder, self.part, self.notes)

    def enter(self, stage: Stage) -> None:
        self.notes.stage = stage
        self.write()

    def prove(self) -> None:
        self.recipe = recipe = started_recipe(self.recipe, os.environ)
        self.args = args = training_arguments(recipe)
        self.recipe = recipe = settle_compute_dtype(recipe, args.device)
        contradiction = launch_contradiction(recipe, args.world_size)
        if contradiction:
            raise SetupError(contradiction)
        short = proof_recipe(recipe, args.gradient_accumulation_steps)
        is_main = args.process_index == 0
        with locked(Path(recipe.output_dir).expanduser()) if is_main else nullcontext():
            self.enter("data")
            if is_main and self.part == "save":
                self._note(free_bytes=shutil.disk_usage(self.folder).free + _freed(recipe))
            built = build(short, training_arguments(short), SilentListener(), on_data=self._on_data)
            watch = ProofWatch(self.part, self.notes, self.enter, evaluates=_evaluates(recipe, args, built.trainer))
            watch.watch(built.trainer)
            self._train(built, watch)
        self.enter("done")
        args.distributed_state.destroy_process_group()

    def _on_data(
        self, data: SftData | PreferenceData, args: SFTConfig | DPOConfig, plan: RunPlan | None
    ) -> SftData | PreferenceData:
        real: Any = self.args
        if self.part == "save" and real.process_index == 0:
            shapes = run_shapes(real, rows_of(data, real), real.world_size, at_end=self.recipe.evaluate.at_end)
            self._note(
                fingerprint=fingerprint_of(self.recipe, real, data),
                device=_device_name(real),
                memory_bytes=_memory_bytes(real),
                saves=shapes.saves,
                checkpoints_there=_there(self.recipe),
                save_total_limit=real.save_total_limit,
                keeps_best=bool(real.load_best_model_at_end),
                micro_batches=args.gradient_accumulation_steps,
                recipe_micro_batches=real.gradient_accumulation_steps,
            )
        self.enter("building")
        return longest_data(data, args, STEPS)

    def _train(self, built: Built, watch: ProofWatch) -> None:
        trainer = built.trainer
        for evaluator in built.answers:
            evaluator.after_training = True  # else it answers at the ends of a run alone
        if self.part == "load":
            watch.begin_loading()
            trainer.train(resume_from_checkpoint=str(self._output(trainer) / "checkpoint-1"))
            return
        trainer.train()
        self.enter("final")
        gather_when_saved(trainer)
        trainer.save_model()
        trainer.accelerator.wait_for_everyone()  # all have written their share
        if trainer.args.process_index == 0:
            self._look_at_saved(trainer)

    def _look_at_saved(self, trainer: Trainer) -> None:
        output, model = self._output(trainer), trainer.accelerator.unwrap_model(trainer.model)
        trained = sum(full_elements(one) for one in model.parameters() if one.requires_grad)
        fault = saved_fault(output, trained)
        if fault is not None:
            raise RuntimeError(fault)
        self._note(
            checkpoint_bytes=folder_bytes(output / "checkpoint-1"),
            model_bytes=folder_bytes(output, deep=False),
            merged_bytes=_merged_bytes(model) if self.recipe.adapter.merge else 0,
        )

    def _output(self, trainer: Trainer) -> Path:
        return Path(str(trainer.args.output_dir))

    def _note(self, **figures: Any) -> None:
        self.notes.figures.update(figures)


def _evaluates(recipe: Recipe, args: SFTConfig | DPOConfig, trainer: Trainer) -> bool:
    if trainer.eval_dataset is None:
        return False
    strategy = str(getattr(args.eval_strategy, "value", args.eval_strategy))
    return recipe.evaluate.at_end or bool(args.eval_on_start) or strategy != "no"


def _there(recipe: Recipe) -> int:
    """Checkpoints of the run that goes on."""
    plan = plan_output(recipe)
    return 0 if plan.replaces else len(checkpoints(plan.directory))


def _freed(recipe: Recipe) -> int:
    """Bytes of a run that this one will replace, before it writes anything."""
    plan = plan_output(recipe)
    if not plan.replaces:
        return 0
    found = replaced_by_a_run(plan.directory)
    return sum(folder_bytes(path) if path.is_dir() else path.stat().st_size for path in found)


def _merged_bytes(model: nn.Module) -> int:
    """The base model in its own data type, a 4-bit weight counted as the numbers that it stands for."""
    config: Any = getattr(model, "config", None)
    dtype = getattr(config, "dtype", None)
    width = getattr(dtype, "itemsize", 2)
    count: Any = getattr(model, "num_parameters", lambda: 0)
    return width * max(int(count()), sum(full_elements(one) for one in model.parameters()))


def _memory_bytes(args: SFTConfig | DPOConfig) -> int:
    if args.device.type == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(args.device).total_memory)
    return int(psutil.virtual_memory().total)


def _device_name(args: SFTConfig | DPOConfig) -> str:
    if args.device.type == "cuda":
        import torch

        return str(torch.cuda.get_device_name(args.device))
    return str(args.device.type)
