"""Short trainings of a recipe, each in a process and a folder of its own: what isolate, bench and tune measure."""
