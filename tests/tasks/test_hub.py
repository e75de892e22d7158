"""The hub, a folder laid out like it, and what the record says of either."""

import sys
import types
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from flip_flop.errors import InputError
from flip_flop.tasks import HubSource

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_a_mirror_is_read_instead_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(
    ("repo", "config", "split"),
    [
        ("../../etc", None, "x"),
        ("a/b", "..", "x"),
        ("a/b/c", None, "x"),
        ("a/b", None, "/etc/x"),
        ("a/b", "x", "x[:10]"),
    ],
)
def test_a_data_set_name_is_no_way_out_of_the_mirror(repo: str, config: str | None, split: str) -> None:
    with pytest.raises(InputError, match="E-DATA-HUB"):
        HubSource(repo, config, split)


class MadeHub:
    """Stands in for the hub: what it is asked, and what it has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, main: Any, converted: Any) -> None:
        self.asked: list[Any] = []
        self.main, self.converted = main, converted
        monkeypatch.delenv("FLIP_FLOP_HUB_MIRROR", raising=False)
        monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=self.load_dataset))
        monkeypatch.setattr("huggingface_hub.HfApi", lambda: self)

    def dataset_info(self, repo: str, revision: str | None, timeout: float) -> Any:
        return types.SimpleNamespace(sha=COMMIT)

    def load_dataset(self, name: str, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        self.asked.append((name, *args, kwargs))
        found = self.converted if name == "parquet" else self.main
        if isinstance(found, Exception):
            raise found
        return list(found)


@pytest.mark.parametrize("revision", [None, "v1"])
def test_the_commit_that_a_revision_stands_for_is_loaded_and_recorded(
    revision: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = MadeHub(monkeypatch, [{"a": 1}], [])
    rows = HubSource("owner/repo", "rte", "train", revision).load()
    assert hub.asked == [("owner/repo", "rte", {"split": "train", "revision": COMMIT})]
    assert rows.provenance["revision"] == COMMIT


def test_a_data_set_that_is_a_script_is_read_from_the_hubs_own_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    script = RuntimeError("Dataset scripts are no longer supported, but found repo.py")
    hub = MadeHub(monkeypatch, script, [{"a": 1}, {"a": 2}])
    rows = HubSource("owner/repo", None, "train").load()
    place = f"hf://datasets/owner/repo@{COMMIT}/default/train/*.parquet"
    assert hub.asked[1] == ("parquet", {"data_files": {"train": place}, "split": "train"})
    assert len(rows) == 2
    assert rows.provenance["branch"] == "refs/convert/parquet"


@pytest.mark.parametrize(
    ("error", "revision"), [(ConnectionError("no network\nsecond line"), None), (RuntimeError("script"), "v1")]
)
def test_without_a_network_or_at_a_pinned_revision_there_is_no_second_place(
    error: Exception, revision: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = MadeHub(monkeypatch, error, [{"a": 1}])
    with pytest.raises(
        InputError, match=r"^E-DATA-HUB: owner/repo \(train\) could not .*: (no network|script)\. Check"
    ):
        HubSource("owner/repo", None, "train", revision).load()
    assert len(hub.asked) == 1


def test_where_neither_place_has_it_the_first_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    MadeHub(monkeypatch, RuntimeError("a script"), ValueError("no such file"))
    with pytest.raises(InputError, match=r"E-DATA-HUB: .*a script"):
        HubSource("owner/repo", None, "train").load()
