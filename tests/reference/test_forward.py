"""The forward pass against the real speculators library's logits, which lie beside its drafters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402
from torch import Tensor  # noqa: E402

from eagle3convert.checkpoint.source import open_checkpoint  # noqa: E402
from eagle3convert.drafter import Drafter  # noqa: E402
from eagle3convert.errors import CheckpointError  # noqa: E402
from eagle3convert.formats import load_format  # noqa: E402
from eagle3convert.reading import Reading  # noqa: E402
from eagle3convert.reference.cache import Packed  # noqa: E402
from eagle3convert.reference.form import Form  # noqa: E402
from eagle3convert.reference.forward import DraftModel  # noqa: E402
from eagle3convert.reference.interpretation import Interpretation, as_trained  # noqa: E402
from eagle3convert.reference.rope import Rope  # noqa: E402

from .planted import FIXTURES, ROPES, plant  # noqa: E402

STEPS = 3
TOLERANCE = 1e-5  # another CPU may sum in another order; where the logits were made they are equal bit for bit
DRAFTERS = sorted(p.parent for folder in (FIXTURES, ROPES) for p in folder.glob("*/oracle.safetensors"))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # the order of summation depends on it
    yield
    torch.set_num_threads(before)


@contextmanager
def trained(folder: Path) -> Iterator[Interpretation]:
    with open_checkpoint(folder) as checkpoint:
        yield as_trained(Drafter(Reading(checkpoint, load_format("speculators"))))


def logits(one: Interpretation, oracle: dict[str, Tensor], form: Form | None = None, **options: Any) -> list[Tensor]:
    model = DraftModel(form or one.form, one.model(**options).weights)
    aux = oracle["hidden"].chunk(one.form.aux_count, dim=-1)
    ids = oracle["input_ids"]
    return list(model.draft_rows(aux, ids, Packed(len(ids)), STEPS, "anchored"))


def distance(a: list[Tensor], b: list[Tensor]) -> float:
    return max(float((x.float() - y.float()).abs().max()) for x, y in zip(a, b, strict=True))


def wanted(oracle: dict[str, Tensor]) -> list[Tensor]:
    return [oracle[f"logits.{step}"] for step in range(STEPS)]


def test_there_are_drafters_of_every_kind() -> None:
    assert len(DRAFTERS) == 28


@pytest.mark.parametrize("folder", DRAFTERS, ids=lambda p: p.name)
def test_logits_are_those_of_the_library(folder: Path) -> None:
    oracle = load_file(folder / "oracle.safetensors")
    with trained(folder) as one:
        assert not one.missing
        assert not one.dropped
        found = logits(one, oracle)
        assert distance(found, wanted(oracle)) <= TOLERANCE
        targets = one.target_ids(found[0].shape[1])
        for step, values in enumerate(found):
            assert torch.equal(targets[values.argmax(-1)], oracle[f"target_tokens.{step}"])


FLIPS: list[tuple[str, dict[str, Any]]] = [
    ("llama1", {"norm_before_residual": True}),
    ("llama1_nbr", {"norm_before_residual": False}),
    ("llama1", {"norm_output": True}),
    ("llama1_normout", {"norm_output": False}),
    ("llama1_normfc", {"norm_before_fc": False}),
    ("llama1_fcnorm", {"fc_norm": False}),
    ("llama1_attnbias", {"attention_bias": False}),
    ("qwen3_1", {"qk_norm": False}),
    ("llama1", {"final_norm": False}),
    ("llama1", {"norms_swapped": True}),
    ("llama1", {"fc_bypassed": True}),
    ("llama1", {"rope": {"rope_type": "default", "rope_theta": 10000.0}}),
    ("rope_linear", {"rope": {"rope_type": "default", "rope_theta": 10000.0}}),
    ("rope_llama3", {"rope": {"rope_type": "default", "rope_theta": 10000.0}}),
    ("rope_yarn", {"rope": {"rope_type": "default", "rope_theta": 10000.0}}),
    ("llama1_swa4", {"windows": (None,)}),
    ("llama1_swa4", {"windows": (5,)}),
    ("llama1", {"eps": 1e-2}),
]


@pytest.mark.parametrize(("name", "flip"), FLIPS, ids=lambda x: x if isinstance(x, str) else next(iter(x)))
def test_each_switch_moves_the_logits(name: str, flip: dict[str, Any]) -> None:
    folder = (ROPES if name.startswith("rope_") else FIXTURES) / name
    oracle = load_file(folder / "oracle.safetensors")
    with trained(folder) as one:
        moved = distance(logits(one, oracle, replace(one.form, **flip)), wanted(oracle))
    assert moved > 100 * TOLERANCE


def test_one_changed_weight_moves_the_logits(tmp_path: Path) -> None:
    oracle = load_file(FIXTURES / "llama1" / "oracle.safetensors")

    def nudge(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors["fc.weight"][0, 0] += 1e-2

    with trained(plant(tmp_path / "nudged", nudge, source=FIXTURES / "llama1")) as one:
        assert distance(logits(one, oracle), wanted(oracle)) > 10 * TOLERANCE


def test_bfloat16_is_near_float32() -> None:
    oracle = load_file(FIXTURES / "llama2" / "oracle.safetensors")
    with trained(FIXTURES / "llama2") as one:
        rough = logits(one, oracle, dtype=torch.bfloat16)
        assert rough[0].dtype == torch.bfloat16
        scale = float(wanted(oracle)[0].abs().max())
        assert 0 < distance(rough, wanted(oracle)) < 0.1 * scale


@pytest.mark.parametrize("name", ["llama1_cli_default", "llama2_nbr", "qwen3_2", "llama1_swa4"])
def test_rows_draft_what_an_engine_drafts_with_its_cache(name: str) -> None:
    """The form of training and a plain KV cache that feeds back its own tokens give the same logits."""
    oracle = load_file(FIXTURES / name / "oracle.safetensors")
    with trained(FIXTURES / name) as one:
        model = one.model()
        aux = oracle["hidden"].chunk(one.form.aux_count, dim=-1)
        ids, at = oracle["input_ids"], 6
        targets = one.target_ids(one.form.draft_vocab_size)
        tokens, chain = model.draft_chain([x[:at] for x in aux], ids[:at], STEPS, targets)
        text = torch.cat([ids[:at], torch.tensor(tokens), ids[at:]])[: len(ids)]  # the text goes on as it was drafted
        rows = list(model.draft_rows(aux, text, Packed(len(ids)), STEPS, "moving"))
        assert distance([r[at - 1] for r in rows], chain) <= TOLERANCE
        anchored = list(model.draft_rows(aux, text, Packed(len(ids)), STEPS, "anchored"))
        differs = distance([r[at - 1] for r in anchored], chain) > TOLERANCE
        assert differs == (name == "llama1_swa4")  # a binding window is the only difference


def test_sequences_side_by_side_do_not_see_each_other() -> None:
    oracle = load_file(FIXTURES / "llama2" / "oracle.safetensors")
    with trained(FIXTURES / "llama2") as one:
        model = one.model()
        aux, ids = oracle["hidden"].chunk(3, dim=-1), oracle["input_ids"]
        both = list(model.draft_rows(aux, ids, Packed(12, (0, 5)), STEPS))
        alone = list(model.draft_rows([x[5:] for x in aux], ids[5:], Packed(7), STEPS))
        assert distance([x[5:] for x in both], alone) <= TOLERANCE


def test_long_sequences_are_attended_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    oracle = load_file(FIXTURES / "llama1_swa4" / "oracle.safetensors")
    monkeypatch.setattr("eagle3convert.reference.cache.CHUNK", 5)
    with trained(FIXTURES / "llama1_swa4") as one:
        assert distance(logits(one, oracle), wanted(oracle)) <= TOLERANCE


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"rope_type": "default", "mrope_section": [2, 1, 1]}, "mrope"),
        ({"rope_type": "dynamic", "factor": 2.0}, "dynamic"),
        ({"rope_type": "longrope"}, "longrope"),
        ({"rope_type": "spiral"}, "spiral"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"rope_type": "linear"}, "factor"),
    ],
)
def test_ropes_that_are_not_computed_are_refused_by_name(parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        Rope({"rope_theta": 10000.0, **parameters}, 8, 512)


def test_other_layers_are_refused_by_name(tmp_path: Path) -> None:
    def gelu(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        config["transformer_layer_config"]["hidden_act"] = "xielu"

    with (
        trained(plant(tmp_path / "act", gelu, source=FIXTURES / "llama1")) as one,
        pytest.raises(CheckpointError, match="hidden_act 'xielu'"),
    ):
        one.model()


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    def narrow(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors["fc.weight"] = tensors["fc.weight"][:, :64].contiguous()

    oracle = load_file(FIXTURES / "llama1" / "oracle.safetensors")
    with (
        trained(plant(tmp_path / "narrow", narrow, source=FIXTURES / "llama1")) as one,
        pytest.raises(CheckpointError, match=r"fc\.weight.*\[32, 64\].*\[32, 96\]"),
    ):
        logits(one, oracle)


def test_a_quantised_drafter_is_refused_by_its_tensor(tmp_path: Path) -> None:
    def quantise(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors["layers.0.mlp.up_proj.weight_scale"] = torch.ones(48)

    folder = plant(tmp_path / "quantised", quantise, source=FIXTURES / "llama1")
    with pytest.raises(CheckpointError, match=r"up_proj\.weight_scale"), trained(folder):
        pass
