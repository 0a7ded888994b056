"""A recipe, run from its first line to the model card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl import DPOConfig, SFTConfig

from hf_efficient.callbacks.progress_lines import use_progress_lines
from hf_efficient.data.build import build_preference_data, build_sft_data
from hf_efficient.data.stats import DataStats
from hf_efficient.errors import SetupError
from hf_efficient.hardware.environment import describe_environment
from hf_efficient.launch.account import open_records, phase, recorded_run
from hf_efficient.launch.adapter import add_adapter
from hf_efficient.launch.arguments import training_arguments
from hf_efficient.launch.card import write_model_card
from hf_efficient.launch.data_remarks import preference_remarks, remarks
from hf_efficient.launch.evaluation import AnswersInEvaluation, answer_evaluators
from hf_efficient.launch.faults import explained_faults
from hf_efficient.launch.finished import is_finished, load_finished
from hf_efficient.launch.listener import RunListener, RunResult, SilentListener
from hf_efficient.launch.lock import locked
from hf_efficient.launch.merge import merge_run
from hf_efficient.launch.model import load_base, load_tokenizer
from hf_efficient.launch.model_checks import check_positions, check_vocabulary
from hf_efficient.launch.output import OutputPlan, clear_output, plan_output, write_resolved_recipe
from hf_efficient.launch.run_files import EFFICIENCY
from hf_efficient.launch.trainer import dpo_trainer, sft_trainer
from hf_efficient.launch.world import launch_contradiction
from hf_efficient.recipe.schema import Recipe
from hf_efficient.units import count, share

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer

__all__ = ["run_recipe"]


@dataclass(frozen=True)
class _Built:
    trainer: Trainer
    answers: Sequence[AnswersInEvaluation]
    data_summary: Mapping[str, Any]


def run_recipe(recipe: Recipe, listener: RunListener | None = None) -> RunResult:
    """Fine-tune as the recipe says; everything is written to its ``output_dir``.

    Args:
        recipe: from ``load_recipe``.
        listener: is told of the progress, on the main process.

    Raises:
        HfEfficientError: one of its kinds, for everything that the user can mend.
    """
    with recorded_run(recipe) as account:
        with phase(recipe, "trainer_setup"):
            args = training_arguments(recipe)
        is_main = args.process_index == 0
        contradiction = launch_contradiction(recipe, args.world_size)
        if contradiction:
            raise SetupError(contradiction)
        if listener is None or not is_main:
            listener = SilentListener()
        with locked(Path(recipe.output_dir).expanduser()) if is_main else nullcontext():
            with phase(recipe, "trainer_setup"):
                plan = plan_output(recipe)
            with explained_faults(recipe.output_dir):
                result = _run(recipe, args, plan, listener)
    listener.finished(result)
    if account.account is not None:
        listener.account(account.account)
    return result


def _run(recipe: Recipe, args: SFTConfig | DPOConfig, plan: OutputPlan, listener: RunListener) -> RunResult:
    with phase(recipe, "trainer_setup"):
        machine = describe_environment().to_dict()
    if plan.remark:
        listener.stage("Output", plan.remark)
    built = _build_sft(recipe, args, listener) if isinstance(args, SFTConfig) else _build_dpo(recipe, args, listener)
    args.distributed_state.wait_for_everyone()  # all have seen what lies there before it is changed
    with phase(recipe, "trainer_setup"), args.main_process_first(local=False, desc="output directory"):
        if args.process_index == 0:
            clear_output(plan)
            write_resolved_recipe(plan.directory, recipe, machine)
    open_records(recipe, plan.directory / EFFICIENCY, args.process_index)
    train_seconds = _train(recipe, built.trainer, plan, listener)
    with phase(recipe, "checkpointing"):
        built.trainer.save_model()  # before the last evaluation: bf16_full_eval casts the weights in place
    after = _evaluate_at_end(recipe, built, listener)
    result = _conclude(recipe, built.trainer, after, train_seconds, listener)
    if args.process_index == 0:
        with phase(recipe, "shutdown"):
            write_model_card(plan.directory, recipe, _results(result), machine, built.data_summary)
    return result


def _build_sft(recipe: Recipe, args: SFTConfig, listener: RunListener) -> _Built:
    tokenizer = _tokenizer(recipe, listener)
    listener.stage("Data", ", ".join(source.path for source in recipe.data.train))
    with phase(recipe, "data_preparation"):
        data = build_sft_data(recipe, tokenizer, args)
    evaluation = f", {count(len(data.eval))} to evaluate on" if data.eval is not None else ""
    cached = " (from the cache)" if data.cached else ""
    listener.stage(
        "",
        f"{count(data.stats.examples)} examples, {count(data.stats.tokens_total)} tokens{evaluation}{cached}",
    )
    for line in remarks(data.stats, args.max_length):
        listener.stage("", line)
    longest = data.stats.longest if args.max_length is None else min(data.stats.longest, args.max_length)
    largest = max(stats.largest_token_id for stats in (data.stats, data.eval_stats) if stats is not None)
    model = _model(recipe, args, listener, largest, longest)
    trainer: list[Trainer] = []
    answers = answer_evaluators(
        recipe.evaluate, tokenizer, data.eval_examples, listener, lambda: trainer[0].state.global_step
    )
    with phase(recipe, "trainer_setup"):
        trainer.append(sft_trainer(recipe, model, tokenizer, args, data, answers))
    return _Built(trainer[0], answers, _summary(data.stats))


def _summary(stats: DataStats) -> dict[str, Any]:
    """The counts that belong on a model card; those of what did not happen are left out."""
    always = {"examples", "tokens_total", "tokens_loss_bearing", "longest"}
    sometimes = {"packs", "fill_rate", "truncated", "dropped_overlong", "dropped_masked"}
    return {key: value for key, value in asdict(stats).items() if key in always or (key in sometimes and value)}


def _build_dpo(recipe: Recipe, args: DPOConfig, listener: RunListener) -> _Built:
    tokenizer = _tokenizer(recipe, listener)
    listener.stage("Data", ", ".join(source.path for source in recipe.data.train))
    with phase(recipe, "data_preparation"):
        data = build_preference_data(recipe, tokenizer, args)
    listener.stage("", f"{count(len(data.train))} preference pairs")
    for line in preference_remarks(data, args.max_length):
        listener.stage("", line)
    model = _model(recipe, args, listener, data.largest_token_id)
    with phase(recipe, "trainer_setup"):
        trainer = dpo_trainer(recipe, model, tokenizer, args, data)
    return _Built(trainer, (), {"examples": len(data.train), "dropped": data.dropped})


def _tokenizer(recipe: Recipe, listener: RunListener) -> PreTrainedTokenizerBase:
    listener.stage("Tokenizer", recipe.model.tokenizer or recipe.model.id)
    with phase(recipe, "model_load"):
        return load_tokenizer(recipe.model, recipe.train)


def _model(
    recipe: Recipe,
    args: SFTConfig | DPOConfig,
    listener: RunListener,
    largest_token_id: int,
    longest_row: int | None = None,
) -> PreTrainedModel | PeftModel:
    listener.stage("Model", recipe.model.id)
    with phase(recipe, "model_load"):
        base = load_base(recipe)
    check_vocabulary(base, largest_token_id)
    remark = check_positions(base, longest_row) if longest_row is not None else ""
    if remark:
        listener.stage("", remark)
    with phase(recipe, "model_load"):
        model = add_adapter(base, recipe.adapter, seed=args.seed, checkpointing=args.gradient_checkpointing)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    listener.stage("", f"{recipe.adapter.method}: {count(trained)} parameters are trained{_of_all(model, trained)}")
    return model


def _of_all(model: PreTrainedModel | PeftModel, trained: int) -> str:
    total = model.num_parameters()  # counts a 4-bit weight as the numbers that it stands for
    return f", {share(trained / total)} of {count(total)}" if total > trained else ""


def _train(recipe: Recipe, trainer: Trainer, plan: OutputPlan, listener: RunListener) -> float:
    use_progress_lines(trainer)
    if plan.checkpoint is not None and is_finished(plan.checkpoint, recipe):
        listener.stage("Training", f"{plan.checkpoint.name} is the end of the run: nothing is left to train")
        with phase(recipe, "trainer_setup"):
            load_finished(trainer, plan.checkpoint)
        return 0.0
    start = f"on from {plan.checkpoint.name}" if plan.checkpoint else "from the first step"
    listener.stage("Training", f"{start}, to {plan.directory}")
    output = trainer.train(resume_from_checkpoint=str(plan.checkpoint) if plan.checkpoint else None)
    return float(output.metrics.get("train_runtime", 0.0))


def _evaluate_at_end(recipe: Recipe, built: _Built, listener: RunListener) -> dict[str, float]:
    """The metrics after the last step; an evaluation that the Trainer did after that very step is not done again."""
    trainer = built.trainer
    if trainer.eval_dataset is None or not recipe.evaluate.at_end:
        return {}
    last = _evaluations(trainer)[-1:]
    if last and last[0]["step"] == trainer.state.global_step and not trainer.args.load_best_model_at_end:
        return _metrics(last[0])
    listener.stage("Evaluation", "after the last step")
    for evaluator in built.answers:
        evaluator.after_training = True
    return _metrics(trainer.evaluate())


def _conclude(
    recipe: Recipe, trainer: Trainer, after: Mapping[str, float], train_seconds: float, listener: RunListener
) -> RunResult:
    directory = Path(recipe.output_dir).expanduser()
    with phase(recipe, "checkpointing"):
        trainer.save_state()
    first = _evaluations(trainer)[:1]
    result = RunResult(
        output_dir=directory,
        steps=trainer.state.global_step,
        before=_metrics(first[0]) if first and first[0]["step"] == 0 else {},
        after=after,
        train_seconds=train_seconds,
        merged_dir=directory / "merged" if recipe.adapter.merge else None,
        written=_written(recipe, directory),
    )
    with phase(recipe, "checkpointing"):
        trainer.save_metrics("all", _results(result), combined=False)
    if result.merged_dir is not None and trainer.is_world_process_zero():
        listener.stage("Merging", str(result.merged_dir))
        with phase(recipe, "merging"):
            merge_run(directory, result.merged_dir, overwrite=True)
    return result


def _written(recipe: Recipe, directory: Path) -> dict[str, str]:
    weights = "the whole model" if recipe.adapter.method == "full" else "the adapter"
    written = {str(directory): f"{weights}, its tokenizer, checkpoints, and README.md, the model card"}
    if recipe.adapter.merge:
        written[str(directory / "merged")] = "the merged model"
    written[str(directory / EFFICIENCY)] = "the resolved recipe, run.json, the account, and the records of every step"
    return written


def _evaluations(trainer: Trainer) -> list[dict[str, float]]:
    return [entry for entry in trainer.state.log_history if "eval_loss" in entry]


def _metrics(entry: Mapping[str, float]) -> dict[str, float]:
    """``eval_loss`` and its companions without the prefix and without the Trainer's own speed figures."""
    speed = (
        "eval_runtime",
        "eval_samples_per_second",
        "eval_steps_per_second",
        "eval_model_preparation_time",
    )
    return {
        key.removeprefix("eval_"): value for key, value in entry.items() if key.startswith("eval_") and key not in speed
    }


def _results(result: RunResult) -> dict[str, float]:
    named = {f"eval_{key}_before": value for key, value in result.before.items()}
    named |= {f"eval_{key}": value for key, value in result.after.items()}
    return {**named, "steps": result.steps, "train_seconds": result.train_seconds}
