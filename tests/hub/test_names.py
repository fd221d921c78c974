"""What a word on the command line names: a folder or a repo."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3convert.errors import UsageError
from eagle3convert.hub.names import HubOrigin, HubSource, LocalSource, parse_source

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("acme/drafter", HubSource("acme/drafter")),
        ("acme/Qwen3-8B-speculator.eagle3", HubSource("acme/Qwen3-8B-speculator.eagle3")),
        ("acme/drafter@v1.2", HubSource("acme/drafter", "v1.2")),
        (f"acme/drafter@{COMMIT}", HubSource("acme/drafter", COMMIT)),
        ("acme/drafter@refs/pr/3", HubSource("acme/drafter", "refs/pr/3")),
        ("hf://acme/drafter", HubSource("acme/drafter")),
        ("hf:/acme/drafter", HubSource("acme/drafter")),
        ("hf://models/acme/drafter", HubSource("acme/drafter")),
        ("hf://acme/drafter/epoch_3", HubSource("acme/drafter", None, "epoch_3")),
        ("hf://acme/drafter@main/runs/epoch_3/", HubSource("acme/drafter", "main", "runs/epoch_3")),
        ("hf://acme/drafter@refs/pr/1/sub/x", HubSource("acme/drafter", "refs/pr/1", "sub/x")),
        ("hf://acme/drafter@refs%2Fpr%2F1/sub", HubSource("acme/drafter", "refs/pr/1", "sub")),
        ("https://huggingface.co/acme/drafter", HubSource("acme/drafter")),
        ("https://huggingface.co/acme/drafter/tree/v1/sub", HubSource("acme/drafter", "v1", "sub")),
        ("https://huggingface.co/acme/drafter/tree/refs/pr/2", HubSource("acme/drafter", "refs/pr/2")),
        ("drafter", LocalSource(Path("drafter"))),
        ("./acme/drafter", LocalSource(Path("acme/drafter"))),
        ("../drafter", LocalSource(Path("../drafter"))),
        ("/acme/drafter", LocalSource(Path("/acme/drafter"))),
        ("runs/acme/drafter", LocalSource(Path("runs/acme/drafter"))),
        ("runs/me@home/drafter", LocalSource(Path("runs/me@home/drafter"))),
        ("two words/drafter", LocalSource(Path("two words/drafter"))),
    ],
)
def test_what_a_word_names(text: str, source: object) -> None:
    assert parse_source(text) == source


def test_a_folder_that_exists_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acme" / "drafter").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert parse_source("acme/drafter") == LocalSource(Path("acme/drafter"))
    assert parse_source(Path("acme/drafter")) == LocalSource(Path("acme/drafter"))


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse_source("~/drafter") == LocalSource(tmp_path / "drafter")


@pytest.mark.parametrize(
    "text",
    ["", " ", "hf://", "hf://acme", "hf://datasets/acme/x", "hf://acme/x/../y", "https://huggingface.co/acme",
     "https://huggingface.co/datasets/acme/x"],
)  # fmt: skip
def test_what_names_no_model_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_source(text)


@pytest.mark.parametrize("text", ["acme/x", "acme/x@v1", "hf://acme/x/sub", "hf://acme/x@refs/pr/1/sub/y"])
def test_a_source_is_shown_as_it_can_be_given(text: str) -> None:
    assert str(parse_source(text)) == text


def test_origin_of_a_receipt() -> None:
    origin = HubOrigin("acme/x", COMMIT, "sub")
    assert HubOrigin.of(origin.as_json()) == origin
    assert parse_source(origin.as_json()["path"]) == HubSource("acme/x", COMMIT, "sub")


def test_origin_of_a_path_into_the_cache() -> None:
    cached = f"/home/me/.cache/huggingface/hub/models--acme--x/snapshots/{COMMIT}"
    assert HubOrigin.of({"path": cached}) == HubOrigin("acme/x", COMMIT)
    assert HubOrigin.of({"path": f"{cached}/sub"}) == HubOrigin("acme/x", COMMIT, "sub")
    assert HubOrigin.of({"path": "/data/drafter"}) is None
    assert HubOrigin.of({"repo": "acme/x", "commit": "main"}) is None
    assert HubOrigin.of(None) is None
