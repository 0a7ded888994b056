"""Two ranks that train together, one of which is slowed in one phase."""
