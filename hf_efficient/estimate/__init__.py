"""Arithmetic on plain numbers: what a model is made of, what a step computes, uses and costs. No torch."""
