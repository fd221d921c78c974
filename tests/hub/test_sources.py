"""Drafters on the Hub: opened by their headers, downloaded, from the cache, and what stands in the way."""

from __future__ import annotations

import gc
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from eagle3convert import convert, inspect, load_checkpoint
from eagle3convert.checkpoint.source import Checkpoint
from eagle3convert.errors import CheckpointError
from eagle3convert.hub.cache import resolve, verifier_config
from eagle3convert.hub.errors import HubError
from eagle3convert.hub.names import HubSource
from eagle3convert.hub.opening import fetched, open_source
from eagle3convert.hub.sources import HubCheckpoint, download, open_hub_checkpoint

from ..checkpoint.files import drafter_rows, index_of, make_folder, safetensors_bytes
from .conftest import FIXTURES
from .server import Fault, HubServer

DRAFTER = HubSource("acme/drafter")


def everything_of(checkpoint: Checkpoint) -> dict[str, object]:
    return {
        "config": checkpoint.config,
        "tensors": {name: (t.dtype, t.shape, t.read()) for name, t in checkpoint.tensors.items()},
        "metadata": checkpoint.metadata,
        "files": [(file.name, file.stat().st_size) for file in checkpoint.files],
        "container": checkpoint.container,
    }


@pytest.mark.parametrize("name", ["llama1", "llama1_sharded", "qwen3_2", "llama1_bf16"])
def test_a_remote_drafter_is_the_local_one(hub: HubServer, name: str) -> None:
    hub.store.put_folder("acme/drafter", FIXTURES / name)
    with open_hub_checkpoint(DRAFTER) as remote, load_checkpoint(FIXTURES / name) as local:
        assert remote.is_remote
        assert everything_of(remote) == everything_of(local)
        assert {str(tensor.file.name).partition(":")[0] for tensor in remote.tensors.values()} == {"acme/drafter"}
        outline = remote.path
    assert outline.exists()
    del remote
    gc.collect()
    assert not outline.exists()


def test_the_revision_is_resolved_once(hub: HubServer, drafter: Path) -> None:
    repo = hub.store.put_folder("acme/drafter", drafter)
    first = repo.refs["main"]
    with open_hub_checkpoint(HubSource("acme/drafter", "main")) as remote:
        hub.store.put_folder("acme/drafter", FIXTURES / "llama2")
        tensors = {name: tensor.read() for name, tensor in remote.tensors.items()}
        assert remote.origin.commit == first
        assert remote.provenance() == {
            "path": f"hf://acme/drafter@{first}", "repo": "acme/drafter", "commit": first, "folder": "",
        }  # fmt: skip
    with load_checkpoint(drafter) as local:
        assert tensors == {name: tensor.read() for name, tensor in local.tensors.items()}
    assert hub.count("GET /api/models/acme/drafter/revision/main|GET /api/models/acme/drafter$") == 1
    assert hub.count(f"/resolve/{first}/") == hub.count("/resolve/")


def test_a_folder_of_a_repo_at_a_tag(hub: HubServer, drafter: Path) -> None:
    repo = hub.store.put_folder("acme/run", drafter, inside="checkpoints/epoch_3/")
    repo.refs["v1"] = repo.refs["main"]
    with (
        open_hub_checkpoint(HubSource("acme/run", "v1", "checkpoints/epoch_3")) as remote,
        load_checkpoint(drafter) as local,
    ):
        assert everything_of(remote) == everything_of(local)


def test_the_token_is_not_shown_to_the_host_of_large_files(hub: HubServer, drafter: Path) -> None:
    hub.store.put_folder("acme/drafter", drafter, private=True)
    with open_hub_checkpoint(DRAFTER):
        pass
    large = [line for line in hub.log if line.path.startswith("/large/")]
    assert large
    assert all(line.host.startswith("localhost") and line.token == "" for line in large)
    assert all(line.token for line in hub.log if not line.path.startswith("/large/"))
    assert all(line.agent.startswith("eagle3convert/") for line in hub.log if "/resolve/" in line.path)


def test_shards_in_a_subfolder(hub: HubServer, tmp_path: Path) -> None:
    rows = drafter_rows()
    shards = {"weights/a.safetensors": {"d2t": rows["d2t"], "fc.weight": rows["fc.weight"]}}
    folder = make_folder(tmp_path / "drafter", {**shards, "model.safetensors.index.json": index_of(shards)})
    hub.store.put_folder("acme/drafter", folder)
    with open_hub_checkpoint(DRAFTER) as remote, load_checkpoint(folder) as local:
        assert everything_of(remote) == everything_of(local)


def test_a_receipt_is_read_with_it(hub: HubServer, converted: Path) -> None:
    from eagle3convert.receipt import read_receipt

    hub.store.put_folder("acme/drafter", converted)
    with open_hub_checkpoint(DRAFTER) as remote:
        receipt = read_receipt(remote)
        assert receipt is not None
        assert receipt["source"]["format"] == "speculators"


def make_large(folder: Path) -> int:
    """A drafter of 2.4 GB whose data are a hole in the file, but for d2t, t2d and a first byte of each tensor."""
    config = json.loads((FIXTURES / "llama1" / "config.json").read_text())
    layer = config["transformer_layer_config"]
    hidden, inner, vocab, draft, heads, keys, dim = 4096, 17408, 128256, 32000, 32, 8, 128
    layer |= {
        "hidden_size": hidden, "intermediate_size": inner, "vocab_size": vocab, "num_attention_heads": heads,
        "num_key_value_heads": keys, "head_dim": dim,
    }  # fmt: skip
    config["draft_vocab_size"] = draft
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {
        "d2t": ("I64", [draft]), "t2d": ("BOOL", [vocab]), "embed_tokens.weight": ("BF16", [vocab, hidden]),
        "fc.weight": ("BF16", [hidden, 3 * hidden]), "lm_head.weight": ("BF16", [draft, hidden]),
        "norm.weight": ("BF16", [hidden]), "layers.0.input_layernorm.weight": ("BF16", [hidden]),
        "layers.0.hidden_norm.weight": ("BF16", [hidden]),
        "layers.0.post_attention_layernorm.weight": ("BF16", [hidden]),
        "layers.0.self_attn.q_proj.weight": ("BF16", [heads * dim, 2 * hidden]),
        "layers.0.self_attn.k_proj.weight": ("BF16", [keys * dim, 2 * hidden]),
        "layers.0.self_attn.v_proj.weight": ("BF16", [keys * dim, 2 * hidden]),
        "layers.0.self_attn.o_proj.weight": ("BF16", [hidden, heads * dim]),
        "layers.0.mlp.gate_proj.weight": ("F32", [inner, hidden]),
        "layers.0.mlp.up_proj.weight": ("F32", [inner, hidden]),
        "layers.0.mlp.down_proj.weight": ("F32", [hidden, inner]),
    }  # fmt: skip
    width = {"I64": 8, "BOOL": 1, "BF16": 2, "F32": 4}
    header, at = dict[str, Any](), 0
    for name, (dtype, shape) in shapes.items():
        size = width[dtype]
        for extent in shape:
            size *= extent
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = folder / "model.safetensors"
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, entry in header.items():
            file.seek(8 + len(text) + entry["data_offsets"][0])
            if name == "t2d":
                file.write(bytes(i % 4 == 0 and i < 4 * draft for i in range(vocab)))
            elif name == "d2t":
                file.write(b"".join((3 * i).to_bytes(8, "little") for i in range(draft)))
            else:
                file.write(b"\x01")
        file.truncate(8 + len(text) + at)
    return path.stat().st_size


def test_inspecting_a_large_drafter_reads_less_than_a_megabyte(hub: HubServer, tmp_path: Path) -> None:
    folder = tmp_path / "large"
    size = make_large(folder)
    assert size > 2.3e9
    repo = hub.store.create("acme/drafter")
    from .store import Blob

    weights = hub.store.keep_large(folder / "model.safetensors", "a" * 64)
    config = Blob.small((folder / "config.json").read_bytes())
    repo.add("main", {"config.json": config, "model.safetensors": weights}, "Upload")
    with open_hub_checkpoint(DRAFTER) as remote:
        assert remote.tensors["d2t"].numel == 32000
        remote.tensors["d2t"].read()
        remote.tensors["t2d"].read()
        remote.tensors["d2t"].read()  # what was read is not fetched again
        note = remote.read_note()
    assert hub.sent() < 1_000_000
    assert hub.count("GET /large/") <= 3
    assert "of 2.4 GB" in note
    assert "MB of" not in note


def test_one_door_for_all_sources(hub: HubServer, drafter: Path) -> None:
    hub.store.put_folder("acme/drafter", drafter)
    with open_source(str(drafter)) as local, open_source("acme/drafter") as remote:
        assert everything_of(local) == everything_of(remote)
        assert fetched(local) is local
    with pytest.raises(CheckpointError, match=r"^no/such/folder: there is no such folder"):
        open_source("no/such/folder")
    with pytest.raises(HubError, match=r"^runs/epoch_1: there is no such model repo .*There is no folder runs/epoch_1"):
        open_source("runs/epoch_1")


def test_a_cache_that_cannot_be_written(hub: HubServer, drafter: Path, tmp_path: Path) -> None:
    hub.store.put_folder("acme/drafter", drafter)
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(HubError, match=r"/cache\S*: the Hub cache cannot be used \(.*Set HF_HOME"):
        download(DRAFTER)


def test_verifier_config_reads_config_json_only(hub: HubServer, drafter: Path) -> None:
    hub.store.put_folder("acme/verifier", drafter)
    assert verifier_config("acme/verifier") == json.loads((drafter / "config.json").read_text())
    assert hub.count("GET .*/resolve/") == 1
    assert hub.count("/large/") == 0
    hub.log.clear()
    assert verifier_config("acme/verifier")
    assert hub.count("GET .*/resolve/") == 0


def test_download_takes_what_is_needed(hub: HubServer, converted: Path) -> None:
    (converted / "README.md").write_text("# card\n")
    (converted / "LICENSE").write_text("words\n")
    (converted / "optimizer.pt").write_bytes(b"x" * 100)
    (converted / "loss.png").write_bytes(b"x" * 100)
    hub.store.put_folder("acme/drafter", converted)
    folder = download(DRAFTER)
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.json", "model.safetensors", "eagle3convert.json", "README.md", "LICENSE"}
    assert (folder / "model.safetensors").read_bytes() == (converted / "model.safetensors").read_bytes()


def test_what_is_downloaded_is_not_fetched_again(hub: HubServer, drafter: Path) -> None:
    hub.store.put_folder("acme/drafter", drafter)
    first = download(DRAFTER)
    hub.log.clear()
    assert download(DRAFTER) == first
    with open_hub_checkpoint(DRAFTER) as checkpoint, load_checkpoint(drafter) as local:
        assert not checkpoint.is_remote
        assert everything_of(checkpoint) == everything_of(local)
    assert hub.count("/resolve/|/large/") == 0


def test_a_branch_that_moves_during_the_download(hub: HubServer, drafter: Path) -> None:
    repo = hub.store.put_folder("acme/drafter", drafter)
    first = repo.refs["main"]
    with open_hub_checkpoint(DRAFTER) as remote:
        hub.store.put_folder("acme/drafter", FIXTURES / "llama2")
        local = fetched(remote)
    assert isinstance(local, HubCheckpoint)
    assert local.path.name == first
    assert (local.path / "config.json").read_bytes() == (drafter / "config.json").read_bytes()
    local.close()


def test_a_download_is_tried_again(hub: HubServer, drafter: Path) -> None:
    hub.store.put_folder("acme/drafter", drafter)
    with open_hub_checkpoint(DRAFTER) as remote:
        hub.faults.append(Fault("GET /large/", status=500))
        hub.faults.append(Fault("GET /large/", reset_after=0))
        local = fetched(remote)
    assert isinstance(local, HubCheckpoint)
    with local, load_checkpoint(drafter) as there:
        assert not local.is_remote
        assert everything_of(local) == everything_of(there)


def test_a_read_is_tried_again(hub: HubServer, drafter: Path) -> None:
    hub.store.put_folder("acme/drafter", drafter)
    hub.faults.append(Fault("/resolve/", status=503, headers={"Retry-After": "1"}))
    hub.faults.append(Fault("/large/", reset_after=0))
    hub.faults.append(Fault("/api/models/acme/drafter", status=429))
    with open_hub_checkpoint(DRAFTER) as remote, load_checkpoint(drafter) as local:
        assert everything_of(remote) == everything_of(local)


def test_offline_the_cache_serves(hub: HubServer, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    repo = hub.store.put_folder("acme/drafter", drafter)
    download(DRAFTER)
    hub.log.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with open_hub_checkpoint(DRAFTER) as checkpoint:
        assert checkpoint.origin.commit == repo.refs["main"]
        assert len(checkpoint.tensors) == 16
    assert hub.log == []
    with pytest.raises(
        HubError,
        match=r"^acme/other: HF_HUB_OFFLINE is set, and .* not in the Hub cache.*Unset it, or run `hf down",
    ):
        open_hub_checkpoint(HubSource("acme/other"))


def test_convert_from_the_hub_gives_the_same_bytes(
    hub: HubServer, drafter: Path, converted: Path, tmp_path: Path
) -> None:
    hub.store.put_folder("acme/drafter", drafter)
    convert(download(DRAFTER), tmp_path / "out", "auto", "sglang", durable=False)
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "out" / name).read_bytes() == (converted / name).read_bytes()


def test_torch_files_are_opened_by_their_directory(hub: HubServer, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    folder = make_folder(tmp_path / "drafter", {})
    weights = {f"layers.0.w{i}.weight": torch.arange(300_000, dtype=torch.float32) + i for i in range(4)}
    torch.save(weights, folder / "pytorch_model.bin")
    hub.store.put_folder("acme/drafter", folder)
    with open_hub_checkpoint(DRAFTER) as remote, load_checkpoint(folder) as local:
        assert hub.sent("/large/") < 200_000
        assert everything_of(remote) == everything_of(local)


def test_old_torch_files_cannot_be_read_in_parts(hub: HubServer, tmp_path: Path) -> None:
    folder = make_folder(
        tmp_path / "drafter", {"pytorch_model.bin": b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + b"0" * 99}
    )
    hub.store.put_folder("acme/drafter", folder)
    with pytest.raises(HubError, match=r"acme/drafter: pytorch_model.bin: is in a form .* can only be read whole"):
        open_hub_checkpoint(DRAFTER)


# --- what stands in the way ---------------------------------------------------------------------------------------


def test_defects_of_the_checkpoint_are_named_as_on_a_disk(hub: HubServer, tmp_path: Path, drafter: Path) -> None:
    folder = Path(shutil.copytree(drafter, tmp_path / "broken"))
    shutil.copy(drafter / "model.safetensors", folder / "copy.safetensors")
    hub.store.put_folder("acme/drafter", folder)
    with pytest.raises(CheckpointError, match=r"^acme/drafter/copy.safetensors: a stray second weights file"):
        open_hub_checkpoint(DRAFTER)


def test_a_damaged_header(hub: HubServer, tmp_path: Path) -> None:
    whole = safetensors_bytes(drafter_rows())
    folder = make_folder(tmp_path / "drafter", {"model.safetensors": whole[:-5]})
    hub.store.put_folder("acme/drafter", folder)
    with pytest.raises(CheckpointError, match=r"^acme/drafter/model.safetensors: the file is cut off"):
        open_hub_checkpoint(DRAFTER)


def test_a_config_one_folder_down_is_pointed_to(hub: HubServer, drafter: Path) -> None:
    hub.store.put_folder("acme/run", drafter, inside="epoch_1/")
    with pytest.raises(CheckpointError, match=r"^acme/run: there is no config.json .* acme/run/epoch_1, has one"):
        open_hub_checkpoint(HubSource("acme/run"))


def test_no_such_repo(hub: HubServer) -> None:
    with pytest.raises(
        HubError, match=r"^acme/none: there is no such model repo at http.*may not see it; check the name"
    ):
        resolve("acme/none", None)


def test_no_such_repo_without_a_token(hub: HubServer, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    hub.store.put_folder("acme/drafter", drafter, private=True)
    with pytest.raises(
        HubError, match=r"^acme/drafter: there is no such .* private and nobody is logged in; .*hf auth login"
    ):
        open_hub_checkpoint(DRAFTER)


def test_gated(hub: HubServer, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_bob")
    hub.store.put_folder("acme/drafter", drafter, gated=True)
    with pytest.raises(
        HubError, match=r"^acme/drafter: is gated, and the token in HF_TOKEN has no access yet. Ask for access at"
    ):
        open_hub_checkpoint(DRAFTER)
    with pytest.raises(HubError, match=r"^acme/drafter: is gated"):
        verifier_config("acme/drafter")


def test_no_such_revision(hub: HubServer, drafter: Path) -> None:
    hub.store.put_folder("acme/drafter", drafter)
    with pytest.raises(HubError, match=r"^acme/drafter: has no revision 'v9'. Give a branch"):
        open_hub_checkpoint(HubSource("acme/drafter", "v9"))


def test_no_such_folder_in_the_repo(hub: HubServer, drafter: Path) -> None:
    hub.store.put_folder("acme/drafter", drafter)
    with pytest.raises(HubError, match=r"^hf://acme/drafter/epoch_9: .* not there"):
        open_hub_checkpoint(HubSource("acme/drafter", None, "epoch_9"))


def test_a_repo_that_is_no_drafter(hub: HubServer) -> None:
    hub.store.create("acme/empty")
    with pytest.raises(CheckpointError, match=r"^acme/empty: there is no config.json"):
        open_hub_checkpoint(HubSource("acme/empty"))
    with pytest.raises(HubError, match=r"^acme/empty: a file is not there"):
        verifier_config("acme/empty")


def test_a_wrong_token(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_mistyped")
    with pytest.raises(HubError, match=r"does not accept the token in HF_TOKEN .*hf auth login"):
        resolve("acme/drafter", None)


def test_no_network(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubError, match=r"^acme/drafter: the connection to http://127.0.0.1:9 failed \(.*refused"):
        resolve("acme/drafter", None)
    with pytest.raises(HubError, match=r"^acme/drafter: the connection to http://127.0.0.1:9 failed"):
        verifier_config("acme/drafter")


def test_a_server_that_fails_for_good(hub: HubServer, drafter: Path) -> None:
    hub.store.put_folder("acme/drafter", drafter)
    hub.faults.append(Fault("/api/models/", status=502, times=99))
    with pytest.raises(HubError, match=r"^acme/drafter: .* has trouble of its own \(status 502\)"):
        open_hub_checkpoint(DRAFTER)


def test_a_server_without_ranges(hub: HubServer, drafter: Path) -> None:
    hub.store.put_folder("acme/drafter", drafter)
    hub.ranges = False
    with pytest.raises(
        HubError, match=r"model.safetensors: the server sends the whole file .*hf download acme/drafter"
    ):
        open_hub_checkpoint(DRAFTER)


def test_inspection_of_a_remote_drafter(hub: HubServer, drafter: Path) -> None:
    hub.store.put_folder("acme/drafter", drafter)
    with open_source("acme/drafter") as checkpoint:
        told = inspect(checkpoint.path).as_json()
    assert told["format"] == "speculators"
