"""Short controlled variants of a recipe, one after another, each in a process of its own."""
