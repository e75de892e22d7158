"""What is scored: nine template sets of the paper's shapes, in token ids that a seed makes.

A template is a line of *literals* and *fields*, before ``=>`` the prompt, behind it the answers, ``/`` between them.
``given:1`` is a literal of one token, the same ids wherever its name stands; ``premise`` is a field, drawn by instance.
So templates that begin alike share tokens as real ones do (of ANLI's 15, 7 begin with the premise, 2 with "Given" and 2
with "Given that"), and no text of any template is needed. Literals have the lengths that bring the token counts near
those of PromptSource's templates on word-level tokens; the fields' mean lengths are assumptions, not corpus statistics.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flip_flop.files import generator, sha256_json
from flip_flop.scoring.encode import EncodedAnswer, EncodedInstance

# Every model of these benchmarks has at least so many tokens: the same ids serve all of them.
VOCAB = 32_000
# Spread of a field's length: the standard deviation of its logarithm.
SIGMA = 0.35


@dataclass(frozen=True)
class Counts:
    """Tokens of one instance on average.

    Attributes:
        naive: Forwarded where each answer is a sequence of its own.
        unique: Where equal sequences are merged, as lm-eval does.
        label_shared: Where the labels of a template share its prompt.
        trie: Where everything that begins alike is shared.
        rows: Distinct positions that predict an answer's token.
    """

    naive: float
    unique: float
    label_shared: float
    trie: float
    rows: float


@dataclass(frozen=True)
class Shape:
    """A dataset's template set.

    Attributes:
        fields: Mean lengths in tokens.
        templates: Lines as above.
        expected: The counts that real templates have, to compare with.
    """

    fields: dict[str, float]
    templates: tuple[str, ...]
    expected: Counts


def _same(answers: str, *prompts: str) -> tuple[str, ...]:
    return tuple(f"{prompt} => {answers}" for prompt in prompts)


_NLI = (
    *_same(
        "yes:1 / maybe:1 / no:1",
        "premise only:11 hypothesis correct:13",
        "premise based:2 previous:8 hypothesis is-it:12",
        "premise based:2 that:5 hypothesis claim:16",
        "premise keeping:9 hypothesis keep:14",
        "premise question:3 hypothesis gpt:18",
        "premise question:3 imply:7 hypothesis does:13",
        "given:1 premise guaranteed:7 hypothesis g:14",
        "given:1 premise should:8 hypothesis s:15",
        "given:1 that:1 premise must:6 hypothesis m:15",
        "given:1 that:1 premise follow:8 hypothesis f:14",
        "suppose:1 premise infer:6 hypothesis i:15",
    ),
    "premise justified:8 hypothesis j:16 => yes:1 / maybe:1 / no:1",
    "take:8 premise then:4 hypothesis t:12 => true:1 / inconclusive:2 / false:1",
    "suppose-it:5 premise possible:5 hypothesis p:14 => guaranteed:1 / possible:2 / impossible:1",
    "assume:6 premise always:5 hypothesis a:13 => always:1 / sometimes:2 / never:1",
)

SHAPES = {
    "rte": Shape(
        {"premise": 65, "hypothesis": 12},
        _same(
            "yes:1 / no:1",
            "premise only:11 hypothesis correct:10",
            "premise based:10 hypothesis is-it:10",
            "premise question:3 hypothesis gpt:18",
            "premise question:3 imply:5 hypothesis does:12",
            "premise justified:8 hypothesis j:12",
            "given:1 premise guaranteed:7 hypothesis g:12",
            "given:1 premise should:7 hypothesis s:12",
            "given:1 that:1 premise must:6 hypothesis m:13",
            "given:1 that:1 premise follow:7 hypothesis f:12",
            "suppose:1 premise infer:6 hypothesis i:13",
        ),
        Counts(1943, 972, 972, 543, 10),
    ),
    "cb": Shape({"premise": 75, "hypothesis": 11}, _NLI, Counts(4866, 1962, 1624, 989, 18)),
    "wsc": Shape(
        {"text": 26, "pronoun": 1, "name": 2.5},
        _same(
            "yes:1 / no:1",
            "text previous:3 does:8 pronoun refer:4 name r:4",
            "text previous:3 can:7 pronoun replaced:5 name r2:4",
            "text words:8 pronoun w:6 name w2:5",
            "text think:7 pronoun t:6 name t2:7",
            "text mean:6 pronoun m:6 name m2:8",
            "text passage:8 pronoun p:6 name p2:6",
            "text here:6 pronoun h:6 name h2:7",
            "text who:7 pronoun w3:6 name w4:7",
            "context:2 text c:7 pronoun c2:5 name c3:6",
            "passage-of:2 text q:8 pronoun q2:5 name q3:6",
        ),
        Counts(983, 491, 491, 294, 10),
    ),
    "copa": Shape(
        {"premise": 8, "first": 7, "second": 7},
        _same(
            "first end:1 / second end:1",
            "exercise:15 premise so:2 first or:2 second e:1",
            "premise as:2 pick:10 first or:2 second p:3",
            "premise as:2 help:11 first or:2 second h:3",
            "premise as:2 best:10 first or:2 second b:3",
            "premise what:10 first or:2 second w:4",
            "select:13 premise s:2 first or:2 second s2:1",
            "likely:15 premise l:2 first or:2 second l2:1",
            "plausible:14 premise pl:2 first or:2 second pl2:1",
        ),
        Counts(738, 738, 422, 384, 113),
    ),
    "wic": Shape(
        {"word": 1, "one": 11, "two": 11},
        _same(
            "yes:1 / no:1",
            "one two question:4 word same:15",
            "one two determine:9 word d:11",
            "one two used:7 word u:13",
            "one two similar:8 word s:12",
            "does:4 word have:10 one h:2 two h2:7",
            "does:4 word mean:9 one m:2 two m2:8",
            "homework:14 word hw:5 one hw2:1 two hw3:3",
            "decide:14 word de:5 one de2:2 two de3:3",
            "sentence:3 one and:3 two a2:9 word a3:7",
            "task:12 word t:6 one t2:2 two t3:4",
        ),
        Counts(921, 461, 461, 375, 10),
    ),
    "winogrande": Shape(
        {"sentence": 24, "first": 2, "second": 2},
        _same(
            "first / second",
            "sentence in:3 previous:8 first or:1 second i:6",
            "sentence in:3 sure:9 first or:1 second s:5",
            "sentence what:10 first or:1 second w:7",
            "fill:10 sentence choices:4 first or:1 second f:3",
            "underscore:9 sentence u:5 first or:1 second u2:4",
        ),
        Counts(467, 467, 239, 184, 15),
    ),
    "hellaswag": Shape(
        {"context": 55, "a": 28, "b": 28, "c": 28, "d": 28},
        (
            *_same(
                "a e:1 / b e:1 / c e:1 / d e:1",
                "complete:12 context c:8 a m:5 b m2:5 c m3:5 d m4:5",
                "pick:14 context p:7 a m:5 b m2:5 c m3:5 d m4:4",
                "how:11 context h:9 a m:5 b m2:5 c m3:5 d m4:5",
            ),
            *_same(
                "ending:1 1:1 / ending:1 2:1 / ending:1 3:1 / ending:1 4:1",
                "predict:14 context pr:7 a m:5 b m2:5 c m3:5 d m4:6",
            ),
        ),
        Counts(3667, 3031, 1173, 1173, 347),
    ),
    "storycloze": Shape(
        {"one": 11, "two": 11, "three": 11, "four": 11, "first": 10, "second": 10},
        _same(
            "first e:1 / second e:1",
            "story:10 one two three four s:10 first or:2 second s2:5",
            "read:12 one two three four r:9 first or:2 second r2:5",
            "choose:11 one two three four c:9 first or:2 second c2:6",
            "generate:9 one two three four g:12 first or:2 second g2:5",
            "movie:13 one two three four m:8 first or:2 second m2:5",
        ),
        Counts(1013, 1013, 555, 555, 102),
    ),
    "anli": Shape({"premise": 85, "hypothesis": 14}, _NLI, Counts(5556, 2238, 1854, 1124, 18)),
}


def make_instances(name: str, count: int, *, seed: int = 0) -> list[EncodedInstance]:
    """``count`` instances of a shape; the first ones are the same whatever the count."""
    shape = SHAPES[name]
    return [_make_instance(name, shape, number, seed) for number in range(count)]


def _make_instance(name: str, shape: Shape, number: int, seed: int) -> EncodedInstance:
    fields = {}
    for field, mean in shape.fields.items():
        draw = generator(seed, "field", name, number, field)
        length = draw.lognormal(math.log(mean) - SIGMA**2 / 2, SIGMA)
        fields[field] = tuple(draw.integers(VOCAB, size=max(1, round(length))).tolist())

    def ids(parts: str) -> tuple[int, ...]:
        return tuple(token for part in parts.split() for token in fields.get(part) or _literal(name, part, seed))

    rows = []
    for template in shape.templates:
        prompt, answers = template.split(" => ")
        context = ids(prompt)
        rows.append(tuple(EncodedAnswer(context, ids(answer)) for answer in answers.split(" / ")))
    return EncodedInstance(f"{name}-{number}", tuple(rows))


def _literal(shape: str, part: str, seed: int) -> tuple[int, ...]:
    name, length = part.split(":")
    return tuple(generator(seed, "literal", shape, name).integers(VOCAB, size=int(length)).tolist())


def digest(instances: Sequence[EncodedInstance]) -> str:
    """SHA-256 of all ids, so that two runs can be known to have scored the same."""
    return sha256_json(
        [[[[*a.context, -1, *a.tokens] for a in row] for row in instance.answers] for instance in instances]
    )


def count_tokens(instances: Sequence[EncodedInstance]) -> Counts:
    """Mean counts per instance, by an implementation of its own."""
    totals = [0, 0, 0, 0, 0]
    for instance in instances:
        answers = [answer for row in instance.answers for answer in row]
        totals[0] += sum(len(answer.inputs) for answer in answers)
        totals[1] += sum(map(len, {answer.inputs for answer in answers}))
        totals[2] += sum(trie_size([answer.inputs for answer in row]) for row in instance.answers)
        totals[3] += trie_size([answer.inputs for answer in answers])
        totals[4] += len(answer_prefixes(answers))
    return Counts(*(total / len(instances) for total in totals))


def answer_prefixes(answers: Sequence[EncodedAnswer]) -> set[tuple[int, ...]]:
    """What stands before each answer token, each once: as many head rows are needed, and no more."""
    return {answer.context + answer.tokens[:place] for answer in answers for place in range(len(answer.tokens))}


def trie_size(sequences: Sequence[Sequence[int]]) -> int:
    """Distinct beginnings of some sequences."""
    return len(trie_depths(sequences))


def trie_depths(sequences: Sequence[Sequence[int]]) -> list[int]:
    """The length of each distinct beginning."""
    depths: list[int] = []
    before: tuple[int, ...] = ()
    for sequence in sorted({tuple(sequence) for sequence in sequences}):
        same = next((n for n, (a, b) in enumerate(zip(before, sequence, strict=False)) if a != b), None)
        shared = min(len(before), len(sequence)) if same is None else same
        depths.extend(range(shared + 1, len(sequence) + 1))
        before = sequence
    return depths


def main() -> None:
    """Print the counts beside those of real templates."""
    print(f"{'shape':11} V x L   naive         unique        label-shared  trie          rows      sha256 of 200")
    for name, shape in SHAPES.items():
        instances = make_instances(name, 200)
        made, real = count_tokens(instances), shape.expected
        cells = [
            f"{getattr(made, field):6.0f}/{getattr(real, field):<6.0f}"
            for field in ("naive", "unique", "label_shared", "trie")
        ]
        size = f"{len(instances[0].answers)} x {len(instances[0].answers[0])}"
        rows = f"{made.rows:3.0f}/{real.rows:<3.0f}"
        print(f"{name:11} {size:7} {' '.join(cells)} {rows:9} {digest(instances)[:16]}")


if __name__ == "__main__":
    main()
