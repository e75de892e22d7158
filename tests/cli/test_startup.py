"""A typo of an option is reported in a moment, without the seconds that the import of torch takes."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
from flip_flop.cli.main import main
try:
    main()
finally:
    used = resource.getrusage(resource.RUSAGE_SELF)
    print("torch" in sys.modules, used.ru_utime + used.ru_stime)
"""
TRAIN = ("train", "--model", "demo", "--task", "demo", "--out", "out")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*TRAIN, "--learning-rat", "3"), "E-CONFIG: Unknown setting '--learning-rat' in the command line."),
        ((*TRAIN, "--config", "c.yaml"), "E-CONFIG: Unknown setting 'learning_rat' in c.yaml"),
        (
            ("study", "plan", "smoke", "--set", "learning_rat=3"),
            "E-CONFIG: Unknown setting 'learning_rat' in --set",
        ),
        (("study", "run", "smoke", "--sed", "3"), "No such option '--sed'"),
        (("audit", "--modl", "demo"), "No such option '--modl'"),
        (("predict", "--modl", "demo"), "No such option '--modl'"),
        (("report", "--ot", "x"), "No such option '--ot'"),
        (("templates", "lint", "--ot", "x"), "No such option '--ot'"),
    ],
)
def test_typo_of_an_option_does_not_import_torch(arguments, words, tmp_path):
    (tmp_path / "c.yaml").write_text("learning_rat: 3\n")
    command = [sys.executable, "-c", SCRIPT, *arguments]
    found = subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                           capture_output=True, text=True)  # fmt: skip
    assert found.returncode == 2, found.stderr
    assert words in found.stderr
    has_torch, seconds = found.stdout.split()
    assert has_torch == "False"
    assert float(seconds) < 3
