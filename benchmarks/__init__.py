"""Benchmarks: scoring and the training step against their peers, with equality checked in every round."""

# The model that memory is measured on.
MEMORY_MODEL = "wide-vocab"
