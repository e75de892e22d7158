"""Benchmarks: scoring and the training step against their peers, with equality checked in every round."""

# What a variant's name ends with where frozen products go through oneDNN.
FAST = " + oneDNN"
# The model that memory is measured on.
MEMORY_MODEL = "wide-vocab"
