"""Open answers: written by a model, grouped by their keys, and as answer choices for training."""
