"""The report in Chromium: script, keys, links and contrast. Skipped without Chromium."""

import fcntl
import itertools
import json
import os
import re
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from flip_flop import load_run, write_report
from flip_flop.console import percent
from flip_flop.metrics import f1_per_template
from tests.report.made_runs import HOSTILE, open_run, wide_run

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PROGRAM = next(filter(None, map(shutil.which, PROGRAMS)), None)
OPTIONS = """--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update
    --disable-sync --no-first-run --window-size=1280,900 --remote-debugging-pipe"""


class Browser:
    """One page. ``run`` returns the awaited value of a JavaScript expression; ``said`` holds console messages."""

    def __init__(self):
        self.folder = tempfile.mkdtemp()
        (commands, self._commands), (self._answers, answers) = os.pipe(), os.pipe()
        # The browser reads from descriptor 3 and writes to 4. Copies at high numbers avoid conflicts.
        far = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 100) for each in (commands, answers)]
        silent = [(os.POSIX_SPAWN_OPEN, output, os.devnull, os.O_WRONLY, 0) for output in (1, 2)]
        given = [(os.POSIX_SPAWN_DUP2, each, as_which) for each, as_which in zip(far, (3, 4), strict=True)]
        arguments = [PROGRAM, *OPTIONS.split(), f"--user-data-dir={self.folder}"]
        self._process = os.posix_spawn(PROGRAM, arguments, os.environ, file_actions=[*silent, *given])
        for each in (commands, answers, *far):
            os.close(each)
        self._numbers, self._rest, self._session, self.said = itertools.count(1), b"", None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def _next(self):
        while b"\0" not in self._rest:
            part = os.read(self._answers, 2**16)
            assert part, "the browser is gone"
            self._rest += part
        first, _, self._rest = self._rest.partition(b"\0")
        answer = json.loads(first)
        if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded", "Page.javascriptDialogOpening"):
            self.said.append(answer["params"])
        return answer

    def open(self, page, fragment="", dark=False):
        """Open a file and wait for its script."""
        self.said.clear()
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=page.as_uri() + fragment)
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")

    def run(self, expression):
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, condition):
        for _ in range(400):
            if self.run(condition):
                return
            self.run("new Promise((done) => setTimeout(done, 25))")
        raise AssertionError(f"never: {condition}")

    def press(self, key):
        text = {"Enter": "\r"}.get(key, "")
        code = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowRight": 39, "ArrowDown": 40}[key]
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, text=text, windowsVirtualKeyCode=code)

    def close(self):
        self._session = None
        self.call("Browser.close")
        os.waitpid(self._process, 0)
        os.close(self._commands)
        os.close(self._answers)
        shutil.rmtree(self.folder, ignore_errors=True)


# ---- tests ----


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed"),
    pytest.mark.xdist_group("browser"),
]


@pytest.fixture(scope="module")
def browser():
    found = Browser()
    yield found
    found.close()


@pytest.fixture
def page(demo_report):
    return demo_report


@pytest.fixture(scope="module")
def answers(demo):
    """The predictions of each run of the first group, with templates in the order of the page: best first."""
    runs = [load_run(path) for path in demo[:4]]
    f1 = f1_per_template(runs[0].predictions, runs[0].gold, num_labels=2, average="macro")
    order = sorted(range(8), key=lambda at: (-f1[at], at))
    return [run.predictions[:, order] for run in runs]


def found(browser):
    browser.wait("document.querySelector('dialog').open && document.querySelector('.status').textContent")
    return int(browser.run("document.querySelector('.status').textContent.split(' ')[0].replace(',', '')"))


def set_field(browser, name, value):
    at = f"document.querySelector('dialog [name={name}]')"
    browser.run(f"{at}.value = {json.dumps(value)}; {at}.dispatchEvent(new Event('change', {{bubbles: true}}))")


def test_a_heat_map_cell_lists_the_instances_with_disagreement(browser, page, answers):
    browser.open(page)
    browser.run("document.querySelectorAll('.heat')[1].rows[2].cells[5].querySelector('button').click()")
    assert found(browser) == int((answers[1][:, 1] != answers[1][:, 4]).sum())
    assert {"run=1", "t=1", "u=4", "agree=no"} <= {*browser.run("location.hash").split("&")}
    set_field(browser, "agree", "fixed")
    before, after = ((answers[run][:, 1] == answers[run][:, 4]) for run in (0, 1))
    assert found(browser) == int((~before & after).sum())
    assert browser.said == []


def test_counts_bars_and_template_names_list_their_instances(browser, page, answers, demo):
    gold = load_run(demo[0]).gold
    browser.open(page)
    table = "[...document.querySelectorAll('.counts')]"
    browser.run(f"{table}[1].querySelector('button').click()")
    was, now = (answers[run] == gold[:, None] for run in (0, 3))
    assert found(browser) == int((~was & ~now).any(axis=1).sum())
    browser.run("document.querySelector('dialog .close').click()")
    shown = browser.run(f"{table}[0].rows[3].cells[4].textContent")
    browser.run(f"{table}[0].rows[3].cells[4].querySelector('button').click()")
    assert found(browser) == int(shown)
    bars = "document.querySelectorAll('.shares tr')[3].querySelectorAll('td')[2]"
    browser.run(f"{bars}.querySelectorAll('button')[1].click()")
    assert found(browser) == int((answers[2][:, 0] == 1).sum())
    browser.run("document.querySelector('dialog .close').click()")
    cells = "[...document.querySelectorAll('.metrics tr:nth-child(4) td')]"
    wrong = {
        "Agreement Pₒ": (answers[3] != answers[3][:, :1]).any(axis=1),
        **dict.fromkeys(("Accuracy", "ECE", "Cohen's κ"), (answers[3] != gold[:, None]).any(axis=1)),
        "Vote κ": np.where(answers[3].mean(axis=1) == 0.5, 0, answers[3].mean(axis=1).round()) != gold,
    }
    for title in ("No majority", "POSIX", "Ensemble F1"):
        assert browser.run(f"{cells}.find((cell) => cell.dataset.title === '{title}').querySelector('button')") is None
    for title, expected in wrong.items():
        browser.run(f"{cells}.find((cell) => cell.dataset.title === \"{title}\").querySelector('button').click()")
        assert found(browser) == int(expected.sum())
        browser.run("document.querySelector('dialog .close').click()")
    browser.run("document.querySelectorAll('.strips tbody tr')[7].querySelector('td:last-of-type button').click()")
    assert found(browser) == int((answers[3][:, 7] != gold).sum())


def test_without_gold_labels_numbers_list_rows_by_their_majority(browser, hostile, tmp_path):
    browser.open(write_report(hostile, tmp_path / "report.html"))
    for number, run in enumerate(map(load_run, hostile)):
        counts = (run.predictions[:, :, None] == np.arange(3)).sum(axis=1)
        has_majority = counts.max(axis=1) > 2
        assert not has_majority.all()
        browser.run(f"document.querySelectorAll('[data-title=\"No majority\"] button')[{number}].click()")
        assert found(browser) == (~has_majority).sum()
        browser.run("document.querySelector('dialog .close').click()")
        disagrees = (run.predictions != counts.argmax(axis=1)[:, None]) & has_majority[:, None]
        shown = []
        for row in range(5):
            cell = f"document.querySelectorAll('.strips tbody tr')[{row}].cells[{2 + number}]"
            browser.run(f"{cell}.querySelector('button').click()")
            shown.append(found(browser))
            assert percent(1 - shown[-1] / has_majority.sum()) == browser.run(f"{cell}.textContent")
            browser.run("document.querySelector('dialog .close').click()")
        assert sorted(shown) == sorted(disagrees.sum(axis=0).tolist())


def test_markup_in_names_stays_text(browser, hostile, tmp_path):
    page = write_report(hostile, tmp_path / "report.html")
    browser.open(page, "#show?g=1")
    assert found(browser) == 90
    browser.run("document.querySelector('.item').click()")
    assert browser.run("document.querySelectorAll('.item .word')[0].textContent.length") > 0
    text = HOSTILE.replace("\u202e", "\\u202e").replace("\x1b", "\\x1b")
    assert text in browser.run("document.querySelector('dialog pre').textContent")
    assert browser.run("document.querySelectorAll('dialog b, dialog script, dialog img').length") == 0
    script = "Object.assign(document.createElement('script'), {text: 'window.bad = 1'})"
    assert browser.run(f"(document.body.append({script}), window.bad)") is None
    assert any("Content Security Policy" in json.dumps(each) for each in browser.said)


@pytest.mark.parametrize(
    ("query", "opens"),
    [("", False), ("&agree=no&t=1&right=some-wrong", False), ("&run=0", True), ("&label=1", True), ("&q=0299", False)],
)
def test_four_filters_are_visible_and_the_rest_opens_if_a_link_uses_it(browser, page, query, opens):
    browser.open(page, f"#show?g=1{query}")
    assert found(browser) > 0
    shown = "[...document.querySelectorAll('dialog select, dialog input')].filter((each) => each.checkVisibility())"
    assert (browser.run(f"{shown}.map((each) => each.name).join()") == "q,agree,t,right") is not opens
    row = browser.run("document.querySelector('.item').textContent")
    assert re.search(r"test-\d+ gold (nega|posi)tive margin .*(No|Yes|False|True|good|bad)", row)


def test_a_search_opens_the_rows_with_a_text_or_id(browser, page):
    browser.open(page)
    browser.run("document.querySelector('nav a[href$=-examples]').click()")
    browser.run("Object.assign(document.querySelector('.search input'), {value: ' TEST-011'}).form.requestSubmit()")
    assert found(browser) == 10
    rows = browser.run("[...document.querySelectorAll('.item .quiet')].map((each) => each.textContent.split(' ')[0])")
    assert sorted(rows) == [f"test-{number:04d}" for number in range(110, 120)]
    assert browser.said == []


def test_links_and_printing_open_folded_sections(browser, page):
    folded = "document.querySelectorAll('details.part:not([open])').length"
    browser.open(page)
    number = browser.run(folded)
    assert number > 3
    browser.run("document.querySelector('nav a[href$=-confidence]').click()")
    browser.wait(f"{folded} === {number - 1}")
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run(folded) == 0
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert browser.run(folded) == number - 1


OPEN_ALL = "document.querySelectorAll('main details').forEach((each) => { each.open = true; })"


@pytest.mark.parametrize(("kind", "number"), [("demo", 1), ("demo", 4), ("hostile", 1), ("hostile", 2)])
def test_the_page_fits_its_window_and_one_run_fits_three(browser, request, tmp_path, kind, number):
    page = write_report(request.getfixturevalue(kind)[:number], tmp_path / "report.html")
    try:
        for width in (390, 1440):
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            browser.call("Emulation.setDeviceMetricsOverride", **size)
            browser.open(page)
            assert width == 390 or number > 1 or browser.run("document.documentElement.scrollHeight") <= 2700
            browser.run(OPEN_ALL)
            assert browser.run("document.documentElement.scrollWidth") <= width
    finally:
        browser.call("Emulation.clearDeviceMetricsOverride")


def test_the_answers_of_many_templates_leave_room_for_the_text(browser, tmp_path):
    runs = [wide_run(tmp_path / name, name, pull=pull) for name, pull in (("base", 0.0), ("f2c", 0.8))]
    browser.open(write_report(runs, tmp_path / "report.html"))
    browser.run("document.querySelector('.rows').scrollIntoView()")
    assert browser.run("document.documentElement.scrollWidth") <= 1280
    assert browser.run("document.querySelector('.rows .about').getBoundingClientRect().width") > 300
    browser.run("document.querySelector('[id$=-examples] button.show').click()")
    found(browser)
    assert browser.run("document.querySelector('dialog .about').getBoundingClientRect().width") > 200


def test_axe_finds_no_violation_in_the_page_and_in_the_dialog(browser, make_run, tmp_path):
    axe = pytest.importorskip("axe_core_python", reason="axe-core-python is not installed")
    script = Path(axe.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
    kinds = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
    few = {"num_instances": 12, "num_templates": 3}
    model = {"model": "other", "model_digest": "b" * 64, "is_demo": False}
    runs = [make_run(num_instances=12, num_templates=5), make_run("f2c", num_instances=12, num_templates=5, pull=0.5)]
    held = [make_run(folder="held", held_out=["plain"], **few), make_run(folder="other", pull=0.5, **few, **model)]
    page = write_report([*runs, *held], tmp_path / "report.html")
    words = "({id, nodes}) => [id, nodes.length, nodes[0].html, nodes[0].failureSummary]"
    # A dark page differs in its colours only.
    for fragment, dark in itertools.product(("", "#show?g=1&run=0&t=0&u=3&agree=no"), (False, True)):
        rules = {"runOnly": ["color-contrast"] if dark else kinds, "resultTypes": ["violations"]}
        browser.open(page, fragment, dark=dark)
        browser.run(OPEN_ALL)
        if fragment:
            assert found(browser)
            browser.run("document.querySelector('.item').click()")
        browser.run(f"{script};0")
        assert browser.run(f"axe.run({json.dumps(rules)}).then((found) => found.violations.map({words}))") == []


def test_rows_of_open_answers_are_filtered_by_all_right_answers(browser, tmp_path):
    texts = [["It is 1", "2", "3", "no"], ["2", "2", "1", "1"], ["4", "4", "4", "4"], ["5", "5", "5", "5"]]
    after = [["3", "2", "3", "2"], ["1", "1", "2", "2"], ["4", "4", "4", "4"], ["5", "6", "5", "5"]]
    references = [["3"], ["1", "2"], ["4"], []]
    runs = [open_run(tmp_path / name, written, references, name) for name, written in (("base", texts), ("f2c", after))]
    browser.open(write_report(runs, tmp_path / "report.html"), "#show?g=1&run=0")
    assert found(browser) == 4
    names = ("all-right", "some-wrong", "vote-wrong", "fixed", "broken")
    numbers = []
    for name in names:
        set_field(browser, "right", name)
        numbers.append(found(browser))
    assert dict(zip(names, numbers, strict=True)) == {
        "all-right": 2, "some-wrong": 1, "vote-wrong": 1, "fixed": 1, "broken": 0,
    }  # fmt: skip
    assert browser.run("[...document.querySelectorAll('dialog label')].filter((each) => each.hidden).length") == 2
    set_field(browser, "right", "some-wrong")
    row = browser.run("document.querySelector('dialog li').textContent")
    assert "gold 3" in row
    assert "unreadable" in row
    assert "margin" not in row
    assert browser.said == []
