"""The embedded default: a small task, its templates and a tiny model, all shipped with the package."""

from pathlib import Path

_HERE = Path(__file__).parent


def demo_model_path() -> Path:
    """The folder of the shipped model, readable by ``AutoModelForCausalLM`` and ``AutoTokenizer``."""
    return _HERE / "model"


def demo_task_path() -> Path:
    """The demo's task file: its name, labels and templates; its rows are made by :func:`demo_rows`."""
    return _HERE / "task.yaml"


def demo_rows(split: str, seed: int = 0) -> list[dict]:
    """The demo's rows of one split: ``train`` (500), ``validation`` (200) or ``test`` (300).

    Args:
        split: The split's name.
        seed: The shipped figures are for seed 0; another seed gives other reviews.

    Returns:
        Rows with ``id``, ``text`` and ``label``; no text stands in two splits.

    Raises:
        InputError: ``E-DATA-SPLIT`` where there is no such split.

    Example:
        >>> len(demo_rows("validation"))
        200
    """
    from flip_flop.demo.reviews import make_rows

    return make_rows(split, seed)
