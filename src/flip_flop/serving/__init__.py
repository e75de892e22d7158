"""A classifier as a server of typed questions: ``flip-flop serve``. It needs the extra ``serve``."""
