"""A recipe, run from its first line to the model card."""

import io
import json
import os
import shutil
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers.trainer
from transformers import Trainer, TrainerState
from trl import DPOConfig, SFTConfig

from hf_efficient.callbacks.progress import ProgressLines, show_figures
from hf_efficient.callbacks.stop import StopWhenAsked
from hf_efficient.errors import OutputError, SetupError
from hf_efficient.facts.environment import accelerator_count, describe_environment, replaced
from hf_efficient.launch import records
from hf_efficient.launch.arguments import float32_remark, one_device_remark, settle
from hf_efficient.launch.build import Built, build, closed_instruments
from hf_efficient.launch.card import write_model_card
from hf_efficient.launch.checkpoints import BASE_WEIGHTS, EFFICIENCY, check_layout, layout_of_checkpoint
from hf_efficient.launch.exits import explained_faults
from hf_efficient.launch.listener import RunListener, RunResult
from hf_efficient.launch.merge import merge_run
from hf_efficient.launch.output import OutputPlan, clear_output, locked, write_resolved_recipe
from hf_efficient.launch.preflight_wanted import check_preflight
from hf_efficient.launch.records import phase, state
from hf_efficient.launch.restart import agreed_output, restarts_remark
from hf_efficient.launch.started import COMMAND, started_engine
from hf_efficient.model.fast_step import fast_step_lines
from hf_efficient.model.source import resolve_model_source, weights_mark
from hf_efficient.profilers.instrument import named_functions
from hf_efficient.recipe.load import check_data_files
from hf_efficient.recipe.rules.values import recipe_remarks
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recording.stop import EndedBySignal, RunStopped, stop_request
from hf_efficient.run_dir.checkpoints import step_of

Rates = dict[str, dict[str, Any]]


def run_recipe(recipe: Recipe, listener: RunListener | None = None) -> RunResult:
    """Fine-tune as the recipe says into its ``output_dir``; the listener follows the progress on the main process.
    Raises ``HfEfficientError``: what the user can correct; ``PreflightWanted``: the run wants a preflight check first
    (``preflight_wanted.WISH_FILE``). Asked to end in its last step, ``EndedBySignal``: the weights are saved, and
    nothing is evaluated. Asked to end before, ``RunStopped``: it can resume from a checkpoint of its last step."""
    named_functions("profile.lines", recipe.profile.lines)
    named_functions("profile.host_memory", recipe.profile.host_memory)
    with records.recorded_run(recipe) as timeline:
        with phase(recipe, "trainer_setup"):
            recipe, args = settle(recipe)
            check_data_files(recipe)  # a wrong recipe comes before a taken directory
            resolve_model_source(recipe.model)
        is_main = args.process_index == 0
        rates = records.recipe_rates(recipe, args)
        if listener is None or not is_main:
            listener = RunListener()
        with locked(Path(recipe.output_dir).expanduser()) if is_main else nullcontext():
            with phase(recipe, "trainer_setup"):
                plan = agreed_output(recipe, args)
                if plan.checkpoint is not None:
                    _check_not_beyond(plan.checkpoint, recipe)
                    other = check_layout(plan.checkpoint, recipe, started_engine(os.environ), args.world_size)
                    plan = replace(plan, remark="; ".join(filter(None, [plan.remark, other])))
            with explained_faults(recipe.output_dir):
                result = _run(recipe, args, plan, rates, listener)
    found = timeline.finished  # None where nothing could be written, which was said, and on other ranks
    listener.finished(result, found and found.account, found and found.diagnosis)
    return result


def _run(
    recipe: Recipe, args: SFTConfig | DPOConfig, plan: OutputPlan, rates: Rates, listener: RunListener
) -> RunResult:
    with phase(recipe, "trainer_setup"):
        machine = describe_environment()
    _log_remarks(recipe, args, plan, listener)
    price = rates.get("price", {}).get("price_usd_per_hour")
    if plan.continues:
        records.check_budget_left(recipe, records.start_folder(plan), price)
    with records.recorded_start(recipe, plan, args, rates) as begin:
        state(recipe, "environment", machine)

        def check(data: Any, args: Any, plan: Any) -> Any:
            check_preflight(recipe, args, data, plan, listener)
            return data

        built = build(recipe, args, listener, price, on_data=check)
        args.distributed_state.wait_for_everyone()  # all have read what they need before it is changed
        with phase(recipe, "trainer_setup"), args.main_process_first(local=False, desc="output directory"):
            if args.process_index == 0:
                clear_output(plan, recipe.checkpoints.mirror)
            begin()
            if args.process_index == 0:
                noted = {**machine, BASE_WEIGHTS: weights_mark(recipe.model)}
                write_resolved_recipe(plan.directory, recipe, noted, plan.agents)
                records.write_plan(built.plan, recipe, plan.directory / EFFICIENCY)
    listener.ready(os.environ.get(COMMAND, ""))
    # What follows the training and its Trainer does not know, for the forecast.
    state(recipe, "run", {"evaluate_at_end": recipe.evaluate.at_end and built.trainer.eval_dataset is not None})
    train_seconds = _train(recipe, built.trainer, plan, listener)
    with phase(recipe, "checkpointing"):
        gather_when_saved(built.trainer)
        built.trainer.save_model()  # before the last evaluation: bf16_full_eval casts the weights in place
    if stop_request().asked:  # in the last step; on this rank alone perhaps, whose end the others see as ever
        raise EndedBySignal(stop_request().number)
    after = _evaluate_at_end(recipe, built, listener)
    result = _conclude(recipe, built.trainer, after, train_seconds, listener)
    if args.process_index == 0:
        with phase(recipe, "shutdown"):
            write_model_card(plan.directory, recipe, _figures_of(result), machine, built.data_summary)
    return result


def _log_remarks(recipe: Recipe, args: SFTConfig | DPOConfig, plan: OutputPlan, listener: RunListener) -> None:
    remarks = (
        *recipe_remarks(recipe),
        restarts_remark(recipe, os.environ),
        float32_remark(recipe, args.device),
        one_device_remark(args, accelerator_count()),
        *fast_step_lines(recipe),
    )
    for remark in filter(None, remarks):
        listener.stage("Recipe", remark)
    if plan.remark:
        listener.stage("Output", plan.remark)


def _train(recipe: Recipe, trainer: Trainer, plan: OutputPlan, listener: RunListener) -> float:
    show_figures(trainer, ProgressLines)
    if plan.checkpoint is not None and _is_finished(plan.checkpoint, recipe):
        listener.stage("Training", f"{plan.checkpoint.name} is the end of the run: nothing is left to train")
        with phase(recipe, "trainer_setup"), resharding(trainer):
            _load_finished(trainer, plan.checkpoint)
        return 0.0
    start = f"resumed from {plan.checkpoint.name}" if plan.checkpoint else "from the first step"
    listener.stage("Training", f"{start}, to {plan.directory}")
    with closed_instruments(trainer), stoppable(trainer), resharding(trainer):
        output = trainer.train(resume_from_checkpoint=str(plan.checkpoint) if plan.checkpoint else None)
    return float(output.metrics.get("train_runtime", 0.0))


def _evaluate_at_end(recipe: Recipe, built: Built, listener: RunListener) -> dict[str, float]:
    trainer = built.trainer
    if trainer.eval_dataset is None or not recipe.evaluate.at_end or trainer.budget_reached is not None:
        return {}
    last = _evaluations(trainer)[-1:]
    if last and last[0]["step"] == trainer.state.global_step and not trainer.args.load_best_model_at_end:
        return _metrics_of(last[0])
    listener.stage("Evaluation", "after the last step")
    for evaluator in built.answers:
        evaluator.after_training = True
    return _metrics_of(trainer.evaluate())


def _conclude(
    recipe: Recipe, trainer: Any, after: Mapping[str, float], train_seconds: float, listener: RunListener
) -> RunResult:
    directory = Path(recipe.output_dir).expanduser()
    with phase(recipe, "checkpointing"):
        trainer.save_state()
    first = _evaluations(trainer)[:1]
    early = trainer.budget_reached
    merges = recipe.adapter.merge and early is None
    losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    result = RunResult(
        output_dir=directory,
        steps=trainer.state.global_step,
        before=_metrics_of(first[0]) if first and first[0]["step"] == 0 else {},
        after=after,
        train_seconds=train_seconds,
        merged_dir=directory / "merged" if merges else None,
        ended_early=early,
        training_loss=(losses[0], losses[-1]) if len(losses) > 1 else None,
    )
    with phase(recipe, "checkpointing"):
        trainer.save_metrics("all", _figures_of(result), combined=False)
    if result.merged_dir is not None and trainer.is_world_process_zero():
        listener.stage("Merging", str(result.merged_dir))
        with phase(recipe, "merging"):
            trusts = recipe.model.trust_remote_code
            merge_run(directory, result.merged_dir, overwrite=True, trust_remote_code=trusts)
    return result


def gather_when_saved(trainer: Trainer) -> None:
    """Let ``save_model`` gather FSDP's shards from here on: with sharded checkpoints the Trainer writes no model."""
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    if plugin is not None:
        plugin.set_state_dict_type("FULL_STATE_DICT")


_SCRATCH = ".universal"  # in the output directory, which all machines share; until all have read it


def resharding(trainer: Trainer) -> AbstractContextManager[None]:
    """Within, the trainer loads a checkpoint of ZeRO that another number of processes wrote, by way of DeepSpeed's
    universal checkpoints; FSDP2's are sharded anew by torch itself. Raises ``OutputError``."""
    loader: Any = transformers.trainer
    args, load = trainer.args, loader.deepspeed_load_checkpoint

    def load_resharded(engine: Any, checkpoint: str, **options: Any) -> None:
        if layout_of_checkpoint(Path(checkpoint)).processes in (None, args.world_size):
            return load(engine, checkpoint, **options)
        folder = Path(str(args.output_dir), _SCRATCH)
        if args.process_index == 0:
            _convert(Path(checkpoint), folder)
        args.distributed_state.wait_for_everyone()
        groups = engine.optimizer.param_groups
        decays = [group.get("weight_decay") for group in groups]  # ZeRO-3 would give all groups that of the first
        engine._config.load_universal_checkpoint = True
        load(engine, str(folder), **options)
        engine._config.load_universal_checkpoint = False
        for group, decay in zip(groups, decays, strict=True):
            group["weight_decay"] = decay
        for kept in engine.optimizer.optimizer.state.values():  # ZeRO-3 would count one step for each group
            if isinstance(kept.get("step"), torch.Tensor):
                kept["step"] = kept["step"].clone()
        args.distributed_state.wait_for_everyone()
        if args.process_index == 0:
            shutil.rmtree(folder, ignore_errors=True)

    return replaced(loader, "deepspeed_load_checkpoint", load_resharded)


def _convert(checkpoint: Path, folder: Path) -> None:
    from deepspeed.checkpoint import ds_to_universal

    shutil.rmtree(folder, ignore_errors=True)
    shares = checkpoint / (checkpoint / "latest").read_text(encoding="utf-8").strip()
    options = Namespace(input_folder=str(shares), output_folder=str(folder / shares.name), strict=True)
    vars(options).update(num_extract_workers=1, num_merge_workers=1, keep_temp_folder=False, inject_missing_state=True)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            ds_to_universal.main(options)
    except KeyError as error:
        raise OutputError(
            f"distributed.processes: {checkpoint.name} has an optimizer state that DeepSpeed cannot shard among "
            f"other processes: it has no {error}, which Adam has. Keep the number of processes that wrote it."
        ) from error


_STATE = "trainer_state.json"


def _check_not_beyond(checkpoint: Path, recipe: Recipe) -> None:
    """The recipe and the card of a run with fewer steps would say what its weights are not."""
    most, done = recipe.train.get("max_steps", -1), step_of(checkpoint)
    if 0 < most < done:
        raise SetupError(f"train.max_steps: is {most}, and {checkpoint.name} is beyond it. Write {done} or more.")


def _is_finished(checkpoint: Path, recipe: Recipe) -> bool:
    """Whether the run had done ``train.max_steps``, or was stopped early, when it saved; epochs are the Trainer's."""
    state = json.loads((checkpoint / _STATE).read_text(encoding="utf-8"))
    max_steps = recipe.train.get("max_steps", -1)
    if max_steps > 0 and state["global_step"] >= max_steps:
        return True
    control = state.get("stateful_callbacks", {}).get("TrainerControl", {}).get("args", {})
    stopped = bool(control.get("should_training_stop")) and state["global_step"] < state.get("max_steps", 0)
    return stopped and recipe.evaluate.early_stopping is not None


def _load_finished(trainer: Trainer, checkpoint: Path) -> None:
    """Load weights and state as ``train`` does before its first step; DeepSpeed and FSDP2 need them prepared."""
    trainer.state = TrainerState.load_from_json(str(checkpoint / _STATE))
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        steps = max(1, trainer.state.max_steps)  # of the learning rate, which nobody asks for any more
        trainer._prepare_for_training(steps, trainer.get_train_dataloader(), str(checkpoint))
    else:
        trainer._load_from_checkpoint(str(checkpoint))
    if trainer.args.load_best_model_at_end and trainer.state.best_model_checkpoint is not None:
        trainer._load_best_model()


def _evaluations(trainer: Trainer) -> list[dict[str, float]]:
    return [entry for entry in trainer.state.log_history if "eval_loss" in entry]


def _metrics_of(entry: Mapping[str, float]) -> dict[str, float]:
    speed = {"runtime", "samples_per_second", "steps_per_second", "model_preparation_time"}
    named = {key.removeprefix("eval_"): value for key, value in entry.items() if key.startswith("eval_")}
    return {key: value for key, value in named.items() if key not in speed}


def _figures_of(result: RunResult) -> dict[str, float]:
    named = {f"eval_{key}_before": value for key, value in result.before.items()}
    named |= {f"eval_{key}": value for key, value in result.after.items()}
    return {**named, "steps": result.steps, "train_seconds": result.train_seconds}


@contextmanager
def stoppable(trainer: Trainer) -> Iterator[None]:
    """A request to stop ends the training after the same step on all ranks: ``RunStopped``, with a checkpoint."""
    callback = StopWhenAsked(stop_request())
    trainer.add_callback(callback)
    try:
        yield
    finally:
        callback.close()
        trainer.remove_callback(callback)
    if callback.stopped_after is not None:
        trainer.args.distributed_state.wait_for_everyone()  # a launcher ends the others where one has ended
        raise RunStopped(callback.stopped_after, trainer.state.max_steps)
