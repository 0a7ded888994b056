"""A mixin for any Trainer, and the plain Trainer with it: the phases of every step, figures of the run in its logs and
beside its progress bar, a budget, checkpoints with a manifest, evaluators of your own, a check of the gradients."""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

import torch
from torch import nn
from transformers import Trainer

from hf_efficient.callbacks.account import StepRecorderCallback
from hf_efficient.callbacks.checks import GradientCheck, keep_four_bit_trainable
from hf_efficient.callbacks.faults import FaultPolicy, Faults
from hf_efficient.callbacks.memory import MemoryCount
from hf_efficient.callbacks.progress import show_figures
from hf_efficient.callbacks.run_facts import SilentFailures, note_settings
from hf_efficient.callbacks.shrink import Shrinking
from hf_efficient.callbacks.stop import BudgetCallback, budget_callback
from hf_efficient.callbacks.uploads import keep_without_event, records_of, without_money
from hf_efficient.facts.prices import Rates, rate_facts
from hf_efficient.facts.tables import key_table
from hf_efficient.model.work import ForwardCount, work_of
from hf_efficient.recording.activations import kept_modes, kept_random_state
from hf_efficient.recording.checkpoints import CheckpointWriter, Save, SavePolicy
from hf_efficient.recording.ranks import RankMarks, watch_engine_steps
from hf_efficient.recording.steps import StepRecorder
from hf_efficient.recording.stop import EvaluationCut
from hf_efficient.recording.timeline import no_timeline, process_timeline
from hf_efficient.records.steps import PhaseName
from hf_efficient.run_dir.checkpoints import checkpoints, fault_of, step_of

Evaluator = Callable[[Any], dict[str, float]]
"""Takes the trainer, returns metrics by name; may run the model, generate, and draw random numbers."""
_Run = Callable[..., Any]  # a method of the trainer below

_PHASES = key_table("trainer_phases")
_TIMED: dict[str, PhaseName] = _PHASES["timed"]
MIRROR_SECONDS = 600.0
"""So long the end of a training waits for its last checkpoint to be copied to the mirror."""
_OPAQUE = ("logging", "evaluation", "checkpointing")
_OUTSIDE = ("get_train_dataloader", "predict")  # of the training loop
_MARKED: dict[str, PhaseName] = _PHASES["marked"]

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset
    from transformers import (
        BaseImageProcessor,
        FeatureExtractionMixin,
        PreTrainedTokenizerBase,
        ProcessorMixin,
        TrainerCallback,
        TrainingArguments,
    )
    from transformers.trainer_utils import EvalPrediction
    from typing_extensions import Unpack

    _Base = Trainer
    _Processing = PreTrainedTokenizerBase | BaseImageProcessor | FeatureExtractionMixin | ProcessorMixin
else:
    _Base = object


class EfficientOptions(TypedDict, total=False):
    """The arguments of ``EfficientTrainerMixin``, which describes them."""

    efficiency_dir: str | Path | None
    record_steps: bool
    check_gradients: bool
    extra_evaluators: Sequence[Evaluator]
    log_metrics: bool
    budget: Mapping[str, float] | BudgetCallback | None
    rates: Rates | None
    faults: FaultPolicy | None
    saves: SavePolicy | None


class EfficientTrainerMixin(_Base):
    """Goes leftmost over ``Trainer``, one of TRL's (``SFTTrainer``, ``DPOTrainer``, ``GRPOTrainer``, ...) or yours.

        class MyTrainer(EfficientTrainerMixin, SFTTrainer): ...

    All other arguments go to the class below, untouched. A step's loss, gradients and weights are bit for bit
    those of the class below; and evaluations, before or during training, do not change them.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        order = cls.__mro__
        if Trainer in order and order.index(Trainer) < order.index(EfficientTrainerMixin):
            raise TypeError(f"write: class {cls.__name__}(EfficientTrainerMixin, {cls.__bases__[0].__name__})")

    def __init__(
        self,
        *args: Any,
        efficiency_dir: str | Path | None = None,
        record_steps: bool = True,
        check_gradients: bool = True,
        extra_evaluators: Sequence[Evaluator] = (),
        log_metrics: bool = True,
        budget: Mapping[str, float] | BudgetCallback | None = None,
        rates: Rates | None = None,
        faults: FaultPolicy | None = None,
        saves: SavePolicy | None = None,
        **kwargs: Any,
    ) -> None:
        """Build the trainer below.

        Args:
            efficiency_dir: holds ``steps.jsonl``, ``spans.jsonl`` and ``run.json``; default: ``OUTPUT_DIR/efficiency``.
            record_steps: write a record per optimizer step and rank, the time outside ``train()``, and the account.
            check_gradients: stop with TrainingCheckError where, in the first step, no parameter of an adapter or of the
                model gets a gradient or a 4-bit layer passes none on. Warn where single parameters get none.
            extra_evaluators: run at the end of every evaluation (of each data set of a dict), without gradients and in
                eval mode; their metrics join the evaluation's, with its prefix.
            log_metrics: training logs and the closing summary carry the figures of ``recording.live.log_figures``.
            budget: limits at which to save and stop: ``{"usd": 10, "hours": 2, "kwh": 5}``, any of them.
            rates: price of an hour, origin of the electricity; default: list prices (an estimate), the world's grid.
            faults: what becomes of steps not finite or out of memory, and of failed saves; default: as the class below.
            saves: whether checkpoints are written in the background, and a second place for them.

        Raises:
            ValueError: a budget without records of the steps, or one that names no limit.
            TypeError: ``budget`` or ``rates`` is of another type.
            SetupError: ``rates`` names a provider without a known price of this GPU.
            OutputError: nothing here writes to the second place of ``saves``.
        """
        if budget is not None and not record_steps:
            raise ValueError("budget: counts what record_steps records; leave record_steps on")
        for name, value, kinds in (("budget", budget, (Mapping, BudgetCallback)), ("rates", rates, Rates)):
            if value is not None and not isinstance(value, kinds):
                example = '{"hours": 2}' if name == "budget" else "Rates(price_usd_per_hour=2.49)"
                raise TypeError(f"{name}: write, for instance, {name}={example}")
        self._efficiency_dir = efficiency_dir
        self._extra_evaluators = tuple(extra_evaluators)
        self._timeline = process_timeline() if record_steps else no_timeline()
        self._recorder = StepRecorder(self._timeline)
        self._mark, self._phase = self._recorder.mark, self._recorder.phase
        self._ranks = RankMarks(self._recorder.log) if self._recorder.several_ranks else None
        self._gradient_check = GradientCheck() if check_gradients else None
        self._memory = MemoryCount(self._timeline, self._beside)
        self._silent = SilentFailures(self._timeline)
        self._evaluating = self._saving = False
        self._writer: CheckpointWriter | None = None
        self._saves = saves or SavePolicy()
        self._faults: Faults | None = None
        self._shrinking: Shrinking | None = None
        self._generates = hasattr(type(self), "_generate_and_score_completions")
        self._log_metrics = log_metrics
        self._budget = budget_callback(budget) if isinstance(budget, Mapping) else budget
        self._rate_facts: dict[str, dict[str, Any]] = {}
        self._timeline.trainer_begins()
        self._forwards: ForwardCount | None = None
        self._time_methods()
        self._own = frozenset(vars(self))
        with self._phase("trainer_setup"):
            super().__init__(*args, **kwargs)
            if self._gradient_check is not None:
                self.add_callback(self._gradient_check)
            seen = (self._memory, self._model_stands, self._silent, self._efficiency_dir)
            self.callback_handler.callbacks.insert(0, StepRecorderCallback(self._recorder, *seen))
            keep_without_event(self.args, self._efficiency_dir)
            if self._budget is not None:
                self.add_callback(self._budget)
            if faults is not None:
                self._faults = Faults(faults, self, self._timeline, self._efficiency_path, self._roll_back)
                self._shrinking = Shrinking(self, self._faults)
                self.add_callback(self._faults)
            keep_four_bit_trainable(self._module)  # what model_init made, or a trainer below adapted
            if record_steps:
                self._recorder.holders.watch_callbacks(self.callback_handler)
                show_figures(self)
                gpus = self.args.world_size * max(1, self.args.n_gpu)
                self._rate_facts = rate_facts(rates or Rates(), self.args.device, gpus)

    def __getstate__(self) -> dict[str, Any]:
        """Without the instruments: ``datasets`` pickles a trainer whose method it maps over rows, also for a hash."""
        return {name: value for name, value in vars(self).items() if name not in (*self._own, "_own")}

    def create_accelerator_and_postprocess(self) -> None:
        """Also time the backward, which the Trainer runs through the accelerator."""
        super().create_accelerator_and_postprocess()
        if self.model is not None:
            # Before a trainer below runs the model while it is built: DPO's precomputed reference does.
            keep_four_bit_trainable(self.model)
        holders = self._recorder.holders
        holders.wrap(self.accelerator, "backward", "backward", self._around_backward)
        if not hasattr(Trainer, "_clip_grad_norm"):  # before transformers 5.3 the loop itself clips
            holders.wrap(self.accelerator, "clip_grad_norm_", "optimizer", self._around_clip_grad_norm)

    def _around_backward(self, run: _Run, *args: Any, **kwargs: Any) -> None:
        loss = args[0] if args else kwargs.get("loss")
        before = self._mark("backward")
        try:
            with nullcontext() if self._ranks is None else self._ranks.backward(loss):
                run(*args, **kwargs)
        finally:
            self._mark(before)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train, and record the steps of this call as one segment of ``steps.jsonl``."""
        self._recorder.begin(
            self._efficiency_path(),
            self.args.process_index,
            self.args.world_size,
            "trainer",
            resumed=bool(kwargs.get("resume_from_checkpoint", args[0] if args else None)),
            rates=self._rate_facts,
            device=self.args.device,
            memory=self.args.skip_memory_metrics,
        )
        error: BaseException | None = None
        try:
            result = super().train(*args, **kwargs)
        except BaseException as raised:
            error = raised
            raise
        finally:
            if self._ranks is not None:
                if error is None:
                    self._timeline.state("exchange", self._ranks.exchange())
                self._ranks.remove()
            self._recorder.end(error)
            if self._gradient_check is not None:
                self._gradient_check.remove_hooks()
            if self._forwards is not None:
                self._forwards.remove()
                self._forwards = None
        return result

    def _beside(self) -> Any:
        """A reference model or a teacher, which takes memory and is not trained."""
        return getattr(self, "ref_model", None) or getattr(self, "teacher_model", None)

    def save_metrics(self, split: str, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Write them without what the run costs: the file lies where ``push_to_hub`` uploads it."""
        super().save_metrics(split, without_money(metrics), *args, **kwargs)

    def _time_methods(self) -> None:
        """Time what the instance runs, whether a class left or right of the mixin defines it, with super() or not."""
        for name, phase in {**_TIMED, **_MARKED}.items():
            if hasattr(type(self), name):
                other = self._marked if name in _MARKED else self._in_phase if name in _OUTSIDE else self._run
                around = getattr(self, f"_around_{name.removeprefix('_')}", functools.partial(other, phase))
                self._recorder.holders.wrap(self, name, phase, around, opaque=phase in _OPAQUE)

    @staticmethod
    def _run(phase: PhaseName, run: _Run, *args: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs)

    def _in_phase(self, phase: PhaseName, run: _Run, *args: Any, **kwargs: Any) -> Any:
        with self._phase(phase, opaque=phase in _OPAQUE):
            return run(*args, **kwargs)

    def _marked(self, phase: PhaseName, run: _Run, *args: Any, **kwargs: Any) -> Any:
        before = self._mark(phase)
        try:
            return run(*args, **kwargs)
        finally:
            self._mark(before)

    def _around_get_last_hidden_state(self, run: _Run, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """That of a teacher, in TRL's DistillationTrainer; else the model's own."""
        teacher = getattr(self, "teacher_model", None)
        is_teacher = teacher is not None and model is self.accelerator.unwrap_model(teacher)
        return self._marked("teacher" if is_teacher else "forward", run, model, *args, **kwargs)

    def _around_get_batch_samples(self, run: _Run, *args: Any, **kwargs: Any) -> Any:
        self._recorder.next_step()
        self._mark("data_wait")
        batches, items = run(*args, **kwargs)
        self._mark("bookkeeping")
        self._recorder.add_batches(batches, counted=not self._generates)
        if self._shrinking is not None:
            self._shrinking.begin_step(batches)
        return batches, items

    def _around_training_step(self, run: _Run, *args: Any, **kwargs: Any) -> Any:
        """Forward and backward; what lies around it is the Trainer's own, up to the optimizer."""
        self._mark(None)
        if self._ranks is not None:
            self._ranks.watch(args[0] if args else kwargs["model"])
        if self._forwards is not None:
            self._forwards.begin()
        loss = run(*args, **kwargs) if self._shrinking is None or kwargs else self._shrinking.run(run, *args)
        if self._forwards is not None and (corrected := self._forwards.corrected()) is not None:
            # The user's own loss does not run the model once per micro-batch: its FLOPs are counted no more.
            self._forwards = None
            self._recorder.count_work(None)
            self._timeline.state("work", corrected.facts())
        self._silent.loss(loss)
        self._mark("device_wait" if self._recorder.has_device else "bookkeeping")  # the Trainer reads the loss
        return loss

    def _around_floating_point_ops(self, run: _Run, *args: Any, **kwargs: Any) -> Any:
        """By now the host has read the micro-batch's loss."""
        if self._recorder.has_device:
            self._mark("bookkeeping")
        return run(*args, **kwargs)

    def _around_compute_loss(self, run: _Run, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        before = self._mark("forward")
        if self._generates and model.training and not self._evaluating:
            self._recorder.add_tokens(inputs)  # prompts and completions; the loader gave prompts alone
        try:
            if not self._memory.wants(model, inputs):
                return run(model, inputs, *args, **kwargs)
            forward = functools.partial(run, model, inputs, *args, **kwargs)
            return self._memory.run(forward, self.args, model, self._module, inputs)
        finally:
            if self._ranks is not None:
                self._ranks.end_wait()  # where a wait for buffers failed
            self._mark(before)

    def _around_clip_grad_norm(self, run: _Run, *args: Any, **kwargs: Any) -> Any:
        """The optimizer's time is from here until on_step_end."""
        if self._recorder.log.marked != "optimizer":
            self._mark("optimizer")
        return run(*args, **kwargs)

    def _around_get_grad_norm(self, run: _Run, *args: Any, **kwargs: Any) -> Any:
        norm = self._around_clip_grad_norm(run, *args, **kwargs)  # called alone where nothing is clipped
        if self._faults is not None:
            self._faults.norm = norm
        return norm

    def _around_log(self, run: _Run, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log, with the figures of the run; the step's record takes what the Trainer has read for it."""
        if "train_runtime" in logs and self._recorder.in_loop:  # before transformers 5.3 nothing else marks its end
            self._leave_loop()
        if self._faults is not None:
            self._faults.settle()
        with self._phase("logging", opaque=True):
            if self._log_metrics and ("loss" in logs or "train_runtime" in logs):
                logs.update(self._recorder.figures(self.state.global_step, whole="train_runtime" in logs))
            run(logs, *args, **kwargs)
            if "loss" in logs:
                self._recorder.logged(logs)  # with what the class below has added
            if self._log_metrics:  # what the run costs goes to report_to, and not into trainer_state.json
                self.state.log_history[-1:] = map(without_money, self.state.log_history[-1:])
            self._timeline.note_memory()
            if "loss" in logs:
                self._silent.settle()

    def _around_evaluate(self, run: _Run, *args: Any, **kwargs: Any) -> Any:
        if self.is_in_train:
            self._recorder.start_loop()
        evaluating, self._evaluating = self._evaluating, True
        began = self._recorder.now_seconds()
        try:
            with self._phase("evaluation", opaque=True), self._unnoticed():
                metrics = run(*args, **kwargs)
                if not evaluating:  # the data sets of a dict are one evaluation
                    prefix = kwargs.get("metric_key_prefix", args[2] if len(args) > 2 else "eval")
                    seconds = self._recorder.now_seconds() - began
                    noted = metrics if isinstance(metrics, Mapping) else {}
                    self._recorder.evaluated(self.state.global_step, seconds, noted, prefix)
                return metrics
        finally:
            self._evaluating = evaluating
            self._timeline.note_memory()

    def _around_evaluation_loop(self, run: _Run, *args: Any, **kwargs: Any) -> Any:
        """Run the evaluation's batches, then the extra evaluators (not in ``predict``)."""
        output = run(*args, **kwargs)
        if self._evaluating and self._extra_evaluators and output.metrics is not None:
            prefix = kwargs.get("metric_key_prefix", args[4] if len(args) > 4 else "eval") + "_"
            for evaluator in self._extra_evaluators:
                with torch.no_grad(), kept_modes(self._module):
                    metrics = evaluator(self)
                for name, value in metrics.items():
                    output.metrics[name if name.startswith(prefix) else prefix + name] = value
        return output

    def _around_save_checkpoint(self, run: _Run, *args: Any, **kwargs: Any) -> None:
        """Save with a manifest; upload, and remove old checkpoints, only once it stands."""
        if self._faults is not None:
            self._faults.settle()
        began, given = self._recorder.now_seconds(), cast(Any, self)
        limit, push, pushed = self.args.save_total_limit, given._push_from_checkpoint, list[str]()
        self._saving = not self.args.save_on_each_node  # then no machine sees all files
        given._push_from_checkpoint = pushed.append
        run_dir = self._get_output_dir(args[1] if len(args) > 1 else kwargs.get("trial"))
        write = functools.partial(run, *args, **kwargs)
        try:
            with self._phase("checkpointing", opaque=True):
                saved = self._save_whole(write, run_dir) if self._saving else write() is None
        finally:
            self._saving, self.args.save_total_limit = False, limit
            del given._push_from_checkpoint
        if saved:
            for folder in pushed:
                push(folder)
            self._recorder.saved(self.state.global_step, self._recorder.now_seconds() - began)

    def _save_whole(self, write: Callable[[], None], run_dir: str) -> bool:
        if self._writer is None:
            rank, processes = self.args.process_index, self.args.world_size
            self._writer = CheckpointWriter(rank, processes, self._saves.mirror, self._save_failed)
        meets_for_the_best = self.args.world_size > 1 and self.state.best_global_step
        several = bool(self.is_deepspeed_enabled or self.is_fsdp_enabled or meets_for_the_best)
        save = Save(
            Path(run_dir) / f"checkpoint-{self.state.global_step}",
            write,
            several_writers=several,
            keep=self.args.save_total_limit,
            best=lambda: Path(self.state.best_model_checkpoint or "").name,
            background=self._saves.background and not self.args.push_to_hub and (not several or self.is_fsdp_enabled),
        )
        return self._writer.save(save, may_fail=self._save_may_fail())

    def _save_may_fail(self) -> bool:
        stops = any(getattr(one, "stopping", False) for one in self.callback_handler.callbacks)
        return self._faults is not None and self._faults.policy.on_save_error == "continue" and not stops

    def _save_failed(self, folder: Path) -> None:
        if self._faults is not None:
            self._faults.count("saves_failed", step=step_of(folder), what=folder.name)

    def _roll_back(self) -> Path | None:
        """Take weights and optimizer state from the newest whole checkpoint; None where there is none."""
        found = [one for one in checkpoints(Path(str(self.args.output_dir))) if fault_of(one) is None]
        last = next((one for one in reversed(found) if step_of(one) <= self.state.global_step), None)
        if last is not None:
            self._load_from_checkpoint(str(last))
            state = torch.load(last / "optimizer.pt", map_location="cpu", weights_only=True)
            cast(torch.optim.Optimizer, self.optimizer).load_state_dict(state)
        return last

    def _around_maybe_log_save_evaluate(self, run: _Run, *args: Any, **kwargs: Any) -> None:
        try:
            run(*args, **kwargs)
        except EvaluationCut:  # what is left to do is a save
            run(*args, **kwargs)
        if self._recorder.log.marked == "checkpointing":  # the callbacks' part of a save
            self._mark("bookkeeping")

    def _around_save_model(self, run: _Run, *args: Any, **kwargs: Any) -> None:
        """Outside the training too this is checkpointing."""
        with self._phase("checkpointing", opaque=True):
            run(*args, **kwargs)
        if self._saving:
            self.args.save_total_limit = None  # the Trainer would remove old checkpoints before this one stands

    def _around_finalize_training(self, run: _Run, *args: Any, **kwargs: Any) -> Any:
        if self._writer is not None:
            with self._phase("checkpointing", opaque=True):
                self._writer.settle(may_fail=self._save_may_fail())
                mirror = self._writer.mirror
                if mirror is not None and mirror.wait(MIRROR_SECONDS):
                    self._timeline.state("faults", {"mirrors_failed": mirror.failed})
        self._leave_loop()
        return run(*args, **kwargs)

    def _leave_loop(self) -> None:
        self._recorder.end_loop()
        self._timeline.enter("shutdown")

    @property
    def budget_reached(self) -> str | None:
        """In words, which limit of the budget ended the training; None where none did."""
        return None if self._budget is None else self._budget.reached

    def _model_stands(self) -> None:
        keep_four_bit_trainable(self._module)  # what model_init made for this call of train()
        end_wait = (lambda: None) if self._ranks is None else self._ranks.end_wait
        watch_engine_steps(self.accelerator, self._recorder.log, end_wait)
        if self._recorder.recording:
            work = work_of(self)
            self._recorder.count_work(work.formula)
            self._timeline.state("work", work.facts())
            if self._forwards is not None:  # of a loop that was out of memory
                self._forwards.remove()
            if work.own_loss is not None:
                self._forwards = ForwardCount(self._module, work)
            note_settings(self._timeline, self.args, self._module, self.optimizer, work.dtype)

    def _efficiency_path(self) -> Path:
        return records_of(self.args, self._efficiency_dir)

    @property
    def _module(self) -> nn.Module:
        return cast(nn.Module, self.model)

    @contextmanager
    def _unnoticed(self) -> Iterator[None]:
        """What happens inside leaves no trace in a training that continues. The model stays in eval mode, as the
        Trainer leaves it until the next step: logs of TRL depend on the mode."""
        with kept_random_state(self.args.device):
            if not self.is_in_train:
                yield
                return
            gradients = self.accelerator.gradient_state
            synced, loaders = gradients.sync_gradients, list(gradients.dataloader_references)
            try:
                yield
            finally:
                gradients._set_sync_gradients(synced)
                for loader in gradients.dataloader_references:
                    if not any(loader is known for known in loaders):  # one that an evaluator left half-read
                        gradients._remove_dataloader(loader)


_Class = TypeVar("_Class", bound=type)


def with_signature(cls: _Class) -> _Class:
    """Show the arguments of the class below the mixin, and the mixin's, in ``help`` and in notebooks."""
    kind: Any = cls.__mro__[2]
    below, own = inspect.signature(kind.__init__), inspect.signature(EfficientTrainerMixin.__init__)
    options = [one for one in own.parameters.values() if one.kind is inspect.Parameter.KEYWORD_ONLY]

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        EfficientTrainerMixin.__init__(self, *args, **kwargs)

    parameters = [*below.parameters.values(), *options]
    __init__.__signature__ = below.replace(parameters=parameters)  # type: ignore[attr-defined]
    __init__.__doc__ = EfficientTrainerMixin.__init__.__doc__
    cls.__doc__ = cls.__doc__ or f"TRL's ``{kind.__name__}`` with ``EfficientTrainerMixin``."
    cls.__init__ = __init__  # type: ignore[misc]
    return cls


@with_signature
class EfficientTrainer(EfficientTrainerMixin, Trainer):
    """The plain ``Trainer`` with ``EfficientTrainerMixin``."""

    if TYPE_CHECKING:

        def __init__(
            self,
            model: nn.Module | None = None,
            args: TrainingArguments | None = None,
            data_collator: Callable[[list[Any]], dict[str, Any]] | None = None,
            train_dataset: torch.utils.data.Dataset[Any] | Dataset | IterableDataset | None = None,
            eval_dataset: torch.utils.data.Dataset[Any] | Dataset | dict[str, Any] | None = None,
            processing_class: _Processing | None = None,
            model_init: Callable[..., nn.Module] | None = None,
            compute_loss_func: Callable[..., Any] | None = None,
            compute_metrics: Callable[[EvalPrediction], dict[str, Any]] | None = None,
            callbacks: list[TrainerCallback] | None = None,
            optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LambdaLR | None] = (None, None),
            optimizer_cls_and_kwargs: tuple[type[torch.optim.Optimizer], dict[str, Any]] | None = None,
            preprocess_logits_for_metrics: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
            **options: Unpack[EfficientOptions],
        ) -> None: ...
