"""Texts made from templates in files of a package."""

from typing import Any

import jinja2


def render(package: str, name: str, *, filters: Any = (), **values: Any) -> str:
    """Render a template of a package, whose ``filters`` escape or quote."""
    environment = jinja2.Environment(loader=jinja2.PackageLoader(package, "."), autoescape=False, trim_blocks=True)
    environment.filters.update(filters)
    return environment.get_template(name).render(values)
