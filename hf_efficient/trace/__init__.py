"""A Chrome trace that torch's profiler wrote in, its breakdown out (``breakdown.trace_breakdown``); no torch."""
