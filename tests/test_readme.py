"""The README is true: its transcript is what the commands print, and its Python runs."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DEMO = ROOT / "eagle3convert" / "demo_drafter"
Run = Callable[..., "CompletedProcess[str]"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the drafters that the transcript speaks of."""
    (tmp_path / "my-drafter").mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(DEMO / name, tmp_path / "my-drafter" / name)
    shutil.copyfile(DEMO / "verifier" / "config.json", tmp_path / "verifier.json")
    default = ROOT / "tests" / "fixtures" / "speculators" / "llama1_cli_default"
    (tmp_path / "default-drafter").mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(default / name, tmp_path / "default-drafter" / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("block", [block for block in blocks("console") if "replay" not in block])
def test_the_transcript_is_what_the_commands_print(place: Path, command: Run, block: str) -> None:
    for part in re.split(r"(?m)^\$ ", block)[1:]:
        line, _, wanted = part.partition("\n")
        done = command(*shlex.split(line)[1:])
        assert sorted((done.stderr + done.stdout).strip().splitlines()) == sorted(wanted.strip().splitlines()), line


def test_the_replay_says_what_the_readme_says(place: Path, command: Run) -> None:
    pytest.importorskip("torch")
    shutil.copytree("my-drafter", "broken")
    config = json.loads(Path("broken/config.json").read_text(encoding="utf-8"))
    config["eagle_aux_hidden_state_layer_ids"] = [1, 5, 7]
    Path("broken/config.json").write_text(json.dumps(config), encoding="utf-8")
    shutil.copyfile(DEMO / "captured_states.safetensors", "captured_states.safetensors")
    shutil.copytree(DEMO / "verifier", "verifier")
    transcript = next(block for block in blocks("console") if "replay" in block)
    line, _, wanted = transcript.removeprefix("$ ").partition("\n")
    done = command(*shlex.split(line)[1:])
    for sentence in wanted.strip().splitlines()[1:]:
        assert sentence in done.stdout
    assert done.returncode == 1


class Model:
    """What a training loop holds: something with save_pretrained and state_dict."""

    def __init__(self, tensors: dict[str, object]) -> None:
        self._tensors = tensors

    def save_pretrained(self, folder: str) -> None:
        shutil.copytree("my-drafter", folder)

    def state_dict(self) -> dict[str, object]:
        return self._tensors


def test_the_three_lines_of_a_training_loop(place: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    model = Model(safetensors.load_file("my-drafter/model.safetensors"))
    config = json.loads(Path("my-drafter/config.json").read_text(encoding="utf-8"))
    lines, memory = (
        next(b for b in blocks("python") if word in b) for word in ("save_pretrained", "convert_state_dict")
    )
    names: dict[str, object] = {"model": model, "config": config}
    exec(lines, names)
    assert Path("served/step-1000/eagle3convert.json").is_file()
    exec(memory, names)
    converted = names["converted"]
    assert converted.config["architectures"] == ["Eagle3LlamaForCausalLM"]  # type: ignore[attr-defined]
    given, made = model.state_dict(), converted.state_dict  # type: ignore[attr-defined]
    assert made["fc.weight"] is given["fc.weight"], "a tensor that does not change is the very one that was given"
    assert made.keys() == given.keys()
