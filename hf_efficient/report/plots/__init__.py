"""An account and its series in, figures for plotly.js out: one plot per file, no arithmetic on what was measured."""
