"""Where the shipped model is: what ``load_model("demo")`` opens."""

from pathlib import Path

EMBEDDED_MODEL = Path(__file__).parent / "embedded_model"
