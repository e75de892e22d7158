"""The trie holds each distinct beginning once, and knows of each where it stands; against a set of prefixes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flip_flop.scoring.answers import index_answers
from flip_flop.scoring.trie import build_trie, join
from tests.scoring.tries import batches, expected_prefixes, instances, joined, path, prefixes, spelled

# 2 templates, 3 labels; the second label of the second template has a prompt of its own.
EXAMPLE = [
    [((1, 2, 3), (4,)), ((1, 2, 3), (5, 6)), ((1, 2, 3), (5, 7, 8))],
    [((1, 2), (3, 9)), ((1, 4, 4), (1,)), ((1, 2), (6, 1))],
]


def words(trie):
    return [word[1:] for word in spelled(trie)]


def test_an_example_by_hand():
    trie = build_trie(EXAMPLE)
    assert trie.num_trunk == 5
    assert set(words(trie)[:5]) == {(1,), (1, 2), (1, 2, 3), (1, 4), (1, 4, 4)}
    # (1, 2, 3) is also what the answer (3, 9) reads, and (1, 2, 6) what (6, 1) does.
    assert set(words(trie)[5:]) == {(1, 2, 3, 5), (1, 2, 3, 5, 7), (1, 2, 6)}
    at = [words(trie)[node] for node in trie.token_node]
    assert at == [
        (1, 2, 3),
        *[(1, 2, 3), (1, 2, 3, 5)],
        *[(1, 2, 3), (1, 2, 3, 5), (1, 2, 3, 5, 7)],
        *[(1, 2), (1, 2, 3)],
        (1, 4, 4),
        *[(1, 2), (1, 2, 6)],
    ]
    assert trie.token_target.tolist() == [4, 5, 6, 5, 7, 8, 3, 9, 1, 6, 1]
    assert trie.token_counts.tolist() == [[[1, 2, 3], [2, 1, 2]]]


@given(instances())
def test_there_is_one_node_for_each_distinct_prefix_and_the_trunk_is_the_prompts(answers):
    trie = build_trie(answers)
    trunk, branches = expected_prefixes(answers)
    spelt = words(trie)
    assert len(spelt) == len(set(spelt)) == len(trunk) + len(branches)
    assert set(spelt[: trie.num_trunk]) == trunk
    assert set(spelt[trie.num_trunk :]) == branches
    assert trie.num_branch == len(branches)


@given(batches())
def test_parents_stand_before_children_and_depths_count_them(batch):
    trie = joined(batch)
    assert all(trie.parent[node] < node for node in range(len(trie)))
    assert all(trie.parent[node] < trie.num_trunk for node in range(trie.num_trunk))
    assert trie.depth.tolist() == [len(word) - 1 for word in words(trie)]


@given(batches())
def test_enter_and_leave_tell_whether_one_node_stands_before_another(batch):
    trie = joined(batch)
    before = [set(path(trie, node)) for node in range(len(trie))]
    assert sorted(trie.enter.tolist()) == list(range(len(trie)))
    for a in range(len(trie)):
        for b in range(len(trie)):
            assert (trie.enter[a] <= trie.enter[b] < trie.leave[a]) == (a in before[b])


@given(batches())
def test_each_answer_token_is_predicted_by_what_stands_before_it(batch):
    trie = joined(batch)
    expected, targets, counts = [], [], []
    for answers in batch:
        for template in answers:
            for prompt, answer in template:
                expected += [prompt + answer[:j] for j in range(len(answer))]
                targets += answer
                counts.append(len(answer))
    assert [words(trie)[node] for node in trie.token_node] == expected
    assert trie.token_target.tolist() == targets
    assert trie.token_counts.shape == (len(batch), len(batch[0]), len(batch[0][0]))
    assert trie.token_counts.ravel().tolist() == counts


@given(batches())
def test_instances_side_by_side_keep_their_nodes_and_do_not_see_each_other(batch):
    trie = joined(batch)
    own = [expected_prefixes(answers) for answers in batch]
    assert len(trie) == sum(len(trunk) + len(branches) for trunk, branches in own)
    assert trie.num_trunk == sum(len(trunk) for trunk, _ in own)
    assert sorted(words(trie)[: trie.num_trunk]) == sorted(word for trunk, _ in own for word in trunk)
    owner = np.repeat(np.arange(len(batch)), trie.token_counts.sum(axis=(1, 2)))
    roots = {}
    for node, instance in zip(trie.token_node, owner, strict=True):
        roots.setdefault(path(trie, int(node))[0], set()).add(int(instance))
    assert all(len(seen_by) == 1 for seen_by in roots.values())


def test_one_instance_joined_is_itself():
    trie = build_trie(EXAMPLE)
    assert join([trie]) is trie


@given(batches(), st.data())
def test_the_branches_of_some_answers_are_what_they_have_beyond_the_prompts(batch, data):
    trie = joined(batch)
    num_labels = len(batch[0][0])
    choice = st.none() | st.integers(0, num_labels - 1)
    labels = data.draw(st.lists(choice, min_size=len(batch), max_size=len(batch)))
    spelt, roots = words(trie), _instance_of_root(trie, batch)
    expected = set()
    for number, (answers, label) in enumerate(zip(batch, labels, strict=True)):
        if label is None:
            continue
        trunk, _ = expected_prefixes(answers)
        for template in answers:
            prompt, answer = template[label]
            expected |= {(number, word) for word in prefixes(prompt + answer[:-1]) - trunk}
    found = trie.answer_branches(labels)
    assert sorted(found.tolist()) == found.tolist()
    assert {(roots[path(trie, node)[0]], spelt[node]) for node in found.tolist()} == expected
    assert len(found) == len(expected)


def _instance_of_root(trie, batch):
    owner = np.repeat(np.arange(len(batch)), trie.token_counts.sum(axis=(1, 2)))
    return {path(trie, int(node))[0]: int(number) for node, number in zip(trie.token_node, owner, strict=True)}


@given(batches(), st.data())
def test_the_trunk_with_some_branches_reads_the_same_words(batch, data):
    trie = joined(batch)
    labels = data.draw(st.lists(st.integers(0, len(batch[0][0]) - 1), min_size=len(batch), max_size=len(batch)))
    nodes = trie.answer_branches(labels)
    part = trie.with_branches(nodes)
    kept = [*range(trie.num_trunk), *nodes.tolist()]
    assert part.num_trunk == trie.num_trunk
    assert words(part) == [words(trie)[node] for node in kept]
    assert part.depth.tolist() == trie.depth[kept].tolist()
    before = [set(path(part, node)) for node in range(len(part))]
    for a in range(len(part)):
        for b in range(len(part)):
            assert (part.enter[a] <= part.enter[b] < part.leave[a]) == (a in before[b])


@given(batches())
def test_the_sequences_are_those_that_begin_no_other_and_hold_every_node(batch):
    trie = joined(batch)
    sequences, sequence_of = trie.sequences(np.arange(len(trie)))
    expected = []
    for answers in batch:
        trunk, branches = expected_prefixes(answers)
        every = trunk | branches
        expected += [word for word in every if not any(other[:-1] == word for other in every)]
    assert sorted(map(tuple, sequences)) == sorted(expected)
    for node, word in enumerate(words(trie)):
        assert tuple(sequences[sequence_of[node]][: len(word)]) == word
    # Twins in two instances spell alike: each node is found in a sequence of its own instance.
    leaf_root = [path(trie, leaf)[0] for leaf in sorted(_leaves(trie), key=lambda leaf: trie.enter[leaf])]
    assert [leaf_root[number] for number in sequence_of] == [path(trie, node)[0] for node in range(len(trie))]


@given(batches(), st.data())
def test_the_sequences_of_some_nodes_end_at_those_that_begin_no_other(batch, data):
    trie = joined(batch)
    numbers = st.lists(st.integers(0, len(trie) - 1), min_size=1, unique=True)
    nodes = np.array(data.draw(numbers))
    sequences, sequence_of = trie.sequences(nodes)
    paths = {node: path(trie, node) for node in nodes.tolist()}
    ends = [node for node in paths if not any(node in other[:-1] for other in paths.values())]
    assert sorted(sequences) == sorted([int(trie.ids[step]) for step in paths[end]] for end in ends)
    for node, number in zip(nodes.tolist(), sequence_of, strict=True):
        assert sequences[number][: trie.depth[node] + 1] == [int(trie.ids[step]) for step in paths[node]]


def _leaves(trie):
    return set(range(len(trie))) - set(trie.parent.tolist())


@given(batches())
def test_answers_that_are_read_from_one_node_share_a_row(batch):
    trie = joined(batch)
    index, row_node = index_answers(trie)
    assert row_node.tolist() == sorted(set(trie.token_node.tolist()))
    assert row_node[index.token_row.numpy()].tolist() == trie.token_node.tolist()
    owners = np.repeat(np.arange(trie.token_counts.size), trie.token_counts.ravel())
    assert index.token_owner.tolist() == owners.tolist()


@pytest.mark.parametrize("label", [None, 1])
def test_the_index_of_one_instance_has_its_answers_alone(label):

    other = [[((5,), (5, 5)), ((5,), (6,)), ((7, 5), (1, 1, 1))], [((5, 1), (2,)), ((5,), (3, 3)), ((8,), (4,))]]
    trie = joined([other, EXAMPLE])
    index, row_node = index_answers(trie)
    mine = index.of(1, label)
    spelt = words(trie)
    chosen = [pair for template in EXAMPLE for pair in (template if label is None else template[label : label + 1])]
    expected = [prompt + answer[:j] for prompt, answer in chosen for j in range(len(answer))]
    assert [spelt[row_node[row]] for row in mine.token_row] == expected
    assert mine.token_target.tolist() == [token for _, answer in chosen for token in answer]
    assert mine.token_counts.shape == (1, 2, 3 if label is None else 1)
    assert mine.token_counts.ravel().tolist() == [len(answer) for _, answer in chosen]
