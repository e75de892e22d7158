"""The trie has one node per distinct prefix, with positions and visibility checked against a set of prefixes."""

import numpy as np
from hypothesis import given, settings

from flip_flop.scoring.trie import build_trie, join, shared_beginning
from tests.scoring.tries import batches, batches_with_a_common_beginning, expected_prefixes, joined, words

# 2 templates, 3 labels; the second label of the second template has another prompt.
EXAMPLE = [
    [((1, 2, 3), (4,)), ((1, 2, 3), (5, 6)), ((1, 2, 3), (5, 7, 8))],
    [((1, 2), (3, 9)), ((1, 4, 4), (1,)), ((1, 2), (6, 1))],
]


def test_trie_of_example():
    trie = build_trie(EXAMPLE)
    # (1, 2, 3) is also the input of the answer (3, 9), and (1, 2, 6) of (6, 1).
    assert words(trie) == [(1,), (1, 2), (1, 2, 3), (1, 2, 3, 5), (1, 2, 3, 5, 7), (1, 2, 6), (1, 4), (1, 4, 4)]
    assert trie.depth.tolist() == [0, 1, 2, 3, 4, 2, 1, 2]
    assert trie.leave.tolist() == [8, 6, 5, 5, 5, 6, 8, 8]
    assert trie.token_node.tolist() == [2, *[2, 3], *[2, 3, 4], *[1, 2], 7, *[1, 5]]
    assert trie.token_target.tolist() == [4, 5, 6, 5, 7, 8, 3, 9, 1, 6, 1]
    assert trie.token_counts.tolist() == [[[1, 2, 3], [2, 1, 2]]]


@given(batches())
def test_one_node_per_distinct_prefix(batch):
    trie = joined(batch)
    assert sorted(words(trie)) == sorted(word for answers in batch for word in expected_prefixes(answers))
    assert trie.depth.tolist() == [len(word) - 1 for word in words(trie)]


@settings(max_examples=60)
@given(batches_with_a_common_beginning())
def test_joined_tries_keep_visibility_positions_and_targets(batch):
    tries = [build_trie(answers) for answers in batch]
    for shared in range(shared_beginning(tries) + 1):
        trie = join(tries, shared)
        assert len(trie) == sum(len(each) - shared for each in tries) + shared
        spelt = words(trie)
        # Visibility: the nodes that an attention mask shows are the node and its ancestors.
        nodes = np.arange(len(trie))
        is_seen = (nodes <= nodes[:, None]) & (nodes[:, None] < trie.leave)
        assert [np.flatnonzero(row).tolist() for row in is_seen] == [[*trie.ancestors(node), node] for node in nodes]
        assert trie.depth.tolist() == [len(word) - 1 for word in spelt]
        # Targets: each answer token is predicted after its own prompt and the tokens before it.
        pairs = [pair for answers in batch for template in answers for pair in template]
        contexts = [prompt + answer[:at] for prompt, answer in pairs for at in range(len(answer))]
        assert [spelt[node] for node in trie.token_node] == contexts
        assert trie.token_target.tolist() == [token for _, answer in pairs for token in answer]
