"""The results of docs/evidence.md: scripts that make, read and show them. Outside the package."""
