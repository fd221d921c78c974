"""The story of the project: three drafters that load, serve and accept nothing, each named in the first paragraph."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path

import pytest

from ..conftest import Command
from ..drafters import TARGETS, Drafter, list_tensor, make_drafter, mask, write_verifier

KIMI = {"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 61}
SECONDS = 5.0  # of a shared machine that also starts Python; the doctor itself takes a fraction of one


def layers_0() -> Drafter:
    """Every tensor of the decoder layer is called layers.0.*, which SGLang before 0.5.12 does not know."""
    return make_drafter("sglang").renamed({"midlayer.": "layers.0."})


def absolute_map() -> Drafter:
    """d2t holds target ids, and SGLang adds the draft id to them."""
    changed = {"d2t": list_tensor(TARGETS), "t2d": mask(TARGETS, 40)}
    return make_drafter("sglang").with_tensors(changed)


def other_layers() -> Drafter:
    """fc was trained on hidden_states 0, 3 and 31, said where SGLang does not look."""
    changed = {"architectures": ["LlamaForCausalLMEagle3"]}
    return make_drafter("vllm", aux=(0, 3, 31)).with_config(changed)


def first_paragraph(text: str) -> str:
    return text.split("\n\n", 1)[0]


@pytest.mark.parametrize(
    ("drafter", "options", "verifier", "names"),
    [
        (layers_0(), ["--engine-version", "0.5.9"], {}, ["layers.0.*", "drops", "SGLang 0.5.9"]),
        (absolute_map(), [], {}, ["d2t", "absolute", "offset", "draft id 1", "read as 2"]),
        (
            other_layers(),
            [],
            KIMI,
            ["fc", "[0, 3, 31]", "[2, 30, 58]", "eagle_config.eagle_aux_hidden_state_layer_ids"],
        ),
    ],
    ids=["names", "map", "layers"],
)
def test_the_first_paragraph_names_the_fault(
    drafter: Drafter,
    options: list[str],
    verifier: dict[str, object],
    names: list[str],
    tmp_path: Path,
    command: Command,
) -> None:
    folder = drafter.write(tmp_path / "drafter")
    config = write_verifier(tmp_path / "verifier", **verifier) / "config.json"

    began = time.monotonic()
    done = command("doctor", folder, "--for", "sglang", "--verifier-config", config, *options)
    took = time.monotonic() - began

    verdict = first_paragraph(done.stdout)
    assert done.returncode == 1
    assert "this drafter will load and accept almost nothing, because " in verdict
    for name in names:
        assert name in verdict, f"{name!r} is not in the verdict: {verdict}"
    assert took < SECONDS


@pytest.mark.parametrize(
    ("drafter", "options", "verifier"),
    [
        (layers_0(), ["--engine-version", "0.5.9"], {}),
        (absolute_map(), [], {}),
        (other_layers(), [], KIMI),
    ],
    ids=["names", "map", "layers"],
)
def test_the_command_that_mends_it_does(
    drafter: Drafter, options: list[str], verifier: dict[str, object], tmp_path: Path, command: Command
) -> None:
    folder = drafter.write(tmp_path / "drafter")
    config = write_verifier(tmp_path / "verifier", **verifier) / "config.json"
    asked = ["--for", "sglang", "--verifier-config", str(config)]
    mend = json.loads(command("doctor", folder, *asked, *options, "--json").stdout)["mend"]

    program, *words = shlex.split(mend)
    done = command(*words)

    assert program == "eagle3convert"
    assert done.returncode == 0, done.stderr
    again = command("doctor", words[3], *asked, *options)
    assert again.returncode == 0, again.stdout
    assert "this drafter will draft as trained" in first_paragraph(again.stdout)
