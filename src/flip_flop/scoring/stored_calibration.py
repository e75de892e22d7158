"""Label offsets stored with an adapter: calibration without a set of rows."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from flip_flop.errors import InputError
from flip_flop.files import read_json, write_json
from flip_flop.manifest import find_change
from flip_flop.metrics import ScoredRows, batch_offsets, check_prior, uniform_prior
from flip_flop.prompts import Template
from flip_flop.record import AdapterRecord

CALIBRATION_FILE = "calibration.json"


def store_calibration(
    adapter: Path, table: ScoredRows, templates: Iterable[Template], label_prior: Sequence[float] | None = None
) -> None:
    """Compute batch offsets from the scores of unlabelled rows, and write them into the folder of an adapter.

    Args:
        adapter: The folder. Its adapter computed the scores.
        table: Scores in nats, ``[instances, templates, labels]``, from :func:`~flip_flop.scoring.score`.
        templates: The templates, in the order of the scores.
        label_prior: The label frequencies that are assumed, by default equal.
    """
    offsets, num_labels = batch_offsets(table.scores, label_prior), table.scores.shape[2]
    content = {
        "method": "batch",
        "label_prior": list(label_prior or uniform_prior(num_labels)),
        "num_instances": len(table.scores),
        "chat_template": bool(table.settings.get("chat_template")),
        "templates": [
            {"name": template.name, "digest": template.digest(), "offsets": own}
            for template, own in zip(templates, offsets.tolist(), strict=True)
        ],
    }
    write_json(adapter / CALIBRATION_FILE, content)


def stored_calibration(
    adapter: AdapterRecord | None, templates: Sequence[Template], num_labels: int
) -> tuple[Float[np.ndarray, "templates labels"], tuple[float, ...], bool]:
    """Read the offsets of these templates, the assumed label frequencies, and whether a chat template was used.

    Raises:
        InputError: ``E-CALIBRATION-STORED`` if there are none, if a template has changed, or if the file is invalid.
    """
    path = Path(adapter.path, CALIBRATION_FILE) if adapter else None
    if path is None or not path.is_file():
        raise InputError("E-CALIBRATION-STORED", f"{path} does not exist." if path else "no adapter is given.")
    if find_change(path.resolve().parents[1], (f"adapter/{CALIBRATION_FILE}",)) and path.parent.name == "adapter":
        raise InputError("E-CALIBRATION-STORED", f"{path} is damaged.")
    try:
        found = read_json(path)
        prior, uses_chat_template = check_prior(found["label_prior"], num_labels), bool(found["chat_template"])
        offsets = {each["digest"]: np.array(each["offsets"], dtype=np.float64) for each in found["templates"]}
        if not all(each.shape == (num_labels,) and np.isfinite(each).all() for each in offsets.values()):
            raise ValueError(f"not {num_labels} finite offsets for each template")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError("E-CALIBRATION-STORED", f"{path} is invalid ({type(error).__name__}).") from error
    if missing := [each.name for each in templates if each.digest() not in offsets]:
        raise InputError("E-CALIBRATION-STORED", f"{path} has no offsets for template {missing[0]!r}.")
    return np.stack([offsets[each.digest()] for each in templates]), prior, uses_chat_template
