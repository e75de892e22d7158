"""Waiting for what another process or thread does."""

import time


def wait_for(condition, seconds=180):
    """What the condition gives, once that is true."""
    over = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < over, "it never came"
        time.sleep(0.02)
    return found
