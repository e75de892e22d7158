"""Wait for another process or thread."""

import time


def wait_for(condition, seconds=180):
    """Return the value of ``condition()`` as soon as it is true."""
    over = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < over, "timed out"
        time.sleep(0.02)
    return found
