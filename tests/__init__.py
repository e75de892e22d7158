import logging

# It warns of missing kernels when a worker imports it, outside of any test.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
