"""Pushing: one verified commit, its card, what is refused before anything is uploaded, and that nothing goes twice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from eagle3convert import convert, load_checkpoint
from eagle3convert.errors import UsageError
from eagle3convert.hub.errors import HubError, PushRefused
from eagle3convert.hub.front_matter import split_card
from eagle3convert.hub.names import HubSource
from eagle3convert.hub.push import push_to_hub
from eagle3convert.hub.rights import check_rights
from eagle3convert.hub.sources import download, open_hub_checkpoint

from .server import HubServer

WRITES = "POST|PUT|DELETE"
UPLOADS = "PUT /large/"


def files_at(hub: HubServer, repo: str, ref: str = "main") -> dict[str, bytes]:
    commit = hub.store.repos[repo].at(ref)
    assert commit is not None
    return {path: blob.bytes() for path, blob in commit.files.items()}


def test_push(hub: HubServer, converted: Path) -> None:
    result = push_to_hub(converted, "acme/tiny-sglang")
    repo = hub.store.repos["acme/tiny-sglang"]
    assert repo.history() == ["EAGLE-3 drafter, converted from speculators to sglang", "initial commit"]
    assert (result.commit, result.revision) == (repo.refs["main"], "main")
    assert result.url == f"{hub.url}/acme/tiny-sglang/commit/{result.commit}"
    there = files_at(hub, "acme/tiny-sglang")
    assert set(there) == {
        ".gitattributes", "README.md", "LICENSE", "config.json", "model.safetensors", "eagle3convert.json",
    }  # fmt: skip
    for name in ("config.json", "model.safetensors"):
        assert there[name] == (converted / name).read_bytes()
    assert {file.name: file.state for file in result.files} == dict.fromkeys(set(there) - {".gitattributes"}, "new")
    assert hub.received(UPLOADS) == (converted / "model.safetensors").stat().st_size
    assert not result.unchanged
    assert str(result.url) in "\n".join(result.lines())


def test_convert_push_inspect_remote_and_convert_back_from_remote(
    hub: HubServer, drafter: Path, converted: Path, tmp_path: Path
) -> None:
    push_to_hub(converted, "acme/tiny-sglang")
    with open_hub_checkpoint(HubSource("acme/tiny-sglang")) as remote, load_checkpoint(converted) as local:
        assert remote.config == local.config
        assert {n: (t.dtype, t.shape) for n, t in remote.tensors.items()} == {
            n: (t.dtype, t.shape) for n, t in local.tensors.items()
        }
    back = tmp_path / "back"
    convert(download(HubSource("acme/tiny-sglang")), back, "auto", "speculators", durable=False)
    assert (back / "model.safetensors").read_bytes() == (drafter / "model.safetensors").read_bytes()
    assert json.loads((back / "config.json").read_text()) == json.loads((drafter / "config.json").read_text())
    again = tmp_path / "again"
    convert(back, again, "auto", "sglang", durable=False)
    for name in ("config.json", "model.safetensors"):
        assert (again / name).read_bytes() == (converted / name).read_bytes()


def test_a_second_push_sends_nothing(hub: HubServer, converted: Path) -> None:
    first = push_to_hub(converted, "acme/tiny-sglang")
    hub.log.clear()
    second = push_to_hub(converted, "acme/tiny-sglang")
    assert second.unchanged
    assert second.commit == first.commit
    assert hub.count(f"{UPLOADS}|/commit/|/create|lfs") == 0
    assert len(hub.store.repos["acme/tiny-sglang"].commits) == 2
    assert "is there already, nothing was pushed" in second.lines()[0]


def test_only_what_changed_is_sent(hub: HubServer, converted: Path) -> None:
    push_to_hub(converted, "acme/tiny-sglang")
    (converted / "LICENSE").write_text("Other words.\n")
    hub.log.clear()
    result = push_to_hub(converted, "acme/tiny-sglang", commit_message="Another licence")
    states = {file.name: file.state for file in result.files}
    assert states == {
        "config.json": "unchanged", "model.safetensors": "unchanged", "eagle3convert.json": "unchanged",
        "README.md": "unchanged", "LICENSE": "changed",
    }  # fmt: skip
    assert hub.received(UPLOADS) == 0
    assert hub.store.repos["acme/tiny-sglang"].history()[0] == "Another licence"


def test_a_name_alone_is_the_users_own(hub: HubServer, converted: Path) -> None:
    assert push_to_hub(converted, "tiny-sglang").repo == "alice/tiny-sglang"
    assert "alice/tiny-sglang" in hub.store.repos


def test_a_local_folder_named_like_the_repo_does_not_matter(
    hub: HubServer, converted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert push_to_hub(converted, "acme/tiny").repo == "acme/tiny"


def test_private(hub: HubServer, converted: Path) -> None:
    push_to_hub(converted, "acme/tiny-sglang", private=True)
    assert hub.store.repos["acme/tiny-sglang"].private


def test_private_does_not_go_to_a_public_repo(hub: HubServer, converted: Path) -> None:
    hub.store.create("acme/tiny-sglang")
    with pytest.raises(HubError, match=r"^acme/tiny-sglang: is public already"):
        push_to_hub(converted, "acme/tiny-sglang", private=True)
    assert hub.count(f"{UPLOADS}|/commit/") == 0


def test_a_branch_is_made(hub: HubServer, converted: Path) -> None:
    hub.store.create("acme/tiny")
    result = push_to_hub(converted, "acme/tiny", branch="sglang")
    repo = hub.store.repos["acme/tiny"]
    assert repo.history("main") == ["initial commit"]
    assert len(repo.history("sglang")) == 2
    assert result.revision == "sglang"
    assert "hf download acme/tiny --revision sglang" in result.card
    assert push_to_hub(converted, "acme/tiny", branch="sglang").unchanged


def test_a_revision_must_be_there(hub: HubServer, converted: Path) -> None:
    hub.store.create("acme/tiny")
    with pytest.raises(HubError, match=r"^acme/tiny: has no revision 'v2'"):
        push_to_hub(converted, "acme/tiny", revision="v2")
    hub.store.repos["acme/tiny"].refs["v2"] = hub.store.repos["acme/tiny"].refs["main"]
    assert push_to_hub(converted, "acme/tiny", revision="v2").revision == "v2"


def test_a_pull_request_to_somebody_else(hub: HubServer, converted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.store.create("acme/tiny")
    monkeypatch.setenv("HF_TOKEN", "hf_bob")
    result = push_to_hub(converted, "acme/tiny", create_pr=True)
    repo = hub.store.repos["acme/tiny"]
    assert result.pull_request == f"{hub.url}/acme/tiny/discussions/1"
    assert result.revision == "refs/pr/1"
    assert repo.history("main") == ["initial commit"]
    assert files_at(hub, "acme/tiny", "refs/pr/1")["config.json"] == (converted / "config.json").read_bytes()
    hub.log.clear()
    again = push_to_hub(converted, "acme/tiny", create_pr=True)
    assert again.pull_request == result.pull_request
    assert again.unchanged
    assert len(repo.pulls) == 1
    assert hub.count(f"{UPLOADS}|/commit/") == 0


@pytest.mark.parametrize(
    "where",
    [{"create_pr": True, "branch": "x"}, {"branch": "x", "revision": "y"}, {"create_pr": True, "revision": "y"}],
)
def test_one_place_only(hub: HubServer, converted: Path, where: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        push_to_hub(converted, "acme/tiny", **where)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "acme/x/y", "acme/x@main", "./acme/x", "-x/y", "hf://acme/x/sub"])
def test_what_is_no_name_of_a_repo(hub: HubServer, converted: Path, name: str) -> None:
    with pytest.raises(UsageError, match="is no name of a repo to push to"):
        push_to_hub(converted, name)
    assert hub.log == []


def test_shards_are_pushed_with_their_index(hub: HubServer, drafter: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert(drafter, out, "speculators", "sglang", durable=False, max_shard_size=30_000)
    push_to_hub(out, "acme/tiny")
    there = files_at(hub, "acme/tiny")
    shards = sorted(path.name for path in out.glob("*.safetensors"))
    assert len(shards) > 1
    assert set(shards) | {"model.safetensors.index.json"} < set(there)


def test_weights_of_an_earlier_push_are_taken_away(
    hub: HubServer, drafter: Path, converted: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    convert(drafter, out, "speculators", "sglang", durable=False, max_shard_size=30_000)
    push_to_hub(out, "acme/tiny")
    result = push_to_hub(converted, "acme/tiny")
    assert "model.safetensors.index.json" in {file.name for file in result.files if file.state == "removed"}
    assert [name for name in files_at(hub, "acme/tiny") if "safetensors" in name] == ["model.safetensors"]


def test_weights_of_somebody_else_are_not_taken_away(
    hub: HubServer, converted: Path, drafter: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    shutil.copy(drafter / "model.safetensors", folder / "other.safetensors")
    hub.store.put_folder("acme/tiny", folder)
    with pytest.raises(HubError, match=r"^acme/tiny: holds other.safetensors already"):
        push_to_hub(converted, "acme/tiny")
    assert hub.count(f"{UPLOADS}|/commit/") == 0


# --- what is not pushed -------------------------------------------------------------------------------------------


def test_without_a_receipt(hub: HubServer, drafter: Path) -> None:
    with pytest.raises(PushRefused, match=r"eagle3convert\.json: there is no receipt.*convert it first"):
        push_to_hub(drafter, "acme/tiny")
    assert hub.log == []


FAILED = {"passed": False, "checks": {}, "defects": ["fc.weight: differs."]}


@pytest.mark.parametrize(
    ("report", "says"),
    [
        (None, r"the receipt has no passing verification \(it was not verified\)"),
        (FAILED, r"the receipt has no passing verification \(fc\.weight: differs\.\)"),
        ({}, r"the receipt is not as it was written: verification\.passed"),
        (FAILED | {"passed": "yes"}, r"the receipt is not as it was written: verification\.passed"),
    ],
)
def test_without_a_passing_verification(hub: HubServer, converted: Path, report: object, says: str) -> None:
    receipt = json.loads((converted / "eagle3convert.json").read_text())
    (converted / "eagle3convert.json").write_text(json.dumps(receipt | {"verification": report}))
    with pytest.raises(PushRefused, match=says):
        push_to_hub(converted, "acme/tiny")
    assert hub.log == []


def test_an_unverified_conversion(hub: HubServer, drafter: Path, tmp_path: Path) -> None:
    convert(drafter, tmp_path / "out", "speculators", "sglang", durable=False, verify=False)
    with pytest.raises(PushRefused, match="no passing verification"):
        push_to_hub(tmp_path / "out", "acme/tiny")


def test_changed_since_it_was_verified(hub: HubServer, converted: Path) -> None:
    config = json.loads((converted / "config.json").read_text())
    (converted / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
    with pytest.raises(PushRefused, match="are not those that were verified"):
        push_to_hub(converted, "acme/tiny")
    assert hub.log == []


def test_what_lies_beside_is_not_pushed(hub: HubServer, converted: Path) -> None:
    (converted / "notes.txt").write_text("secret")
    (converted / ".env").write_text("HF_TOKEN=hf_alice")
    (converted / "deep").mkdir()
    (converted / "deep" / "x.txt").write_text("secret")
    result = push_to_hub(converted, "acme/tiny")
    assert not {"notes.txt", ".env", "deep/x.txt"} & set(files_at(hub, "acme/tiny"))
    assert "notes.txt: not pushed, no part of the drafter." in result.notes


def test_no_path_of_this_machine_is_published(hub: HubServer, converted: Path, drafter: Path) -> None:
    push_to_hub(converted, "acme/tiny")
    there = files_at(hub, "acme/tiny")
    for name in ("README.md", "eagle3convert.json", "config.json"):
        assert str(drafter.parent) not in there[name].decode()
    told = json.loads(there["eagle3convert.json"])
    assert told["source"]["path"] == "tiny-speculator"
    mine = json.loads((converted / "eagle3convert.json").read_text())
    assert mine["source"]["path"] == str(drafter)
    assert {**mine, "source": {**mine["source"], "path": "tiny-speculator"}} == told


# --- rights, before anything is uploaded --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "repo", "said"),
    [
        ("", "acme/tiny", r"^acme/tiny: nobody is logged in to http.* Run `hf auth login`, or set HF_TOKEN"),
        ("hf_mistyped", "acme/tiny", r"^acme/tiny: http.* does not accept the token in HF_TOKEN"),
        ("hf_reader", "acme/tiny", r"^acme/tiny: the token in HF_TOKEN \(of alice\) may only read.*--create-pr"),
        (
            "hf_bob",
            "acme/tiny",
            r"^acme/tiny: bob is no member of 'acme' and may not push there. Push under one of bob,",
        ),
        ("hf_fine", "acme/tiny", r"^acme/tiny: .* is fine-grained and has no permission to write"),
    ],
)
def test_missing_rights(
    hub: HubServer, converted: Path, monkeypatch: pytest.MonkeyPatch, token: str, repo: str, said: str
) -> None:
    monkeypatch.delenv("HF_TOKEN") if not token else monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(HubError, match=said):
        check_rights(repo)
    with pytest.raises(HubError, match=said):
        push_to_hub(converted, repo)
    assert hub.count(WRITES) == 0
    assert hub.received("") == 0


def test_a_pull_request_needs_a_repo(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_bob")
    with pytest.raises(HubError, match=r"^acme/none: there is no such repo to propose a change to"):
        check_rights("acme/none", create_pr=True)


def test_rights_are_asked_once(hub: HubServer, converted: Path) -> None:
    rights = check_rights("acme/tiny")
    assert (rights.user, rights.repo, rights.exists) == ("alice", "acme/tiny", False)
    push_to_hub(converted, "acme/tiny", rights=rights)
    assert hub.count("whoami") == 1


def test_offline(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match=r"^acme/tiny: HF_HUB_OFFLINE is set, so nothing can be pushed"):
        check_rights("acme/tiny")


# --- the rehearsal ------------------------------------------------------------------------------------------------


def test_dry_run(hub: HubServer, converted: Path) -> None:
    result = push_to_hub(converted, "acme/tiny", dry_run=True)
    assert hub.count(f"{WRITES}") == 0
    assert "acme/tiny" not in hub.store.repos
    text = "\n".join(result.lines())
    assert text.startswith("acme/tiny@main: would be pushed in one commit:")
    size = (converted / "model.safetensors").stat().st_size
    assert f"{size:,} bytes  model.safetensors" in text
    assert "license: apache-2.0" in text
    real = push_to_hub(converted, "acme/tiny")
    assert real.card == result.card
    assert real.files == result.files


def test_dry_run_without_a_network(hub: HubServer, converted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    result = push_to_hub(converted, "acme/tiny", dry_run=True)
    assert [file.state for file in result.files] == ["new"] * len(result.files)
    assert "could not be read" in result.notes[-1]


def test_json(hub: HubServer, converted: Path) -> None:
    told = push_to_hub(converted, "acme/tiny").as_json()
    assert json.loads(json.dumps(told)) == told
    assert split_card(told["card"])[0]["license"] == "apache-2.0"
