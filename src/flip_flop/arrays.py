"""The types of arrays that metrics and reports share, by their axes."""

import numpy as np
from jaxtyping import Float, Int

# In nats, and the offsets of a calibration that are added to them.
LabelScores = Float[np.ndarray, "instances templates labels"]
Offsets = Float[np.ndarray, "templates labels"]
# Label indices, -1 for none.
Predictions = Int[np.ndarray, "instances templates"]
InstanceLabels = Int[np.ndarray, " instances"]
# A number for each of them.
PerInstance = Float[np.ndarray, " instances"]
PerTemplate = Float[np.ndarray, " templates"]
PerLabel = Float[np.ndarray, " labels"]
# The contributions to a sum of the worst and of the best possible instances.
Extremes = tuple[np.ndarray, np.ndarray]
