"""The recipe to what trains it: tokenizer, data, model, trainer, each announced and timed as a phase of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from trl import DPOConfig, SFTConfig

from hf_efficient.assembly.adapter import add_adapter
from hf_efficient.assembly.model import load_base, load_tokenizer
from hf_efficient.assembly.model_checks import check_positions, check_vocabulary
from hf_efficient.assembly.wrap_classes import check_wrap_classes
from hf_efficient.data.build import build_preference_data, build_sft_data
from hf_efficient.data.stats import DataStats
from hf_efficient.launch.account import phase, state
from hf_efficient.launch.data_remarks import preference_remarks, remarks
from hf_efficient.launch.evaluation import AnswersInEvaluation, answer_evaluators
from hf_efficient.launch.listener import RunListener
from hf_efficient.launch.plan import plan_before
from hf_efficient.launch.trainer import dpo_trainer, sft_trainer
from hf_efficient.launch.unused_parameters import expect_gradients
from hf_efficient.models.whole import whole_count
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.planned_run import RunPlan
from hf_efficient.units import count, share

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer

__all__ = ["Built", "OnData", "build"]

OnData: TypeAlias = Callable[[Any, Any, "RunPlan | None"], Any]
"""Is given data (``SftData`` or ``PreferenceData``), arguments and plan; returns the data to train on, of its kind."""


@dataclass(frozen=True)
class Built:
    """A recipe ready to train.

    Attributes:
        trainer: has model, data and arguments.
        answers: evaluators that generate answers.
        data_summary: counts for the model card.
        plan: None where there is none, and on every process but the main one.
    """

    trainer: Trainer
    answers: Sequence[AnswersInEvaluation]
    data_summary: Mapping[str, Any]
    plan: RunPlan | None = None


def build(
    recipe: Recipe,
    args: SFTConfig | DPOConfig,
    listener: RunListener,
    price_usd_per_hour: float | None = None,
    on_data: OnData | None = None,
) -> Built:
    """Read the data first, then plan, then load the model: what cannot be trained is found before the weights are.

    Args:
        recipe: what to train.
        args: its arguments.
        listener: is told of the progress.
        price_usd_per_hour: of everything that the run occupies, for its plan; None where it is not known.
        on_data: is called on every process once the data are read and planned for, before the model is.

    Raises:
        HfEfficientError: data, model or adapter that do not fit.
    """
    on_data = on_data or (lambda data, args, plan: data)
    if isinstance(args, SFTConfig):
        return _build_sft(recipe, args, listener, price_usd_per_hour, on_data)
    return _build_dpo(recipe, args, listener, price_usd_per_hour, on_data)


def _build_sft(
    recipe: Recipe, args: SFTConfig, listener: RunListener, price_usd_per_hour: float | None, on_data: OnData
) -> Built:
    tokenizer = _tokenizer(recipe, listener)
    listener.stage("Data", ", ".join(source.path for source in recipe.data.train))
    with phase(recipe, "data_preparation"):
        data = build_sft_data(recipe, tokenizer, args)
    state(recipe, "data", {name: value for name, value in vars(data.stats).items() if value is not None})
    evaluation = f", {count(len(data.eval))} to evaluate on" if data.eval is not None else ""
    cached = " (from the cache)" if data.cached else ""
    listener.stage(
        "",
        f"{count(data.stats.examples)} examples, {count(data.stats.tokens_total)} tokens{evaluation}{cached}",
    )
    for line in remarks(data.stats, args.max_length):
        listener.stage("", line)
    plan = plan_before(recipe, args, data, price_usd_per_hour, listener)
    data = on_data(data, args, plan)
    longest = data.stats.longest if args.max_length is None else min(data.stats.longest, args.max_length)
    largest = max(stats.largest_token_id for stats in (data.stats, data.eval_stats) if stats is not None)
    model = _model(recipe, args, listener, largest, longest)
    trainer: list[Trainer] = []
    answers = answer_evaluators(
        recipe.evaluate, tokenizer, data.eval_examples, listener, lambda: trainer[0].state.global_step
    )
    with phase(recipe, "trainer_setup"):
        trainer.append(sft_trainer(recipe, model, tokenizer, args, data, answers, listener))
    return Built(trainer[0], answers, _summary(data.stats), plan)


def _summary(stats: DataStats) -> dict[str, Any]:
    """The counts that belong on a model card; those of what did not happen are left out."""
    always = {"examples", "tokens_total", "tokens_loss_bearing", "longest"}
    sometimes = {"packs", "fill_rate", "truncated", "dropped_overlong", "dropped_masked"}
    return {key: value for key, value in asdict(stats).items() if key in always or (key in sometimes and value)}


def _build_dpo(
    recipe: Recipe, args: DPOConfig, listener: RunListener, price_usd_per_hour: float | None, on_data: OnData
) -> Built:
    tokenizer = _tokenizer(recipe, listener)
    listener.stage("Data", ", ".join(source.path for source in recipe.data.train))
    with phase(recipe, "data_preparation"):
        data = build_preference_data(recipe, tokenizer, args)
    listener.stage("", f"{count(len(data.train))} preference pairs")
    for line in preference_remarks(data, args.max_length):
        listener.stage("", line)
    plan = plan_before(recipe, cast("SFTConfig", args), data, price_usd_per_hour, listener)
    data = on_data(data, args, plan)
    model = _model(recipe, args, listener, data.largest_token_id)
    with phase(recipe, "trainer_setup"):
        trainer = dpo_trainer(recipe, model, tokenizer, args, data, listener)
    return Built(trainer, (), {"examples": len(data.train), "dropped": data.dropped}, plan)


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
    check_wrap_classes(base, recipe.distributed.wrap_classes)
    check_vocabulary(base, largest_token_id)
    remark = check_positions(base, longest_row) if longest_row is not None else ""
    if remark:
        listener.stage("", remark)
    with phase(recipe, "model_load"):
        model = add_adapter(base, recipe.adapter, seed=args.seed, checkpointing=args.gradient_checkpointing)
    expect_gradients(args, model)
    trained = whole_count(model, trained=True)
    listener.stage("", f"{recipe.adapter.method}: {count(trained)} parameters are trained{_of_all(model, trained)}")
    return model


def _of_all(model: PreTrainedModel | PeftModel, trained: int) -> str:
    # transformers counts a 4-bit weight as the numbers that it stands for, and a share of ZeRO-3 as nothing.
    total = model.num_parameters() or whole_count(model, trained=False)
    return f", {share(trained / total)} of {count(total)}" if total > trained else ""
