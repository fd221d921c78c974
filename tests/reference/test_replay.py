"""Replay on the trained drafter that ships with the package: sound, and with faults planted one by one and together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")


from eagle3convert.conversion import convert  # noqa: E402
from eagle3convert.reference.replay import replay  # noqa: E402
from eagle3convert.reference.report import ReplayReport  # noqa: E402

from . import planted  # noqa: E402
from .planted import CAPTURED, DEMO, Fault, aux_layers, flag, plant, subjects  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_sound_drafter_is_sound_as_declared() -> None:
    report = replay(DEMO, [CAPTURED])
    assert report.declared_wins
    assert report.sound
    assert report.fix_command is None
    assert report.declared is not None
    assert min(report.declared.score.shares) > 0.98
    assert report.declared.length > 3.9
    assert report.tried > 50
    assert report.sentence.endswith("the drafter is sound as declared")
    assert {e.format_name for e in report.engines} == {"sglang", "sglang-plugin", "vllm"}
    for engine in report.engines:
        assert engine.score is not None
        assert engine.score.shares == report.declared.score.shares
    shown = "\n".join(report.lines())
    assert f"{report.tried} tried" in shown
    assert json.loads(json.dumps(report.as_json()))["sentence"] == report.sentence


LIBRARY: list[tuple[Fault, float]] = [
    (aux_layers(1, 5, 7), 0.435),
    (aux_layers(2, 4, 5), 0.452),
    (aux_layers(0, 4, 7), 0.790),
    (flag("norm_before_residual", True), 0.360),
    (planted.d2t_absolute, 0.011),
]


@pytest.mark.parametrize(("fault", "share"), LIBRARY, ids=[str(share) for _, share in LIBRARY])
def test_shares_are_those_that_the_library_measures(fault: Fault, share: float, tmp_path: Path) -> None:
    """What the real library gives on this capture is told in the README of the fixtures; it counts a row less."""
    report = replay(plant(tmp_path / "planted", fault), [CAPTURED], steps=1)
    assert report.declared is not None
    assert report.declared.score.shares[0] == pytest.approx(share, abs=0.03)


FAULTS: list[tuple[str, tuple[Fault, ...], set[str], str]] = [
    ("d2t", (planted.d2t_absolute,), {"d2t"}, "its d2t is declared wrong"),
    ("d2t alone", (planted.d2t_absolute, planted.without_t2d), {"d2t"}, "its d2t is declared wrong"),
    ("shifted", (aux_layers(1, 5, 7),), {"aux_layers"}, "with aux layers [0, 4, 6] instead of [1, 5, 7]"),
    ("default", (aux_layers(2, 4, 5),), {"aux_layers"}, "its aux layers are declared wrong"),
    ("others", (aux_layers(3, 5, 8),), {"aux_layers"}, "with aux layers [0, 4, 6] instead of [3, 5, 8]"),
    ("outside", (aux_layers(1, 5, 9),), {"aux_layers"}, "aux layers [1, 5, 9] are not in the capture"),
    ("order", (planted.fc_blocks_moved,), {"aux_layers"}, "its fc takes the aux layers in another order"),
    ("residual", (flag("norm_before_residual", True),), {"norm_before_residual"}, "norm_before_residual false"),
    ("output", (flag("norm_output", True),), {"norm_output"}, "(acceptance length 4.00)"),
    ("norms", (planted.norms_swapped,), {"norms_swapped"}, "two of its norms are swapped"),
    (
        "together",
        (planted.d2t_absolute, planted.without_t2d, aux_layers(3, 5, 8), flag("norm_before_residual", True)),
        {"d2t", "aux_layers", "norm_before_residual"},
        "its aux layers and d2t and norm_before_residual are declared wrong",
    ),
    (
        "two kinds",
        (planted.d2t_absolute, aux_layers(1, 5, 7)),
        {"d2t", "aux_layers"},
        "with aux layers [0, 4, 6] instead of [1, 5, 7]",
    ),
]


@pytest.mark.parametrize(("faults", "found", "said"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS])
def test_planted_faults_are_named(faults: tuple[Fault, ...], found: set[str], said: str, tmp_path: Path) -> None:
    report = replay(plant(tmp_path / "planted", *faults), [CAPTURED])
    assert subjects(report) == found
    assert report.winner.score.shares[0] > 0.98
    assert report.winner.length > 3.9
    assert said in report.sentence
    assert "the drafter is sound" in report.sentence
    assert report.lines()[-1].startswith(("convert it so: ", "  which"))


def run_command_of(report: ReplayReport, edit: dict[str, Any] | None = None) -> Path:
    """Carry out the proposed command, as the command line would."""
    assert report.fix_command is not None
    words = report.fix_command.split()
    _, source_format, destination_format, source, _ = words[:5]
    stated: dict[str, Any] = {"assume": {}}
    for option, value in zip(words[5::2], words[6::2], strict=True):
        if option == "--aux-layers":
            stated["aux_layers"] = tuple(map(int, value.split(",")))
        elif option == "--d2t-encoding":
            stated["d2t_encoding"] = value
        else:
            key, text = value.split("=")
            stated["assume"][key] = {"true": True, "false": False}.get(text, text)
    folder = Path(source)
    if edit:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps(config | edit), encoding="utf-8")
    out = folder.parent / "fixed"
    stated["verifier_config"] = DEMO / "verifier" / "config.json"
    convert(folder, out, source_format, destination_format, durable=False, **stated)
    return out


@pytest.mark.parametrize(
    ("faults", "edit"),
    [
        ((planted.d2t_absolute, planted.without_t2d, aux_layers(1, 5, 7)), {}),
        ((planted.fc_blocks_moved,), {}),
        ((flag("norm_before_residual", True), aux_layers(2, 4, 5)), {"norm_before_residual": False}),
    ],
    ids=["options", "order", "edit"],
)
def test_the_proposed_command_makes_it_sound(faults: tuple[Fault, ...], edit: dict[str, Any], tmp_path: Path) -> None:
    report = replay(plant(tmp_path / "planted", *faults), [CAPTURED], for_format="vllm")
    for name, value in edit.items():
        assert f"set {name} to {str(value).lower()} in config.json" in report.fix.edits
    fixed = replay(run_command_of(report, edit), [CAPTURED])
    assert fixed.declared_wins
    assert fixed.declared is not None
    assert min(fixed.declared.score.shares) > 0.98


def test_a_missing_layer_cannot_be_read_into_place(tmp_path: Path) -> None:
    faults = (planted.d2t_absolute, aux_layers(3, 5, 8), planted.layer_missing)
    report = replay(plant(tmp_path / "planted", *faults), [CAPTURED])
    assert "10 tensors are not in the checkpoint" in report.sentence
    assert "no reading can repair" in report.sentence
    assert report.fix_command is None
    assert "d2t" in subjects(report)  # what can be found beside it is found


def test_a_layer_that_was_started_afresh_is_suspected(tmp_path: Path) -> None:
    faults = (planted.d2t_absolute, aux_layers(3, 5, 8), planted.layer_fresh)
    report = replay(plant(tmp_path / "planted", *faults), [CAPTURED])
    assert "exactly 1 throughout" in report.sentence
    assert {"d2t", "aux_layers"} <= subjects(report)
    assert report.fix_command is None


def test_an_undertrained_drafter_is_called_so(tmp_path: Path) -> None:
    report = replay(plant(tmp_path / "planted", planted.undertrained), [CAPTURED])
    assert not report.sound
    assert report.sentence.startswith("no reading drafts well (the best of ")
    assert report.sentence.endswith("the weights are undertrained or damaged")
    assert report.fix_command is None


def test_a_residual_that_sglang_ignores_costs_it_the_acceptance(tmp_path: Path) -> None:
    """The drafter is declared wrong here; what SGLang would do to a right one is the mirror image."""
    report = replay(plant(tmp_path / "planted", flag("norm_before_residual", True)), [CAPTURED])
    scores = {e.format_name: e.score for e in report.engines if e.converted}
    assert scores["sglang"] is not None
    assert scores["vllm"] is not None
    assert scores["sglang"].length > scores["vllm"].length + 1


def test_an_engines_own_folder_is_replayed(tmp_path: Path) -> None:
    verifier = DEMO / "verifier" / "config.json"
    convert(DEMO, tmp_path / "out", "speculators", "sglang", durable=False, verifier_config=verifier)
    report = replay(tmp_path / "out", [CAPTURED], for_format="sglang")
    assert report.format_name == "sglang"
    assert report.declared_wins
    assert [(e.format_name, e.converted) for e in report.engines] == [("sglang", False), ("sglang", True)]
    assert all(e.score is not None and e.score.length > 3.9 for e in report.engines)


def test_ids_in_the_wrong_numbering_show_in_the_engines(tmp_path: Path) -> None:
    """Ids of vLLM's numbering in an SGLang folder: SGLang feeds other layers, vLLM by chance the right ones."""
    verifier = DEMO / "verifier" / "config.json"
    convert(DEMO, tmp_path / "out", "speculators", "sglang", durable=False, verifier_config=verifier)
    file = tmp_path / "out" / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [0, 4, 6]
    file.write_text(json.dumps(config), encoding="utf-8")
    report = replay(tmp_path / "out", [CAPTURED], verifier_config=verifier)
    stands = {e.format_name: e.score for e in report.engines if not e.converted}
    assert stands["sglang"] is not None
    assert stands["vllm"] is not None
    assert stands["sglang"].shares[0] < 0.5
    assert stands["vllm"].shares[0] > 0.98
    assert report.winner.variant.aux == (0, 4, 6)
    assert report.fix_command is not None
    words = report.fix_command.split()
    assert words[:3] == ["eagle3convert", "sglang", "sglang"]
    assert words[5:] == ["--aux-layers", "0,4,6"]


def test_what_an_engine_does_with_the_folder_as_it_stands(tmp_path: Path) -> None:
    report = replay(plant(tmp_path / "planted", planted.d2t_absolute), [CAPTURED], steps=1)
    scores = {(e.format_name, e.converted): e.score for e in report.engines}
    assert ("sglang", False) not in scores  # SGLang reads no folder of speculators
    stands, converted = scores["vllm", False], scores["vllm", True]
    assert stands is not None
    assert converted is not None
    assert stands.shares[0] < 0.05
    assert converted.shares[0] > 0.98  # the conversion writes what t2d proves
    lost = replay(plant(tmp_path / "lost", planted.layer_missing), [CAPTURED], steps=1)
    assert any("does not find" in what for e in lost.engines if not e.converted for what in e.ignored)


def test_an_engine_that_takes_the_verifiers_embeddings(tmp_path: Path) -> None:
    """SGLang puts the verifier's embeddings in place of the drafter's own; vLLM uses the drafter's, right or wrong."""
    report = replay(plant(tmp_path / "planted", planted.other_embedding), [CAPTURED])
    scores = {e.format_name: e.score for e in report.engines if e.converted}
    assert scores["sglang"] is not None
    assert scores["vllm"] is not None
    assert scores["sglang"].shares[0] > 0.98
    assert scores["vllm"].shares[0] < 0.9
    assert any("embed_tokens" in what for e in report.engines if e.format_name == "sglang" for what in e.ignored)


def test_replay_of_a_small_drafter_computes_in_one_thread_and_leaves_torch_as_it_was() -> None:
    """On a busy machine torch's threads wait for each other, a minute in all where one thread takes two seconds."""
    before = torch.get_num_threads()
    during = set()
    torch.set_num_threads(3)
    try:
        replay(DEMO, [CAPTURED], progress=lambda done, total: during.add(torch.get_num_threads()))
        assert during == {1}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
