"""Hostile templates of 28 families, with many variants of each attack."""
# ruff: noqa: E501, SIM905 - one template per line

DUNDERS = "class mro base bases subclasses dict doc init globals code builtins module reduce getattribute".split()
VALUES = ["''", "text", "1", "1.5", "[]", "()", "{}", "none", "true", "items", "range", "namespace(a=1)", "text.upper"]
LOOP = "{% for i in range(9999) %}BODY{% endfor %}"
GROW = "{% set ns = namespace(x=START) %}{% for i in range(9999) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x }}"


def printed(*expressions: str) -> list[str]:
    return [f"{{{{ {expression} }}}}" for expression in expressions]


def grown(start: str, *steps: str) -> list[str]:
    return [GROW.replace("START", start).replace("STEP", step) for step in steps]


def nested(opening: str, closing: str, inner: str = "1", depth: int = 3000) -> str:
    return "{{ " + opening * depth + inner + closing * depth + " }}"


FAMILIES = {
    "dunder attribute": printed(*(f"{VALUES[n % 13]}.__{name}__" for n, name in enumerate(DUNDERS))),
    "dunder subscript": printed(*(f"{VALUES[n % 13]}['__{name}__']" for n, name in enumerate(DUNDERS))),
    "dunder subscript, joined": printed(
        *(f"{value}['__cl' {sign} 'ass__']" for value in ("text", "[]", "range", "items") for sign in ("~", "+")),
        "text['_' * 2 ~ 'class' ~ '_' * 2]",
        "text[['__', 'class', '__']|join]",
        "text['__xclass__'|replace('x', '')]",
        "text['__CLASS__'.lower()]",
        "text['ssalc'|list|sort|join]",
        "text['__class__x'[:9]]",
    ),
    "attribute by filter": printed(
        *(f"[text]|{name}('attr', '__class__')|list" for name in ("map", "select", "reject")),
        *(f"[text]|{name}(attribute='__class__.__mro__')|list" for name in ("map", "sort", "unique")),
        *(f"[text]|{name}(attribute='upper.__self__.__class__')" for name in ("max", "min", "join")),
        *(f"[text]|{name}('__class__.__name__')|list" for name in ("selectattr", "rejectattr")),
        "text|attr('upper')",
    ),
    "format method": printed(
        *(
            f"{text}.{name}"
            for text in ("'{0.__class__}'", "text", "'{:99999999}'")
            for name in ("format(1)", "format_map({})")
        ),
        "('{0.__class__}').format(range)",
        "['{0.__class__}'][0].format(text)",
    ),
    "percent format": printed(
        "'%s' % text", "'%99999999d' % 1", "'%(a)s' % {'a': 1}", "text % 1", "width % number", "'%s' % [text]"
    ),
    "frames": printed(*(f"(items|map('upper')).{name}" for name in ("gi_frame", "gi_code", "cr_frame", "ag_frame"))),
    "other templates": [
        *(
            f"{{% {word} '/etc/passwd' {rest}%}}"
            for word in ("include", "extends")
            for rest in ("", "ignore missing "[: 15 * (word == "include")])
        ),
        "{% include ['a', 'b'] %}",
        "{% include text %}",
        "{% import 'a' as a with context %}",
        "{% from 'a' import b as c %}",
        "{% extends text %}",
    ],
    "statements": [
        *(
            f"{{% {word} %}}x{{% end{word.split()[0]} %}}"
            for word in (
                "macro a()",
                "call range(1)",
                "filter upper",
                "set a",
                "block a",
                "block a scoped",
                "with a = 1",
                "autoescape true",
                "trans",
            )
        ),
        *(f"{{% {word} %}}" for word in ("do 1", "break", "continue", "debug")),
    ],
    "the environment's names": printed(
        *"self super context environment config request cycler joiner lipsum caller varargs kwargs get_flashed_messages url_for".split()
    ),
    "Python's names": printed(
        *(
            f"{name}(1)"
            for name in "open eval exec print getattr setattr globals locals vars input compile type dict list str int set sum sorted map filter iter next object breakpoint exit help id __import__".split()
        )
    ),
    "changes of a row": printed(
        *(
            f"items.{call}"
            for call in (
                "append(1)",
                "extend([1])",
                "insert(0, 1)",
                "pop()",
                "remove('a')",
                "clear()",
                "sort()",
                "reverse()",
                "copy()",
                "__setitem__(0, 1)",
            )
        ),
        *(
            f"{{'a': 1}}.{call}"
            for call in ("update({})", "pop('a')", "popitem()", "setdefault('a')", "clear()", "fromkeys('a')")
        ),
    ),
    "methods of text": printed(
        *(
            f"text.{call}"
            for call in (
                "encode()",
                "translate({})",
                "maketrans({})",
                "ljust(9**9)",
                "rjust(999999999)",
                "center(999999999)",
                "zfill(999999999)",
                "expandtabs(999999999)",
                "casefold()",
                "isidentifier()",
                "partition('a')",
                "removeprefix('a')",
            )
        )
    ),
    "filters": printed(
        *(
            f"text|{name}"
            for name in "pprint tojson xmlattr urlize filesizeformat striptags escape e safe forceescape wordcount wordwrap(1) indent(999999999) center(999999999) groupby(0) batch(2) slice(2) items sum dictsort reverse truncate(1) format attr('a') urlencode".split()
        )
    ),
    "tests": printed(
        *(f"text is {name}" for name in ("sameas(1)", "callable", "escaped", "filter", "test", "unknown"))
    ),
    "stars": printed(
        "range(*[1])",
        "range(**{})",
        "zip(*[items])",
        "namespace(**{'a': 1})",
        "text.split(*[' '])",
        "items|join(*[' '])",
        "text is divisibleby(*[1])",
    ),
    "products": printed(
        *(
            f"{value} * {count}"
            for value in ("'ab'", "[1]", "(1, 2)", "text", "items")
            for count in ("1000000000", "10 * 100000000")
        )
    ),
    "powers": printed("10 ** 9", "number ** number", "2 ** 2 ** 2", "(-1) ** 0.5", "number ** -1"),
    "big numbers": printed(
        "9" * 4000,
        "1e400 * 1",
        "-" + "9" * 30,
        "0x" + "f" * 30,
        "range(0, 1000000000000)",
        "[1][9999999999999]",
    ),
    "growth by operators": [
        *grown("'ab'", "ns.x + ns.x", "ns.x ~ ns.x", "ns.x * 2", "2 * ns.x", "(ns.x, ns.x)|string"),
        *grown("[1]", "ns.x + ns.x", "ns.x * 3"),
        *grown("7", "ns.x * ns.x", "ns.x * 1000", "ns.x + ns.x"),
    ],
    "growth by filters": grown(
        "'aa'",
        "ns.x|replace('a', 'aaa')",
        "[ns.x, ns.x]|join(ns.x)",
        "[ns.x, ns.x]|map('replace', 'a', 'aa')|join",
        "[ns.x] * 3|string|length",
        "ns.x|list|join('aa')",
        "ns.x.join(['a', ns.x])",
        "ns.x.replace('', ns.x)",
        "(ns.x|upper) ~ (ns.x|lower)",
    ),
    "growth of containers": [
        *grown(
            "[1]",
            "[ns.x, ns.x]",
            "(ns.x, ns.x)",
            "{'a': ns.x, 'b': ns.x}",
            "[ns.x] + [ns.x]",
            "zip(ns.x, ns.x)|list",
            "[[ns.x, ns.x]]",
            "namespace(a=ns.x, b=ns.x)",
        ),
    ],
    "wide ranges": printed(
        "range(100000)|list",
        "range(0, 99999999, 1)|length",
        "range(-99999999, 0)|join",
        "range(99999 * 99999)",
        "choice(range(10000000000))",
        "range(99999999)[-1]",
    ),
    "nested loops": [
        LOOP.replace("BODY", LOOP.replace("BODY", inner).replace("for i", "for j"))
        for inner in ("x", "{{ i * j }}", "{% if i == j %}x{% endif %}", "{% set a = i %}", LOOP.replace("BODY", "x"))
    ],
    "costly bodies": [
        LOOP.replace("BODY", f"{{% set a = {cost} %}}")
        for cost in (
            "(text * 5000)|upper|length",
            "(text * 5000)|sort|length",
            "(text * 5000)|unique|list|length",
            "(text * 5000).split()|length",
            "(text * 5000).count('xyz')",
            "(text * 5000)|replace('x', 'y')|length",
            "(text * 5000)|list|length",
            "(text * 5000).find('xyzzy')",
            "('z' in text * 5000)",
        )
    ],
    "deep syntax": [
        *(
            nested(*pair)
            for pair in (
                ("(", ")"),
                ("[", "]"),
                ("{1: ", "}"),
                ("-", ""),
                ("not ", ""),
                ("[0][", "]"),
                ("range(", ")"),
                ("1 if true else (", ")"),
            )
        ),
        "{{ text" + "|upper" * 3000 + " }}",
        "{{ text" + "[0]" * 3000 + " }}",
        "{{ text" + ".upper()" * 3000 + " }}",
        "{{ 1" + " ~ 1" * 3000 + " }}",
        "{{ 1" + " and 1" * 3000 + " }}",
        "{{ 1" + " == 1" * 3000 + " }}",
        "{% if 1 %}" * 500 + "x" + "{% endif %}" * 500,
        "{% for a in [1] %}" * 100 + "x" + "{% endfor %}" * 100,
    ],
    "long source": [
        "x" * 70_000,
        "{{ '" + "x" * 70_000 + "' }}",
        "{# " + "x" * 70_000 + " #}",
        "{{ text }}" * 7_000,
        "{% raw %}" + "x" * 70_000 + "{% endraw %}",
    ],
    "loops in themselves": [
        "{% for x in items recursive %}{{ loop(items) }}{% endfor %}",
        "{% for x in items %}{{ loop(items) }}{% endfor %}",
        "{% for x in items %}{{ loop.__init__ }}{% endfor %}",
        "{% for x in items %}{% set loop = loop %}{{ loop.nextitem.upper.__self__.__class__ }}{% endfor %}",
        "{% set ns = namespace(x=1) %}{% set ns.x = ns %}{{ ns.x }}",
        "{% set ns = namespace(x=1) %}{% set ns.x = [ns] %}{{ ns.x }}",
    ],
}
