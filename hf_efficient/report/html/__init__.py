"""The report as one file of HTML."""
