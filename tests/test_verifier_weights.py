"""The verifier's weights beside a drafter's: what is compared, and the sentence where something cannot be."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import eagle3convert
from eagle3convert.verifier_weights import EMBEDDING, HEAD, NORM, open_verifier

from .conftest import Command
from .drafters import Tensor, make_drafter, weight, write_safetensors, write_shards, write_verifier

EMBED, OTHER = weight(90, (40, 12), "BF16"), weight(91, (40, 12), "BF16")
NORMS = weight(92, (12,), "BF16")


def verifier_with(folder: Path, tensors: Mapping[str, Tensor]) -> Path:
    write_verifier(folder)
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def found_in(folder: Path) -> dict[str, str]:
    weights = open_verifier(folder)
    weights.close()
    return {name: tensor.name for name, tensor in weights.tensors.items()}


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"], [0, 1, 2]),
        (["language_model.model.embed_tokens.weight", "language_model.model.norm.weight", "lm_head.weight"], [0, 1, 2]),
        (["a.wrapper.that.is.new.embed_tokens.weight", "a.wrapper.that.is.new.norm.weight"], [0, 1, 0]),
        (["transformer.wte.weight"], [0, None, 0]),
        (["lm_head.weight", "model.layers.61.embed_tokens.weight"], [None, None, 0]),
        (["model.embed_tokens.weight", "model.layers.61.shared_head.lm_head.weight"], [0, None, 0]),
        (["language_model.model.embed_tokens.weight", "projector.norm.weight", "visual.norm.weight"], [0, None, 0]),
        (["thinker.model.embed_tokens.weight", "talker.model.embed_tokens.weight"], [None, None, None]),
        (["model.embed_tokens.weight", "thinker.lm_head.weight", "talker.lm_head.weight"], [0, None, None]),
    ],
)
def test_the_tensors_are_found_behind_any_wrapper(tmp_path: Path, names: list[str], wanted: list[int | None]) -> None:
    folder = verifier_with(tmp_path / "verifier", {name: NORMS if "norm" in name else EMBED for name in names})
    places = dict(zip((EMBEDDING, NORM, HEAD), wanted, strict=True))
    assert found_in(folder) == {name: names[i] for name, i in places.items() if i is not None}


def config_only(folder: Path) -> None:
    pass


def in_part(folder: Path) -> None:
    """A large verifier of which one shard was downloaded."""
    write_shards(folder, {"model.embed_tokens.weight": EMBED, "lm_head.weight": OTHER}, 2)
    (folder / "model-00002-of-00002.safetensors").unlink()


def other_dtype(folder: Path) -> None:
    write_safetensors(folder / "model.safetensors", {"model.embed_tokens.weight": weight(90, (40, 12), "F32")})


def other_rows(folder: Path) -> None:
    write_safetensors(folder / "model.safetensors", {"model.embed_tokens.weight": weight(90, (48, 12), "BF16")})


def no_embedding(folder: Path) -> None:
    write_safetensors(folder / "model.safetensors", {"lm_head.weight": OTHER})


def same_as_the_drafters(folder: Path) -> None:
    write_safetensors(folder / "model.safetensors", {"a.wrapper.embed_tokens.weight": EMBED})


@pytest.mark.parametrize(
    ("fill", "says"),
    [
        (config_only, "--verifier names no folder with weights"),
        (in_part, "model-00002-of-00002.safetensors"),
        (other_dtype, "embed_tokens.weight is BF16 [40, 12] here and model.embed_tokens.weight is F32 [40, 12] in"),
        (other_rows, "embed_tokens.weight is BF16 [40, 12] here and model.embed_tokens.weight is BF16 [48, 12] in"),
        (no_embedding, "holds not exactly one embed_tokens.weight"),
        (same_as_the_drafters, ""),
    ],
)
def test_an_embedding_that_was_not_compared_is_said_to_be(
    tmp_path: Path, command: Command, fill: Callable[[Path], None], says: str
) -> None:
    """SGLang puts the verifier's in place of the drafter's own: silence would be taken for equality."""
    verifier = write_verifier(tmp_path / "verifier")
    fill(verifier)
    drafter = make_drafter("speculators").with_tensors({"embed_tokens.weight": EMBED}).write(tmp_path / "drafter")
    done = command("speculators", "sglang", drafter, tmp_path / "out", "--verifier", verifier)
    assert done.returncode == 0, done.stderr
    assert ("Not compared" in done.stdout) == bool(says)
    assert says in done.stdout
    skipped = eagle3convert.diagnose(tmp_path / "out", "sglang", verifier=verifier).skipped
    assert says in skipped.get("E705", "")


def test_another_embedding_behind_an_unknown_wrapper_is_refused(tmp_path: Path, command: Command) -> None:
    verifier = verifier_with(tmp_path / "verifier", {"a.wrapper.embed_tokens.weight": OTHER})
    drafter = make_drafter("speculators").with_tensors({"embed_tokens.weight": EMBED}).write(tmp_path / "drafter")
    done = command("speculators", "sglang", drafter, tmp_path / "out", "--verifier", verifier)
    assert done.returncode != 0
    assert "E705 error: embed_tokens.weight differs from the verifier's a.wrapper.embed_tokens.weight" in done.stderr


def test_a_training_run_that_converts_every_step_keeps_no_file_open(tmp_path: Path) -> None:
    verifier = write_verifier(tmp_path / "verifier")
    write_shards(verifier, {"model.embed_tokens.weight": OTHER, "lm_head.weight": OTHER, "model.norm.weight": NORMS}, 3)
    drafter = make_drafter("speculators").write(tmp_path / "drafter")

    def step() -> int:
        eagle3convert.plan(drafter, "speculators", "sglang", verifier=verifier)
        eagle3convert.convert(drafter, tmp_path / "out", "speculators", "vllm", verifier=verifier, force=True)
        eagle3convert.diagnose(drafter, "vllm", verifier=verifier)
        with pytest.raises(eagle3convert.Refused):
            eagle3convert.convert(drafter, tmp_path / "no", "speculators", "sglang", verifier=verifier)
        gc.collect()
        return len(os.listdir("/dev/fd"))

    first = step()
    assert step() == first
