"""Labels are the same in every Unicode form, in each kind of file."""

import json
import unicodedata

import pandas
import pytest

from flip_flop import Task, load_task
from flip_flop.errors import InputError
from flip_flop.prompts import Template

LABELS = ("Đúng", "예", "Sí")
TEMPLATES = [Template("plain", "{{ text }}?", "a ||| b ||| c"), Template("terse", "{{ text }}", "a ||| b ||| c")]


def in_form(form, *texts):
    return [unicodedata.normalize(form, each) for each in texts]


def write(path, rows):
    frame = pandas.DataFrame(rows)
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        pytest.importorskip("openpyxl")
        frame.to_excel(path, index=False)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".xlsx"])
@pytest.mark.parametrize(("declared", "stored"), [("NFC", "NFD"), ("NFD", "NFC"), ("NFD", "NFD")])
def test_label_is_found_in_any_unicode_form(tmp_path, suffix, declared, stored):
    rows = [{"text": f"row {at}", "label": each} for at, each in enumerate(in_form(stored, *LABELS[::-1]))]
    path = write(tmp_path / f"rows{suffix}", rows)
    task = Task("t", TEMPLATES, {"test": path}, labels=in_form(declared, *LABELS), label_field="label")
    assert [each.label for each in task.instances("test")] == [2, 1, 0]
    assert [each.label for each in Task("t", TEMPLATES, rows, task.labels, "label").instances("test")] == [2, 1, 0]


def test_labels_that_differ_in_their_unicode_form_only_are_equal():
    with pytest.raises(InputError, match="E-LABEL-DUP"):
        Task("t", TEMPLATES, [], labels=["Sí", *in_form("NFD", "Sí")], label_field="label")


def test_init_counts_a_label_once_in_all_its_unicode_forms(tmp_path, flip_flop):
    forms = [*LABELS[1:], *in_form("NFD", *LABELS[1:])]
    rows = [{"text": f"the room {at} was fine and clean", "label": each} for at, each in enumerate(forms * 5)]
    words = ",".join(in_form("NFD", *LABELS[1:]))
    path, out = write(tmp_path / "rows.csv", rows), tmp_path / "task.yaml"
    found = flip_flop("init", path, "--out", out, "--kind", "sentiment", "--labels", words)
    assert found.code == 0, found.err
    assert load_task(out).labels == LABELS[1:]
