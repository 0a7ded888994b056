"""The recipe to what trains it: tokenizer, data, plan, model, trainer, each announced and timed as a phase."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias, cast

import torch
from accelerate.utils.environment import override_numa_affinity
from transformers import (
    EarlyStoppingCallback,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from trl import DPOConfig, SFTConfig

from hf_efficient.accounting.evaluations import answers_to_note
from hf_efficient.callbacks import profilers
from hf_efficient.callbacks.checks import FusedHeadCheck, PackingCheck
from hf_efficient.callbacks.stop import SaveCadence
from hf_efficient.data.build import PreferenceData, SftData, build_preference_data, build_sft_data
from hf_efficient.data.objectives import PromptData, build_prompt_data, completions_of_each, make_rewards
from hf_efficient.data.stats import DataStats, compared_lengths
from hf_efficient.diagnosis.remedies import INSTRUMENTS
from hf_efficient.facts.prices import failure_hours
from hf_efficient.launch.listener import RunListener
from hf_efficient.launch.records import phase, plan_before, recipe_budget, state
from hf_efficient.launch.teacher import compare_tokenizers, taught
from hf_efficient.metrics.answers import Answer, AnswerEvaluator
from hf_efficient.metrics.for_trainer import make_compute_metrics
from hf_efficient.model import recipe_trainer
from hf_efficient.model.adapter import add_adapter, check_wrap_classes, round_in_training
from hf_efficient.model.distill import DistillTrainerMixin
from hf_efficient.model.load import check_positions, check_vocabulary, load_base, load_tokenizer
from hf_efficient.model.prune import prune
from hf_efficient.model.structure import whole_count
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.rules.training import FEW_STEPS
from hf_efficient.recipe.schema import EvaluateSection, ProfileSection, Recipe, Section
from hf_efficient.recording.checkpoints import SavePolicy
from hf_efficient.recording.timeline import process_timeline
from hf_efficient.records.plan import RunPlan
from hf_efficient.records.prepared import StageFunnel
from hf_efficient.reporting.prepared import run_facts, stage_line
from hf_efficient.text import count, counted, share
from hf_efficient.trainer import EfficientTrainer, EfficientTrainerMixin

OnData: TypeAlias = Callable[[Any, Any, RunPlan | None], Any]
"""Takes data (``SftData`` or ``PreferenceData``), arguments and plan; returns the data to train on, of its kind."""

logger = logging.getLogger(__name__)

_MOST_NOTED_ANSWERS = 8


@dataclass(frozen=True)
class Built:
    """A recipe ready to train; the plan is None where there is none, and on every process but the main one."""

    trainer: Any  # a Trainer with ``EfficientTrainerMixin``
    answers: Sequence[Any]  # ``AnswersInEvaluation``
    data_summary: Mapping[str, Any]  # counts for the model card
    plan: RunPlan | None = None


def build(
    recipe: Recipe,
    args: SFTConfig | DPOConfig,
    listener: RunListener,
    price_usd_per_hour: float | None = None,
    on_data: OnData | None = None,
) -> Built:
    """Data and plan come before the weights, to find faults first. ``on_data`` is called between, on each process."""
    if recipe.distributed.cpu_threads:
        torch.set_num_threads(recipe.distributed.cpu_threads)
    if recipe.distributed.cpu_affinity:
        override_numa_affinity(args.local_process_index)
    listener.stage("Tokenizer", recipe.model.tokenizer or recipe.model.id)
    with phase(recipe, "model_load"):
        tokenizer = load_tokenizer(recipe.model, recipe.train)
    if recipe.distill is not None:
        compare_tokenizers(recipe, tokenizer)
    listener.stage("Data", ", ".join(source.path for source in recipe.data.train))
    with phase(recipe, "data_preparation"):
        rewards = make_rewards(recipe.rewards)
        made: Any = build_sft_data if isinstance(args, SFTConfig) else build_preference_data
        generates = OBJECTIVES[recipe.objective].generates
        made = build_prompt_data if generates else made
        if recipe.data.pipeline is not None:
            from hf_efficient.curation.pipeline import prepare

            def tell(stage: str, rows: int, total: int | None, done: StageFunnel | None) -> None:
                if done is not None:
                    listener.stage("", stage_line(done))

            prepared = prepare(recipe, tokenizer, tell)
            state(recipe, "prepared", asdict(run_facts(prepared.manifest, prepared.folder)))
        data = made(recipe, tokenizer, args)
    if isinstance(data, SftData):
        state(recipe, "data", {name: value for name, value in vars(data.stats).items() if value is not None})
    elif isinstance(data, PreferenceData) and (compared := compared_lengths(data.train, args.max_length)):
        state(recipe, "answers", asdict(compared))
    lines = prompt_lines(data, args) if isinstance(data, PromptData) else data_lines(data, args.max_length)
    for line in [*lines, *([] if generates else few_steps(len(data.train), args))]:
        listener.stage("", line)
    plan = plan_before(recipe, cast("SFTConfig", args), data, price_usd_per_hour, listener)
    if on_data is not None:
        data = on_data(data, args, plan)
    model = _model(recipe, args, data, listener)
    shown, examples = recipe.evaluate.generate, data.eval_examples if isinstance(data, SftData) else []
    asked = list(examples[: shown.examples if "exact_match" in recipe.evaluate.metrics else shown.show])
    answers = [AnswersInEvaluation(recipe.evaluate, tokenizer, asked, listener)] if asked else []
    common = {
        "model": model,
        "args": args,
        "train_dataset": data.train,
        "eval_dataset": data.eval,
        "processing_class": tokenizer,
        "record_steps": recipe.efficiency.record_steps,
        "check_gradients": recipe.efficiency.check_gradients,
        "log_metrics": recipe.efficiency.log_metrics,
        "faults": recipe.faults,
        "saves": SavePolicy(recipe.checkpoints.background, recipe.checkpoints.mirror),
    }
    if recipe.distill is not None:
        assert isinstance(data, SftData | PromptData)
        common |= taught(recipe, args, data, model, listener)
    with phase(recipe, "trainer_setup"):
        common["budget"] = recipe_budget(recipe, listener)
        if isinstance(data, SftData):
            trainer = _sft_trainer(recipe, common, data, answers)
        elif isinstance(data, PromptData):
            from hf_efficient.trl_trainers import EfficientDistillationTrainer, EfficientGRPOTrainer

            # The base without its adapter is GRPO's reference model, where ``train.beta`` asks for one.
            kind: Any = EfficientGRPOTrainer if rewards else EfficientDistillationTrainer
            own = {"reward_funcs": list(rewards)} if rewards else {}
            trainer = kind(callbacks=_callbacks(recipe), **own, **common)
        else:
            trainer = _preference_trainer(recipe, common)
        if not isinstance(data, SftData) and recipe.adapter.method == "qlora":
            recipe_trainer.train_in_float32(model)
    return Built(trainer, answers, _summary(data), plan)


def _summary(data: SftData | PreferenceData | PromptData) -> dict[str, Any]:
    if isinstance(data, PromptData):
        return {"examples": len(data.train), "longest": int(data.lengths.max())}
    if isinstance(data, PreferenceData):
        return {"examples": len(data.train), "dropped": data.dropped}
    always = {"examples", "tokens_total", "target_tokens", "longest"}
    sometimes = {"packs", "fill_rate", "truncated", "dropped_overlong", "dropped_masked"}
    return {key: value for key, value in asdict(data.stats).items() if key in always or (key in sometimes and value)}


def data_lines(data: SftData | PreferenceData, max_length: int | None) -> list[str]:
    if isinstance(data, PreferenceData):
        return [*_preference_lines(data), *_small(data.small_sources)]
    held_out = data.eval_stats
    packed = "" if held_out is None or held_out.packs is None else f" in {counted(held_out.packs, 'packed row')}"
    evaluation = "" if held_out is None else f", {count(held_out.examples)}{packed} to evaluate on"
    cached = " (from the cache)" if data.cached else ""
    stats = data.stats
    first = f"{counted(stats.examples, 'example')}, {count(stats.tokens_total)} tokens{evaluation}{cached}"
    of_all = share(stats.target_tokens / stats.tokens_total)
    targets = f"the loss covers {count(stats.target_tokens)} target tokens, {of_all} of all"
    return [first, targets, *remarks(stats, max_length)]


def prompt_lines(data: PromptData, args: Any) -> list[str]:
    evaluation = f", {count(len(data.eval))} to evaluate on" if data.eval is not None else ""
    read = f"{counted(len(data.train), 'prompt')}, the longest of {count(int(data.lengths.max()))} tokens{evaluation}"
    most, each = count(args.max_completion_length), completions_of_each(args)
    return [
        read,
        f"each is answered {'once' if each == 1 else counted(each, 'time')}, in {most} tokens at most",
        *_small(data.small_sources),
    ]


def few_steps(rows: int, args: TrainingArguments) -> list[str]:
    together = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    steps = math.ceil(math.ceil(rows / together) * args.num_train_epochs)
    if args.max_steps > 0 or steps >= FEW_STEPS:
        return []
    return [
        f"{counted(rows, 'row')} in batches of {together} give {counted(steps, 'optimizer step')}, too few to "
        "learn from: write train.packing=false, train.gradient_accumulation_steps=1 or a larger train.num_train_epochs"
    ]


def _preference_lines(data: PreferenceData) -> Iterator[str]:
    rows = len(data.train)
    if data.good is None:
        yield counted(rows, "preference pair")
    else:
        yield f"{count(rows)} answers: {count(data.good)} good, {count(rows - data.good)} bad"
    if data.remark:
        yield data.remark
    for one in data.left_out:
        yield f"{count(one.rows)} {'row is' if one.rows == 1 else 'rows are'} left out: {one.why} (first: {one.first})"


def remarks(stats: DataStats, max_length: int | None) -> list[str]:
    one, many = "has no target token: it costs time and teaches", "have no target token: they cost time and teach"
    examples = {
        f"cut to train.max_length {max_length} (the longest has {count(stats.longest)} tokens)": stats.truncated,
        f"left out: longer than train.max_length {max_length}": stats.dropped_overlong,
        "left out: after cutting, no target token is left": stats.dropped_masked,
        f"{'is' if stats.empty == 1 else 'are'} empty: a blank text, completion or last answer": stats.empty,
        f"{one if stats.masked == 1 else many} nothing": stats.masked,
    }
    lines = [f"{counted(number, 'example')} {what}" for what, number in examples.items() if number]
    if stats.packs is not None and stats.fill_rate is not None:
        lines.insert(0, f"packed into {counted(stats.packs, 'row')}, {share(stats.fill_rate)} full")
    return lines + _small(stats.small_sources)


def _small(sources: Mapping[str, int] | None) -> list[str]:
    return [f"{source} contributes only {counted(number, 'example')}" for source, number in (sources or {}).items()]


def _model(
    recipe: Recipe, args: SFTConfig | DPOConfig, data: SftData | PreferenceData | PromptData, listener: RunListener
) -> PreTrainedModel:
    listener.stage("Model", recipe.model.id)
    with phase(recipe, "model_load"):
        base = load_base(recipe)
        if recipe.model.prune is not None and isinstance(data, SftData):
            pruned = prune(base.to(args.device), recipe.model.prune, data.train)  # type: ignore[arg-type]
            state(recipe, "pruned", asdict(pruned))
            listener.stage("", pruned.line())
        if recipe.model.qat is not None:
            rounded = round_in_training(base, recipe.model.qat)
            listener.stage("", f"{counted(rounded, 'layer')} rounded to {recipe.model.qat.bits} bits as they multiply")
    check_wrap_classes(base, recipe.distributed.wrap_classes)
    held = [one for one in (data.stats, data.eval_stats) if one is not None] if isinstance(data, SftData) else [data]
    check_vocabulary(base, max(one.largest_token_id for one in held))
    if isinstance(data, SftData):
        longest = data.stats.longest
        remark = check_positions(base, longest if args.max_length is None else min(longest, args.max_length))
        if remark:
            listener.stage("", remark)
    with phase(recipe, "model_load"):
        model: Any = add_adapter(base, recipe.adapter, seed=args.seed, checkpointing=args.gradient_checkpointing)
    if recipe.model.compile_blocks:
        for layer in model.modules():
            if type(layer).__name__ in (base._no_split_modules or ()):
                layer.compile()  # in place: names of weights stay, and fully_shard's hooks run
    expect_gradients(args, model)
    trained = whole_count(model, trained=True)
    # transformers counts a 4-bit weight as the numbers that it stands for, and a share of ZeRO-3 as nothing.
    total = model.num_parameters() or whole_count(model, trained=False)
    of_all = f", {share(trained / total)} of {count(total)}" if total > trained else ""
    listener.stage("", f"{recipe.adapter.method}: {count(trained)} parameters are trained{of_all}")
    return model


class AnswersInEvaluation:
    """Generates answers before the first step and after the last, and in every evaluation for ``exact_match``."""

    def __init__(
        self,
        section: EvaluateSection,
        tokenizer: PreTrainedTokenizerBase,
        examples: Sequence[Mapping[str, Any]],
        listener: RunListener,
    ) -> None:
        self.after_training = False
        self._in_every_evaluation = "exact_match" in section.metrics
        self._shown, self._listener, self._step = section.generate.show, listener, 0
        most = section.generate.max_new_tokens
        self._evaluator = AnswerEvaluator(tokenizer, examples, max_new_tokens=most, on_answers=self._show)

    def __call__(self, trainer: Trainer) -> dict[str, float]:
        self._step = trainer.state.global_step
        if not (self._in_every_evaluation or self.after_training or self._step in (0, trainer.state.max_steps)):
            return {}
        metrics = self._evaluator(trainer)
        return metrics if self._in_every_evaluation else {}

    def _show(self, answers: list[Answer]) -> None:
        timeline = process_timeline()
        if timeline.recording:
            sample = [(one.question, one.expected, one.generated) for one in answers[:_MOST_NOTED_ANSWERS]]
            timeline.note("answers", step=self._step, answers=answers_to_note(sample))
        if self._shown:
            self._listener.answers(self._step, answers[: self._shown])


def _callbacks(recipe: Recipe) -> list[TrainerCallback]:
    found: list[TrainerCallback] = []
    if (stopping := recipe.evaluate.early_stopping) is not None:
        found.append(EarlyStoppingCallback(stopping.patience, stopping.threshold))
    if recipe.train.get("save_steps") == "auto":
        stated, cost = recipe.checkpoints.hours_between_failures, recipe.cost
        hours, assumed = failure_hours(stated, cost.market, cost.spot.hours_between_preemptions)
        found.append(SaveCadence(hours, stated=not assumed))
    return [*found, *instrument_callbacks(recipe.profile)]


def instrument_callbacks(profile: ProfileSection) -> list[profilers.InstrumentCallback]:
    found = []
    for key, kind in INSTRUMENTS.items():
        wanted, callback = getattr(profile, key), getattr(profilers, kind)
        if isinstance(wanted, Section):
            found.append(callback(**wanted.model_dump()))
        elif wanted:
            found.append(callback() if wanted is True else callback(wanted))
    return found


@contextmanager
def closed_instruments(trainer: Trainer) -> Iterator[None]:
    """Afterwards no instrument runs: callbacks do not learn of an exception that ends the training."""
    try:
        yield
    finally:
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, profilers.InstrumentCallback):
                callback.close()


def expect_gradients(args: TrainingArguments, model: Any) -> None:
    """Let DDP expect a gradient of every trained weight, where the recipe does not say and the model has no experts.
    Otherwise DDP may walk the graph of each forward, which no dense model needs. A weight without a gradient ends the
    run in its first step (``efficiency.check_gradients``), or in the second (``explained_faults``). Experts without a
    token have no gradient in some steps, so for them the Trainer's default stays."""
    has_experts = any("experts" in name.split(".") for name, _ in model.named_modules())
    if args.ddp_find_unused_parameters is None and not has_experts:
        args.ddp_find_unused_parameters = False


class RecipeTrainer(recipe_trainer.RecipeTrainerMixin, EfficientTrainer):
    """The Trainer of a recipe, with its instruments."""


class DistillTrainer(DistillTrainerMixin, EfficientTrainer):
    """The same with a teacher."""


def _sft_trainer(
    recipe: Recipe, common: dict[str, Any], data: SftData, answers: Sequence[AnswersInEvaluation]
) -> Trainer:
    """``EfficientTrainer`` on TRL's prepared rows: the plain Trainer's step, without ``SFTTrainer``'s metrics loop."""
    model, args, tokenizer = common["model"], common["args"], common["processing_class"]
    # The rows hold exactly what the collator reads; the Trainer would drop `seq_lengths`, which no model takes.
    args.remove_unused_columns = False
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    if args.eos_token is not None:
        _stop_at(model, tokenizer.eos_token_id)
    names = [name for name in recipe.evaluate.metrics if name != "exact_match"]
    compute_metrics, preprocess = make_compute_metrics(names) if names and data.eval is not None else (None, None)
    if compute_metrics is None:
        args.prediction_loss_only = True
    recipe_trainer.apply_sft_fields(model, args)
    checks: list[TrainerCallback] = []
    if args.packing and args.packing_strategy != "wrapped":
        checks.append(PackingCheck())
    if args.loss_type == recipe_trainer.CHUNKED_NLL:
        falls_back = recipe.train.get("loss_type") == "auto"
        obstacle = recipe_trainer.head_obstacle(model) if falls_back else None
        if obstacle:
            args.loss_type = "nll"
            logger.warning("train.loss_type: chunked_nll %s; the loss is computed on whole logits (nll).", obstacle[0])
        else:
            checks.append(FusedHeadCheck(falls_back=falls_back))
    kind: Any = RecipeTrainer if recipe.distill is None else DistillTrainer
    return kind(
        data_collator=common.pop("data_collator", data.collator),
        compute_loss_func=recipe_trainer.objective(args),
        compute_metrics=compute_metrics,
        preprocess_logits_for_metrics=preprocess,
        callbacks=[*_callbacks(recipe), *checks],
        extra_evaluators=answers,
        **common,
    )


def _stop_at(model: PreTrainedModel, token: int) -> None:
    """Make a token end a generation too, as ``SFTTrainer`` does."""
    model.config.get_text_config().eos_token_id = token
    known = model.generation_config.eos_token_id
    others = [] if known is None else [known] if isinstance(known, int) else list(known)
    if token not in others:
        model.generation_config.eos_token_id = [token, *others]


def _preference_trainer(recipe: Recipe, common: dict[str, Any]) -> Trainer:
    """With an adapter its copy, as it begins, is the reference model; else the model as the recipe loads it."""
    base: Any = recipe_trainer.preference_trainer_class(recipe.objective)
    ranking = (recipe_trainer.RankingAccuracyMixin,) if recipe.objective == "dpo" else ()
    kind = type(f"Efficient{base.__name__}", (EfficientTrainerMixin, *ranking, base), {})
    has_reference = OBJECTIVES[recipe.objective].reference and recipe.adapter.method == "full"
    reference = {"ref_model": load_base(recipe)} if has_reference else {}
    return kind(callbacks=_callbacks(recipe), **reference, **common)
