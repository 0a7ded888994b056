"""The proof before a run: two launches of its own, in the first of which it trains and saves, in the second loads."""
