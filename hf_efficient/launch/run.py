"""A recipe, run from its first line to the model card."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl import DPOConfig, SFTConfig

from hf_efficient.callbacks.progress_lines import use_progress_lines
from hf_efficient.errors import SetupError
from hf_efficient.hardware.devices import accelerator_count
from hf_efficient.hardware.environment import describe_environment
from hf_efficient.launch.account import phase, recipe_rates, recorded_run, state, state_run
from hf_efficient.launch.arguments import training_arguments
from hf_efficient.launch.budget import check_budget_left
from hf_efficient.launch.build import Built, build
from hf_efficient.launch.card import write_model_card
from hf_efficient.launch.checkpoint_layout import check_layout
from hf_efficient.launch.engines.started import started_engine, started_nodes
from hf_efficient.launch.faults import explained_faults
from hf_efficient.launch.finished import is_finished, load_finished
from hf_efficient.launch.listener import RunListener, RunResult, SilentListener
from hf_efficient.launch.lock import locked
from hf_efficient.launch.merge import merge_run
from hf_efficient.launch.one_device import one_device_remark
from hf_efficient.launch.output import OutputPlan, clear_output, write_resolved_recipe
from hf_efficient.launch.plan import write_plan
from hf_efficient.launch.precision import emulation_remark, settle_compute_dtype
from hf_efficient.launch.preflight.wanted import check_proven
from hf_efficient.launch.profile import check_functions, closed_instruments
from hf_efficient.launch.restart import agreed_output, restarts_remark
from hf_efficient.launch.results import evaluations, figures_of, metrics_of, written_by
from hf_efficient.launch.run_files import EFFICIENCY
from hf_efficient.launch.start import recorded_start, start_folder
from hf_efficient.launch.stop import stoppable
from hf_efficient.launch.whole_model import gather_when_saved
from hf_efficient.launch.world import launch_contradiction, started_recipe
from hf_efficient.measure.stop_request import EndedBySignal, stop_request
from hf_efficient.recipe.remarks import recipe_remarks
from hf_efficient.recipe.schema import Recipe

if TYPE_CHECKING:
    from transformers import Trainer

__all__ = ["run_recipe"]


def run_recipe(recipe: Recipe, listener: RunListener | None = None) -> RunResult:
    """Fine-tune as the recipe says; everything is written to its ``output_dir``.

    Args:
        recipe: from ``load_recipe``.
        listener: is told of the progress, on the main process.

    Raises:
        HfEfficientError: one of its kinds, for everything that the user can mend.
        PreflightWanted: the run is to be proven first, by whoever offers it (``preflight.wanted.WISH_FILE``).
        EndedBySignal: it was asked to end in its last step; the weights are saved, and nothing is evaluated.
        RunStopped: it was asked to end (``measure.stop_request``), and can go on from a checkpoint of its last step.
    """
    recipe = started_recipe(recipe, os.environ)
    check_functions(recipe.efficiency.profile)
    with recorded_run(recipe) as account:
        with phase(recipe, "trainer_setup"):
            args = training_arguments(recipe)
            recipe = settle_compute_dtype(recipe, args.device)
        is_main = args.process_index == 0
        contradiction = launch_contradiction(recipe, args.world_size, started_nodes(os.environ))
        if contradiction:
            raise SetupError(contradiction)
        rates = recipe_rates(recipe, args)
        if listener is None or not is_main:
            listener = SilentListener()
        with locked(Path(recipe.output_dir).expanduser()) if is_main else nullcontext():
            with phase(recipe, "trainer_setup"):
                plan = agreed_output(recipe, args)
                if plan.checkpoint is not None:
                    check_layout(plan.checkpoint, started_engine(os.environ), args.world_size)
            with explained_faults(recipe.output_dir):
                result = _run(recipe, args, plan, rates, listener)
    listener.finished(result)
    if account.account is not None:
        listener.account(account.account)
    if account.diagnosis is not None:
        listener.diagnosis(account.diagnosis)
    return result


def _run(
    recipe: Recipe,
    args: SFTConfig | DPOConfig,
    plan: OutputPlan,
    rates: dict[str, dict[str, Any]],
    listener: RunListener,
) -> RunResult:
    with phase(recipe, "trainer_setup"):
        machine = describe_environment().to_dict()
    told = (
        *recipe_remarks(recipe),
        restarts_remark(recipe, os.environ),
        emulation_remark(recipe, args.device),
        one_device_remark(args, accelerator_count()),
    )
    for remark in filter(None, told):
        listener.stage("Recipe", remark)
    if plan.remark:
        listener.stage("Output", plan.remark)
    price = rates.get("price", {}).get("price_usd_per_hour")
    if plan.goes_on:
        check_budget_left(recipe, start_folder(plan), price)
    with recorded_start(recipe, plan, args, rates) as start:
        state(recipe, "environment", machine)

        def proven(data: Any, args: Any, plan: Any) -> Any:
            check_proven(recipe, args, data, plan, listener)
            return data

        built = build(recipe, args, listener, price, on_data=proven)
        args.distributed_state.wait_for_everyone()  # all have read what they need before it is changed
        with phase(recipe, "trainer_setup"), args.main_process_first(local=False, desc="output directory"):
            if args.process_index == 0:
                clear_output(plan)
            start.is_ready()
            if args.process_index == 0:
                write_resolved_recipe(plan.directory, recipe, machine, plan.agents)
                write_plan(built.plan, recipe, plan.directory / EFFICIENCY)
    state_run(recipe, built.trainer)
    train_seconds = _train(recipe, built.trainer, plan, listener)
    with phase(recipe, "checkpointing"):
        gather_when_saved(built.trainer)
        built.trainer.save_model()  # before the last evaluation: bf16_full_eval casts the weights in place
    if stop_request().asked:  # in the last step; on this rank alone perhaps, whose end the others see as ever
        raise EndedBySignal(signal.SIGTERM)
    after = _evaluate_at_end(recipe, built, listener)
    result = _conclude(recipe, built.trainer, after, train_seconds, listener)
    if args.process_index == 0:
        with phase(recipe, "shutdown"):
            write_model_card(plan.directory, recipe, figures_of(result), machine, built.data_summary)
    return result


def _train(recipe: Recipe, trainer: Trainer, plan: OutputPlan, listener: RunListener) -> float:
    use_progress_lines(trainer)
    if plan.checkpoint is not None and is_finished(plan.checkpoint, recipe):
        listener.stage("Training", f"{plan.checkpoint.name} is the end of the run: nothing is left to train")
        with phase(recipe, "trainer_setup"):
            load_finished(trainer, plan.checkpoint)
        return 0.0
    start = f"on from {plan.checkpoint.name}" if plan.checkpoint else "from the first step"
    listener.stage("Training", f"{start}, to {plan.directory}")
    with closed_instruments(trainer), stoppable(trainer):
        output = trainer.train(resume_from_checkpoint=str(plan.checkpoint) if plan.checkpoint else None)
    return float(output.metrics.get("train_runtime", 0.0))


def _evaluate_at_end(recipe: Recipe, built: Built, listener: RunListener) -> dict[str, float]:
    """The metrics after the last step; an evaluation that the Trainer did after that very step is not done again.

    None after a step at which the budget ended the training, which has nothing left for it.
    """
    trainer = built.trainer
    if trainer.eval_dataset is None or not recipe.evaluate.at_end or _ended_early(trainer) is not None:
        return {}
    last = evaluations(trainer)[-1:]
    if last and last[0]["step"] == trainer.state.global_step and not trainer.args.load_best_model_at_end:
        return metrics_of(last[0])
    listener.stage("Evaluation", "after the last step")
    for evaluator in built.answers:
        evaluator.after_training = True
    return metrics_of(trainer.evaluate())


def _conclude(
    recipe: Recipe, trainer: Trainer, after: Mapping[str, float], train_seconds: float, listener: RunListener
) -> RunResult:
    directory = Path(recipe.output_dir).expanduser()
    with phase(recipe, "checkpointing"):
        trainer.save_state()
    first = evaluations(trainer)[:1]
    early = _ended_early(trainer)
    merges = recipe.adapter.merge and early is None
    result = RunResult(
        output_dir=directory,
        steps=trainer.state.global_step,
        before=metrics_of(first[0]) if first and first[0]["step"] == 0 else {},
        after=after,
        train_seconds=train_seconds,
        merged_dir=directory / "merged" if merges else None,
        written=written_by(recipe, directory, merged=merges),
        ended_early=early,
    )
    with phase(recipe, "checkpointing"):
        trainer.save_metrics("all", figures_of(result), combined=False)
    if result.merged_dir is not None and trainer.is_world_process_zero():
        listener.stage("Merging", str(result.merged_dir))
        with phase(recipe, "merging"):
            merge_run(directory, result.merged_dir, overwrite=True)
    return result


def _ended_early(trainer: Trainer) -> str | None:
    return getattr(trainer, "budget_reached", None)
