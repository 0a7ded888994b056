"""Energy meters, one kind to a file: what they are called, where they come from, and how to read them."""
