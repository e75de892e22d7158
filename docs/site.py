"""Write the generated reference, or with a folder the pages of the site: python docs/site.py [FOLDER].

`make reference` replaces the text between ``<!-- generated: errors -->`` and ``<!-- end of generated text -->`` by a
table from the source. `make docs` writes the pages before mkdocs reads them: README.md is the front page, metrics have
a page each, and the pages of methods end with the formulas in the docstrings.
"""

import posixpath
import re
import runpy
import shutil
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from flip_flop import _MODULES
from flip_flop.cli.main import cli
from flip_flop.errors import error_table
from flip_flop.metrics import AXES, METRICS
from flip_flop.training.settings import TrainingSettings

ROOT = Path(__file__).parents[1]
# Paths in the repository and on the site. Pages in docs/ keep their paths.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks/how.md",
    "evidence/RESULTS.md": "results.md",
    "benchmarks/RESULTS.md": "benchmarks/results.md",
    "benchmarks/ARCHITECTURES.md": "benchmarks/architectures.md",
    **{
        f"docs/{path}": path
        for path in sorted(str(each.relative_to(ROOT / "docs")) for each in (ROOT / "docs").rglob("*.md"))
    },
}
# Functions whose docstrings define a metric or the methods of a page: formula, source, example.
_F1 = "metrics.f1.f1_per_template"
METRIC_DEFINITIONS = {
    "observed_agreement": ["metrics.agreement.observed_agreement", "metrics.agreement.instance_agreement"],
    "mean_f1": [_F1],
    "f1_std": ["metrics.table._over_templates", _F1],
    "macro_f1": [_F1],
    "accuracy": ["metrics.f1.accuracy_per_template"],
    "vote_f1": ["metrics.agreement.majority_vote", _F1],
    "vote_accuracy": ["metrics.agreement.majority_vote", "metrics.f1.accuracy_per_template"],
    "no_consensus_share": ["metrics.agreement.lacks_consensus"],
    "fleiss_kappa": ["metrics.agreement._kappa", "metrics.agreement.instance_agreement"],
    "posix": ["metrics.agreement.instance_posix"],
    "f1_spread": ["metrics.table._over_templates", _F1],
    "ensemble_f1": ["metrics.agreement.label_probs", _F1],
    "ece": ["metrics.certainty.calibration_error_per_template", "metrics.certainty.reliability"],
    "brier": ["metrics.probabilities.brier_scores"],
    "ensemble_brier": ["metrics.probabilities.ensemble_probs", "metrics.probabilities.brier_scores"],
    "nll": ["metrics.probabilities.log_losses"],
    "ensemble_nll": ["metrics.probabilities.ensemble_probs", "metrics.probabilities.log_losses"],
    "temperature": ["metrics.probabilities.temperature"],
    "decidable_share": ["metrics.certainty.decidable", "metrics.certainty.risk_coverage"],
    **{f"{axis}_flips": ["metrics.agreement.group_flips", "metrics.agreement.count_flips"] for axis in AXES},
    "cohen_kappa": ["metrics.f1._kappas"],
    "vote_kappa": ["metrics.agreement.majority_vote", "metrics.f1._kappas"],
    "token_f1": ["reading.texts.token_f1", "reading.texts.text_key"],
    "unmapped_share": ["reading.numbers.numbers"],
    "distinct_answers": ["reading.texts.text_key", "reading.numbers.numbers"],
    "answer_length": ["open_answers.generation.group_answers"],
}
METHOD_DEFINITIONS = {
    "swarm": ["method.others.swarm_loss", "method.others.swarm_teachers"],
    "cce": ["method.losses.cce_loss", "method.algorithm.find_consensus"],
    "f2c": [
        *("method.losses.f2c_loss", "method.losses.cce_loss", "method.losses.jsd_loss", "method.losses.flip_loss"),
        *("method.algorithm.find_consensus", "method.algorithm.split_templates"),
    ],
    "others": [
        *("method.others.bct_terms", "method.others.opct_terms", "method.others.ttrl_terms"),
        *("method.others.cpc_grpo_terms", "method.others.swarm_l2_terms", "method.others.marginal_entropy_terms"),
        *("method.others.gold_nll", "method.others.paft_terms", "method.others.ppcl_terms"),
        *("paper.release.f2c_loss", "paper.release.swarm_terms"),
    ],
}


def written_pages() -> dict[str, str]:
    """The Markdown of pages without a file, by their path on the site."""
    pages = {f"metrics/{name}.md": metric_page(name) for name in METRICS}
    names = [f"::: flip_flop.{module}.{name}" for module, names in _MODULES.items() for name in names]
    names[names.index("::: flip_flop.evaluation.run_directory.Audit")] += "\n    options: {inherited_members: true}"
    return pages | {
        "python.md": "\n\n".join(["# Python", "The names that `from flip_flop import ...` provides.", *names])
    }


def metric_page(name: str) -> str:
    """The page of a metric, from its entry in METRICS."""
    metric = METRICS[name]
    facts = {
        "key": f"`{name}` in `metrics.json`" + (", `--fail-under`" if metric.higher_is_better else ""),
        "better": {True: "higher", False: "lower", None: "neither"}[metric.higher_is_better],
        "shown": "in percent" if metric.in_percent else "as stored",
        "instances": "those with a gold label" if metric.needs_gold else "all",
        "interval": "95 %, bootstrap over instances" if metric.has_interval else "none",
    }
    listed = "\n".join(f"- **{key}**: {value}" for key, value in facts.items())
    return f"# {metric.title}\n\n{metric.meaning}\n\n{listed}\n\n" + definitions(METRIC_DEFINITIONS[name])


def definitions(names: list[str]) -> str:
    """A section with the docstrings of functions."""
    entries = [f"::: flip_flop.{name}\n    options: {{heading_level: 3}}" for name in names]
    return "\n\n".join(["## Definition", *entries]) + "\n"


def error_rows() -> str:
    """The table of error and warning codes."""
    rows = [f"| `{code}` | {entry['what']} | {entry['fix']} |" for code, entry in sorted(error_table().items())]
    return "\n".join(["| code | meaning | fix |", "|---|---|---|", *rows]).replace("|||", r"\|\|\|")


def setting_rows() -> str:
    """The table of training settings, with the defaults of each protocol."""
    rows = []
    for item in fields(TrainingSettings):
        bundles = [item.metadata.get(protocol, item.default) for protocol in ("recommended", "paper", "release")]
        cells = [f"`{value}`" for value in bundles] if len(set(map(str, bundles))) > 1 else [f"`{bundles[0]}`", "", ""]
        rows.append(f"| `{item.name}` | {item.metadata['help']} | {' | '.join(cells)} |".replace("||", r"\|\|"))
    return "\n".join(["| setting | meaning | default | paper | release |", "|---|---|---|---|---|", *rows])


def command_sections() -> str:
    """The help of every command."""
    sections = []
    for name, command in commands("flip-flop", cli):
        context = click.Context(command, info_name=name, terminal_width=100, help_option_names=["-h", "--help"])
        command._help_option = None  # click keeps the option of an earlier context, which may have had other names
        sections.append(f"## {name}\n\n```text\n{command.get_help(context)}\n```")
    return "\n\n".join(sections)


def commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """A command and its subcommands, with their full names."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=name)
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None
            yield from commands(f"{name} {each}", found)


GENERATED = {"errors": error_rows, "settings": setting_rows, "commands": command_sections}
END = "<!-- end of generated text -->"
REFERENCE = [ROOT / "docs" / "reference" / name for name in ("cli.md", "settings.md", "errors.md")]


def with_reference(markdown: str) -> str:
    """The Markdown of a page with its generated sections as the source has them now."""
    for name, section in GENERATED.items():
        start = f"<!-- generated: {name} -->"
        before, comment, rest = markdown.partition(start)
        if comment:
            markdown = f"{before}{start}\n\n{section()}\n\n{END}{rest.partition(END)[2]}"
    return markdown


def write_reference() -> None:
    """Write the generated sections into the pages of the repository."""
    for path in REFERENCE:
        path.write_text(with_reference(path.read_text(encoding="utf-8")), encoding="utf-8")


def write_pages(folder: Path) -> None:
    """Write all pages and pictures into a new folder. mkdocs.yml has their navigation."""
    mathml = runpy.run_path(str(ROOT / "docs" / "docstrings.py"))["mathml"]
    texts = {place: complete((ROOT / path).read_text(encoding="utf-8"), path, mathml) for path, place in PAGES.items()}
    shutil.rmtree(folder, ignore_errors=True)
    for place, text in (texts | written_pages()).items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text, encoding="utf-8")
    for picture in [*(ROOT / "docs").glob("*.svg"), *(ROOT / "docs").glob("*.png")]:
        shutil.copy(picture, folder)


def complete(markdown: str, path: str, mathml: Any = None) -> str:
    """The Markdown of a page with MathML for formulas, and links of the site."""
    text = site_links(markdown, path)
    if mathml:
        text = re.sub(r"```math\n(.*?)```", lambda found: mathml(found[1], "block"), text, flags=re.DOTALL)
    defined = METHOD_DEFINITIONS.get(path.removeprefix("docs/methods/").removesuffix(".md"))
    return f"{text}\n\n{definitions(defined)}" if defined else text


def site_links(markdown: str, path: str) -> str:
    """The Markdown of a file with links of the site. A link to a file outside the site becomes its text."""
    here = posixpath.dirname(PAGES[path])

    def link(found: re.Match[str]) -> str:
        mark, text, target = found.groups()
        target, hash_sign, anchor = target.partition("#")
        if ":" in target or not target:
            return found[0]
        aim = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        on_site = PAGES.get(aim, aim.removeprefix("docs/") if mark and aim.startswith("docs/") else None)
        return (
            text if on_site is None else f"{mark}[{text}]({posixpath.relpath(on_site, here or '.')}{hash_sign}{anchor})"
        )

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(
        part if number % 2 else re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", link, part)
        for number, part in enumerate(parts)
    )


if __name__ == "__main__":
    if sys.argv[1:]:
        write_pages(Path(sys.argv[1]))
    else:
        write_reference()
