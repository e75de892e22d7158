"""Studies on real sentences, outside the package: what the methods do to a small base model; see docs/evidence.md."""
