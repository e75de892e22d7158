"""How the embedded model is made: annotators, a stream of examples, pretraining."""

import subprocess
import sys

import pytest
import torch

from flip_flop.demo.annotators import ANNOTATORS, Annotator
from flip_flop.demo.pretrain import rebuild_model, stream_examples
from flip_flop.scoring.models import EMBEDDED_MODEL
from flip_flop.tasks import load_task
from flip_flop.tasks.embedded.reviews import Clause, Review, make_rows


def test_loading_the_embedded_task_imports_no_torch():
    code = "import sys, flip_flop.tasks; flip_flop.tasks.load_task('demo'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_every_template_has_its_annotator():
    assert set(ANNOTATORS) == set(load_task("demo", templates="all").templates.names)


def test_an_annotator_weighs_remarks_by_their_place_and_a_single_remark_in_full():
    first = Annotator(1.0, (1.0, 0.0, 0.0))
    late = Annotator(1.0, (0.0, 0.0, 1.0))
    review = Review("", (Clause("", 1.0), Clause("", -1.6), Clause("", -0.6)))
    assert (first.label(review), late.label(review)) == (1, 0)
    assert late.label(Review("", (Clause("", 0.5),))) == 1
    assert Annotator(1.0, leniency=1.3).label(review) == 1


def test_pretraining_never_sees_a_review_of_the_splits():
    kept_out = [row["text"] for split in ("train", "validation", "test") for row in make_rows(split)]
    stream = stream_examples(0, 3)
    prompts = [next(stream)[0] for _ in range(1000)]
    text = "\n".join(prompts)
    assert not any(review in text for review in kept_out)


@pytest.mark.slow
def test_a_rebuild_gives_the_same_bytes_and_leaves_torch_as_it_was(tmp_path):
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    steps = []
    for name, seed in (("first", 0), ("second", 0), ("other", 1)):
        rebuild_model(tmp_path / name, seed=seed, num_steps=4, progress=lambda *step: steps.append(step))
    assert steps[:4] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
    names = sorted(file.name for file in (tmp_path / "first").iterdir())
    assert names == sorted(file.name for file in EMBEDDED_MODEL.iterdir())
    for name in names:
        content = (tmp_path / "first" / name).read_bytes()
        assert content == (tmp_path / "second" / name).read_bytes()
    weights = "model.safetensors"
    assert (tmp_path / "first" / weights).read_bytes() != (tmp_path / "other" / weights).read_bytes()
