"""From a rehearsal to the memory that the plan tells."""

from __future__ import annotations

from collections import Counter

from hf_efficient.planning.rehearsed import Rehearsal
from hf_efficient.records.plan import PlannedMemory, PlannedTensor, PlannedTimeline
from hf_efficient.simulate.peak import category_of, category_peaks, find_peak, phase_peaks
from hf_efficient.simulate.storage_life import StorageLife
from hf_efficient.simulate.timeline import timeline

_LARGEST = 10


def planned_memory(rehearsal: Rehearsal) -> PlannedMemory:
    """The peak of the two steps, and what it is made of."""
    log = rehearsal.log
    peak = find_peak(log)
    assert peak is not None  # weights are always there
    there = [(life, _category(rehearsal, life)) for life in log.lives if life.lives_at(peak.event)]
    categories: Counter[str] = Counter()
    for life, category in there:
        categories[category] += life.bytes
    there.sort(key=lambda held: held[0].bytes, reverse=True)
    return PlannedMemory(
        peak_allocated_bytes=peak.bytes,
        peak_phase=peak.life.phase,
        peak_module=peak.life.module,
        peak_step=2 if peak.event > rehearsal.second_step else 1,
        categories=dict(categories),
        category_peak_bytes=category_peaks(log, lambda life: _category(rehearsal, life)),
        largest=[_told(life, category) for life, category in there[:_LARGEST]],
        phase_peak_allocated_bytes={
            phase: most for phase, most in phase_peaks(log).items() if phase not in ("setup", "data")
        },
        paged_bytes=rehearsal.paged_bytes,
        model_bytes=sum(life.bytes for life in log.lives if life.category in ("weights", "adapter")),
    )


def planned_timeline(rehearsal: Rehearsal) -> PlannedTimeline:
    """What is allocated from the first step on; two rehearsals may differ by when garbage is collected."""
    first = rehearsal.first_step
    moments = timeline(rehearsal.log, lambda life: _category(rehearsal, life), first)
    names = dict.fromkeys(name for moment in moments for name in moment.categories)
    return PlannedTimeline(
        events=[moment.event - first for moment in moments],
        phases=[moment.phase for moment in moments],
        categories={name: [moment.categories.get(name, 0) for moment in moments] for name in names},
        second_step=rehearsal.second_step - first,
    )


def _category(rehearsal: Rehearsal, life: StorageLife) -> str:
    return category_of(life, rehearsal.backward_starts, rehearsal.vocabulary)


def _told(life: StorageLife, category: str) -> PlannedTensor:
    return PlannedTensor(
        life.bytes, category, life.module, life.operator, life.shape, str(life.dtype).removeprefix("torch.")
    )
