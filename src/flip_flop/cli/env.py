"""``flip-flop env``."""

import click


@click.command("env")
def env_command() -> int:
    """Versions and hardware, to paste into a bug report."""
    from flip_flop.cli.columns import aligned
    from flip_flop.provenance import hardware, versions

    facts = versions() | hardware()
    click.echo(aligned([(name, "none" if value is None else str(value)) for name, value in facts.items()]))
    return 0
