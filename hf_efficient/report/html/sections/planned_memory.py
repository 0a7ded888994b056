"""Memory of a plan: over the two rehearsed steps, by kind at the peak, and the largest tensors."""

from __future__ import annotations

from hf_efficient.records.plan import Plan
from hf_efficient.report.html.sections.section import Section
from hf_efficient.report.phases import category_color, category_label, phase_label
from hf_efficient.report.plots.planned_memory import planned_memory_over_steps
from hf_efficient.units import share, size

__all__ = ["planned_memory_section"]


def planned_memory_section(plan: Plan) -> Section:
    """The plot, a table with bars, the tensors, and the peak within each phase."""
    memory = plan.memory
    whole = memory.peak_allocated_bytes
    kinds = [
        {
            "label": category_label(name),
            "color": category_color(name),
            "size": size(held),
            "share": share(held / whole),
            "width": 100 * held / max(memory.categories.values()),
        }
        for name, held in sorted(memory.categories.items(), key=lambda item: -item[1])
        if held > 0
    ]
    tensors = [
        {
            "label": category_label(one.category),
            "color": category_color(one.category),
            "size": size(one.bytes),
            "shape": " x ".join(f"{length:,}" for length in one.shape),
            "dtype": one.dtype,
            "module": one.module,
        }
        for one in memory.largest
    ]
    phases = [(phase_label(name), size(value)) for name, value in memory.phase_peak_allocated_bytes.items()]
    context = {
        "kinds": kinds,
        "tensors": tensors,
        "phases": phases,
        "where": memory.peak_module,
        "paged": size(memory.paged_bytes) if memory.paged_bytes else "",
    }
    return Section("planned_memory", "Memory", [planned_memory_over_steps(memory)], context)
