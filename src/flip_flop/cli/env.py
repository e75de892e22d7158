"""``flip-flop env``."""

import click

from flip_flop.terminal import echo


@click.command("env")
def env_command() -> int:
    """Versions and hardware, to paste into a bug report."""
    from flip_flop.provenance import hardware, versions
    from flip_flop.text import align_columns

    facts = versions() | hardware()
    echo(align_columns([(name, "none" if value is None else str(value)) for name, value in facts.items()]))
    return 0
