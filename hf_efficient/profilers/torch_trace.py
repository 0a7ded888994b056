"""torch's own profilers: a trace per rank and cycle, on a schedule, and the table of the dearest operators; snapshots
of the CUDA allocator's history after chosen steps, at the end, and when memory runs out."""

import dataclasses
import gzip
import itertools
import pickle
import shutil
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hf_efficient.accounting.memory_history import snapshot_record
from hf_efficient.profilers.instrument import NO_CUDA, Instrument, Place
from hf_efficient.records.profile import OperatorTable, OperatorTime
from hf_efficient.text import counted

_MOST_OPERATORS = 100
_PACKING = 3  # of 9, which takes nine times as long for a file a quarter smaller (a trace of 38 MB)
_PIECE_BYTES = 1 << 20
_NANO = 1e-9


@dataclass(frozen=True)
class TraceSchedule:
    """Which optimizer steps are traced, and how much of them; the keys of ``profile.trace``. In each cycle, ``wait``
    steps go by, ``warmup`` are traced and thrown away, ``active`` are kept. ``shapes``: of the operators' inputs;
    ``stacks``: Python's calls, with file and line; ``flops``: of matrix products and convolutions; needs shapes."""

    wait: int = 5
    warmup: int = 1
    active: int = 3
    repeat: int = 1
    shapes: bool = True
    stacks: bool = True
    memory: bool = False
    flops: bool = True

    def __post_init__(self) -> None:
        for name, least in (("wait", 0), ("warmup", 0), ("active", 1), ("repeat", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; write at least {least}")

    @property
    def cycle(self) -> int:
        return self.wait + self.warmup + self.active


class TorchTrace(Instrument):
    """Writes ``trace.rank0.cycle0.pt.trace.json.gz``, for Perfetto and TensorBoard, and ``operators.rank0.json``."""

    name = "trace"

    def __init__(self, schedule: TraceSchedule | None = None) -> None:
        super().__init__()
        self.schedule = schedule or TraceSchedule()
        self._profiler: Any = None

    def start(self, place: Place) -> None:
        self._place, self._sums, self._done = place, OperatorSums(), 0
        wanted = self.schedule
        self._profiler = torch.profiler.profile(
            schedule=torch.profiler.schedule(
                wait=wanted.wait, warmup=wanted.warmup, active=wanted.active, repeat=wanted.repeat
            ),
            on_trace_ready=self._write_cycle,
            record_shapes=wanted.shapes,
            with_stack=wanted.stacks,
            profile_memory=wanted.memory,
            with_flops=wanted.flops,
        )
        _quietly(self._profiler.start)
        self.active = self._profiler.current_action is not torch.profiler.ProfilerAction.NONE

    def step_ends(self, step: int) -> None:
        if self._profiler is None:
            return
        self._done += 1
        _quietly(self._profiler.step)
        self.active = self._profiler.current_action is not torch.profiler.ProfilerAction.NONE
        if self._done == self.schedule.cycle * self.schedule.repeat:
            self.stop()

    def stop(self) -> None:
        profiler, self._profiler, self.active = self._profiler, None, False
        if profiler is None:
            return
        kept = self._done % self.schedule.cycle - self.schedule.wait - self.schedule.warmup
        if self._done < self.schedule.cycle * self.schedule.repeat and kept >= 0:
            self.notes.append(f"training ended after {kept} of the {counted(self.schedule.active, 'step')} of a cycle")
        elif not self.files:
            first = self.schedule.wait + self.schedule.warmup + 1
            done = counted(self._done, "step")
            self.notes.append(f"training ended after {done}, before the first that is kept, step {first}")
        _quietly(profiler.stop)

    def _write_cycle(self, profiler: Any) -> None:
        place = self._place
        # The first cycle that has no trace yet, after a resumption too; with the ending of TensorBoard's plugin.
        names = (f"trace.rank{place.rank}.cycle{cycle}.pt.trace.json.gz" for cycle in itertools.count())
        path = next(path for path in (place.directory / name for name in names) if not path.exists())
        # Packed in large pieces: torch itself would pack a trace line by line, in Python.
        plain = path.with_suffix("")
        try:
            profiler.export_chrome_trace(str(plain))
            with plain.open("rb") as source, gzip.open(path, "wb", compresslevel=_PACKING) as packed:
                shutil.copyfileobj(source, packed, _PIECE_BYTES)
        finally:
            plain.unlink(missing_ok=True)
        self.files.append(path)
        self._sums.add(profiler.profiler.kineto_results.events())
        table = self._sums.table(place.rank, _MOST_OPERATORS)
        if not self.schedule.flops:
            table = dataclasses.replace(table, operators=[dataclasses.replace(o, flops=None) for o in table.operators])
        self.write(place, "operators", table)


def _quietly(method: Any) -> None:
    with warnings.catch_warnings():
        # Each cycle's events are read before the next one clears them.
        warnings.filterwarnings("ignore", message=".*Profiler clears events.*")
        method()


@dataclass
class _Row:
    calls: int = 0
    cpu_ns: int = 0
    device_ns: int = 0
    flops: int = 0


class OperatorSums:
    """Sums over the raw events of traced steps: ``torch.profiler.profile.events()`` takes 0.1 ms for each."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], _Row] = {}
        self._device_ns = self._wall_ns = self._steps = 0
        self._has_device = False

    def add(self, events: Iterable[Any]) -> None:
        """One cycle: ``profiler.profiler.kineto_results.events()``, of type ``torch._C._autograd._KinetoEvent``."""
        operators: dict[int, list[Any]] = {}
        kernels: dict[int, int] = {}
        for event in events:
            name = event.name()
            if event.device_type().name != "CPU":
                self._add_kernel(event, kernels)
            elif name.startswith("ProfilerStep"):
                self._steps += 1
                self._wall_ns += event.duration_ns()
            elif name != "[memory]" and not event.is_user_annotation() and not event.is_python_function():
                operators.setdefault(event.start_thread_id(), []).append(event)
        for of_thread in operators.values():
            self._add_thread(of_thread, kernels)

    def table(self, rank: int, most: int) -> OperatorTable:
        ordered = sorted(self._rows.items(), key=lambda row: (-row[1].device_ns, -row[1].cpu_ns))
        return OperatorTable(
            rank=rank,
            steps=self._steps,
            wall_seconds=self._wall_ns * _NANO,
            self_cpu_seconds=sum(row.cpu_ns for row in self._rows.values()) * _NANO,
            self_device_seconds=self._on_device(self._device_ns),
            operators=[
                OperatorTime(name, row.calls, row.cpu_ns * _NANO, self._on_device(row.device_ns), row.flops, shapes)
                for (name, shapes), row in ordered[:most]
            ],
            left_out=max(0, len(ordered) - most),
        )

    def _on_device(self, nanoseconds: int) -> float | None:
        return nanoseconds * _NANO if self._has_device else None

    def _add_kernel(self, event: Any, kernels: dict[int, int]) -> None:
        if event.is_user_annotation():  # a range of the host's, drawn on the device
            return
        lasted, launched_by = event.duration_ns(), event.linked_correlation_id()
        self._has_device = True
        self._device_ns += lasted
        kernels[launched_by] = kernels.get(launched_by, 0) + lasted

    def _add_thread(self, events: Sequence[Any], kernels: dict[int, int]) -> None:
        """Of one thread, by own time; one that dispatches to itself, as ``aten::mul`` with a number, is one call."""
        held = sorted((event.start_ns(), -event.duration_ns(), place) for place, event in enumerate(events))
        around: list[tuple[int, str, _Row]] = []  # until when, name, sums
        for start, minus_lasted, place in held:
            event, lasted = events[place], -minus_lasted
            name, launched_ns = event.name(), kernels.get(event.correlation_id(), 0)
            while around and around[-1][0] <= start:
                around.pop()
            if around and around[-1][1] == name:
                around[-1][2].device_ns += launched_ns
                continue
            if around:
                around[-1][2].cpu_ns -= lasted
            shapes = " ".join(str(list(shape)) for shape in event.shapes() if shape)
            row = self._rows.setdefault((name, shapes), _Row())
            row.calls += 1
            row.cpu_ns += lasted
            row.flops += event.flops()
            row.device_ns += launched_ns
            around.append((start + lasted, name, row))


class MemoryHistory(Instrument):
    """Writes ``memory.rank0.step10.pickle``, for https://pytorch.org/memory_viz, and its findings as JSON beside it.
    ``max_entries``: the latest allocations and releases, which are kept."""

    name = "memory"

    def __init__(
        self,
        at_steps: Sequence[int] = (),
        at_end: bool = False,
        on_out_of_memory: bool = True,
        max_entries: int = 100_000,
    ) -> None:
        super().__init__()
        self._at_steps, self._at_end = frozenset(at_steps), at_end
        self._on_out_of_memory, self._max_entries = on_out_of_memory, max_entries
        self._place: Place | None = None
        self._observes = False

    def start(self, place: Place) -> None:
        if not torch.cuda.is_available():
            self.notes.append(NO_CUDA)
            return
        torch.cuda.memory._record_memory_history(max_entries=self._max_entries, stacks="python")
        self._place, self.active = place, True
        if self._on_out_of_memory and not self._observes:
            self._observes = True  # torch has no way to take it back, and none at all without CUDA
            getattr(torch._C, "_cuda_attach_out_of_memory_observer")(self._ran_out)  # noqa: B009

    def step_ends(self, step: int) -> None:
        if step in self._at_steps:
            self._write_snapshot(f"step{step}", f"after step {step}")

    def stop(self) -> None:
        if self._place is None:
            return
        try:
            if self._at_end:
                self._write_snapshot("end", "at the end")
        finally:
            self._place, self.active = None, False
            torch.cuda.memory._record_memory_history(enabled=None)

    def _ran_out(self, *_: Any) -> None:
        """Inside the allocator's failure: what goes wrong here must not hide it."""
        try:
            self._write_snapshot("out_of_memory", "out of memory")
        except Exception as error:  # noqa: BLE001  it is in the note
            self.notes.append(f"no snapshot at out-of-memory: {type(error).__name__}: {error}")

    def _write_snapshot(self, name: str, moment: str) -> None:
        if self._place is None:
            return
        snapshot = torch.cuda.memory._snapshot()
        path = self._place.directory / f"memory.rank{self._place.rank}.{name}.pickle"
        with path.open("wb") as file:
            pickle.dump(snapshot, file)
        if path not in self.files:
            self.files.append(path)
        retries = int(torch.cuda.memory_stats().get("num_alloc_retries", 0))
        found = snapshot_record(snapshot, moment, torch.cuda.current_device(), retries)
        self.write(self._place, "memory", found, name)
