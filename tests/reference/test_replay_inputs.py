"""What replay is given: captures of every kind, a verifier, options; and the requests that make no sense."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402
from torch import Generator  # noqa: E402

from eagle3convert.conversion import plan  # noqa: E402
from eagle3convert.errors import CheckpointError, UsageError  # noqa: E402
from eagle3convert.reference.replay import replay  # noqa: E402

from . import planted  # noqa: E402
from .planted import CAPTURED, DEMO, aux_layers, captured, flag, plant, subjects  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- captures without numbers, judges, and what is lent ---------------------------------------------------------------


def unnumbered(path: Path, layers: tuple[int, ...] = (0, 4, 6)) -> list[Path]:
    """The capture as speculators' trainer keeps it: a file per sequence."""
    whole, files = captured(), []
    starts = whole["sequence_starts"].tolist()
    path.mkdir()
    for i, (start, end) in enumerate(zip(starts, [*starts[1:], len(whole["token_ids"])], strict=True)):
        stack = torch.stack([whole[f"hidden_states.{k}"][start:end] for k in (*layers, 8)], dim=1)
        files.append(path / f"hs_{i}.safetensors")
        save_file({"token_ids": whole["token_ids"][start:end].clone(), "hidden_states": stack}, files[-1])
    return files


def test_a_capture_of_the_trainer(tmp_path: Path) -> None:
    files = unnumbered(tmp_path / "hs")
    report = replay(DEMO, files)
    assert report.declared_wins
    assert report.judged_by == "the text's next tokens"
    assert any("carry no layer numbers" in note for note in report.notes)
    moved = replay(plant(tmp_path / "planted", planted.d2t_absolute, planted.fc_blocks_moved), files)
    assert subjects(moved) == {"d2t", "aux_layers"}
    assert moved.winner.variant.aux == (6, 0, 4)


def test_a_capture_of_specforge(tmp_path: Path) -> None:
    whole = captured()
    aux = torch.cat([whole[f"hidden_states.{k}"] for k in (0, 4, 6)], dim=-1)[:16]
    file = tmp_path / "data_0.ckpt"
    torch.save(
        {
            "input_ids": whole["token_ids"][:16],
            "loss_mask": torch.tensor([0] * 4 + [1] * 12),
            "hidden_state": whole["hidden_states.8"][None, :16],
            "aux_hidden_state": aux[None],
        },
        file,
    )
    report = replay(DEMO, [file])
    assert report.declared_wins
    assert report.winner.score.positions[0] == 12


def make_verifier(folder: Path, random: Generator) -> dict[str, Any]:
    """A verifier whose head and norm are made up; its embeddings are those that were captured."""
    whole = captured()
    table = torch.zeros(160, 64)
    table[whole["token_ids"]] = whole["hidden_states.0"].float()
    tensors = {
        "model.embed_tokens.weight": table,
        "model.norm.weight": 1 + 0.1 * torch.randn(64, generator=random),
        "lm_head.weight": torch.randn(160, 64, generator=random),
        "model.layers.0.input_layernorm.weight": torch.ones(64),
    }
    folder.mkdir()
    (folder / "config.json").write_text((DEMO / "verifier" / "config.json").read_text())
    save_file(tensors, folder / "model.safetensors")
    return tensors


def test_the_verifiers_head_judges(tmp_path: Path) -> None:
    tensors = make_verifier(tmp_path / "verifier", Generator().manual_seed(1))
    whole = captured()
    state = whole["hidden_states.8"].float()
    eps = json.loads((DEMO / "verifier" / "config.json").read_text())["rms_norm_eps"]
    normed = state * torch.rsqrt(state.pow(2).mean(-1, keepdim=True) + eps) * tensors["model.norm.weight"]
    choices = (normed @ tensors["lm_head.weight"].T).argmax(-1)
    del whole["verifier_argmax"]
    whole["token_ids"][1:] = choices[:-1]  # a text that this verifier wrote
    save_file(whole, tmp_path / "states.safetensors")
    report = replay(DEMO, [tmp_path / "states.safetensors"], verifier=tmp_path / "verifier")
    assert report.judged_by == "the verifier's head on its last states"
    assert report.winner.score.positions[0] > 100
    assert not report.sound  # the head is made up


def test_embeddings_are_lent(tmp_path: Path) -> None:
    """A drafter without embeddings takes the verifier's, or those that were captured: the same rows either way."""
    folder = plant(tmp_path / "planted", planted.without_embedding)
    make_verifier(tmp_path / "verifier", Generator().manual_seed(1))
    from_capture = replay(folder, [CAPTURED])
    from_verifier = replay(folder, [CAPTURED], verifier=tmp_path / "verifier")
    assert from_capture.declared is not None
    assert from_verifier.declared is not None
    assert from_capture.declared.score.shares == from_verifier.declared.score.shares
    whole = captured()
    del whole["hidden_states.0"], whole["hidden_states.1"]
    save_file(whole, tmp_path / "states.safetensors")
    with pytest.raises(UsageError, match=r"no embed_tokens.*--verifier"):
        replay(
            plant(tmp_path / "other", planted.without_embedding, aux_layers(2, 4, 6)), [tmp_path / "states.safetensors"]
        )


# --- requests that make no sense --------------------------------------------------------------------------------------


def test_states_of_another_verifier_are_refused(tmp_path: Path) -> None:
    whole = captured()
    wide = {n: (torch.cat([t, t], -1) if n.startswith("hidden_states.") else t) for n, t in whole.items()}
    save_file(wide, tmp_path / "wide.safetensors")
    with pytest.raises(CheckpointError, match=r"128 wide.*takes states of 64"):
        replay(DEMO, [tmp_path / "wide.safetensors"])
    save_file(whole | {"token_ids": whole["token_ids"] + 100}, tmp_path / "ids.safetensors")
    with pytest.raises(CheckpointError, match="outside the vocabulary of 160"):
        replay(DEMO, [tmp_path / "ids.safetensors"])


def test_a_text_in_which_nothing_can_be_judged_is_refused(tmp_path: Path) -> None:
    whole = captured()
    save_file({n: t[:2] for n, t in whole.items() if n != "sequence_starts"}, tmp_path / "short.safetensors")
    with pytest.raises(UsageError, match="Capture longer sequences"):
        replay(DEMO, [tmp_path / "short.safetensors"])


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"dtype": "int8"}, {"limit": 0}])
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        replay(DEMO, [CAPTURED], **wrong)


def test_progress_is_told_and_a_limit_is_kept() -> None:
    told: list[tuple[int, int]] = []
    report = replay(DEMO, [CAPTURED], steps=1, limit=48, progress=lambda done, most: told.append((done, most)))
    assert report.positions == 48
    assert report.sequences == 3
    assert [done for done, _ in told] == list(range(1, report.runs + 1))
    assert all(done <= most for done, most in told)
    assert any("48 of 240" in note for note in report.notes)


def test_bfloat16_drafts_alike() -> None:
    report = replay(DEMO, [CAPTURED], dtype="bfloat16", limit=96)
    assert report.winner.score.shares[0] > 0.95


def test_the_plot_is_drawn_or_its_remedy_named(tmp_path: Path) -> None:
    report = replay(DEMO, [CAPTURED], steps=2, limit=64)
    try:
        report.plot(tmp_path / "plot.png")
    except UsageError as error:
        assert "pip install matplotlib" in str(error)  # noqa: PT017
    else:
        assert (tmp_path / "plot.png").stat().st_size > 0


def test_plans_of_fixes_do_not_change_the_drafter(tmp_path: Path) -> None:
    folder = plant(tmp_path / "planted", flag("norm_before_residual", True))
    before = (folder / "config.json").read_bytes()
    replay(folder, [CAPTURED])
    assert (folder / "config.json").read_bytes() == before
    assert plan(folder, "speculators", "vllm").drafter.reading.feature("norm_before_residual").value is True
