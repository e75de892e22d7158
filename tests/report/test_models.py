"""Reports on several models: names, pairs, the toy's warning, and the effect of templates."""

import re

import numpy as np
import pytest

from flip_flop.console import points
from flip_flop.metrics import f1_per_template, observed_agreement
from flip_flop.report import load_run, write_report
from tests.report.pages import Page


@pytest.fixture
def models(make_run):
    """Two models, and the toy."""

    def make(folder, model, digest, **options):
        return make_run(folder=folder, model=model, model_digest=digest * 64, num_instances=120, **options)

    return [
        make("first", "org/Alpha-1B", "a", is_demo=False),
        make("second", "/models/Beta-2B/", "b", is_demo=False, pull=0.5),
        make("third", "demo", "c", pull=0.2),
    ]


def page_of(runs, tmp_path):
    return Page(write_report(runs, tmp_path / "report.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize("number", [2, 3])
def test_models_are_compared_by_name_and_never_as_before_and_after(models, tmp_path, number):
    page = page_of(models[:number], tmp_path)
    assert page.faults == []
    title = "demo_reviews: Alpha-1B against Beta-2B" + " and demo" * (number == 3)
    assert page.text.startswith(f"Consistency report {title} Models org/Alpha-1B, /models/Beta-2B/")
    report = page.text.split("Provenance The command")[0]
    assert not re.search(r"\b(before|after|base|first|second|third)\b", report.split("Instances Clear filters")[0])
    assert "Baseline without training" not in report
    assert [row[0].split()[0] for row in page.table("Run", "Macro-F1")[1:]] == ["Alpha-1B", "Beta-2B", "demo"][:number]


def test_each_pair_has_its_difference_and_paired_interval(models, tmp_path):
    page = page_of(models, tmp_path)
    runs = [load_run(run) for run in models]
    rows = np.random.default_rng(0).integers(120, size=(1000, 120))
    tables = [table for table in page.tables if table[0] == ["Row minus column", "Alpha-1B", "Beta-2B", "demo"]]
    assert "Agreement Pₒ Row minus column" in page.text
    assert "Macro-F1 Row minus column" in page.text
    for metric, table in zip((agreement, macro_f1), tables, strict=True):
        for i, line in enumerate(table[1:]):
            for j, cell in enumerate(line[1:]):
                if i == j:
                    assert cell == "·"
                    continue
                gain = metric(runs[i]) - metric(runs[j])
                _, low, high = (float(part.replace("−", "-")) for part in re.findall(r"[+−±][\d.]+", cell))
                assert points(gain) == re.match(r"[+−±][\d.]+", cell).group()
                resampled = [metric(runs[i], sample) - metric(runs[j], sample) for sample in rows[:200]]
                ends = 100 * np.quantile(resampled, [0.025, 0.975])
                assert [low, high] == pytest.approx(ends, abs=2)


def macro_f1(run, rows=slice(None)):
    return f1_per_template(run.predictions[rows], run.gold[rows], num_labels=2, average="macro").mean()


def agreement(run, rows=slice(None)):
    return observed_agreement(run.predictions[rows])
