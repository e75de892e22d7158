"""Benchmarks: scoring and the training step against their peers, with equality checked in every round."""
