"""The templates of texts, in files of this folder."""

from pathlib import Path
from typing import Any

import jinja2


def render(name: str, **values: Any) -> str:
    """Render a template of this folder."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return jinja2.Template(text, trim_blocks=True).render(values)
