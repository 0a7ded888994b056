"""The deeper instruments in any Trainer: each a callback, whose files go to ``OUTPUT_DIR/efficiency/profile``."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerState, TrainingArguments

from hf_efficient.callbacks.uploads import keep_from_uploads, keep_without_event, records_of
from hf_efficient.profilers.instrument import (
    AFTER_STEPS,
    Capture,
    Instrument,
    InstrumentRun,
    NvtxRanges,
    named_functions,
    require,
)
from hf_efficient.profilers.python_code import HostMemory, LineTimes, PythonProfile
from hf_efficient.profilers.synchronisations import Synchronisations
from hf_efficient.profilers.torch_trace import MemoryHistory, TorchTrace, TraceSchedule
from hf_efficient.recording.timeline import process_timeline
from hf_efficient.run_dir.json_file import PROFILE
from hf_efficient.text import instrument_cost

logger = logging.getLogger(__name__)


class InstrumentCallback(TrainerCallback):
    """Base of the callbacks of ``profile``; each works alone in any Trainer, where ``tell`` reports its cost once."""

    def __init__(
        self, instrument: Instrument, directory: str | Path | None = None, tell: Callable[[str], None] = logger.warning
    ) -> None:
        self.instrument = instrument
        self._directory, self._tell = directory, tell
        self._timeline = process_timeline()
        self._run = InstrumentRun(instrument, self._timeline)

    def on_train_begin(self, args: TrainingArguments, *_: Any, **kwargs: Any) -> None:
        directory = Path(self._directory or records_of(args) / PROFILE)
        self._run.begin(directory, args.process_index, kwargs.get("train_dataloader"))

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        self._run.step_begins(state.global_step + 1)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        self._run.step_ends(state.global_step)

    def on_train_end(self, args: TrainingArguments, *_: Any, **kwargs: Any) -> None:
        self.close()
        if self._timeline.way != "recipe" and args.process_index == 0:
            found = self._run.account
            cost = instrument_cost(found.cost_seconds, found.own_seconds, found.steps, found.files, found.note)
            self._tell(f"profile.{found.name} {cost}")

    def on_init_end(self, args: TrainingArguments, *_: Any, **kwargs: Any) -> None:
        keep_without_event(args, self._directory)

    def on_push_begin(self, args: TrainingArguments, *_: Any, **kwargs: Any) -> None:
        keep_from_uploads(args, self._directory)

    def close(self) -> None:
        """End it where no event does: training was ended by an exception."""
        self._run.end()


class TorchTraceCallback(InstrumentCallback):
    """``Trainer(callbacks=[TorchTraceCallback(wait=5, active=3)])`` traces three steps; arguments: see
    ``TraceSchedule``. Each rank leaves a trace per cycle, which https://ui.perfetto.dev and TensorBoard show and
    ``hf-efficient diagnose`` reads, and ``operators.rank0.json``, the dearest operators."""

    def __init__(self, directory: str | Path | None = None, **schedule: Any) -> None:
        super().__init__(TorchTrace(TraceSchedule(**schedule)), directory)


class MemoryHistoryCallback(InstrumentCallback):
    """``Trainer(callbacks=[MemoryHistoryCallback(at_steps=[10])])``: the CUDA allocator's history; arguments: those of
    ``MemoryHistory``. With none, it writes when memory runs out; without CUDA it says so, and does nothing."""

    def __init__(self, directory: str | Path | None = None, **settings: Any) -> None:
        super().__init__(MemoryHistory(**settings), directory)


class PythonProfileCallback(InstrumentCallback):
    """``Trainer(callbacks=[PythonProfileCallback()])``: the dearest functions, of loader workers too.
    The first ``after_step`` steps are those to compare with."""

    def __init__(
        self, directory: str | Path | None = None, *, after_step: int = AFTER_STEPS, workers: bool = True
    ) -> None:
        super().__init__(PythonProfile(after_step, workers), directory)


class LineTimesCallback(InstrumentCallback):
    """``Trainer(callbacks=[LineTimesCallback(["my_project.collator:Collator.__call__"])])``; needs line_profiler."""

    def __init__(
        self, functions: Sequence[str], directory: str | Path | None = None, *, after_step: int = AFTER_STEPS
    ) -> None:
        require("line_profiler")
        super().__init__(LineTimes(named_functions("lines", functions), after_step), directory)


class HostMemoryCallback(InstrumentCallback):
    """``Trainer(callbacks=[HostMemoryCallback(["my_project.data:load"])])``; needs memray."""

    def __init__(
        self, functions: Sequence[str], directory: str | Path | None = None, *, after_step: int = AFTER_STEPS
    ) -> None:
        require("memray")
        super().__init__(HostMemory(named_functions("host_memory", functions), after_step), directory)


class NvtxCallback(InstrumentCallback):
    """``Trainer(callbacks=[NvtxCallback()])`` names each optimizer step for Nsight; beside ``AccountCallback``, or in
    an ``EfficientTrainer``, its phases too."""

    def __init__(self) -> None:
        super().__init__(NvtxRanges())


class CaptureCallback(InstrumentCallback):
    """``Trainer(callbacks=[CaptureCallback(after_step=5, steps=3)])``, for ``nsys --capture-range=cudaProfilerApi``."""

    def __init__(self, after_step: int = 5, steps: int = 3) -> None:
        super().__init__(Capture(after_step, steps))


class SynchronisationsCallback(InstrumentCallback):
    """``Trainer(callbacks=[SynchronisationsCallback()])`` counts, line by line, where the host reads tensors. Its
    ``facts`` (see ``Synchronisations``), empty until the counted steps are done, are in the run's records too."""

    def __init__(self, after_step: int = 3, steps: int = 2) -> None:
        self.facts: dict[str, Any] = {}
        super().__init__(Synchronisations(after_step, steps, self._state))

    def _state(self, facts: Mapping[str, Any]) -> None:
        self.facts = dict(facts)
        process_timeline().state("synchronisations", facts)
