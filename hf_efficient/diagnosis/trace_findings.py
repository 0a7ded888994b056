"""What is wrong with a trace, of whatever run: findings from its breakdown alone."""

from __future__ import annotations

from hf_efficient.diagnosis.engine import ranked
from hf_efficient.diagnosis.trace_rules.rule import TraceRule
from hf_efficient.diagnosis.trace_rules.trace_exposed_communication import trace_exposed_communication
from hf_efficient.diagnosis.trace_rules.trace_float32_products import trace_float32_products
from hf_efficient.diagnosis.trace_rules.trace_host_bound import trace_host_bound
from hf_efficient.diagnosis.trace_rules.trace_launch_bound import trace_launch_bound
from hf_efficient.diagnosis.trace_rules.trace_memory_bound import trace_memory_bound
from hf_efficient.diagnosis.trace_rules.trace_pageable_copies import trace_pageable_copies
from hf_efficient.diagnosis.trace_rules.trace_synchronisations import trace_synchronisations
from hf_efficient.records.findings import Finding
from hf_efficient.records.trace import TraceBreakdown

__all__ = ["TRACE_RULES", "findings_of_trace"]

TRACE_RULES: tuple[TraceRule, ...] = (
    trace_host_bound,
    trace_launch_bound,
    trace_exposed_communication,
    trace_pageable_copies,
    trace_synchronisations,
    trace_memory_bound,
    trace_float32_products,
)


def findings_of_trace(breakdown: TraceBreakdown) -> list[Finding]:
    """Of its busiest device, the most important first; none where the trace has no events of any device.

    Costs and gains are of the device's traced time, from its first event to its last.
    """
    if not breakdown.devices:
        return []
    device = max(breakdown.devices, key=lambda one: one.busy.busy_seconds)
    found = [rule(breakdown, device) for rule in TRACE_RULES]
    return ranked([one for one in found if one is not None])
