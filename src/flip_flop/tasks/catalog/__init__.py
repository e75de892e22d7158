"""The paper's eleven datasets by name: one data file each, beside this one, and no code per dataset."""

from flip_flop.tasks.catalog.datasets import (
    CatalogData,
    CatalogEntry,
    Comparison,
    catalog_data,
    catalog_entry,
    catalog_names,
    compare,
)

__all__ = ["CatalogData", "CatalogEntry", "Comparison", "catalog_data", "catalog_entry", "catalog_names", "compare"]
