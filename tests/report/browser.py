"""Headless Chromium, driven through a pipe: no package and no port."""

import fcntl
import itertools
import json
import os
import shutil
import tempfile

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
