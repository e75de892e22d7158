"""Random and fixed instances in tokens, and the expected contents of their tries as plain prefixes."""

import numpy as np
from hypothesis import strategies as st

from flip_flop.scoring.trie import EncodedAnswer, build_trie

# Few tokens, so that sequences share beginnings of every length.
TOKEN = st.integers(1, 3)


def sequences(most):
    return st.lists(TOKEN, min_size=1, max_size=most).map(tuple)


@st.composite
def instances(draw, templates=3, labels=2, longest=6):
    """``[templates][labels]`` pairs; some templates give all their labels one prompt, others each its own."""
    answers = []
    for _ in range(templates):
        shared = draw(sequences(longest))
        own = draw(st.booleans())
        answers.append([(draw(sequences(longest)) if own else shared, draw(sequences(3))) for _ in range(labels)])
    return answers


@st.composite
def batches(draw, most=3):
    """One to three instances of the same shape."""
    templates, labels = draw(st.integers(1, 4)), draw(st.integers(2, 3))
    return draw(st.lists(instances(templates, labels), min_size=1, max_size=most))


@st.composite
def batches_with_a_common_beginning(draw, most=3):
    """One to three instances whose prompts start with the same tokens; some prompts have no others."""
    beginning = draw(sequences(3))
    batch = draw(batches(most))
    add_prompt = [draw(st.booleans()) for _ in batch[0]]
    return [
        [
            [(beginning + prompt * add, answer) for prompt, answer in template]
            for template, add in zip(answers, add_prompt, strict=True)
        ]
        for answers in batch
    ]


def merged(batch):
    return build_trie([[[EncodedAnswer(*pair) for pair in template] for template in answers] for answers in batch])


def prefixes(sequence):
    return {tuple(sequence[:length]) for length in range(1, len(sequence) + 1)}


def expected_prefixes(answers):
    """The distinct beginnings of the inputs."""
    return {word for template in answers for prompt, answer in template for word in prefixes(prompt + answer[:-1])}


def words(trie):
    """The tokens of the ancestors of each node, and its token."""
    return [tuple(trie.ids[[*trie.ancestors(node), node]].tolist()) for node in range(len(trie))]


def made_trie(prompts=(9, 4, 12), longest=5, count=2):
    """``count`` instances under 3 templates with 2 labels, that share beginnings of several lengths."""
    draw = np.random.default_rng(5)
    batch = []
    for number in range(count):
        words = draw.integers(1, 30, size=40).tolist()
        template_answers = []
        for template, length in enumerate(prompts):
            prompt = tuple(words[: length - 2] + draw.integers(1, 30, size=2).tolist())
            answers = [draw.integers(1, 30, size=1 + (template + label + number) % longest) for label in range(2)]
            template_answers.append([(prompt, tuple(answer.tolist())) for answer in answers])
        batch.append(template_answers)
    return merged(batch)


def relative(found, expected):
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm())
