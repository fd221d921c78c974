"""The command line against the Hub: every IN may be a repo, and conversions are pushed."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from eagle3convert.cli import main

from .conftest import FIXTURES
from .server import Fault, HubServer

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(command_environment: dict[str, str], tmp_path: Path) -> Run:
    """The command line in a process of its own, in an empty folder; it never shows a traceback."""
    place = tmp_path / "work"
    place.mkdir()

    def run(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "eagle3convert", *map(str, words)],
            capture_output=True, text=True, timeout=120, cwd=place, env=command_environment | environment, check=False,
        )  # fmt: skip
        talk = done.stdout + done.stderr
        assert "Traceback" not in talk, talk
        assert done.returncode in (0, 1, 2, 130), talk
        return done

    return run


def test_the_way_there_and_back(hub: HubServer, run: Run, drafter: Path, converted: Path, tmp_path: Path) -> None:
    hub.store.put_folder("acme/tiny-speculator", drafter)
    commit = hub.store.repos["acme/tiny-speculator"].refs["main"]
    done = run("auto", "sglang", "acme/tiny-speculator", "out", "--push-to-hub", "acme/tiny-sglang")
    assert done.returncode == 0, done.stderr
    out = tmp_path / "work" / "out"
    for name in ("config.json", "model.safetensors"):
        assert (out / name).read_bytes() == (converted / name).read_bytes()
    receipt = json.loads((out / "eagle3convert.json").read_text())
    assert receipt["source"]["path"] == f"hf://acme/tiny-speculator@{commit}"
    url = f"{hub.url}/acme/tiny-sglang/commit/{hub.store.repos['acme/tiny-sglang'].refs['main']}"
    assert url in done.stdout

    told = json.loads(run("inspect", "acme/tiny-sglang", "--json").stdout)
    assert (told["path"], told["format"], told["receipt"]) == ("acme/tiny-sglang", "sglang", "speculators")

    assert run("auto", "speculators", "acme/tiny-sglang", "back").returncode == 0
    back = tmp_path / "work" / "back"
    assert (back / "model.safetensors").read_bytes() == (drafter / "model.safetensors").read_bytes()
    assert json.loads((back / "config.json").read_text()) == json.loads((drafter / "config.json").read_text())
    assert run("diff", "acme/tiny-speculator", "acme/tiny-sglang").returncode == 0
    assert run("verify", "acme/tiny-speculator", "out").returncode == 0


def test_inspect_says_how_much_was_read(hub: HubServer, run: Run, drafter: Path) -> None:
    hub.store.put_folder("acme/tiny", drafter)
    done = run("inspect", "acme/tiny")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("acme/tiny: ")
    assert "note: acme/tiny: read " in done.stdout
    assert hub.count("whoami") == 0


def test_a_rehearsal_reads_headers_only(hub: HubServer, run: Run, drafter: Path, tmp_path: Path) -> None:
    hub.store.put_folder("acme/tiny", drafter)
    done = run("auto", "sglang", "acme/tiny", "out", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "acme/tiny: read " in done.stderr
    assert hub.sent("/large/") < (drafter / "model.safetensors").stat().st_size
    assert list((tmp_path / "work").iterdir()) == []


def test_doctor_of_a_remote_drafter(hub: HubServer, run: Run, drafter: Path) -> None:
    hub.store.put_folder("acme/tiny", drafter)
    done = run("doctor", "acme/tiny", "-v")
    assert done.returncode == 0, done.stdout
    assert "acme/tiny" in done.stdout
    assert "only d2t and t2d are read" in done.stdout
    assert "acme/tiny: read " in done.stderr
    assert hub.sent("/large/") < 40_000


def test_the_verifiers_config_is_read_where_it_decides(hub: HubServer, run: Run, tmp_path: Path) -> None:
    source = tmp_path / "unnamed"
    source.mkdir()
    shutil.copy(FIXTURES / "llama1" / "model.safetensors", source)
    config = json.loads((FIXTURES / "llama1" / "config.json").read_text())
    config["speculators_config"]["verifier"] |= {"name_or_path": None, "architectures": []}
    config["eagle_aux_hidden_state_layer_ids"] = [3, 4, 5]
    (source / "config.json").write_text(json.dumps(config))
    assert "E306" in run("speculators", "sglang", source, "out").stderr
    missing = run("speculators", "sglang", source, "out", "--verifier", "acme/verifier")
    assert missing.returncode == 1
    assert "acme/verifier: there is no such model repo" in missing.stderr
    assert "It can be given with --verifier-config." in missing.stderr
    verifier = tmp_path / "verifier"
    verifier.mkdir()
    told = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 8, "vocab_size": 96}
    (verifier / "config.json").write_text(json.dumps(told))
    (verifier / "model.safetensors").write_bytes(b"not read")
    hub.store.put_folder("acme/verifier", verifier)
    hub.log.clear()
    done = run("speculators", "sglang", source, "out", "--verifier", "acme/verifier")
    assert done.returncode == 0, done.stderr
    assert hub.count("/large/|model.safetensors") == 0


def test_a_refused_drafter_is_not_downloaded(hub: HubServer, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "refused"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(FIXTURES / "llama1_nbr" / name, folder)
    hub.store.put_folder("acme/refused", folder)
    done = run("auto", "sglang", "acme/refused", "out", "--push-to-hub", "acme/tiny")
    assert done.returncode == 1
    assert "acme/refused: not converted from speculators to sglang" in done.stderr
    assert hub.count("/commit/|/create") == 0
    assert "acme/tiny" not in hub.store.repos
    assert hub.sent("/large/") < (folder / "model.safetensors").stat().st_size


def test_rights_are_known_before_the_conversion(hub: HubServer, run: Run, drafter: Path, tmp_path: Path) -> None:
    done = run("auto", "sglang", drafter, "out", "--push-to-hub", "acme/tiny", HF_TOKEN="hf_reader")
    assert done.returncode == 1
    assert "eagle3convert: acme/tiny: the token in HF_TOKEN (of alice) may only read" in done.stderr
    assert not (tmp_path / "work" / "out").exists()


def test_push(hub: HubServer, run: Run, converted: Path) -> None:
    shown = run("push", converted, "acme/tiny", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert "would be pushed in one commit" in shown.stdout
    assert hub.store.repos == {}
    done = run("push", converted, "acme/tiny", "--private", "--branch", "step-1", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["revision"] == "step-1"
    assert hub.store.repos["acme/tiny"].private
    assert "nothing was pushed" in run("push", converted, "acme/tiny", "--branch", "step-1").stdout


@pytest.mark.parametrize(
    "words", [("--private",), ("--branch", "x"), ("--push-to-hub", "acme/x", "--create-pr", "--branch", "x")]
)
def test_options_that_make_no_sense(hub: HubServer, run: Run, drafter: Path, words: tuple[str, ...]) -> None:
    done = run("auto", "sglang", drafter, "out", *words)
    assert done.returncode == 2
    assert hub.log == []


def test_convert_all(hub: HubServer, run: Run, drafter: Path, tmp_path: Path) -> None:
    for epoch in (1, 2):
        shutil.copytree(drafter, tmp_path / "run" / f"epoch_{epoch}")
    words = ("convert-all", "auto", "sglang", tmp_path / "run", "out", "--push-to-hub", "acme/run")
    done = run(*words)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "epoch_1: converted -> out/epoch_1"
    assert lines[1].startswith("  acme/run@epoch_1: ")
    assert set(hub.store.repos["acme/run"].refs) == {"main", "epoch_1", "epoch_2"}
    hub.log.clear()
    assert run(*words).stdout.splitlines() == [f"epoch_{n}: unchanged -> out/epoch_{n}" for n in (1, 2)]
    assert hub.count("PUT|/commit/") == 0
    (tmp_path / "run/epoch_2/model.safetensors").write_bytes(b"")
    done = run("convert-all", "auto", "sglang", tmp_path / "run", "out")
    assert done.returncode == 1
    assert "epoch_2: failed: " in done.stdout


def test_without_a_network(hub: HubServer, run: Run) -> None:
    done = run("inspect", "acme/tiny", HF_ENDPOINT="http://127.0.0.1:9", HF_HUB_OFFLINE="1")
    assert done.returncode == 1
    assert "eagle3convert: acme/tiny: HF_HUB_OFFLINE is set" in done.stderr


def test_ctrl_c_while_pushing(hub: HubServer, converted: Path, command_environment: dict[str, str], run: Run) -> None:
    held: list[subprocess.Popen[str]] = []

    def interrupt() -> None:
        held[0].send_signal(signal.SIGINT)

    hub.faults.append(Fault("PUT /large/", before=interrupt))
    words = [sys.executable, "-m", "eagle3convert", "push", str(converted), "acme/tiny"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=command_environment
    ) as process:
        held.append(process)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "interrupted; acme/tiny: the push was interrupted; the Hub has either all of its one commit or" in said
    assert "Traceback" not in said
    assert run("push", converted, "acme/tiny").returncode == 0
    assert len(hub.store.repos["acme/tiny"].history()) == 2


def test_a_local_conversion_imports_no_client(drafter: Path, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom eagle3convert.cli import main\n"
        f"main(['auto', 'sglang', {str(drafter)!r}, {str(tmp_path / 'out')!r}], standalone_mode=False)\n"
        "print([name for name in ('huggingface_hub', 'torch', 'yaml') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_commands_are_there() -> None:
    assert {"push", "convert-all"} <= set(main.commands)


def test_a_large_drafter_is_inspected_quickly(hub: HubServer, run: Run, tmp_path: Path) -> None:
    from .store import Blob
    from .test_sources import make_large

    size = make_large(tmp_path / "large")
    repo = hub.store.create("acme/large")
    weights = hub.store.keep_large(tmp_path / "large" / "model.safetensors", "b" * 64)
    config = Blob.small((tmp_path / "large" / "config.json").read_bytes())
    repo.add("main", {"config.json": config, "model.safetensors": weights}, "Upload")
    started = time.monotonic()
    done = run("inspect", "acme/large")
    assert done.returncode == 0, done.stderr
    assert size > 2.4e9
    assert hub.sent() < 1_000_000
    assert time.monotonic() - started < 30
