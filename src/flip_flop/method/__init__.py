"""The method: votes, Algorithm 1, divergences and losses. Pure functions, tensors in, tensors out.

The names of this package need no torch. The modules ``algorithm``, ``divergences``, ``losses`` and ``others`` do.
"""

from flip_flop.method.settings import PAPER_METHODS, TrainingProtocol, row_protocol_of
from flip_flop.method.table import BASE, METHODS, Method, find_method

__all__ = ["METHODS", "Method", "find_method"]
