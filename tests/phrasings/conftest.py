"""A user's folder, and a tiny model on disk."""

from tests.cli.conftest import model, project

__all__ = ["model", "project"]
