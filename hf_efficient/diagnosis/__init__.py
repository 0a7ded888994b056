"""Records in, ranked findings out: one rule per file, and the engine; no torch."""
