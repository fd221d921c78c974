"""Whatever ends the program: what was to be written is there whole or not at all, and what was there stays."""

from __future__ import annotations

import json
import resource
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

import eagle3convert

from .conftest import left_behind, run_command
from .drafters import (
    make_drafter,
    read_tensors,
)

BIG = 120 << 20


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter of some 120 MB, nearly all of it an embedding that is a hole in the file."""
    vocab = BIG // (64 * 2)
    drafter = make_drafter("sglang", hidden=64, heads=4, kv_heads=2, head_dim=16, vocab=vocab, embed=False)
    folder = drafter.write(tmp_path_factory.mktemp("big") / "in")
    file = folder / "model.safetensors"
    data = file.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    header["embed_tokens.weight"] = {
        "dtype": "BF16", "shape": [vocab, 64], "data_offsets": [len(body), len(body) + vocab * 128],
    }  # fmt: skip
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text + body + b"\x3f\x80")
        stream.truncate(8 + len(text) + len(body) + vocab * 128)
    return folder


def start(big: Path, out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "eagle3convert", "sglang", "vllm", str(big), str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def duration(big: Path, tmp_path_factory: pytest.TempPathFactory) -> float:
    """How long the whole conversion takes here, in seconds."""
    began = time.monotonic()
    done = run_command("sglang", "vllm", big, tmp_path_factory.mktemp("timed") / "out")
    assert done.returncode == 0, done.stderr
    return time.monotonic() - began


def complete(big: Path, out: Path) -> bool:
    return not out.exists() or eagle3convert.verify(big, out).passed


@pytest.mark.parametrize("part", [0.4, 0.6, 0.75, 0.9, 1.0])
def test_a_conversion_killed_at_any_moment_leaves_all_or_nothing(
    part: float, big: Path, duration: float, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = start(big, out)
    time.sleep(part * duration)
    process.kill()
    process.communicate(timeout=60)
    assert complete(big, out)
    done = run_command("sglang", "vllm", big, out, "--force", "-q")
    assert done.returncode == 0, done.stderr
    assert eagle3convert.verify(big, out).passed
    assert left_behind(tmp_path) == [], "the next conversion clears away what the killed one left"


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda s: s.name)
@pytest.mark.parametrize("pause", [0.0, 0.02, 0.1])
def test_an_interrupted_conversion_leaves_nothing(
    pause: float, sent: signal.Signals, big: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = start(big, out)
    wait_until_it_writes(process, tmp_path)
    time.sleep(pause)
    process.send_signal(sent)
    _, said = process.communicate(timeout=60)
    assert complete(big, out)
    assert left_behind(tmp_path) == []
    if "nothing was left behind" in said:
        assert not out.exists()
    if "was written, and is whole" in said:
        assert out.exists()
    if not out.exists():  # otherwise the signal came when all was done, and ended a Python that was ending
        assert "Traceback" not in said
        assert sent is not signal.SIGINT or process.returncode == 130


def wait_until_it_writes(process: subprocess.Popen[str], folder: Path) -> None:
    for _ in range(10_000):  # until the temporary folder is there
        if list(folder.iterdir()) or process.poll() is not None:
            return
        time.sleep(0.002)


def test_ctrl_c_while_writing_exits_with_130(big: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(big, out)
    wait_until_it_writes(process, tmp_path)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "interrupted" in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_so_and_leaves_nothing(big: Path, tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20 << 20, 20 << 20))

    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-m", "eagle3convert", "sglang", "vllm", str(big), str(out)],
        capture_output=True, text=True, timeout=60, preexec_fn=limit, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "model.safetensors" in done.stderr or str(out) in done.stderr
    assert "bytes" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_keeps_the_drafter_that_was_there(big: Path, tmp_path: Path) -> None:
    small = make_drafter("sglang").write(tmp_path / "small")
    out = tmp_path / "out"
    assert run_command("sglang", "vllm", small, out).returncode == 0
    before = read_tensors(out)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20 << 20, 20 << 20))

    done = subprocess.run(
        [sys.executable, "-m", "eagle3convert", "sglang", "vllm", str(big), str(out), "--force"],
        capture_output=True, text=True, timeout=60, preexec_fn=limit, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert read_tensors(out) == before
    assert left_behind(tmp_path) == []
