"""Every code that templates and tasks raise is in the table of errors."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_code_is_documented() -> None:
    sources = [
        path.read_text() for name in ("prompts", "tasks") for path in (ROOT / "src/flip_flop" / name).rglob("*.py")
    ]
    raised = {code for text in sources for code in re.findall(r'"(E-[A-Z0-9-]+)"', text)}
    documented = set(
        re.findall(
            r"^\| `(E-(?:TPL|LABEL|DATA|TASK|ROW|TOO-FEW)[A-Z0-9-]*)` \|",
            (ROOT / "docs/errors.md").read_text(),
            re.M,
        )
    )
    assert raised <= documented, raised - documented
