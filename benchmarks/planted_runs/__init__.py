"""Small real training runs, each with one planted cause, and healthy ones: what ``benchmarks/planted.py`` diagnoses."""
