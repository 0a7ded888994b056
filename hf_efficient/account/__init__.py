"""Records in, the account of a run out: arithmetic on streams, no torch."""
