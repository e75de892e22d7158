"""``flip-flop env``."""

import click

from flip_flop.console import echo


@click.command("env")
def env_command() -> int:
    """Versions and hardware, to paste into a bug report."""
    from flip_flop.console import align_columns
    from flip_flop.record import hardware, versions

    facts = versions() | hardware()
    echo(align_columns([(name, "none" if value is None else str(value)) for name, value in facts.items()]))
    return 0
