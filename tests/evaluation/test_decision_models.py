"""Decision models: the templates of a row are the questions of one request, and probabilities are the scores."""

import json
import math
import socket
import threading
import zlib

import numpy as np
import pytest

from flip_flop import ScoringOptions, audit, load_classifier, load_model, load_run, predict
from flip_flop.metrics import label_probs
from flip_flop.prompts import Template
from tests.decision_server import deciding
from tests.evaluation.conftest import make_rows, make_task
from tests.metrics import oracle
from tests.refused import refused

pytest.importorskip("openai", reason="the package openai is not installed")
SYSTEMONE, DECISIONS = ScoringOptions(api="systemone"), ScoringOptions(api="decisions")
APIS = pytest.mark.parametrize("scoring", [SYSTEMONE, DECISIONS], ids=["systemone", "decisions"])
ORDERS = ("1 2 3", "2 3 1", "3 1 2")
CHOICES = ("Bad", "Good", "Neither")


def text_of(wording, order):
    """A prompt that other models read in full."""
    options = "".join(f"\n- {CHOICES[int(number) - 1]}" for number in order.split())
    return f"{{{{ text }}}}{{# instructions #}}\n\n{wording}{{# options #}}\nOptions:{options}\nAnswer:"


ORDERED = [
    Template(f"{wording} {order}", text_of(wording, order), " ||| ".join(CHOICES), {"wording": wording, "order": order})
    for wording in ("How was it?", "Was it good?")
    for order in ORDERS
]


def fixed_probs(state, name, instructions, options):
    """Probabilities that depend on the whole question, also on the order of the options."""
    weights = [1 + zlib.crc32(repr((state, instructions, options, option)).encode()) % 97 for option in options]
    return [weight / sum(weights) for weight in weights]


@pytest.fixture
def decider(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with deciding(fixed_probs) as pair:
        yield pair


@APIS
def test_variants_of_a_row_are_the_questions_of_one_request_with_options_in_their_order(decider, scoring):
    server, name = decider
    run = audit(name, make_task(make_rows(4), ORDERED), quiet=True, scoring=scoring)
    assert len(server.requests) == 4
    for number, row in enumerate(make_rows(4)):
        for column, template in enumerate(ORDERED):
            listed = [CHOICES[int(place) - 1] for place in template.levels["order"].split()]
            probs = fixed_probs(row["text"], "", template.levels["wording"], listed)
            expected = [probs[listed.index(choice)] for choice in CHOICES]
            assert np.exp(run.scores[number, column]) == pytest.approx(expected, abs=1e-6)
    assert run.record.scoring["api"] == scoring.api
    assert (run.record.scoring["num_asked"], run.record.scoring["tokens_read"]) == (4, 28)
    assert "own_label_mass_per_template" not in run.metrics  # options always have all of the probability
    votes = [row["vote"] for row in predict(name, make_task(make_rows(4), ORDERED), quiet=True, scoring=scoring)]
    assert votes == run.data.votes.tolist()


def test_no_and_yes_are_a_yes_or_no_question_unless_they_have_an_order(decider):
    server, name = decider
    ordered = {"wording": "a", "order": "2 1"}
    templates = [
        Template("plain", "{{ text }}{# instructions #} Good?", "No ||| Yes"),
        Template("ordered", "{{ text }}{# instructions #} Good, no or yes?", "No ||| Yes", ordered),
    ]
    task = make_task([{"text": "The room was good.", "mood": 1}], templates, labels=(0, 1))
    run = audit(name, task, quiet=True, scoring=SYSTEMONE)
    asked = server.requests[0]["questions"]
    assert asked["plain"] == {"type": "noul", "instructions": "Good?"}
    assert [*asked["ordered"]["criteria"].items()] == [("Yes", None), ("No", None)]
    for scoring in (SYSTEMONE, DECISIONS):
        run = audit(name, task, quiet=True, scoring=scoring)
        _, yes = fixed_probs("The room was good.", "", "Good?", ["no", "yes"])
        assert np.exp(run.scores[0, 0]) == pytest.approx([1 - yes, yes])


EXPLAINED = {
    "in lines": "A. bad\nB. good\nC. neither\nLetter:",
    "in a row": "Choose (A) bad, (B) good or (C) neither:",
    "of a scale": "Write A, B or C. A = bad, C = neither.",
}


@pytest.mark.parametrize("listed", EXPLAINED.values(), ids=EXPLAINED)
def test_options_that_explain_an_answer_stay_in_the_instructions(decider, listed):
    server, name = decider
    jinja = f"{{{{ text }}}}{{# instructions #}} How was it?{{# options #}}\n{listed}"
    template = Template("letters", jinja, "A ||| B ||| C", {"wording": "letters", "order": "2 3 1"})
    for scoring in (SYSTEMONE, DECISIONS):
        audit(name, make_task(make_rows(1), [template]), quiet=True, scoring=scoring)
    (asked,) = server.requests[0]["questions"].values()
    assert asked["instructions"] == f"How was it?\n{listed}"
    assert [*asked["criteria"]] == ["B", "C", "A"]
    assert server.requests[1]["questions"][0]["instructions"] == f"How was it?\n{listed}"


def test_without_a_mark_the_state_has_the_fields_of_the_template_and_never_the_label(decider):
    server, name = decider
    rows = [{"text": "It was good.", "mood": 1, "label_text": "good", "missing": math.nan}]
    jinja = "{{ text }} {{ 'mood' }} {% if missing %}{{ missing }}{% endif %}"
    task = make_task(rows, [Template("plain", jinja, "a ||| b ||| c")])
    for scoring in (SYSTEMONE, DECISIONS):
        audit(name, task, quiet=True, scoring=scoring)
    assert server.requests[0]["state"] == {"text": "It was good.", "missing": None}
    assert server.requests[0]["questions"]["plain"]["instructions"] == "It was good. mood"
    assert json.loads(server.requests[1]["input"])["text"] == "It was good."


def test_marked_prompts_have_the_draws_of_the_seed(decider):
    server, name = decider
    jinja = "{{ ['See', 'Read', 'Hear'] | random }}: {{ text }}{# instructions #} Was it {{ choice(['so', 'it']) }}?"
    task = make_task(make_rows(7), [Template("drawn", jinja, "a ||| b ||| c")])
    for seed in range(2):
        server.requests.clear()
        audit(name, task, seed=seed, quiet=True, scoring=SYSTEMONE)
        prompts = [instance.prompts[0] for instance in task.render("test", seed=seed).instances]
        asked = [f"{body['state']} {body['questions']['drawn']['instructions']}" for body in server.requests]
        assert sorted(asked) == sorted(prompts)


def test_the_fields_of_a_state_have_the_typos_of_the_prompt(decider):
    server, name = decider
    jinja = "{{ text | trim }} {{ row['a note'] }} {{ about.place }} Was it {{ last }}?"
    template = Template("plain", jinja, "good ||| bad ||| {{ last }}")
    rows = [
        row | {"a note": f"Written hastily {number}", "about": {"place": "somewhere", "page": 3}, "last": "neither"}
        for number, row in enumerate(make_rows(6))
    ]
    task = make_task(rows, [template]).with_axes({"typos": 0.9})
    audit(name, task, quiet=True, scoring=ScoringOptions(api="systemone", concurrency=1))
    assert len(server.requests) == 2 * len(rows)
    for row, plain, changed in zip(rows, server.requests[::2], server.requests[1::2], strict=True):
        assert plain["state"] == {key: row[key] for key in ("text", "a note", "about", "last")}
        prompt = changed["questions"]["plain · typos 0.9"]["instructions"]
        state = changed["state"]
        assert prompt.startswith(f"{state['text']} {state['a note']} ")
        assert state["a note"] != row["a note"]
        assert (state["about"], state["last"]) == (row["about"], row["last"])


@APIS
def test_a_missing_answer_is_unread_and_a_rounded_zero_is_small(decider, scoring):
    server, name = decider

    def decides(state, name, instructions, options):
        return None if name == "How was it? 2 3 1" else [1.0, 0.0, 0.0]

    server.decides = decides
    run = audit(name, make_task(make_rows(4), ORDERED), quiet=True, scoring=scoring)
    assert (run.predictions[:, 1] == -1).all()
    assert (run.scores[:, 1] == -math.inf).all()
    assert run.value("unmapped_share") == pytest.approx(1 / 6)
    assert np.exp(run.scores[0, 0]) == pytest.approx([1, 1e-6, 1e-6])


@pytest.mark.parametrize("calibrate", ["auto", "batch", "prior", "position"])
def test_refused_answers_are_left_out_of_the_calibration(decider, tmp_path, calibrate):
    server, name = decider
    number, place = 5, 2

    def decides(state, asked, instructions, options):
        if asked == ORDERED[place].name and state == make_rows(50)[number]["text"]:
            return None
        return fixed_probs(state, asked, instructions, options)

    server.decides = decides
    prior = (0.2, 0.5, 0.3) if calibrate == "prior" else None
    task = make_task(make_rows(50), ORDERED)
    how = {"scoring": SYSTEMONE, "calibrate": calibrate, "label_prior": prior, "quiet": True}
    run = load_run(audit(name, task, **how).write(tmp_path / "run"))
    unread = np.argwhere(run.calibrated.predictions == -1)
    assert unread.tolist() == [[number, place]]
    offsets = run.metrics["calibrated"]["offsets"]
    read = np.delete(run.scores[:, place], number, axis=0)[:, None].astype(float)
    if calibrate in ("auto", "batch"):
        np.testing.assert_allclose([offsets[ORDERED[place].name]], oracle.batch_offsets(read.tolist()), atol=1e-9)
    if calibrate == "auto":
        assert {"raw", "calibrated", "average", "calibrated average"} == {form for *_, form in run.axis_rows}
    votes = [row["vote"] for row in predict(name, task, **how | {"calibrate": calibrate.replace("auto", "batch")})]
    assert votes == run.calibrated.data.votes.tolist()


def renamed(names):
    """A change of a reply: its answers in the order of the questions, with these names."""

    def change(reply):
        answers = [*reversed(reply["answers"])][: len(names)]
        return reply | {"answers": [answer | {"name": name} for answer, name in zip(answers, names, strict=True)]}

    return change


@pytest.mark.parametrize("empty", [None, ""])
def test_listed_answers_without_names_are_in_the_order_of_the_questions(decider, tmp_path, monkeypatch, empty):
    server, name = decider
    task = make_task(make_rows(4), ORDERED)
    named = audit(name, task, quiet=True, scoring=DECISIONS)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other cache"))
    server.changes = renamed([empty] * 6)
    assert audit(name, task, quiet=True, scoring=DECISIONS).scores.tolist() == named.scores.tolist()


@pytest.mark.parametrize("names", [[None] * 5, ["How was it? 1 2 3", *[None] * 4]], ids=["none", "one"])
def test_other_answers_without_names_end_the_audit(decider, names):
    server, name = decider
    server.changes = renamed(names)
    words = r"invalid reply \(answers without names, and not one for each question\)"
    refused(
        f"E-ENDPOINT-ANSWER: Instance 'test-1'.*{words}",
        audit,
        name,
        make_task(make_rows(4), ORDERED),
        quiet=True,
        scoring=DECISIONS,
    )


INVALID = {
    "KeyError: 'so'": {"noul": 0.5},
    "KeyError: 'So'": {"probabilities": {"No": 0.9, "Yes": 0.1}},
    "KeyError: 'No'": {"type": "unsupported"},
    "sum to 1": {"probabilities": {"No": 0.2, "Yes": 0.1, "So": 0.1}},
    "finite number": {"probabilities": {"No": math.nan}},
}


@pytest.mark.parametrize(("words", "answer"), INVALID.items(), ids=INVALID)
def test_an_invalid_answer_ends_the_audit(decider, words, answer):
    server, name = decider
    server.changes = lambda reply: reply | {"answers": {"terse": answer}}
    task = make_task(make_rows(2)).with_templates(["terse"])
    line = f"E-ENDPOINT-ANSWER: Instance 'test-1'.*invalid reply.*{words}"
    refused(line, audit, name, task, quiet=True, scoring=SYSTEMONE)


REFUSED = {
    "401: Send a key.*OPENAI_API_KEY": (401, {"detail": "Send a key."}, {}),
    "422: at most 255 options": (422, {"detail": "at most 255 options"}, {}),
    "422: .*'msg': 'bad'": (422, {"detail": [{"loc": ["body"], "msg": "bad"}]}, {}),
}


@pytest.mark.parametrize(("words", "reply"), REFUSED.items(), ids=REFUSED)
def test_a_refused_request_ends_the_audit_with_its_detail(decider, words, reply):
    server, name = decider
    server.fails = [reply]
    task = make_task(make_rows(2))
    refused(f"E-ENDPOINT-ANSWER: .*answers {words}", audit, name, task, quiet=True, scoring=SYSTEMONE)


def test_the_key_is_sent_and_a_busy_server_asked_again(decider, monkeypatch):
    server, name = decider
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret")
    wait = {"retry-after-ms": "1", "Retry-After": "1"}
    server.fails = [(429, {"detail": "busy"}, wait), (529, {"detail": "busy"}, wait)]
    audit(name, make_task(make_rows(2), ORDERED), quiet=True, scoring=SYSTEMONE)
    assert server.keys == ["Bearer a-secret"] * 4


def test_rendered_rows_have_an_empty_state(decider):
    server, name = decider
    rows = [{"id": "1", "prompts": ["a?", "b?"], "choices": [["No", "Yes"]] * 2, "label": None}]
    audit(name, rows, quiet=True, scoring=SYSTEMONE)
    assert server.requests[0]["state"] == {}
    assert [asked["instructions"] for asked in server.requests[0]["questions"].values()] == ["a?", "b?"]


@pytest.mark.slow
@APIS
def test_our_server_gives_the_probabilities_of_the_model_behind_it(folder, tmp_path, monkeypatch, scoring):
    uvicorn = pytest.importorskip("uvicorn")
    from flip_flop.serving.app import create_app
    from flip_flop.serving.engine import Engine

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    task = make_task(make_rows(12), ORDERED)
    local = audit(load_model(folder), task, quiet=True, scoring=ScoringOptions(chat_template="off"))
    engine = Engine(load_classifier(local.write(tmp_path / "audit")))
    with socket.create_server(("127.0.0.1", 0)) as bound:
        close = [("Connection", "close")]  # the client does not close its connections
        server = uvicorn.Server(uvicorn.Config(create_app(engine), log_config=None, headers=close))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            name = f"openai:http://127.0.0.1:{bound.getsockname()[1]}/v1#moods"
            served = audit(name, task, quiet=True, scoring=scoring)
        finally:
            server.should_exit = True
            thread.join()
    assert np.abs(label_probs(served.scores) - label_probs(local.scores)).max() < 2e-6
    for metric in ("observed_agreement", "order_flips", "wording_flips"):
        assert served.metrics[metric] == local.metrics[metric]
