"""Fitting maps: texts, capture of a model's own activations, streamed ridge sums, the solve, the command."""
