"""convert_all: a run's checkpoints, what is skipped, and what a failure does to the rest."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from eagle3convert import convert
from eagle3convert.errors import CheckpointError, UsageError
from eagle3convert.hub.run_dir import Outcome, checkpoints_in, convert_all

from .conftest import FIXTURES


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of three epochs, the third with other weights."""
    folder = tmp_path / "run"
    for epoch, name in ((1, "llama1"), (2, "llama1"), (10, "llama1_bf16")):
        place = folder / "checkpoints" / f"epoch_{epoch}"
        place.mkdir(parents=True)
        for file in ("config.json", "model.safetensors"):
            shutil.copy(FIXTURES / name / file, place)
        (place / "optimizer.pt").write_bytes(b"x")
        age(place)
    (folder / "logs").mkdir()
    return folder


def age(folder: Path, seconds: int = 3600) -> None:
    """Makes the files of a folder older than whatever is written now."""
    then = time.time() - seconds
    for file in folder.iterdir():
        os.utime(file, (then, then))


def statuses(run: Path, out: Path, **options: object) -> dict[str, str]:
    return {o.name: o.status for o in convert_all(run, out, "auto", "sglang", durable=False, **options)}


def test_every_checkpoint_in_its_order(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    outcomes = list(convert_all(run, out, "auto", "sglang", durable=False))
    names = ["checkpoints/epoch_1", "checkpoints/epoch_2", "checkpoints/epoch_10"]
    assert [(o.name, o.status) for o in outcomes] == [(name, "converted") for name in names]
    assert outcomes[0].line == f"checkpoints/epoch_1: converted -> {out}/checkpoints/epoch_1"
    for name in names:
        assert (out / name / "eagle3convert.json").is_file()
    single = tmp_path / "single"
    convert(run / names[2], single, "auto", "sglang", durable=False)
    assert (single / "model.safetensors").read_bytes() == (out / names[2] / "model.safetensors").read_bytes()


def test_what_is_converted_and_unchanged_is_left_alone(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    statuses(run, out)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    assert set(statuses(run, out).values()) == {"unchanged"}
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()} == before


def test_a_new_checkpoint_is_the_only_one_converted(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    statuses(run, out)
    shutil.copytree(run / "checkpoints" / "epoch_1", run / "checkpoints" / "epoch_11")
    assert statuses(run, out) == {
        "checkpoints/epoch_1": "unchanged", "checkpoints/epoch_2": "unchanged", "checkpoints/epoch_10": "unchanged",
        "checkpoints/epoch_11": "converted",
    }  # fmt: skip


def test_what_changed_is_converted_again(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    statuses(run, out)
    shutil.copyfile(FIXTURES / "llama1_bf16" / "model.safetensors", run / "checkpoints/epoch_1/model.safetensors")
    os.utime(run / "checkpoints/epoch_2/model.safetensors", (time.time() + 5, time.time() + 5))
    config = out / "checkpoints/epoch_10/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"rms_norm_eps": 0.5}))
    assert set(statuses(run, out).values()) == {"converted"}
    assert json.loads(config.read_text())["rms_norm_eps"] != 0.5


@pytest.mark.parametrize(
    "options", [{"dtype": "float16"}, {"assume": {"norm_output": False}}, {"engine_version": "0.5.23"}]
)
def test_another_way_is_another_conversion(run: Path, tmp_path: Path, options: dict[str, object]) -> None:
    out = tmp_path / "out"
    statuses(run, out)
    assert "unchanged" not in statuses(run, out, **options).values()


def test_another_destination_is_another_conversion(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    statuses(run, out)
    outcomes = list(convert_all(run, out, "auto", "vllm", durable=False))
    assert {o.status for o in outcomes} == {"converted"}


def test_a_failure_does_not_stop_the_rest(run: Path, tmp_path: Path) -> None:
    weights = run / "checkpoints/epoch_2/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    outcomes = {o.name: o for o in convert_all(run, tmp_path / "out", "auto", "sglang", durable=False)}
    failed = outcomes["checkpoints/epoch_2"]
    assert failed.status == "failed"
    assert "the file is cut off" in failed.line
    assert "\n" not in failed.line
    assert [o.status for o in outcomes.values()] == ["converted", "failed", "converted"]
    assert not failed.out.exists()


def test_what_somebody_else_put_there_is_not_replaced(run: Path, tmp_path: Path) -> None:
    place = tmp_path / "out/checkpoints/epoch_1"
    place.mkdir(parents=True)
    (place / "config.json").write_text("{}")
    assert statuses(run, tmp_path / "out")["checkpoints/epoch_1"] == "failed"
    assert (place / "config.json").read_text() == "{}"


def test_a_link_to_the_best_is_not_converted_twice(run: Path, tmp_path: Path) -> None:
    (run / "checkpoints" / "best").symlink_to("epoch_2")
    outcomes = {o.name: o for o in convert_all(run, tmp_path / "out", "auto", "sglang", durable=False)}
    assert outcomes["checkpoints/best"].line == "checkpoints/best: skipped: is a link to checkpoints/epoch_2"
    assert outcomes["checkpoints/epoch_2"].status == "converted"


def test_the_output_may_lie_in_the_run(run: Path) -> None:
    assert set(statuses(run, run / "sglang").values()) == {"converted"}
    assert set(statuses(run, run / "sglang").values()) == {"unchanged"}
    assert len(checkpoints_in(run, run / "sglang")) == 3


def test_nothing_to_convert(tmp_path: Path, run: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"empty: no folder with a config.json and weights is in it.$"):
        convert_all(tmp_path / "empty", tmp_path / "out", "auto", "sglang")
    with pytest.raises(UsageError, match="It is a checkpoint itself"):
        convert_all(run / "checkpoints/epoch_1", tmp_path / "out", "auto", "sglang")
    with pytest.raises(CheckpointError, match="there is no such folder"):
        convert_all(tmp_path / "none", tmp_path / "out", "auto", "sglang")


def test_an_outcome_as_json() -> None:
    outcome = Outcome("epoch_1", "failed", Path("run/epoch_1"), Path("out/epoch_1"), "why\nmore")
    assert outcome.as_json() == {
        "name": "epoch_1", "status": "failed", "source": "run/epoch_1", "out": "out/epoch_1", "said": "why\nmore",
    }  # fmt: skip
    assert outcome.line == "epoch_1: failed: why"
