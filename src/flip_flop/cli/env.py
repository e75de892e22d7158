"""``flip-flop env``."""

import click


@click.command("env")
def env_command() -> int:
    """Versions and hardware, to paste into a bug report."""
    from flip_flop.provenance import hardware, versions

    facts = versions() | hardware()
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        click.echo(f"{name.ljust(width)}  {'none' if value is None else value}")
    return 0
