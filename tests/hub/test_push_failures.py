"""Everything that can go wrong while pushing: it is mended or explained, and nothing is committed or sent twice."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import huggingface_hub
import pytest
from packaging.version import Version

from eagle3convert.hub import retrying
from eagle3convert.hub.errors import HubError, PushRefused
from eagle3convert.hub.push import PushResult, push_to_hub
from eagle3convert.hub.rights import check_rights

from .server import Fault, HubServer
from .store import Blob, Repo

COMMIT = "POST .*/commit/"
UPLOAD = "PUT /large/"
TITLE = "EAGLE-3 drafter, converted from speculators to sglang"


def push(converted: Path) -> PushResult:
    return push_to_hub(converted, "acme/tiny")


def tiny(hub: HubServer) -> Repo:
    return hub.store.repos["acme/tiny"]


def assert_pushed_once(hub: HubServer, converted: Path, result: PushResult) -> None:
    """One commit of ours, the weights sent once, and the result names that commit."""
    assert tiny(hub).history().count(TITLE) == 1
    assert result.commit == tiny(hub).refs["main"]
    assert hub.received(UPLOAD) == (converted / "model.safetensors").stat().st_size
    files = tiny(hub).commits[result.commit or ""].files
    assert files["model.safetensors"].bytes() == (converted / "model.safetensors").read_bytes()


def assert_a_rerun_finishes(hub: HubServer, converted: Path) -> None:
    hub.faults.clear()
    assert_pushed_once(hub, converted, push(converted))


# --- the commit ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        Fault(COMMIT, status=500), Fault(COMMIT, status=503, times=3), Fault(COMMIT, status=409, times=2),
        Fault(COMMIT, status=429, headers={"Retry-After": "2"}), Fault(COMMIT, reset_after=0, times=2),
    ],
    ids=["500 once", "503 three times", "409 twice", "429", "reset before it arrived"],
)  # fmt: skip
def test_a_commit_that_fails_for_a_while(hub: HubServer, converted: Path, fault: Fault) -> None:
    hub.faults.append(fault)
    assert_pushed_once(hub, converted, push(converted))


@pytest.mark.parametrize("losses", [1, 2])
def test_the_answer_to_the_commit_is_lost(hub: HubServer, converted: Path, losses: int) -> None:
    hub.faults.append(Fault(COMMIT, lose_answer=True, times=losses))
    result = push(converted)
    assert_pushed_once(hub, converted, result)
    assert "The Hub's answer to the commit was lost; the commit itself is there, once." in result.notes
    assert hub.count(COMMIT) == 1


def test_the_answer_is_lost_and_the_repo_cannot_be_looked_at(hub: HubServer, converted: Path) -> None:
    hub.faults.append(Fault(COMMIT, lose_answer=True))
    hub.faults.append(Fault("/api/models/acme/tiny/revision/main", status=503, times=0))
    looks = hub.faults[1]
    hub.faults[0].before = lambda: setattr(looks, "times", 5)
    assert_pushed_once(hub, converted, push(converted))


def test_500_although_the_commit_was_made(hub: HubServer, converted: Path) -> None:
    """A proxy may answer 502 for a commit that went through behind it; the next try would be told 412."""
    store = hub.store
    original = store.repos

    def land() -> None:
        files = dict(tiny(hub).commits[tiny(hub).refs["main"]].files)
        for path in converted.iterdir():
            if path.name == "config.json":
                files[path.name] = Blob.small(path.read_bytes())
        weights = next(iter(store.large.values()))
        files["model.safetensors"] = weights
        for upload in sent:
            files[upload] = sent[upload]
        tiny(hub).add("main", files, TITLE)

    rehearsed = push_to_hub(converted, "acme/tiny", dry_run=True)
    from eagle3convert.hub.folder import read_converted
    from eagle3convert.hub.source_card import licence_texts

    folder = read_converted(converted)
    sent = {
        file.name: Blob.small(file.content if isinstance(file.content, bytes) else file.content.read_bytes())
        for file in (*folder.files, *licence_texts(folder))
        if file.name != "model.safetensors"
    }
    sent["README.md"] = Blob.small(rehearsed.card.encode())
    hub.faults.append(Fault(COMMIT, status=502, before=land))
    assert_pushed_once(hub, converted, push(converted))
    assert original is hub.store.repos


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (
            500,
            r"^acme/tiny: http\S+ has trouble of its own \(status 500\).*weights have arrived.*not sent again",
        ),
        (409, r"^acme/tiny: another change of the repo is under way.*weights have arrived"),
        (429, r"^acme/tiny: http\S+ asks to wait: too many requests.*weights have arrived"),
    ],
)
def test_a_commit_that_keeps_failing(hub: HubServer, converted: Path, status: int, said: str) -> None:
    hub.faults.append(Fault(COMMIT, status=status, times=99))
    with pytest.raises(HubError, match=said):
        push(converted)
    assert hub.count(COMMIT) == 5
    assert tiny(hub).history() == ["initial commit"]
    assert_a_rerun_finishes(hub, converted)


def test_a_connection_that_stays_away(hub: HubServer, converted: Path) -> None:
    hub.faults.append(Fault(COMMIT, reset_after=0, times=99))
    with pytest.raises(HubError, match=r"^acme/tiny: the connection to http\S+ failed.*Whether the commit was made"):
        push(converted)
    assert_a_rerun_finishes(hub, converted)


def test_the_hub_asks_for_a_long_wait(hub: HubServer, converted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(retrying, "pause", waits.append)
    hub.faults.append(Fault(COMMIT, status=429, headers={"RateLimit": '"api";r=0;t=30'}))
    push(converted)
    assert waits == [31.0]
    hub.faults.append(Fault("whoami", status=429, headers={"Retry-After": "3600"}))
    with pytest.raises(HubError, match="asks to wait"):
        push(converted)
    assert waits == [31.0]


def test_somebody_else_commits_meanwhile(hub: HubServer, converted: Path) -> None:
    def other() -> None:
        head = tiny(hub).commits[tiny(hub).refs["main"]]
        tiny(hub).add("main", {**head.files, "notes.md": Blob.small(b"hello")}, "Somebody else")

    hub.faults.append(Fault(COMMIT, before=other))
    with pytest.raises(
        HubError, match=r"^acme/tiny: changed while this push was on its way: 'main' was at .*push again"
    ):
        push(converted)
    assert tiny(hub).history() == ["Somebody else", "initial commit"]
    result = push(converted)
    assert_pushed_once(hub, converted, result)
    assert "notes.md" in tiny(hub).commits[result.commit or ""].files


def test_the_answer_to_a_pull_request_is_lost(hub: HubServer, converted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.store.create("acme/tiny")
    monkeypatch.setenv("HF_TOKEN", "hf_bob")
    hub.faults.append(Fault(COMMIT, lose_answer=True))
    result = push_to_hub(converted, "acme/tiny", create_pr=True)
    assert len(tiny(hub).pulls) == 1
    assert result.pull_request == f"{hub.url}/acme/tiny/discussions/1"
    assert result.commit == tiny(hub).refs["refs/pr/1"]


# --- the upload ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [Fault(UPLOAD, status=500, times=2), Fault(UPLOAD, status=503)], ids=["500 twice", "503"]
)
def test_an_upload_that_fails_for_a_while(hub: HubServer, converted: Path, fault: Fault) -> None:
    hub.faults.append(fault)
    result = push(converted)
    assert result.commit == tiny(hub).refs["main"]
    assert tiny(hub).history() == [TITLE, "initial commit"]


def test_an_upload_that_breaks_off(hub: HubServer, converted: Path) -> None:
    hub.faults.append(Fault(UPLOAD, reset_after=30_000))
    assert push(converted).commit == tiny(hub).refs["main"]
    assert tiny(hub).history() == [TITLE, "initial commit"]


def test_an_upload_that_always_breaks_off(hub: HubServer, converted: Path) -> None:
    hub.faults.append(Fault(UPLOAD, reset_after=30_000, times=999))
    with pytest.raises(
        HubError,
        match=r"^acme/tiny: the connection to http\S+ failed while model.safetensors was uploaded.*Nothing was comm",
    ):
        push(converted)
    assert tiny(hub).history() == ["initial commit"]
    hub.log.clear()
    assert_a_rerun_finishes(hub, converted)


def test_the_answer_to_an_upload_is_lost(hub: HubServer, converted: Path) -> None:
    hub.faults.append(Fault(UPLOAD, lose_answer=True))
    push(converted)
    assert tiny(hub).history() == [TITLE, "initial commit"]


@pytest.mark.parametrize(
    "route", ["/preupload/", "/objects/batch", "/whoami", "/validate-yaml", "/create", "/paths-info"]
)
@pytest.mark.parametrize(
    "fault", [{"status": 503}, {"reset_after": 0}, {"lose_answer": True}], ids=["503", "reset", "lost"]
)
def test_the_small_requests(hub: HubServer, converted: Path, route: str, fault: dict[str, int]) -> None:
    hub.faults.append(Fault(route, **fault))  # type: ignore[arg-type]
    assert_pushed_once(hub, converted, push(converted))


@pytest.mark.parametrize("status", [401, 403])
def test_the_hub_denies_at_the_upload_what_it_did_not_say_before(hub: HubServer, converted: Path, status: int) -> None:
    hub.faults.append(Fault("/preupload/", status=status, said="Your storage is used up"))
    with pytest.raises(HubError, match=r'^acme/tiny: .*"Your storage is used up".*Nothing was committed'):
        push(converted)
    assert hub.received(UPLOAD) == 0
    assert_a_rerun_finishes(hub, converted)


def test_the_hub_denies_to_make_the_repo(hub: HubServer, converted: Path) -> None:
    hub.faults.append(Fault("/create", status=403, said="Creation of repos is switched off for acme"))
    with pytest.raises(HubError, match=r"^acme/tiny: .*Creation of repos is switched off for acme"):
        push(converted)
    assert hub.received(UPLOAD) == 0


def test_the_repo_is_deleted_meanwhile(hub: HubServer, converted: Path) -> None:
    hub.store.create("acme/tiny")
    rights = check_rights("acme/tiny")
    del hub.store.repos["acme/tiny"]
    with pytest.raises(HubError, match=r"^acme/tiny: there is no such model repo"):
        push_to_hub(converted, "acme/tiny", rights=rights)


def test_a_hub_without_xet(hub: HubServer, converted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A private Hub may have no Xet; clients since 1.20 do not ask first."""
    pytest.importorskip("hf_xet")
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    if Version(huggingface_hub.__version__) < Version("1.20"):
        assert_pushed_once(hub, converted, push(converted))
        return
    with pytest.raises(
        HubError, match=r"^acme/tiny: http\S+ does not offer Xet.*Set HF_HUB_DISABLE_XET=1 and run again"
    ):
        push(converted)
    assert tiny(hub).history() == ["initial commit"]
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    assert_a_rerun_finishes(hub, converted)


@pytest.mark.parametrize("status", [401, 403])
def test_xet_denies(hub: HubServer, converted: Path, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    pytest.importorskip("hf_xet")
    if Version(huggingface_hub.__version__) < Version("1.20"):
        pytest.skip("older clients ask the server, which offers LFS")
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    hub.faults.append(Fault("/xet-write-token/", status=status, times=9))
    with pytest.raises(HubError, match=r"^acme/tiny: the token in HF_TOKEN gives no right to upload large files there"):
        push(converted)
    assert tiny(hub).history() == ["initial commit"]


# --- the card, the end, and Ctrl-C --------------------------------------------------------------------------------


def test_the_hub_refuses_the_card(hub: HubServer, converted: Path) -> None:
    hub.faults.append(Fault("/validate-yaml", status=400, body={"errors": [{"message": '"license" must be known'}]}))
    with pytest.raises(PushRefused, match=r'^acme/tiny: the Hub refuses the card: "license" must be known'):
        push(converted)
    assert "acme/tiny" not in hub.store.repos


def test_what_is_read_back_differs(hub: HubServer, converted: Path) -> None:
    def tamper() -> None:
        head = tiny(hub).commits[tiny(hub).refs["main"]]
        if "config.json" in head.files:
            head.files["config.json"] = Blob.small(b"{}")  # type: ignore[index]

    hub.faults.append(Fault("/paths-info/", before=tamper, times=99))
    with pytest.raises(HubError, match=r"^acme/tiny: the commit http\S+ was made, but config.json read back otherwise"):
        push(converted)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("moment", ["/create", "/preupload/", UPLOAD, COMMIT])
def test_ctrl_c(hub: HubServer, converted: Path, moment: str) -> None:
    hub.faults.append(Fault(moment, before=interrupt))
    with pytest.raises(KeyboardInterrupt, match=r"^acme/tiny: the push was interrupted; the Hub has either all"):
        push(converted)
    if "acme/tiny" in hub.store.repos:
        assert tiny(hub).history() in (["initial commit"], [TITLE, "initial commit"])
    hub.faults.clear()
    result = push(converted)
    assert tiny(hub).history() == [TITLE, "initial commit"]
    assert result.commit == tiny(hub).refs["main"]
