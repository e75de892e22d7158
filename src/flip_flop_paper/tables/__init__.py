"""The studies' tables: Table 1, Table 2, study 3, the base's spread, the choice of checkpoints."""
