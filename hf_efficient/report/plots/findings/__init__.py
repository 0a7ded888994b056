"""The evidence of a finding, plotted: one kind of plot per file, chosen by the rule in ``choose``."""
