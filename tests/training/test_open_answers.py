"""Training on open answers: generated answers as candidates, the files of a run, and what is refused."""

import copy
import shutil
from collections import Counter
from dataclasses import replace

import pytest
import torch
from peft import PeftModel
from transformers import GenerationMixin

from flip_flop import F2CTrainer, LoadedModel, audit, load_model, train
from flip_flop.files import generator
from flip_flop.open_answers.generation import TEMPERATURE, GumbelNoise, as_choices, generate
from flip_flop.prompts import Template
from flip_flop.reading import AnswerFormat
from flip_flop.scoring.options import ScoringOptions
from flip_flop.tasks import RowsSource, Task
from flip_flop.training.config import make_config
from flip_flop.training.selection import reason_against_answers
from flip_flop.training.votes import ModelScores
from tests.evaluation.test_open_answers import grouped
from tests.refused import refused
from tests.tiny import byte_bpe
from tests.training.conftest import load_tiny, record_of, rows, signal_in

TEMPLATES = tuple(Template(name, f"{name} {{{{ text }}}}", None) for name in ("one", "two", "three"))
CLOSED = tuple(Template(name, f"{name} {{{{ text }}}}", "no ||| yes") for name in ("one", "two"))
SETTINGS = {"max_steps": 3, "per_device_train_batch_size": 4, "lora_r": 4, "use_cpu": True, "learning_rate": 1e-2}


def open_task(count=12, **form):
    data = {"train": RowsSource(rows(count), "made rows"), "validation": RowsSource(rows(7, 100), "more rows")}
    data["test"] = RowsSource(rows(9, 200), "other rows")
    return Task("open", TEMPLATES, data, answer=AnswerFormat(**({"kind": "text", "max_tokens": 3} | form)))


def answered(texts, references=()):
    return as_choices(grouped(texts, references), seed=0)


def test_candidates_are_the_shortest_texts_of_each_key():
    texts = [["It is 4", "4.0", "no", "5"], ["?", "??", "-", "x"], ["7", "7", "7", "7 or 8"]]
    first, last = answered(texts, ["5"])
    assert (first.id, last.id) == ("0", "2")  # no answer of the second can be read
    assert Counter(first.choices[0]) == Counter({"4.0": 1, "5": 1, "": 3})
    assert len(set(first.choices)) == 1
    assert first.written == ("4.0", "4.0", "", "5")
    assert first.choices[0][first.label] == "5"
    assert last.choices[0][last.label] == ""  # no template answers with the reference
    assert last.written == ("7", "7", "7", "7 or 8")
    assert answered(texts)[0].label is None
    several = answered(texts, ["4", "5"])[0]
    assert several.choices[0][several.label] == "5"  # the shortest right answer
    refused("No generated answer can be read", answered, [["?", "no"]])


def test_a_candidate_includes_what_ended_it_so_that_training_teaches_where_answers_end():
    loaded, form = load_tiny(), AnswerFormat("text", stop=("\n", "END"))
    end, texts = loaded.tokenizer.eos_token, ["Oslo\nQ", "Bergen  END of", "Narvik ", "Oslo Oslo"]
    (row,) = as_choices(grouped([texts], form=form, ends=[[end, None, end, None]]), seed=0)
    assert row.written == ("Oslo\n", "Bergen  END", f"Narvik {end}", "Oslo Oslo")  # the last one is cut
    answers = loaded.encoder().encode(row).answers[0]
    by_text = {text: answer.tokens for text, answer in zip(row.choices[0], answers, strict=True)}
    assert by_text[f"Narvik {end}"][-1] == loaded.tokenizer.eos_token_id
    assert loaded.tokenizer.decode(by_text["Oslo\n"]).endswith("Oslo\n")


def test_a_template_votes_for_its_most_frequent_answer():
    # Two templates, each with a greedy answer and two samples: (3, 4, 4), and (5, 6, ?).
    (row,) = as_choices(grouped([["3", "5", "It is 4", "6", "4.0", "?"]], ["6"]), seed=0, num_samples=2)
    assert row.written == ("4.0", "5")  # a tie goes to the greedy answer
    assert (len(row.prompts), len(row.choices)) == (2, 2)
    assert Counter(row.choices[0]) == Counter({"3": 1, "4.0": 1, "5": 1, "6": 1, "": 3})
    assert row.choices[0][row.label] == "6"


def written_to(loaded, instance, num_samples, **changes):
    """One greedy answer of one token to each prompt, then the samples."""
    options = ScoringOptions(batch_tokens=changes.pop("batch_tokens", 4096))
    sampling = (num_samples, changes.pop("seed", 0))
    answers = generate(loaded, [instance], options, names=(), label="", quiet=True, sampling=sampling, **changes)
    return answers.instances[0].written


def test_samples_follow_the_softmax_and_depend_on_the_seed_only():
    loaded, instance = load_tiny(), open_task(max_tokens=1).render("train").instances[0]
    with torch.no_grad():
        loaded.model.lm_head.weight.mul_(2)  # so that the temperature matters
        ids = loaded.tokenizer(instance.prompts[1], return_tensors="pt").input_ids
        probabilities = (loaded.model(ids).logits[0, -1].double() / TEMPERATURE).softmax(0).tolist()
    number = 500
    texts = written_to(loaded, instance, number, seed=1)
    assert texts[:3] == written_to(loaded, instance, 0)
    assert texts == written_to(loaded, instance, number, seed=1, batch_tokens=300)
    assert texts[3:] != written_to(loaded, instance, number, seed=2)[3:]
    share = Counter(texts[4::3])  # of the second prompt
    expected = Counter()
    for token, probability in enumerate(probabilities):
        text = loaded.tokenizer.decode([token], skip_special_tokens=True)
        expected[text.rstrip("\ufffd").strip()] += probability  # without a part of a character
    likely = [text for text, probability in expected.items() if probability > 0.03]
    assert len(likely) > 2
    for text in likely:
        error = (expected[text] * (1 - expected[text]) / number) ** 0.5
        assert share[text] / number == pytest.approx(expected[text], abs=4 * error), text


def test_a_token_without_probability_is_never_sampled():
    scores = torch.full((1, 150_000), -100.0)
    scores[0, 7] = 0.0
    draw = GumbelNoise([generator(0, "sample", "row", 1)])
    assert {int(draw(torch.zeros(1, 1), scores).argmax()) for _ in range(200)} == {7}


def test_an_answer_ends_at_the_ends_of_model_and_tokenizer_and_at_no_other_token():
    loaded, instance = load_tiny(), open_task(max_tokens=8).render("train").instances[0]
    loaded = replace(loaded, tokenizer=copy.deepcopy(loaded.tokenizer))  # other tests share it
    config, tokenizer = loaded.model.generation_config, loaded.tokenizer
    with torch.no_grad():
        loaded.model.lm_head.weight.zero_()  # all tokens are equal, so that the first one is written
    last = len(tokenizer) - 1
    for ends, end, text in (([0, last], last, ""), (last, 0, ""), (None, 0, ""), (last, last, "x"), (None, None, "x")):
        config.eos_token_id, tokenizer.eos_token_id = ends, end
        tokenizer.decode = lambda tokens, **_: "x" * bool(tokens)
        assert written_to(loaded, instance, 0) == (text,) * 3, (ends, end)


def test_a_validation_row_that_is_too_long_is_refused_before_training(tmp_path):
    task = open_task()
    data = {**task.data, "validation": RowsSource([{"text": "long " * 5000}, *rows(3)], "long rows")}
    refused(
        "E-TOO-LONG: 1 of 4 instances",
        train,
        load_tiny(),
        replace(task, data=data),
        make_config(SETTINGS),
        tmp_path / "run",
        quiet=True,
    )
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_rows_without_room_for_an_answer_are_skipped_counted_and_listed(tmp_path, caplog):
    task, (long, longer) = open_task(), ({"text": word * 5000} for word in ("long ", "longer "))
    data = {"train": RowsSource([long, *rows(12)], "rows"), "validation": RowsSource([*rows(3, 100), longer], "rows")}
    config, out = make_config({**SETTINGS, "too_long": "skip"}), tmp_path / "run"
    train(load_tiny(), replace(task, data=data), config, out, quiet=True, keep_worse=True)
    assert record_of(out)["task"]["num_too_long"] == 2
    assert all(f"W-TOO-LONG: skipped: 1 of {number} instances" in caplog.text for number in (13, 4))
    assert "under 'three'" in caplog.text
    assert "template number" not in caplog.text
    listed = (out / "too_long.csv").read_text().splitlines()
    assert [line.split(",")[:2] for line in listed[1:]] == [
        [f'"{identity}"', f'"{name}"'] for identity in ("train-1", "validation-4") for name in ("one", "two", "three")
    ]
    assert "2 rows were skipped" in (out / "adapter" / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("open") / "run"
    run = train(load_tiny(), open_task(), make_config(SETTINGS), out, quiet=True, keep_worse=True)
    return run, out


def test_a_run_is_complete_and_its_answers_were_measured(trained):
    run, out = trained
    record = record_of(out)
    assert record["training"]["vote_calibration"] == "none"
    assert record["training"]["selected_by"] == "last"
    assert record["training"]["survey"]["vote_label_shares"] == []
    assert "vote_share_0" not in (out / "log.jsonl").read_text()  # choice 0 is another answer in each instance
    change = record["training"]["validation"]
    assert change["num_instances"] == 7
    assert "Task `open`, open answers. Trained without labels" in (out / "adapter" / "README.md").read_text(
        encoding="utf-8"
    )
    task = open_task()
    on_validation = Task("open", TEMPLATES, {"test": task.data["validation"]}, answer=task.answer)
    digests = set()
    adapted = PeftModel.from_pretrained(load_tiny().model, run.adapter)
    for model, when in ((load_tiny().model, "before"), (adapted, "after")):
        measured = audit(model, byte_bpe(), on_validation, quiet=True)
        digests.add(measured.record.scoring["prompts_digest"])
        for name in ("observed_agreement", "unmapped_share", "answer_length"):
            assert change[name][when] == pytest.approx(measured.value(name)), (name, when)
    assert len(digests) == 1  # the prompts are the same, whatever the answers


@pytest.mark.slow
def test_a_run_that_was_stopped_and_resumed_gives_the_same_adapter(trained, tmp_path, monkeypatch):
    out, config = tmp_path / "run", make_config(SETTINGS)
    with monkeypatch.context() as patch:
        signal_in(patch, 2)
        assert train(load_tiny(), open_task(), config, out, quiet=True, keep_worse=True).stopped_by is not None
    monkeypatch.setattr(ModelScores, "score_base", None)  # the votes are those of the first part
    again = train(load_tiny(), open_task(), config, out, quiet=True, keep_worse=True, resume=True)
    first = trained[0].adapter / "adapter_model.safetensors"
    assert (again.adapter / "adapter_model.safetensors").read_bytes() == first.read_bytes()
    assert record_of(out)["training"]["votes_digest"] == record_of(trained[1])["training"]["votes_digest"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"method": "bct"}, {"method": "opct"}, {"method": "ssd"}, {"method": "swarm"}, {"num_samples": 2}]
)
def test_other_methods_and_samples_train_on_open_answers(changes, tmp_path):
    config = make_config(SETTINGS | changes)
    assert train(load_tiny(), open_task(), config, tmp_path / "run", quiet=True, keep_worse=True).adapter


@pytest.mark.parametrize(
    ("changes", "form", "words"),
    [
        ({"protocol": "paper"}, {}, "E-OPEN-ANSWER: votes are online"),
        ({}, {"extract": "never"}, "E-DATA-ROWS: No generated answer can be read"),
        ({"vote_calibration": "contextual"}, {}, "E-OPEN-ANSWER"),
    ],
)
def test_what_open_answers_do_not_support_is_one_line(tmp_path, changes, form, words):
    config = make_config(SETTINGS | changes)
    refused(words, train, load_tiny(), open_task(**form), config, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / "run.json").exists()


def test_open_answers_have_one_evaluation_set(tmp_path):
    words, task = "E-OPEN-ANSWER: A dict of evaluation sets", open_task()
    sets = {"one": task.data["validation"], "two": task.data["validation"]}
    refused(words, F2CTrainer, load_tiny(), make_config(SETTINGS), task=task, eval_dataset=sets)


def test_right_answers_that_no_template_has_written_are_no_gold_labels(tmp_path):
    task, config = replace(open_task(), label_field="label"), make_config(SETTINGS | {"method": "supervised"})
    words = "E-NO-GOLD: supervised uses gold labels, but no generated answer is right"
    refused(words, train, load_tiny(), task, config, tmp_path / "run", quiet=True)


def test_samples_need_open_answers(tmp_path):
    task = Task("closed", CLOSED, open_task().data)
    refused(
        "E-CONFIG: num_samples is 2, but the task has answer choices",
        train,
        load_tiny(),
        task,
        make_config(SETTINGS | {"num_samples": 2}),
        tmp_path / "run",
        quiet=True,
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"answer_length": (12.0, 24.0), "accuracy": (0.3, 0.2, [-0.3, 0.1])}, None),
        ({"observed_agreement": (0.4, 0.39)}, "agree less"),
        ({"answer_length": (12.5, 56.7)}, "grow from 12 to 57 characters"),  # Oslo Oslo Oslo ...
        ({"accuracy": (0.22, 0.0, [-0.35, -0.08])}, "less often right"),
        ({"accuracy": (0.0, 0.0, None)}, None),
        ({"base_answer_share": 0.06}, "only 6.0 % of the answers"),  # 16 - 1 / 2
    ],
)
def test_adapters_with_worse_answers_are_not_saved(changes, reason):
    values = {"observed_agreement": (0.4, 0.6), "unmapped_share": (0.1, 0.0), "answer_length": (12.0, 9.0)} | changes
    parts, share = ("before", "after", "interval"), values.pop("base_answer_share", 0.4)
    change = {name: dict(zip(parts, (*numbers, None), strict=False)) for name, numbers in values.items()}
    found = reason_against_answers({"num_instances": 32, "collapsed": False, "base_answer_share": share, **change})
    assert found is None if reason is None else found.startswith("W-WORSE: ") and reason in found


class Interrupted(RuntimeError):
    """The end of a run that a test asks for."""


def count_answers(monkeypatch, *, until=None, largest=None):
    """Count the answers that the model writes. It ends at ``until`` of them, and has memory for ``largest`` at once."""
    written, write = [], GenerationMixin.generate

    def counted(model, prompts, **more):
        if largest is not None and len(prompts) > largest:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        if until is not None and sum(written) >= until:
            raise Interrupted
        written.append(len(prompts))
        return write(model, prompts, **more)

    monkeypatch.setattr(GenerationMixin, "generate", counted)
    return written


SMALL = ScoringOptions(batch_tokens=100)


KEEP_ANSWERS = LoadedModel.keep_answers  # other tests keep none


@pytest.fixture
def new_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(LoadedModel, "keep_answers", KEEP_ANSWERS)
    return tmp_path / "cache"


@pytest.fixture
def written_once(monkeypatch):
    with monkeypatch.context() as patch:
        written = count_answers(patch)
        run = audit("demo", open_task(), scoring=SMALL, quiet=True)
        assert sum(written) == 27
        assert len(written) > 3  # batches
        for _ in range(2):
            assert audit(load_model("demo"), open_task(), scoring=SMALL, quiet=True).value("answer_length")
        assert sum(written) == 3 * 27
    return run


def test_an_audit_continues_where_an_earlier_one_ended(written_once, new_cache, monkeypatch):
    with monkeypatch.context() as patch:
        first = count_answers(patch, until=12)
        with pytest.raises(Interrupted):
            audit("demo", open_task(), scoring=SMALL, quiet=True)
    (store,) = new_cache.rglob("answers/*.jsonl")
    store.write_text(store.read_text()[:-20])  # the line that was written when the machine stopped
    rest = count_answers(monkeypatch)
    again = audit("demo", open_task(), scoring=SMALL, quiet=True)
    assert sum(first) - first[-1] + sum(rest) == 27
    assert again.instances == written_once.instances
    for form, sampling in ({"max_tokens": 2}, (0, 0)), ({"stop": ("e",)}, (0, 0)), ({}, (1, 0)), ({}, (1, 1)):
        loaded, before = load_model("demo").keep_answers(), sum(rest)
        instances = open_task(**form).render("test").instances
        generate(loaded, instances, SMALL, names=(), label="", quiet=True, sampling=sampling)
        assert sum(rest) > before, (form, sampling)  # of another limit, another end, another draw


def test_an_audit_needs_no_cache(written_once, new_cache):
    new_cache.write_text("a file, and no folder")
    assert audit("demo", open_task(), scoring=SMALL, quiet=True).instances == written_once.instances


def test_answers_are_kept_for_one_adapter(trained, new_cache, tmp_path, monkeypatch):
    written, folder = count_answers(monkeypatch), tmp_path / "base"
    adapter = shutil.copytree(trained[0].adapter, tmp_path / "adapter")
    load_tiny().model.save_pretrained(folder)
    byte_bpe().save_pretrained(folder)
    config = adapter / "adapter_config.json"

    def answer():
        before, instances = sum(written), open_task().render("test").instances
        loaded = load_model(folder, adapter=adapter).keep_answers()
        generate(loaded, instances, SMALL, names=(), label="", quiet=True)
        return sum(written) - before

    assert [answer(), answer()] == [27, 0]
    config.write_text(config.read_text().replace('"lora_alpha": ', '"lora_alpha": 1'))
    assert answer() == 27


def test_answers_that_do_not_fit_are_written_in_smaller_batches(written_once, monkeypatch, caplog):
    written = count_answers(monkeypatch, largest=2)
    again = audit("demo", open_task(), quiet=True)
    assert max(written) == 2
    assert "W-MEMORY: 27 answers do not fit; forwards now have 13" in caplog.text
    assert again.instances == written_once.instances
    count_answers(monkeypatch, largest=0)
    with pytest.raises(torch.OutOfMemoryError):
        audit(load_model("demo"), open_task(), quiet=True)
