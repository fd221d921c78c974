"""The parts of SGLang's model package that need no SGLang: where tensors go, and which vocab maps are sound."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from eagle3convert.engines.sglang.strict_loading import place_of, target_ids  # noqa: E402
from eagle3convert.formats import load_format  # noqa: E402

from .drafters import Knobs, canonical_shapes  # noqa: E402

SCHEMA = load_format("sglang-plugin")
PACKAGE = Path(__file__).parents[1] / "eagle3convert" / "engines" / "sglang"


def test_the_package_that_the_launch_command_names_is_there() -> None:
    named = next(word for word in SCHEMA.launch if word.startswith("SGLANG_EXTERNAL_MODEL_PACKAGE="))
    assert find_spec(named.partition("=")[2]) is not None


def test_the_class_that_a_config_names_is_there() -> None:
    source = (PACKAGE / "eagle3_draft.py").read_text(encoding="utf-8")
    named = {name for decoder in SCHEMA.decoders.values() for name in decoder.architectures}
    assert named == {"SpeculatorsForCausalLMEagle3"}
    assert "class SpeculatorsForCausalLMEagle3(" in source
    assert "EntryClass = [SpeculatorsForCausalLMEagle3]" in source


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("lm_head.weight", ("lm_head.weight", None)),
        ("fc.bias", ("model.fc.bias", None)),
        ("layers.1.self_attn.k_proj.bias", ("model.layers.1.self_attn.qkv_proj.bias", "k")),
        ("layers.0.mlp.up_proj.weight", ("model.layers.0.mlp.gate_up_proj.weight", 1)),
        ("layers.0.mlp.down_proj.weight", ("model.layers.0.mlp.down_proj.weight", None)),
    ],
)
def test_a_tensor_goes_where_sglang_keeps_it(name: str, place: tuple[str, str | int | None]) -> None:
    assert place_of(name) == place


def test_no_two_tensors_go_to_one_place() -> None:
    shapes = canonical_shapes(Knobs(layers=3, qk_norm=True, attention_bias=True, mlp_bias=True, fc_norm=True))
    places = [place_of(name) for name in shapes]
    assert len(set(places)) == len(shapes)


VOCAB = 40


@given(st.permutations(range(VOCAB)), st.integers(1, VOCAB))
def test_offsets_become_the_trained_ids_in_any_order(order: list[int], size: int) -> None:
    targets = torch.tensor(order[:size])
    mask = torch.zeros(VOCAB, dtype=torch.bool)
    mask[targets] = True
    assert torch.equal(target_ids(targets - torch.arange(size), mask, VOCAB), targets)
    assert torch.equal(target_ids((targets - torch.arange(size)).int(), None, VOCAB), targets)


@given(st.sets(st.integers(0, VOCAB - 1), min_size=2, max_size=VOCAB - 1))
def test_absolute_ids_are_refused(chosen: set[int]) -> None:
    """As long as there is a t2d to hold them against, or one of them leads out of the vocabulary."""
    targets = torch.tensor(sorted(chosen))
    mask = torch.zeros(VOCAB, dtype=torch.bool)
    mask[targets] = True
    with pytest.raises(ValueError, match="d2t"):
        target_ids(targets, mask, VOCAB)


def test_the_refusal_names_the_entry_and_says_what_is_wanted() -> None:
    with pytest.raises(ValueError, match=r"d2t\[1\] = 39: draft id 1 would be target id 40 of 40.*offsets"):
        target_ids(torch.tensor([0, 39]), None, VOCAB)
    with pytest.raises(ValueError, match="two draft ids are one target id"):
        target_ids(torch.tensor([1, 0]), None, VOCAB)
