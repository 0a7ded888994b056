"""Deeper instruments: each switched on by name, each measuring what it costs itself; torch and the OS, no trainer."""
