"""The card: what it says, what it keeps of the source's card, and what it never invents."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from eagle3convert import convert
from eagle3convert.hub.card import BEGIN, END, Subject, make_card
from eagle3convert.hub.errors import HubError, PushRefused
from eagle3convert.hub.folder import read_converted
from eagle3convert.hub.front_matter import join_card, split_card
from eagle3convert.hub.names import HubOrigin, HubSource
from eagle3convert.hub.push import push_to_hub
from eagle3convert.hub.sources import download

from .conftest import SOURCE_CARD
from .server import Fault, HubServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def subject(converted: Path) -> Subject:
    return Subject(converted, read_converted(converted).receipt, "acme/tiny-sglang")


def from_hub(subject: Subject) -> Subject:
    source = {**subject.receipt["source"], **HubOrigin("acme/tiny-speculator", COMMIT).as_json()}
    return Subject(subject.folder, {**subject.receipt, "source": source}, subject.repo)


def test_a_new_card(subject: Subject) -> None:
    data, text = split_card(make_card(subject, None, None))
    assert data == {
        "base_model": "example-org/tiny-llama", "library_name": "transformers", "pipeline_tag": "text-generation",
        "tags": ["speculative-decoding", "eagle3", "draft-model", "eagle3convert", "sglang"],
    }  # fmt: skip
    for said in (
        "# tiny-sglang", "https://huggingface.co/example-org/tiny-llama", "Served by SGLang >= 0.5.",
        "from the speculators format to the SGLang format", "--speculative-draft-model-path acme/tiny-sglang",
        "--model-path example-org/tiny-llama",
        "| draft vocabulary | 40 |", "| verifier vocabulary | 96 |", "| d2t | offset values |",
        "| aux layers, as hidden_states indices (0 = embedding) | 2, 4, 5 |",
        "| aux layers, as layers whose output is taken | 1, 3, 4 |", "norm_before_residual false",
        "- bytes: 16 tensors equal bit for bit", "eagle3convert 0.",
    ):  # fmt: skip
        assert said in text, said


def test_the_card_of_a_drafter_for_the_model_package_says_how_to_serve_it(tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "fixtures" / "speculators" / "llama1_cli_default"
    verifier = tmp_path / "verifier.json"
    verifier.write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 8}), encoding="utf-8")
    out = convert(source, tmp_path / "out", "speculators", "sglang-plugin", verifier_config=verifier).path
    data, text = split_card(make_card(Subject(out, read_converted(out).receipt, "acme/tiny"), None, None))
    assert "sglang-plugin" in data["tags"]
    assert "env SGLANG_EXTERNAL_MODEL_PACKAGE=eagle3convert.engines.sglang python -m sglang.launch_server" in text
    assert "Served by SGLang (plugin) >= 0.5.23: The draft class comes with eagle3convert: install it beside" in text
    assert "norm_before_residual true" in text


def test_a_card_is_the_same_every_time(subject: Subject) -> None:
    assert make_card(subject, SOURCE_CARD, None) == make_card(subject, SOURCE_CARD, None)


def test_the_sources_card_is_kept(subject: Subject) -> None:
    data, text = split_card(make_card(from_hub(subject), SOURCE_CARD, None))
    assert data["license"] == "apache-2.0"
    assert data["base_model"] == "acme/tiny-speculator"
    assert data["tags"] == ["my-tag", "speculative-decoding", "eagle3", "draft-model", "eagle3convert", "sglang"]
    assert "Trained with care." in text
    assert f"(https://huggingface.co/acme/tiny-speculator/resolve/{COMMIT}/plots/loss.png)" in text
    assert f"https://huggingface.co/acme/tiny-speculator/tree/{COMMIT}) at commit `0123456789ab`" in text


def test_a_licence_is_never_invented(subject: Subject) -> None:
    assert "license" not in make_card(subject, None, None).lower()
    assert "license" not in make_card(subject, "# A card without front matter\n", None).lower()


def test_a_licence_of_its_own_is_copied_whole(subject: Subject) -> None:
    mine = {"license": "other", "license_name": "acme-1", "license_link": "LICENSE", "language": ["en"]}
    data, _ = split_card(make_card(subject, join_card(mine, "words"), None))
    assert mine.items() <= data.items()


def test_a_broken_card_of_the_source(subject: Subject) -> None:
    data, text = split_card(make_card(subject, "---\nlicense: [mit\n---\nwords\n", None))
    assert "license" not in data
    assert "words" in text


def test_what_the_repo_has_is_kept(subject: Subject) -> None:
    first = make_card(subject, SOURCE_CARD, None)
    data, text = split_card(first)
    edited = join_card({**data, "base_model": "acme/mine", "tags": ["mine"]}, text.replace("# tiny-sglang", "# Mine"))
    data, text = split_card(make_card(subject, SOURCE_CARD, edited))
    assert data["base_model"] == "acme/mine"
    assert data["tags"][0] == "mine"
    assert text.count(BEGIN) == text.count(END) == 1
    assert "# Mine" in text
    assert "Trained with care." in text
    assert make_card(subject, SOURCE_CARD, edited) == make_card(subject, SOURCE_CARD, join_card(data, text))


def test_a_card_without_marks_gets_them_first(subject: Subject) -> None:
    _, text = split_card(make_card(subject, None, "---\nlicense: mit\n---\n# Mine\n\nwords\n"))
    assert text.strip().startswith(BEGIN)
    assert text.rstrip().endswith("# Mine\n\nwords")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"base_model": "/data/llama"}, "base_model is '/data/llama', which names no repo"),
        ({"base_model": ["acme/x", "./here"]}, "base_model is './here', which names no repo"),
        ({"license": ["mit"]}, r"license is \['mit'\], not a name"),
        ({"datasets": ["/data/train"]}, "datasets is '/data/train', a path on your machine"),
        ({"license_link": "~/LICENSE"}, "license_link is '~/LICENSE', a path on your machine"),
    ],
)
def test_what_the_hub_would_refuse(subject: Subject, data: dict[str, Any], said: str) -> None:
    with pytest.raises(PushRefused, match=f"^acme/tiny-sglang: README.md: {said}"):
        make_card(subject, None, join_card(data, "words"))


def test_a_local_base_model_of_the_source_is_left_out(subject: Subject) -> None:
    data, _ = split_card(make_card(subject, "---\nbase_model: /data/llama\n---\n", None))
    assert data["base_model"] == "example-org/tiny-llama"


@pytest.mark.parametrize(
    ("text", "data", "body"),
    [
        ("words", {}, "words"),
        ("---\nlicense: mit\n---\nwords", {"license": "mit"}, "words"),
        ("---\r\nlicense: mit\r\n---\r\nwords", {"license": "mit"}, "words"),
        ("---\n---\nwords", {}, "words"),
        ("# A\n\n---\n\na: b\n\n---\n", {}, "# A\n\n---\n\na: b\n\n---\n"),
    ],
)
def test_split(text: str, data: dict[str, Any], body: str) -> None:
    assert split_card(text) == (data, body)


def test_join_is_what_the_clients_own_reader_reads(subject: Subject) -> None:
    from huggingface_hub import ModelCard

    card = make_card(subject, SOURCE_CARD, None)
    read = ModelCard(card)
    assert getattr(read.data, "license", None) == "apache-2.0"
    assert yaml.safe_load(card.split("---")[1])["pipeline_tag"] == "text-generation"


def test_a_local_verifier_is_not_named(drafter: Path, tmp_path: Path) -> None:
    verifier = tmp_path / "my" / "verifier"
    verifier.mkdir(parents=True)
    (verifier / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 6, "vocab_size": 96}))
    out = tmp_path / "out"
    convert(drafter, out, "speculators", "sglang", durable=False, verifier=str(verifier))
    folder = read_converted(out)
    assert str(tmp_path) in json.dumps(folder.receipt["verifier"])
    card = make_card(Subject(out, folder.receipt, "acme/x"), None, None)
    assert str(tmp_path) not in card
    assert "base_model" not in split_card(card)[0]
    assert "--model-path VERIFIER" in card
    published = next(file for file in folder.files if file.name == "eagle3convert.json")
    assert isinstance(published.content, bytes)
    assert str(tmp_path) not in published.content.decode()


def test_a_source_on_the_hub_gives_card_licence_and_commit(hub: HubServer, drafter: Path, tmp_path: Path) -> None:
    repo = hub.store.put_folder("acme/tiny-speculator", drafter)
    out = tmp_path / "out"
    convert(download(HubSource("acme/tiny-speculator")), out, "auto", "sglang", durable=False)
    shutil.rmtree(tmp_path / "cache")  # the card is read from the Hub, at the commit
    result = push_to_hub(out, "acme/tiny-sglang")
    data, text = split_card(result.card)
    assert (data["license"], data["base_model"]) == ("apache-2.0", "acme/tiny-speculator")
    assert f"{hub.url}/acme/tiny-speculator/tree/{repo.refs['main']}" in text
    there = hub.store.repos["acme/tiny-sglang"].commits[result.commit or ""].files
    assert there["LICENSE"].bytes() == (drafter / "LICENSE").read_bytes()
    told = json.loads(there["eagle3convert.json"].bytes())
    assert told["source"]["repo"] == "acme/tiny-speculator"
    assert told["source"]["commit"] == repo.refs["main"]
    assert str(tmp_path) not in json.dumps(told)


def test_another_folder_in_the_sources_place_gives_nothing(hub: HubServer, drafter: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(drafter, tmp_path / "source"))
    convert(source, tmp_path / "out", "speculators", "sglang", durable=False)
    (source / "model.safetensors").write_bytes(b"another drafter")
    (source / "README.md").write_text("---\nlicense: mit\n---\n")
    result = push_to_hub(tmp_path / "out", "acme/tiny")
    assert "license" not in split_card(result.card)[0]
    assert "LICENSE" not in {file.name for file in result.files}


@pytest.mark.parametrize("destination", ["vllm", "speculators", "specforge", "modelopt"])
def test_every_format_has_a_card(hub: HubServer, drafter: Path, tmp_path: Path, destination: str) -> None:
    first = tmp_path / "first"
    convert(drafter, first, "speculators", "sglang", durable=False)
    convert(first, tmp_path / "out", "sglang", destination, durable=False)
    result = push_to_hub(tmp_path / "out", "acme/tiny")
    data, text = split_card(result.card)
    assert f"| format | {destination} (from sglang) |" in text
    assert ("```bash" in text) == (destination == "vllm")
    assert data["library_name"] == ("speculators" if destination == "speculators" else "transformers")


def test_a_format_of_the_users_own(hub: HubServer, drafter: Path, tmp_path: Path) -> None:
    from eagle3convert.formats import schemas_folder

    own = tmp_path / "mine.toml"
    own.write_text((schemas_folder() / "sglang.toml").read_text().replace('name = "sglang"', 'name = "mine"', 1))
    convert(drafter, tmp_path / "out", "speculators", "mine", durable=False, format_files=[own])
    result = push_to_hub(tmp_path / "out", "acme/tiny")
    assert "from the speculators format to the mine format" in result.card
    assert "- bytes: 16 tensors equal bit for bit" in result.card


def test_a_source_that_is_gone(hub: HubServer, drafter: Path, tmp_path: Path) -> None:
    hub.store.put_folder("acme/tiny-speculator", drafter)
    out = tmp_path / "out"
    convert(download(HubSource("acme/tiny-speculator")), out, "auto", "sglang", durable=False)
    shutil.rmtree(tmp_path / "cache")
    hub.faults.append(Fault("/tiny-speculator/paths-info/", status=503, times=99))
    with pytest.raises(HubError, match=r"^acme/tiny-speculator: .*trouble of its own"):
        push_to_hub(out, "acme/tiny-sglang")
    assert "acme/tiny-sglang" not in hub.store.repos
    hub.faults.clear()
    del hub.store.repos["acme/tiny-speculator"]
    result = push_to_hub(out, "acme/tiny-sglang")
    assert "license" not in split_card(result.card)[0]
    assert any("no licence was copied" in note for note in result.notes)
