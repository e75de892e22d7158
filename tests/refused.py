"""A mistake of the user is an ``InputError``, which the command prints as a line."""

import pytest

from flip_flop.errors import InputError


def refused(pattern, function, /, *arguments, **options):
    """Call the function, which raises an error whose line matches the pattern, and return the line."""
    with pytest.raises(InputError, match=pattern) as caught:
        function(*arguments, **options)
    return str(caught.value)
