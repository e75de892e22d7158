"""Classifiers: what an audit or a training run decided, for new rows, exports and servers."""
