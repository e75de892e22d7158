"""Sources and readers of rows, and errors with their places."""

import csv
import datetime
import io
import itertools
import json
import re
import sys
import tracemalloc
import zipfile
from types import SimpleNamespace

import datasets
import numpy as np
import openpyxl
import pandas
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flip_flop.errors import InputError
from flip_flop.evaluation.run_directory import check_target
from flip_flop.hub import check_model_name
from flip_flop.tasks import FileSource, HubSource, RowsSource, Task, load_file
from flip_flop.tasks.readers import read_csv_rows
from flip_flop.tasks.sources import as_source
from tests.cases import read_list
from tests.refused import refused


def load(folder, name, content, **more):
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return [row.fields for row in FileSource(path, **more).load().rows]


CELL = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


@given(st.integers(1, 4).flatmap(lambda width: st.lists(st.lists(CELL, min_size=width, max_size=width), max_size=6)))
@settings(max_examples=100)
def test_csv_cells_equal_those_that_the_csv_module_wrote(table):
    columns = [f"column {index}" for index in range(len(table[0]) if table else 2)]
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows([columns, *table])
    rows = [*read_csv_rows(io.StringIO(buffer.getvalue(), newline=""), ",", "a.csv")]
    assert [list(fields.values()) for _, fields in rows] == table
    assert all(list(fields) == columns for _, fields in rows)


@given(st.text(alphabet='ab",\n\r\t', max_size=30))
@settings(max_examples=100)
def test_any_text_is_read_as_the_strict_csv_module_does_or_refused(text):
    try:
        rows = [*read_csv_rows(io.StringIO(text, newline=""), ",", "a.csv")]
    except InputError:
        return
    records = csv.reader(io.StringIO(text, newline=""), strict=True)
    header, *others = [*itertools.dropwhile(lambda record: not "".join(record).strip(), filter(None, records))] or [[]]
    named = [bool(name.strip()) for name in header]
    assert [list(fields.values()) for _, fields in rows] == [[*itertools.compress(cells, named)] for cells in others]


def test_the_number_of_a_csv_row_is_the_line_where_it_begins(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('a,b\r\n1,"two\r\nlines"\r\n\r\n3,4\r\n', newline="")
    rows = FileSource(path).load()
    assert [row.number for row in rows.rows] == [2, 5]
    assert rows.location(rows.rows[1]) == f"{path} line 5"
    assert rows.rows[0].fields["b"] == "two\r\nlines"


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list, lambda of: pa.list_(of, 2)])
def test_32_bit_floats_are_read_as_short_decimals(tmp_path, kind):
    numbers = {"one": [0.1, None, 16777216.0], "many": [[0.1, 0.2], [0.3, None], None]}
    numbers["nested"] = [{"of": pair} for pair in numbers["many"]]
    types = [pa.float32(), kind(pa.float32()), pa.struct([("of", kind(pa.float32()))])]
    table = pa.table([pa.array(cells, of) for cells, of in zip(numbers.values(), types, strict=True)], [*numbers])
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    frames = [pandas.DataFrame({"one": pandas.array(numbers["one"], dtype=of)}) for of in ("Float32", "float[pyarrow]")]
    frames.append(pandas.DataFrame({"one": np.array([0.1, np.nan, 16777216.0], dtype=np.float32)}))
    expected = [dict(zip(numbers, cells, strict=True)) for cells in zip(*numbers.values(), strict=True)]
    of_frames = [(frame, ["one"]) for frame in frames]
    for data, names in ((tmp_path / "a.parquet", numbers), (datasets.Dataset(table), numbers), *of_frames):
        read = [row.fields for row in as_source(data).load().rows]
        assert read == [{name: row[name] for name in names} for row in expected]


@pytest.mark.parametrize(
    "data",
    [pandas.DataFrame([["x", "y"]], columns=["a", "a"]), pandas.DataFrame({1: ["x"], "1": ["y"]}), [{1: 2, "1": 3}]],
)
def test_two_columns_of_one_name_are_refused(data):
    with pytest.raises(InputError, match=r"E-DATA-COLUMN: rows.*: two columns are named '[a1]'"):
        as_source(data).load()


def test_tsv_jsonl_json_and_parquet_give_the_same_rows(tmp_path):
    expected = [{"a": "x, y", "b": "1"}, {"a": "z", "b": "2"}]
    assert load(tmp_path, "a.tsv", "a\tb\nx, y\t1\nz\t2\n") == expected
    assert load(tmp_path, "a.jsonl", '{"a": "x, y", "b": "1"}\n\n{"a": "z", "b": "2"}') == expected
    assert load(tmp_path, "a.json", '[{"a": "x, y", "b": "1"}, {"a": "z", "b": "2"}]') == expected
    pyarrow.parquet.write_table(pa.Table.from_pylist(expected), tmp_path / "a.parquet")
    assert [row.fields for row in FileSource(tmp_path / "a.parquet").load().rows] == expected


def test_encodings_and_byte_order_marks(tmp_path):
    assert load(tmp_path, "a.csv", b"\xef\xbb\xbfa,b\n1,2\n") == [{"a": "1", "b": "2"}]
    assert load(tmp_path, "a.csv", "a\nä\n".encode("latin-1"), encoding="latin-1") == [{"a": "ä"}]
    assert load(tmp_path, "b.csv", "a\nä\n".encode("utf-16"), encoding="utf-16") == [{"a": "ä"}]
    for name in ("utf_8", "utf-16-le", "utf-16-be"):
        assert load(tmp_path, "c.csv", "\ufeffa\nä\n".encode(name), encoding=name) == [{"a": "ä"}]
    for unknown in ("utf-9", "a\0b"):
        refused(re.escape(f"unknown encoding {unknown!r}"), load, tmp_path, "a.csv", "a\n1\n", encoding=unknown)


def test_a_spreadsheet_has_texts_numbers_and_the_row_numbers_of_the_program(tmp_path):
    book = openpyxl.Workbook()
    for cells in (
        (),
        ("text", None, "label", "day"),
        (" 007", None, 1, datetime.date(2020, 1, 2)),
        (),
        ("x", "", None, 2.5),
    ):
        book.active.append(cells)
    book.create_sheet("other").append(["text"])
    book.create_sheet("lists", 0).append(["hidden"])
    book.worksheets[0].sheet_state = "hidden"
    book.save(tmp_path / "a.xlsx")
    rows = FileSource(tmp_path / "a.xlsx").load()
    assert [row.number for row in rows.rows] == [3, 5]
    assert rows.location(rows.rows[1]) == f"{tmp_path / 'a.xlsx'} row 5"
    assert rows.rows[0].fields == {"text": " 007", "label": 1, "day": "2020-01-02 00:00:00"}
    assert rows.rows[1].fields == {"text": "x", "label": "", "day": 2.5}


def write_sheet(path, *rows, merged=None):
    book = openpyxl.Workbook()
    for cells in rows:
        book.active.append(cells)
    if merged:
        book.active.merge_cells(merged)
    book.save(path)
    return FileSource(path)


def test_a_cell_of_a_spreadsheet_is_read_as_the_program_shows_it(tmp_path):
    cells = ("_x000D_ is a return, _x005F_x000D_ is not", "#REF!", "#N/A", "#NAME?", 1001.0, 1.23456789012345e15, 0.5)
    (row,) = write_sheet(tmp_path / "a.xlsx", [*"abcdefg"], cells).load().rows
    expected = ["\r is a return, _x000D_ is not", None, None, None, 1001, 1234567890123450, 0.5]
    assert list(row.fields.values()) == expected
    assert type(row.fields["e"]) is int


@pytest.mark.parametrize("suffix", ["xlsx", "csv", "tsv"])
@pytest.mark.parametrize("error", ["#REF!", "#N/A", "#DIV/0!", "#BEZUG!", "Err:502"])
def test_a_text_of_a_spreadsheet_that_is_an_error_is_missing(tmp_path, suffix, error):
    rows = [("text", "urgent"), (error, "no"), (f"The cell shows {error}", "yes")]
    source = write_sheet(tmp_path / "a.xlsx", *rows)
    if suffix != "xlsx":
        separator = {"csv": ",", "tsv": "\t"}[suffix]
        source = FileSource(tmp_path / f"a.{suffix}")
        source.path.write_text("\n".join(map(separator.join, rows)))
    assert [row.fields["text"] for row in source.load().rows] == [None, rows[2][0]]
    task = Task("tickets", ["{{ text }} Urgent?"], {"test": source}, labels=("no", "yes"), label_field="urgent")
    refused(
        r"E-TPL-EMPTY: template 'template_1', .*a\.\w+ (row|line) 2: a missing value of 'text' is",
        task.instances,
        "test",
    )


def test_a_formula_has_the_result_that_the_program_saved(tmp_path):
    source = write_sheet(tmp_path / "a.xlsx", ("text", "label"), ("tea", 1), ("fire", "=B2+1"))
    refused(r"E-DATA-PARSE: .*a\.xlsx cell B3 has a formula without its result\. Open and save the file", source.load)
    with zipfile.ZipFile(source.path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    for result, kind, value in ((b"<v>2</v>", b"", 2), (b"<v></v>", b' t="str"', "")):
        with zipfile.ZipFile(source.path, "w") as archive:
            for name, content in parts.items():
                content = content.replace(b'<c r="B3"', b'<c r="B3"' + kind)
                archive.writestr(name, re.sub(rb"</f><v ?/>|</f><v></v>", b"</f>" + result, content))
        assert source.load().rows[1].fields == {"text": "fire", "label": value}


@pytest.mark.filterwarnings("ignore:Unknown extension")
def test_the_formula_of_a_drop_down_list_is_not_a_cell(tmp_path):
    source = write_sheet(tmp_path / "a.xlsx", ("text", "label"), ("tea", 1))
    with zipfile.ZipFile(source.path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    validation = b'<extLst><ext uri="x"><x><formula1><f>Other!A1</f></formula1></x></ext></extLst></worksheet>'
    parts["xl/worksheets/sheet1.xml"] = parts["xl/worksheets/sheet1.xml"].replace(b"</worksheet>", validation)
    with zipfile.ZipFile(source.path, "w") as archive:
        for part in parts.items():
            archive.writestr(*part)
    assert [row.fields for row in source.load().rows] == [{"text": "tea", "label": 1}]


@pytest.mark.parametrize(
    ("rows", "merged", "words"),
    [
        ([("text", "label"), ("a", 1), ("b", None)], "B2:B3", "E-DATA-PARSE: .*: the cells B2:B3 are merged. Unmerge"),
        ([("Survey 2024",), ("text", "label"), ("a", 1)], None, "column B has no name, but row 2 holds 'label' in it"),
        ([("text", None, "label"), ("a", None, 1), ("b", "x", 1)], None, "column B has no name, but row 3 holds 'x'"),
        ([(None, "text"), (1, "a"), (1, "b")], None, "E-DATA-COLUMN: .*column A has no name, but row 3 holds '1' in"),
    ],
)
def test_cells_of_a_spreadsheet_are_not_lost(tmp_path, rows, merged, words):
    refused(words, write_sheet(tmp_path / "a.xlsx", *rows, merged=merged).load)


@pytest.mark.parametrize("suffix", ["csv", "xlsx"])
def test_row_numbers_need_no_name(tmp_path, suffix):
    frame = pandas.DataFrame({"text": ["tea", "fire"], "label": [0, 1]}, index=[7, 3])
    getattr(frame, {"csv": "to_csv", "xlsx": "to_excel"}[suffix])(tmp_path / f"a.{suffix}")
    rows = [row.fields for row in FileSource(tmp_path / f"a.{suffix}").load().rows]
    assert [{name: str(value) for name, value in row.items()} for row in rows] == [
        {"": "7", "text": "tea", "label": "0"},
        {"": "3", "text": "fire", "label": "1"},
    ]


@pytest.mark.parametrize(
    "content", ["a,b\n1,2\n", ",,\na,b,,\n1,2,,\n", "sep=;\r\na;b\r\n1;2\r\n", '"sep=|"\na|b\n1|2']
)
def test_columns_and_rows_above_without_cells_are_skipped(tmp_path, content):
    assert load(tmp_path, "a.csv", content) == [{"a": "1", "b": "2"}]


def test_ids_are_texts_of_their_cells():
    frame = pandas.DataFrame({"id": [1.0, 2.0], "text": ["tea", "fire"]})
    assert as_source(frame).load().ids_from("id") == ("1", "2")
    blank = RowsSource([{"id": 1}, {"id": ""}], "made up").load()
    refused("E-DATA-COLUMN: made up row 2 has no 'id', .* Give every row its own id.", blank.ids_from, "id")
    refused("E-DATA-COLUMN: made up row 1 has no 'idd', .* Did you mean 'id'?", blank.ids_from, "idd")


@pytest.mark.parametrize(
    ("name", "content", "delimiters"),
    [
        *[("a.csv", f"id{each}text; or both\n1{each}tea\n", [";", each]) for each in "\t|"],
        ("a.csv", "id^text\n1^tea\n", [";", "^"]),
        ("a.csv", "id,text\n1,tea\n", ["^", ";"]),
        ("a.tsv", "id,text\n1,tea\n", [","]),
        ("a.jsonl", '{"id": "1", "text; or, both": "tea"}\n', [";"]),
    ],
)
def test_a_file_is_read_with_the_delimiter_of_its_header(tmp_path, name, content, delimiters):
    (tmp_path / name).write_text(content)
    (row,) = load_file(tmp_path / name, delimiters).rows
    assert list(row.fields.values()) == ["1", "tea"]


def test_a_file_is_not_read_as_one_column_of_many(tmp_path):
    for delimiter, header, name in (
        (";", "id\ttext\n", "tabs"),
        ("^", "id\ttext\tlabel; 0 or 1\n", "tabs"),
        (None, "id\ttext\tlabel; 0 or 1\n", "tabs"),
        ("\t", "id|text\n", "bars"),
    ):
        refused(f"E-DATA-ENCODING: .* separated by {name}", load, tmp_path, "a.csv", header, delimiter=delimiter)
    assert load(tmp_path, "a.csv", '"How was it, in a word?"\ngood\n', delimiter=",")
    (tmp_path / "a.jsonl").write_bytes('{"text": "schön"}'.encode("cp1252"))
    refused("E-DATA-ENCODING: .*a.jsonl is not utf-8 at byte 13", load_file, tmp_path / "a.jsonl", [";"])
    (tmp_path / "b.csv").write_text("id;text\n1;tea\n2\n")
    refused("E-DATA-PARSE: .*b.csv line 3: 1 cell under 2", load_file, tmp_path / "b.csv", ["\t", ";", "|"])


@pytest.mark.slow
def test_a_far_cell_of_a_spreadsheet_takes_no_memory(tmp_path):
    book = openpyxl.Workbook()
    for cells in (("text", "label"), ("tea", 1), ("#N/A", 1)):
        book.active.append(cells)
    book.active.cell(1, 16_384).value = "note"
    book.active.cell(5_000, 16_384).value = "far"
    book.save(tmp_path / "a.xlsx")
    before = tracemalloc_peak(lambda: FileSource(tmp_path / "a.xlsx").load())
    assert before < 50e6  # 5,000 rows of 16,384 cells take 600 MB
    rows = FileSource(tmp_path / "a.xlsx").load().rows
    assert [(row.number, row.fields["text"], row.fields["label"]) for row in rows] == [
        (2, "tea", 1),
        (3, None, 1),
        (5_000, "", ""),
    ]


def tracemalloc_peak(function):
    tracemalloc.start()
    function()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (10**13, pa.timestamp("s")),
        (2**63 - 1, pa.timestamp("us", "UTC")),
        (2**62, pa.duration("ms")),
        (1, pa.timestamp("s", "No/Where")),
    ],
)
def test_a_time_that_python_does_not_have_is_rejected(number, kind, tmp_path):
    table = pa.table({"text": ["a"], "when": pa.array([number], pa.int64()).cast(kind)})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"\AE-DATA-PARSE: .*a\.parquet: [^\n]*\Z"):
        FileSource(tmp_path / "a.parquet").load()


def test_a_spreadsheet_needs_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    for use in (lambda: load(tmp_path, "a.xlsx", b""), lambda: check_target(tmp_path / "predictions.xlsx")):
        refused(r"E-DATA-FILE: .*openpyxl, .* -m pip install 'openpyxl>=3\.1\.5'\.$", use)


with io.BytesIO() as written:
    pyarrow.parquet.write_table(pa.table([[1], [2]], names=["a", "a"]), written)
    TWO_COLUMNS = written.getvalue()

MADE_MISTAKES = {
    "a long cell": (
        "a.csv",
        f"a,b\n1,{'x' * (2 << 20)}\n",
        "E-DATA-PARSE",
        "line 2: field larger than field limit (1048576)",
    ),
    "deep lists": ("a.jsonl", '{"a": ' + "[" * 100_000 + "\n", "E-DATA-PARSE", "line 1: it is nested too deeply"),
    "a long number": ("a.jsonl", '{"a": ' + "9" * 5000 + "}\n", "E-DATA-PARSE", "line 1: "),
    "a name twice": ("a.parquet", TWO_COLUMNS, "E-DATA-COLUMN", "two columns are named 'a'"),
}


def assert_rejected(folder, name, content, code, words):
    with pytest.raises(InputError, match=rf"\A{code}: [^\n]*\Z") as refusal:
        load(folder, name, content)
    assert words in str(refusal.value)
    assert str(folder / name) in str(refusal.value)
    assert refusal.value.hint


@pytest.mark.parametrize("case", read_list("tasks/source_mistakes.yaml", "words"))
def test_an_invalid_file_is_rejected_with_its_place(tmp_path, case):
    content = case["content"].encode(case.get("encoding", "utf-8"))
    assert_rejected(tmp_path, case["file"], content, case["code"], case["words"])


@pytest.mark.parametrize(("name", "content", "code", "words"), MADE_MISTAKES.values(), ids=MADE_MISTAKES)
def test_a_long_or_binary_file_is_rejected_with_its_place(tmp_path, name, content, code, words):
    assert_rejected(tmp_path, name, content, code, words)


def test_a_missing_file_is_named_with_its_nearest(tmp_path):
    (tmp_path / "tickets.csv").write_text("a\n1\n")
    with pytest.raises(InputError, match=r"E-DATA-FILE: .*ticket.csv. Did you mean '.*/tickets.csv'\?"):
        FileSource(tmp_path / "ticket.csv").load()
    with pytest.raises(InputError, match="E-DATA-FILE"):
        FileSource(tmp_path / "no" / "folder.csv").load()


def test_rows_in_memory_are_numbered_and_hashed_by_their_content():
    rows = [{"a": 1, "when": datetime.date(2020, 1, 1)}, {"a": 2, "when": None}]
    first, second = RowsSource(rows, "made up").load(), RowsSource(rows[::-1], "made up").load()
    assert [row.number for row in first.rows] == [1, 2]
    assert first.location(first.rows[1]) == "made up row 2"
    assert first.provenance["sha256"] != second.provenance["sha256"]
    with pytest.raises(InputError, match="E-DATA-ROWS: made up"):
        RowsSource([], "made up").load()


def test_arrays_in_cells_are_lists_with_pythons_numbers():
    cells = {
        "words": np.array(["a", None], object),
        "number": np.array(5),
        "vector": np.arange(1500) / 7,
        "of": {1: np.float32(0.1), "b": {}},
    }
    frames = [pandas.DataFrame([cells | {"vector": cells["vector"] + more}]) for more in (0, 1e-9)]
    (row,), (other,) = (as_source(frame).load().rows for frame in frames)
    assert row.fields == {
        "words": ["a", None],
        "number": 5,
        "vector": cells["vector"].tolist(),
        "of": {"1": 0.1, "b": {}},
    }
    assert {type(item) for item in row.fields["vector"]} == {float}
    digests = {as_source(frame).load().provenance["sha256"] for frame in frames}
    assert len(digests) == 2
    assert other.fields["vector"] != row.fields["vector"]


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_a_mirror_is_read_instead_of_the_hub(tmp_path, monkeypatch):
    folder = tmp_path / "owner" / "repo" / "rte"
    folder.mkdir(parents=True)
    pyarrow.parquet.write_table(pa.table({"premise": ["x"], "label": [1]}), folder / "validation.parquet")
    rows = HubSource("owner/repo", "rte", "validation", mirror=tmp_path).load()
    assert rows.rows[0].fields == {"premise": "x", "label": 1}
    assert rows.provenance["source"] == "owner/repo (rte, validation)"
    monkeypatch.setenv("FLIP_FLOP_HUB_MIRROR", str(tmp_path))
    assert HubSource("owner/repo", "rte", "validation").load() == rows
    with pytest.raises(InputError, match=r"E-DATA-FILE: the mirror has no file .*validatio.parquet. Did you mean"):
        HubSource("owner/repo", "rte", "validatio").load()
    with pytest.raises(InputError, match=r"E-DATA-FILE: .*default"):
        HubSource("owner/repo", None, "train").load()


@pytest.mark.parametrize("name", ["../../etc default x", "a/b .. x", "a/b/c default x", "a/b d /etc/x", "a/b x x[:10]"])
def test_a_dataset_name_cannot_leave_the_mirror(name):
    refused("E-DATA-HUB", HubSource, *name.split())


class MadeHub:
    """A hub with made datasets, which records its requests."""

    def __init__(self, monkeypatch, main, converted):
        self.asked = []
        self.main, self.converted = main, converted
        monkeypatch.delenv("FLIP_FLOP_HUB_MIRROR", raising=False)
        monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=self.load_dataset))
        monkeypatch.setattr("huggingface_hub.HfApi", lambda: self)
        monkeypatch.delenv("HF_HUB_OFFLINE")
        monkeypatch.setattr("huggingface_hub.utils.get_session", lambda: self)

    def head(self, address, timeout):
        return SimpleNamespace(status_code=200)

    def repo_info(self, repo, repo_type, revision, timeout):
        return SimpleNamespace(sha=COMMIT)

    def load_dataset(self, name, *args, **kwargs):
        self.asked.append((name, *args, kwargs))
        found = self.converted if name == "parquet" else self.main
        if isinstance(found, Exception):
            raise found
        return list(found)


def test_an_unreachable_hub_is_reported_at_once(monkeypatch):
    hub = MadeHub(monkeypatch, [{"a": 1}], [])
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")

    def refuse(address, timeout):
        raise OSError("no such host")

    monkeypatch.setattr(hub, "head", refuse)
    with pytest.raises(
        InputError, match=r"E-DATA-HUB: .*owner/repo \(train\): hub\.invalid does not answer\. .*--hub-mirror DIR"
    ):
        HubSource("owner/repo", None, "train").load()
    refused(r"E-MODEL-FILE: .*owner/name: hub\.invalid does not answer\. Give a folder", check_model_name, "owner/name")
    assert hub.asked == []


@pytest.mark.parametrize("revision", [None, "v1"])
def test_the_commit_of_a_revision_is_loaded_and_recorded(revision, monkeypatch):
    hub = MadeHub(monkeypatch, [{"a": 1}], [])
    rows = HubSource("owner/repo", "rte", "train", revision).load()
    assert hub.asked == [("owner/repo", "rte", {"split": "train", "revision": COMMIT})]
    assert rows.provenance["revision"] == COMMIT


def test_a_dataset_with_a_script_is_read_from_the_hubs_copy(monkeypatch):
    script = RuntimeError("Dataset scripts are no longer supported, but found repo.py")
    hub = MadeHub(monkeypatch, script, [{"a": 1}, {"a": 2}])
    rows = HubSource("owner/repo", None, "train").load()
    place = f"hf://datasets/owner/repo@{COMMIT}/default/train/*.parquet"
    assert hub.asked[1] == ("parquet", {"data_files": {"train": place}, "split": "train"})
    assert len(rows) == 2
    assert rows.provenance["branch"] == "refs/convert/parquet"


@pytest.mark.parametrize(
    ("error", "revision", "asked"),
    [
        (ConnectionError("no network\nline"), None, 1),
        (RuntimeError("script"), "v1", 1),
        (RuntimeError("script"), None, 2),
    ],
)
def test_the_first_hub_error_is_reported_without_a_copy(error, revision, asked, monkeypatch):
    hub = MadeHub(monkeypatch, error, [{"a": 1}] if asked == 1 else ValueError("no such file"))
    words = r"^E-DATA-HUB: owner/repo \(train\) could not .*: (no network|script)\. Check"
    with pytest.raises(InputError, match=words):
        HubSource("owner/repo", None, "train", revision).load()
    assert len(hub.asked) == asked


def test_json_values_keep_their_types(tmp_path):
    values = {"int": 10**23, "float": 0.5, "list": ["a", {"b": None}], "true": True}
    assert load(tmp_path, "a.jsonl", json.dumps(values)) == [values]


def test_equal_rows_of_parquet_share_their_fields(tmp_path):
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), ["the room was small"])
    pyarrow.parquet.write_table(pa.table({"text": column, "label": [1] * 20_000}), tmp_path / "a.parquet")
    assert tracemalloc_peak(lambda: FileSource(tmp_path / "a.parquet").load()) < 5e6  # 11 MB with a dictionary each
    rows = FileSource(tmp_path / "a.parquet").load().rows
    assert [(row.number, row.fields) for row in (rows[0], rows[-1])] == [
        (number, {"text": "the room was small", "label": 1}) for number in (1, 20_000)
    ]
