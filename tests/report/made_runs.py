"""Generated run directories with the shapes and magnitudes of real audits."""

import numpy as np

from flip_flop.evaluation.result import Audit
from flip_flop.metrics import Scores, summarise
from flip_flop.open_answers.generation import group_answers
from flip_flop.prompts import OpenAnswers, RenderedInstance
from flip_flop.reading import AnswerFormat
from flip_flop.record import RunRecord

TEMPLATES = (
    ("plain", "Review: {{ text }}\nIs this review positive?", "No ||| Yes"),
    ("true_false", "{{ text }}\nThe customer is content. True or false?", "False ||| True"),
    ("good_bad", "How does this sound?\n{{ text }}", "bad ||| good"),
    ("polarity", "Sentiment of the following text.\n{{ text }}\nSentiment:", "negative ||| positive"),
    ("lower_case", "{{ text | lower }}\nwould you recommend it?", "no ||| yes"),
    ("reversed", "{{ text }}\nIs the customer disappointed?", "Yes ||| No"),
    ("mood", "The writer of this is in a certain mood: {{ text }}\nMood:", "sad ||| happy"),
    ("verdict", "{{ text }}\nVerdict in one word:", "Terrible ||| Great"),
)

NAMES, FORM = ("plain", "formal", "terse", "long"), AnswerFormat("number")  # of open answers


def make_scores(seed, num_instances, num_templates, num_labels, pull, shift=0.0):
    """Scores and gold labels; ``pull`` is the share of the templates' common signal."""
    random = np.random.default_rng(seed)
    truth = random.normal(size=(num_instances, 1, num_labels))
    private = random.normal(size=(num_instances, num_templates, num_labels))
    bias = random.normal(size=(1, num_templates, num_labels)) * 0.45
    noise = np.linspace(0.12, 0.8, num_templates)[None, :, None]
    common = truth + 0.12 * random.normal(size=truth.shape)
    logits = common + (1 - pull) * (noise * private + bias)
    logits[..., 0] += shift
    scores = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)) - 1.3
    return scores.astype(np.float32), truth[:, 0].argmax(axis=-1).astype(np.int64)


def write_run(folder, name, scores, gold, templates, *, labels, method=None, **extra):
    names = tuple(template[0] for template in templates)
    levels = extra.get("levels", ())
    ids = tuple(f"test-{i:04d}" for i in range(len(scores)))
    adapter = {"path": f"demo/train-{method}/adapter", "digest": "9e" * 32, "method": method} if method else None
    command = f"flip-flop audit --model demo/model --task demo --out demo/{name}"
    written = []
    for index, (template, jinja, choices) in enumerate(templates):
        written.append({"name": template, "jinja": jinja, "answer_choices": choices, "digest": "ab" * 32})
        if levels:
            written[-1]["levels"] = levels[index]
    task = {
        "name": extra.get("task", "demo_reviews"),
        "labels": list(labels),
        "label_names": list(extra.get("label_names", ())),
        "digest": extra.get("digest", "4d1f" * 16),
        "split": extra.get("split", "test"),
        "instances_digest": extra.get("instances_digest", ""),
        "has_gold": bool((gold >= 0).all()),
        "templates": written,
    }
    task |= {
        "f1": "binary" if scores.shape[2] == 2 else "macro",
        "data": {"source": "embedded", "sha256": "77" * 32},
        "held_out_templates": list(extra.get("held_out", ())),
    }
    model = {
        "name": extra.get("model", "demo/model"),
        "digest": extra.get("model_digest", "c0ffee" * 10 + "c0ff"),
        "dtype": extra.get("dtype", "float32"),
        "is_demo": extra.get("is_demo", True),
    }
    record = {
        "kind": "audit",
        "flip_flop_version": "0.1.0",
        "command": command + (f" --adapter {adapter['path']}" if adapter else ""),
        "name": name,
        "task": task,
        "model": model,
        "adapter": adapter,
        "scoring": {"delimiter": " ", "chat_template": False, "backend": "padded", "bos": False},
        "seed": 0,
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "seconds": 900,
        "training": {"method": method, "seconds": 17.2, "learning_rate": 3e-4} if method else None,
    }
    instances = []
    choices = tuple(tuple(choice.strip() for choice in words.split("|||")) for _, _, words in templates)
    for instance in ids:
        text = extra.get("text", f"The kettle of {instance} is sturdy, and its handle is clumsy.")
        prompts = (jinja.replace("{{ text }}", text).replace("{{ text | lower }}", text) for _, jinja, _ in templates)
        instances.append(RenderedInstance(instance, tuple(prompts), choices, label=None))
    found = Audit(
        record=RunRecord(**record),
        metrics=summarise(scores, gold, names, levels=levels),
        data=Scores(scores, gold, token_counts=np.ones(scores.shape, dtype=np.int64), ids=ids),
        instances=instances,
        template_names=names,
    )
    return found.write(folder)


def wide_run(folder, name="base", num_templates=50, num_labels=2, pull=0.0):
    """An audit of many templates or labels."""
    labels = [f"intent_{label}" for label in range(num_labels)]
    templates = [(f"template_{index}", "{{ text }}", " ||| ".join(labels)) for index in range(num_templates)]
    return write_run(folder, name, *make_scores(1, 60, num_templates, num_labels, pull), templates, labels=labels)


def demo_runs(root):
    """Four audits of the demo's shape, and two of its held-out templates."""
    labels = ("negative", "positive")
    runs = []
    for name, pull in (("base", 0.0), ("swarm", 0.35), ("cce", 0.8), ("f2c", 0.82)):
        scores, gold = make_scores(1, 300, 8, 2, pull)
        method = None if name == "base" else name
        runs.append(write_run(root / name, name, scores, gold, TEMPLATES, labels=labels, method=method))
    held = [
        ("held_wrong", "{{ text }}\nWas it right to buy it?", "wrong ||| right"),
        ("held_down", "{{ text }}\nThumbs:", "down ||| up"),
        ("held_never", "{{ text }}\nAgain?", "Never ||| Sure"),
    ]
    for name, pull in (("base", 0.0), ("f2c", 0.2)):
        scores, gold = make_scores(7, 300, 3, 2, pull)
        folder = root / f"{name}-held"
        options = {"method": None if name == "base" else name, "held_out": [row[0] for row in held]}
        runs.append(write_run(folder, name, scores, gold, held, labels=labels, **options))
    return runs


HOSTILE = "</script><b>bold\u202e\x1b[31m</b>&\"'"


def hostile_runs(root):
    """Two audits of three labels without gold labels, with names that try to break the page."""
    templates = [(f"{HOSTILE}{index}", "{{ text }}" + HOSTILE, f"a ||| {HOSTILE} ||| c") for index in range(5)]
    labels = ("entail", HOSTILE, "neutral")
    runs = []
    for name, pull in (("before", 0.1), (HOSTILE, 0.7)):
        scores, _ = make_scores(3, 90, 5, 3, pull)
        gold = np.full(90, -1, dtype=np.int64)
        options = {"task": HOSTILE, "model": HOSTILE, "text": HOSTILE, "is_demo": False, "digest": "1a" * 32}
        runs.append(write_run(root / f"hostile{pull}", name, scores, gold, templates, labels=labels, **options))
    return runs


def open_run(folder, texts, references, name="base", sha="ab" * 32, **record):
    """Write the audit of these generated texts."""
    instances = [
        RenderedInstance(f"row-{row:03d}", tuple(f"{template}: question {row}" for template in NAMES),
                         (("",) * (1 + len(NAMES)),) * len(NAMES), None,
                         open=OpenAnswers(FORM, references=tuple(right)))
        for row, right in enumerate(references)
    ]  # fmt: skip
    scored = group_answers(instances, ((text, "") for written in texts for text in written), {})
    data = scored.scores
    task = {"name": "sums", "split": "test", "digest": "4d" * 32, "answer": {"kind": "number"}, "f1": "macro"}
    task |= {"labels": list(range(5)), "data": {"source": "rows.jsonl", "sha256": sha}}
    task["templates"] = [{"name": name, "jinja": f"{name}: {{{{ text }}}}"} for name in NAMES]
    adapter = {"adapter": {"path": "x", "method": "f2c"}} if name == "f2c" else {}
    content = {"kind": "audit", "name": name, "task": task, "model": {"name": "tiny"}, "scoring": {"by": "generation"}}
    metrics = summarise(data.values, data.gold, NAMES, answered=data.answered)
    Audit(RunRecord(**(content | adapter | record)), metrics, data, NAMES, instances=scored.instances).write(folder)
    return folder
