"""The account of a run by a callback alone, in a Trainer that is not ours; and what ours takes from the events."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_efficient.callbacks.memory import MemoryCount
from hf_efficient.callbacks.run_facts import SilentFailures, note_schedule, note_settings
from hf_efficient.callbacks.uploads import keep_from_uploads, keep_without_event, records_of
from hf_efficient.facts.prices import Rates, rate_facts
from hf_efficient.recording.steps import StepRecorder
from hf_efficient.recording.timeline import process_timeline
from hf_efficient.records.steps import CoarsePhase, StepPhase


class StepRecorderCallback(TrainerCallback):
    """What only the Trainer's events show, for ``EfficientTrainerMixin``; the first of all callbacks."""

    def __init__(
        self,
        recorder: StepRecorder,
        memory: MemoryCount,
        model_stands: Callable[[], None],
        silent: SilentFailures,
        efficiency_dir: str | Path | None,
    ) -> None:
        """``model_stands`` is called when training begins: the model is placed, wrapped and checkpointed."""
        self._efficiency_dir = efficiency_dir
        self._recorder, self._memory, self._model_stands = recorder, memory, model_stands
        self._silent = silent

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        """The loop starts, perhaps for a second time (``auto_find_batch_size``)."""
        self._recorder.abandon_step()
        self._model_stands()
        self._silent.begin()
        self._recorder.watch_loader(kwargs.get("train_dataloader"))
        note_schedule(self._recorder.timeline, args, state, kwargs.get("train_dataloader"))
        self._memory.begin(args, kwargs.get("model"), kwargs.get("optimizer"))

    def on_epoch_begin(self, *_: Any, **kwargs: Any) -> None:
        """From here to the first batch, workers start and fetch: data wait of the next step."""
        self._recorder.next_step()
        self._recorder.mark("data_wait")

    def on_pre_optimizer_step(self, args: TrainingArguments, *_: Any, **kwargs: Any) -> None:
        self._mark("optimizer")
        if self._recorder.recording:
            self._memory.before_step(kwargs.get("model"))
            self._silent.before_update(args, kwargs.get("model"))

    def on_optimizer_step(self, *_: Any, **kwargs: Any) -> None:
        if self._recorder.recording:
            self._memory.after_step(kwargs.get("model"), kwargs.get("optimizer"))
            self._silent.after_update(kwargs.get("optimizer"))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        """The update is done; what the other callbacks do now, and the Trainer until it fetches, is bookkeeping."""
        self._recorder.step_done(state.global_step, state.epoch)
        self._recorder.mark("bookkeeping")

    def on_save(self, *_: Any, **kwargs: Any) -> None:
        """A checkpoint is written; what the other callbacks do with it, an upload perhaps, belongs to it."""
        self._recorder.mark("checkpointing")

    def on_push_begin(self, args: TrainingArguments, *_: Any, **kwargs: Any) -> None:
        keep_from_uploads(args, self._efficiency_dir)

    def on_train_end(self, *_: Any, **kwargs: Any) -> None:
        self._silent.end()

    def _mark(self, phase: StepPhase | CoarsePhase) -> None:
        self._recorder.mark(phase)


class AccountCallback(StepRecorderCallback):
    """``Trainer(callbacks=[AccountCallback()])`` leaves ``run.json`` and the records of its steps.

    Events mark off steps, optimizer, evaluations and saves during training, and memory. ``forward_backward`` and
    ``between_steps`` (data wait and logging) stay whole. Tokens and activations are not counted, and logs get no
    figures; the account names what is missing. Under ``EfficientTrainer``, which sees it, and in a recipe's run, this
    callback does nothing.

        on_train_begin                       trainer_setup (evaluation, with eval_on_start)
        on_epoch_begin                       between_steps
        per step:
          on_step_begin                      forward_backward     (the record of the step before ends here)
          on_pre_optimizer_step              optimizer
          on_step_end                        between_steps, or what the control says is next
            on_log                             evaluation or checkpointing, where the control says so
            on_evaluate                        checkpointing, where the control says so
            on_save                            between_steps, also for what the callbacks after this one do with it
        on_train_end                         shutdown
    """

    def __init__(self, efficiency_dir: str | Path | None = None, rates: Rates | None = None) -> None:
        """``efficiency_dir``: default ``OUTPUT_DIR/efficiency``; ``rates``: list prices and the world's grid."""
        self._rates = rates or Rates()
        timeline = self._timeline = process_timeline()
        parts = StepRecorder(timeline), MemoryCount(timeline), lambda: None, SilentFailures(timeline)
        super().__init__(*parts, efficiency_dir)
        self._since_seconds = 0.0

    def on_init_end(self, args: TrainingArguments, *_: Any, **kwargs: Any) -> None:
        self._timeline.trainer_begins()
        keep_without_event(args, self._efficiency_dir)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        """Start a segment, unless another recorder sees more. ``SetupError``: the provider has no price of this GPU."""
        keep_without_event(args, self._efficiency_dir)  # also where it was added after the trainer was built
        seen_by_another = self._timeline.way != "callback" or self._timeline.recorded_training is state
        if self._timeline.recording and seen_by_another:
            return
        self._recorder.begin(
            records_of(args, self._efficiency_dir),
            args.process_index,
            args.world_size,
            "callback",
            resumed=state.global_step > 0,
            rates=rate_facts(self._rates, args.device, args.world_size * max(1, args.n_gpu)),
            device=args.device,
            memory=args.skip_memory_metrics,
            phase="evaluation" if args.eval_on_start else "trainer_setup",
        )
        self._timeline.recorded_training = state
        self._recorder.watch_loader(kwargs.get("train_dataloader"))
        self._memory.begin(args, kwargs.get("model"), kwargs.get("optimizer"))
        self._silent.begin()
        self._memory.leave_out("memory of activations and logits", "no event is given a batch")
        self._since_seconds = self._recorder.now_seconds()
        note_schedule(self._timeline, args, state, kwargs.get("train_dataloader"))
        note_settings(self._timeline, args, kwargs.get("model"), kwargs.get("optimizer"))

    def on_epoch_begin(self, *_: Any, **kwargs: Any) -> None:
        self._recorder.next_step()
        self._mark("between_steps")

    def on_step_begin(self, *_: Any, **kwargs: Any) -> None:
        self._recorder.next_step()
        self._recorder.add_micro_batch()
        self._mark("forward_backward")

    def on_substep_end(self, *_: Any, **kwargs: Any) -> None:
        self._recorder.add_micro_batch()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._recorder.step_done(state.global_step, state.epoch)
        self._mark("between_steps" if control.should_log else _next(control))

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._mark("between_steps" if control.should_log else _next(control))

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        logs = kwargs.get("logs") or {}
        self._timeline.note_memory()
        if self._recorder.recording and self._recorder.log.marked == "between_steps":
            if "loss" in logs:
                self._recorder.logged(logs)
            self._mark(_next(control))

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._timeline.note_memory()
        if not self._recorder.recording:
            return
        seconds = self._recorder.now_seconds() - self._since_seconds
        self._since_seconds += seconds
        self._recorder.evaluated(state.global_step, seconds, kwargs.get("metrics") or {})
        if self._recorder.in_loop:
            self._mark("checkpointing" if control.should_save else "between_steps")
        else:
            self._timeline.log.end_phases()
            self._timeline.enter("trainer_setup")

    def on_save(self, args: TrainingArguments, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        if self._recorder.recording:
            self._recorder.saved(state.global_step, self._recorder.now_seconds() - self._since_seconds)
        self._mark("between_steps")

    def on_train_end(self, *_: Any, **kwargs: Any) -> None:
        """The account is written. Callbacks get no event of an exception that ends the training earlier."""
        if self._recorder.recording:
            self._silent.end()
            self._recorder.end()
            self._timeline.recorded_training = None

    def _mark(self, phase: StepPhase | CoarsePhase) -> None:
        if self._recorder.in_loop:
            self._since_seconds = self._recorder.now_seconds()
            self._recorder.mark(phase)


def _next(control: TrainerControl) -> StepPhase | CoarsePhase:
    if control.should_evaluate:
        return "evaluation"
    return "checkpointing" if control.should_save else "between_steps"
