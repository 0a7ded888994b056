"""What can be wrong with a trace alone: one rule, one file. Costs and gains are of the traced time."""
