"""Wait for another process or thread."""

import time


def wait_for(condition, seconds=180):
    """Wait until ``condition()`` is true, and return its value."""
    over = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < over, "timed out"
        time.sleep(0.02)
    return found
