"""The paper's eleven datasets by name: one data file each, beside this one, and no code per dataset."""

from flip_flop.tasks.catalog.build import CatalogData, catalog_data
from flip_flop.tasks.catalog.compare import Comparison, compare
from flip_flop.tasks.catalog.entry import CatalogEntry, OfficialSplit, catalog_entry, catalog_names

__all__ = [
    "CatalogData",
    "CatalogEntry",
    "Comparison",
    "OfficialSplit",
    "catalog_data",
    "catalog_entry",
    "catalog_names",
    "compare",
]
