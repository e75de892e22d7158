"""The site's pages that are not under docs/, its links, and its navigation: a hook of mkdocs, for `make docs`.

README.md is the front page as it stands. The pages of metrics and methods are written from METRICS and METHODS; their
formulas are those of the functions' docstrings.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from flip_flop import _MODULES
from flip_flop.method import METHODS
from flip_flop.metrics import METRICS

ROOT = Path(__file__).parents[1]
# Pages of the repository, by their place on the site; those in docs/ keep their names.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks/how.md",
    "benchmarks/RESULTS.md": "benchmarks/results.md",
    **{f"docs/{path.name}": path.name for path in sorted((ROOT / "docs").glob("*.md"))},
}
# The functions whose docstrings define a metric or a method: formula, source, an example.
_F1 = "metrics.f1.f1_per_template"
METRIC_DEFINITIONS = {
    "observed_agreement": ["metrics.agreement.observed_agreement", "metrics.agreement.instance_agreement"],
    "mean_f1": [_F1],
    "f1_std": ["metrics.table._spread", _F1],
    "macro_f1": [_F1],
    "accuracy": ["metrics.f1.accuracy_per_template"],
    "vote_f1": ["metrics.agreement.majority_vote", _F1],
    "vote_accuracy": ["metrics.agreement.majority_vote", "metrics.f1.accuracy_per_template"],
    "no_consensus_share": ["metrics.agreement.lacks_consensus"],
    "fleiss_kappa": ["metrics.agreement._kappa", "metrics.agreement.instance_agreement"],
    "posix": ["metrics.agreement.instance_posix"],
    "f1_spread": ["metrics.table._spread", _F1],
    "ensemble_f1": ["metrics.agreement.label_probs", _F1],
    "fragile_share": ["metrics.fragility.fragile_answers"],
    "fragile_vote_share": ["metrics.fragility.fragile_votes"],
}
METHOD_DEFINITIONS = {
    "swarm": ["method.swarm.swarm_loss", "method.swarm.swarm_teachers", "method.swarm.swarm_mixture_loss"],
    "cce": ["method.losses.cce_loss", "method.consensus.find_consensus"],
    "f2c": [
        *("method.losses.f2c_loss", "method.losses.cce_loss", "method.losses.jsd_loss", "method.losses.flip_loss"),
        *("method.consensus.find_consensus", "method.controls.split_templates"),
    ],
}


def written_pages() -> dict[str, str]:
    """The pages that no file holds, by their place on the site: Markdown."""
    pages = {f"metrics/{name}.md": metric_page(name) for name in METRICS}
    pages |= {f"methods/{name}.md": method_page(name) for name in METHODS}
    rows = [f"| [{each.title}]({name}.md) | `{name}` | {each.meaning} |" for name, each in METRICS.items()]
    pages["metrics/index.md"] = "\n".join(["# Metrics", "", "| metric | key | what it is |", "|---|---|---|", *rows])
    rows = [f"- [{each.title}]({name}.md)" for name, each in METHODS.items()]
    pages["methods/index.md"] = "\n".join(["# Methods", "", "`flip-flop train --method` takes:", "", *rows])
    names = [f"::: flip_flop.{module}.{name}" for module, names in _MODULES.items() for name in names]
    pages["python.md"] = "\n\n".join(["# Python", "What `from flip_flop import ...` gives.", *names])
    return pages


def metric_page(name: str) -> str:
    """A metric's page, from its entry in METRICS."""
    metric = METRICS[name]
    facts = {
        "key": f"`{name}` in `metrics.json`" + (", `--fail-under`" if metric.higher_is_better else ""),
        "better": "higher" if metric.higher_is_better else "lower",
        "shown": "in percent" if metric.in_percent else "as it is",
        "of": "the instances with a gold label" if metric.needs_gold else "all instances",
        "interval": "95 %, by the bootstrap over instances" if metric.has_interval else "none",
    }
    return _page(metric.title, metric.meaning, facts, METRIC_DEFINITIONS[name])


def method_page(name: str) -> str:
    """A method's page, from its entry in METHODS."""
    method = METHODS[name]
    facts = {
        "setting": f"`--method {name}`",
        "without a strict majority": "the loss is 0" if method.needs_consensus else "it learns all the same",
    }
    return _page(
        method.title, "The loss of one instance, in nats; a step's is the mean.", facts, METHOD_DEFINITIONS[name]
    )


def _page(title: str, meaning: str, facts: dict[str, str], definitions: list[str]) -> str:
    listed = "\n".join(f"- **{key}**: {value}" for key, value in facts.items())
    entries = [f"::: flip_flop.{definition}\n    options: {{heading_level: 3}}" for definition in definitions]
    return "\n\n".join([f"# {title}", meaning, listed, "## Definition", *entries]) + "\n"


def on_config(config: Any) -> Any:
    """The navigation, from the tables."""
    metrics = ["metrics/index.md", *({each.title: f"metrics/{name}.md"} for name, each in METRICS.items())]
    methods = ["methods/index.md", *({each.title: f"methods/{name}.md"} for name, each in METHODS.items())]
    own = [
        "architecture.md",
        "extend.md",
        "decisions.md",
        "log_keys.md",
        "errors.md",
        "contributing.md",
        "changelog.md",
    ]
    others = [page for page in PAGES.values() if page not in (*own, "index.md")]
    config.nav = [{"Home": "index.md"}, {"Metrics": metrics}, {"Methods": methods}, {"Python": "python.md"}]
    config.nav += [{"How it works": own}, {"Evidence": others}]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not under docs/."""
    from mkdocs.structure.files import File

    texts = {place: (ROOT / path).read_text(encoding="utf-8") for path, place in PAGES.items() if path[:5] != "docs/"}
    for place, text in (texts | written_pages()).items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **more: Any) -> str:
    """Links between the repository's files, as links of the site."""
    place = page.file.src_uri
    path = next((path for path, at in PAGES.items() if at == place), None)
    return markdown if path is None else site_links(markdown, path)


def site_links(markdown: str, path: str) -> str:
    """The Markdown of the repository's file ``path`` with links of the site; a link to no page becomes its text."""
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
