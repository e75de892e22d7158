"""The types of arrays that metrics and reports share, by their axes."""

import numpy as np
from jaxtyping import Bool, Float, Int

# In nats, and the offsets of a calibration that are added to them.
LabelScores = Float[np.ndarray, "instances templates labels"]
Offsets = Float[np.ndarray, "templates labels"]
# Label indices, -1 for none.
Predictions = Int[np.ndarray, "instances templates"]
InstanceLabels = Int[np.ndarray, " instances"]
# Flips, pairs that were read, and all pairs.
FlipCounts = Int[np.ndarray, "instances 3"]
# A number for each of them, or whether something holds.
CellValues = Float[np.ndarray, "instances templates"]
CellFlags = Bool[np.ndarray, "instances templates"]
InstanceScores = Float[np.ndarray, "instances labels"]
PerInstance = Float[np.ndarray, " instances"]
PerTemplate = Float[np.ndarray, " templates"]
PerLabel = Float[np.ndarray, " labels"]
# The contributions to a sum of the worst and of the best possible instances.
Extremes = tuple[np.ndarray, np.ndarray]
