"""Every transform and its inverse, on random drafters: names, dtypes, shapes, configs and the bytes themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from eagle3convert.byteops import Cast, Derive, PermuteBlocks, Recode, run_all
from eagle3convert.checkpoint.stored import MemoryFile, StoredTensor
from eagle3convert.config_transforms import AmendConfig, Composite, MapConfig, decoded_fields
from eagle3convert.conventions import CONVENTIONS, default_states
from eagle3convert.fields import ConfigSpelling
from eagle3convert.formats import all_formats, load_format
from eagle3convert.nested import ABSENT, difference, get, patched, same
from eagle3convert.transforms import (
    CastTensors,
    DeriveTensors,
    DropTensors,
    PermuteFcBlocks,
    RecodeVocabMap,
    RemapAuxLayers,
    RenameTensors,
    Row,
    State,
    Transform,
)
from eagle3convert.vocab import from_targets, judge, mask_of, targets_of, to_targets

from .drafters import FORMATS, WIDTHS, Knobs, Tensor, count, list_tensor, mask, offsets, spell_config

Files = Mapping[str, Tensor]


def state_of(files: Files, config: Mapping[str, Any] | None = None) -> State:
    return State({name: Row(t.dtype, t.shape, name) for name, t in files.items()}, config or {})


def written(state: State, files: Files) -> dict[str, Tensor]:
    """The tensors of a state with their bytes made from those of the files that it starts from."""
    made = {}
    for name, row in state.tensors.items():
        source = files[row.origin] if row.origin is not None else Tensor(row.dtype, row.shape, b"")
        read = partial(_part, source.data)
        made[name] = Tensor(row.dtype, row.shape, b"".join(run_all(row.ops, read, source.dtype, source.shape)))
    return made


def _part(data: bytes, start: int, length: int) -> bytes:
    return data[start : start + length]


def comes_back(step: Transform, files: Files, config: Mapping[str, Any] | None = None) -> None:
    """Prove that the inverse undoes a step, in the description and in the bytes."""
    start = state_of(files, config)
    there = step.apply(start)
    back = step.inverse().apply(there)
    assert same(dict(back.config), dict(start.config))
    assert {n: (r.dtype, r.shape) for n, r in back.tensors.items()} == {n: (t.dtype, t.shape) for n, t in files.items()}
    assert written(back, files) == dict(files), "both in one pass"
    moved = written(there, files)
    again = step.inverse().apply(state_of(moved, there.config))
    assert written(again, moved) == dict(files), "in two passes, through a file"
    assert step.inverse().inverse() == step


# --- strategies -------------------------------------------------------------------------------------------------------

NAMES = st.text("abcfmnorw.01_", min_size=1, max_size=12)


@st.composite
def tensors(draw: st.DrawFn, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> Tensor:
    kind = dtype or draw(st.sampled_from(["BF16", "F16", "F32", "I64", "BOOL"]))
    sizes = shape or tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=2)))
    size = count(sizes) * WIDTHS[kind]
    return Tensor(kind, sizes, draw(st.binary(min_size=size, max_size=size)))


FILES = st.dictionaries(NAMES, tensors(), max_size=6)


@st.composite
def target_lists(draw: st.DrawFn, least: int = 1) -> tuple[tuple[int, ...], int]:
    """(targets, vocabulary): distinct target ids in any order."""
    vocab = draw(st.integers(max(least, 2), 60))
    order = draw(st.permutations(range(vocab)))
    return tuple(order[: draw(st.integers(least, vocab))]), vocab


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | st.sampled_from([1e-05, 0.5, 10000.0]) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=5,
)

# --- tensors ----------------------------------------------------------------------------------------------------------


@given(FILES, st.data())
def test_a_rename_is_undone(files: dict[str, Tensor], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(sorted(files)), unique=True) if files else st.just([]))
    new = data.draw(st.lists(NAMES, min_size=len(chosen), max_size=len(chosen), unique=True))
    assume(not set(new) & (set(files) - set(chosen)))
    comes_back(RenameTensors(tuple(zip(chosen, new, strict=True))), files)


def test_a_rename_that_would_lose_a_tensor_is_refused() -> None:
    files = {"a": list_tensor([1]), "b": list_tensor([2])}
    with pytest.raises(ValueError, match="one name"):
        RenameTensors((("a", "b"),)).apply(state_of(files))
    with pytest.raises(ValueError, match="distinct"):
        RenameTensors((("a", "c"), ("b", "c")))


@given(target_lists(), st.sampled_from(["I64", "I32"]), st.sampled_from(["offset", "absolute"]))
def test_a_recoded_vocab_map_is_decoded_again(targets: tuple[tuple[int, ...], int], dtype: str, source: Any) -> None:
    other: Any = {"offset": "absolute", "absolute": "offset"}[source]
    held = list_tensor(from_targets(targets[0], source), dtype)
    step = RecodeVocabMap(source, other)
    comes_back(step, {"d2t": held, "fc.weight": list_tensor([3])})
    moved = written(step.apply(state_of({"d2t": held})), {"d2t": held})["d2t"]
    assert moved == list_tensor(from_targets(targets[0], other), dtype)
    comes_back(step, {})


@given(st.data())
def test_moved_fc_blocks_move_back(data: st.DataObject) -> None:
    aux, width, rows = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    order = tuple(data.draw(st.permutations(range(aux))))
    files = {"fc.weight": data.draw(tensors("BF16", (rows, aux * width)))}
    if data.draw(st.booleans()):
        files["input_norm.weight"] = data.draw(tensors("BF16", (aux * width,)))
    if data.draw(st.booleans()):
        files |= {f"fc_norm.{j}.weight": data.draw(tensors("BF16", (width,))) for j in range(aux)}
    layers = data.draw(st.none() | st.lists(st.integers(0, 61), min_size=aux, max_size=aux).map(tuple))
    comes_back(PermuteFcBlocks(order), files, {"aux_layers": layers} if layers is not None else {})


def test_moved_fc_blocks_are_those_of_the_named_states() -> None:
    fc = Tensor("U8", (2, 6), bytes([1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]))
    norms = {f"fc_norm.{j}.weight": list_tensor([j]) for j in range(3)}
    files = {"fc.weight": fc, "input_norm.weight": Tensor("U8", (3,), b"abc"), **norms}
    moved = PermuteFcBlocks((1, 2, 0)).apply(state_of(files, {"aux_layers": (13, 2, 8)}))
    assert moved.config["aux_layers"] == (2, 8, 13)
    made = written(moved, files)
    assert made["fc.weight"].data == bytes([2, 2, 3, 3, 1, 1, 5, 5, 6, 6, 4, 4])
    assert made["input_norm.weight"].data == b"bca"
    assert [made[f"fc_norm.{j}.weight"] for j in range(3)] == [list_tensor([1]), list_tensor([2]), list_tensor([0])]


@given(st.sampled_from([("BF16", "F32"), ("F16", "F32"), ("BF16", "F64"), ("F16", "F64"), ("F32", "F64")]), st.data())
@example(("F16", "F32"), None)  # every half, among them each NaN
@example(("BF16", "F32"), None)
def test_a_widening_cast_is_undone_bit_for_bit(kinds: tuple[str, str], data: st.DataObject | None) -> None:
    if data is None:
        held = Tensor(kinds[0], (1 << 16,), b"".join(i.to_bytes(2, "little") for i in range(1 << 16)))
    else:
        held = data.draw(tensors(kinds[0], (3, 5)))
    assert Cast(*kinds).exact
    assert CastTensors((("fc.weight", *kinds),)).exact
    comes_back(CastTensors((("fc.weight", *kinds),)), {"fc.weight": held, "d2t": list_tensor([1, 2])})


@given(st.sampled_from([("F32", "BF16"), ("F32", "F16"), ("F16", "BF16"), ("BF16", "F16")]), st.data())
def test_a_narrowing_cast_gives_what_torch_gives(kinds: tuple[str, str], data: st.DataObject) -> None:
    torch = pytest.importorskip("torch")
    types = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    held = data.draw(tensors(kinds[0], (8,)))
    assert not Cast(*kinds).exact
    mine = torch.frombuffer(bytearray(Cast(*kinds).apply(held.data, kinds[0], (8,))), dtype=types[kinds[1]])
    theirs = torch.frombuffer(bytearray(held.data), dtype=types[kinds[0]]).to(types[kinds[1]])
    nan = theirs.isnan()
    assert torch.equal(mine.isnan(), nan), "NaN stays NaN and nothing else becomes one"
    assert torch.equal(mine[~nan].view(torch.int16), theirs[~nan].view(torch.int16))


@given(target_lists(), st.sampled_from(["I64", "I32"]), st.sampled_from([("d2t",), ("t2d",), ("d2t", "t2d")]))
def test_what_is_left_out_is_derived_again(
    targets: tuple[tuple[int, ...], int], dtype: str, names: tuple[str, ...]
) -> None:
    ids, vocab = targets
    files = {"d2t": list_tensor(ids, dtype), "t2d": mask(ids, vocab), "norm.weight": list_tensor([1])}
    how = tuple((Derive(name, ids, vocab, "absolute"), files[name].dtype, files[name].shape) for name in names)
    comes_back(DropTensors(how), files)
    bare = {name: tensor for name, tensor in files.items() if name not in names}
    comes_back(DeriveTensors(how), bare)


@given(st.integers(1, 4), st.integers(1, 6), st.data())
def test_operations_on_bytes_are_undone_in_blocks_of_any_size(rows: int, columns: int, data: st.DataObject) -> None:
    order = tuple(data.draw(st.permutations(range(columns))))
    held = data.draw(tensors("F16", (rows, columns * 2)))
    op = PermuteBlocks(order)
    whole = b"".join(run_all((op,), partial(_part, held.data), "F16", held.shape))
    row = columns * 4
    lines = [held.data[at : at + row] for at in range(0, len(held.data), row)]
    single = b"".join(op.apply(line, "F16", (1, columns * 2)) for line in lines)
    assert whole == single
    assert op.inverse().apply(whole, "F16", held.shape) == held.data
    assert Recode("offset", "absolute").inverse() == Recode("absolute", "offset")


# --- aux layers -------------------------------------------------------------------------------------------------------

LAYER_LISTS = st.lists(st.integers(0, 20), min_size=1, max_size=4, unique=True).map(lambda ids: tuple(sorted(ids)))
COUNTS = st.none() | st.integers(3, 20)


@given(st.sampled_from(sorted(CONVENTIONS)), LAYER_LISTS, COUNTS)
def test_encoded_aux_layers_are_decoded_to_the_same_states(name: str, states: tuple[int, ...], n: int | None) -> None:
    ids = CONVENTIONS[name].encode(states, n)
    if ids is not None:
        assert CONVENTIONS[name].decode(ids, n) == states
    if name in ("hidden_states", "layer_output"):
        assert ids is not None, "a plain numbering says every list"


@given(st.sampled_from(sorted(CONVENTIONS)), LAYER_LISTS, COUNTS)
@example("layer_output_if_first_is_1", (2, 8, 13), 16)
@example("layer_output_unless_last_is_n", (7, 11, 15), 16)
def test_decoded_aux_layers_can_be_encoded_again(name: str, ids: tuple[int, ...], n: int | None) -> None:
    states = CONVENTIONS[name].decode(ids, n)
    again = CONVENTIONS[name].encode(states, n)
    assert again is not None
    assert CONVENTIONS[name].decode(again, n) == states


@given(st.sampled_from(sorted(CONVENTIONS)), st.sampled_from(sorted(CONVENTIONS)), LAYER_LISTS, COUNTS)
@example("layer_output_if_first_is_1", "hidden_states", (2, 8, 13), 16)
@example("layer_output_unless_last_is_n", "hidden_states", (7, 11, 15), 16)
def test_renumbered_aux_layers_are_numbered_back(source: str, target: str, ids: tuple[int, ...], n: int | None) -> None:
    states = CONVENTIONS[source].decode(ids, n)
    assume(CONVENTIONS[target].encode(states, n) is not None)
    # A list that two spellings mean is taken in the one that encode gives; the plan keeps the other one's ids.
    assume(CONVENTIONS[source].encode(states, n) == ids)
    comes_back(RemapAuxLayers(source, target, n), {}, {"aux_layers": ids})
    comes_back(RemapAuxLayers(source, target, n), {}, {})


def test_default_layers_are_those_of_the_readers() -> None:
    assert default_states(("2", "n//2", "n-3"), 61) == (2, 30, 58)
    assert default_states(("3", "n//2+1", "n-2"), 61) == (3, 31, 59)
    assert default_states(("2", "n//2", "n-3"), 16) == (2, 8, 13)


# --- configs ----------------------------------------------------------------------------------------------------------


@st.composite
def drafter_knobs(draw: st.DrawFn, format: str) -> Knobs:
    knobs = Knobs(
        format=format,
        layers=draw(st.integers(1, 2)),
        aux=draw(st.sampled_from([(2, 8, 13), (1, 4, 9), (3, 8, 13, 15), None])),
        norm_before_residual=draw(st.sampled_from([True, False, None])),
        norm_output=draw(st.booleans()),
        fc_norm=draw(st.booleans()),
        attention_bias=draw(st.booleans()),
        window=draw(st.sampled_from([None, 64])),
        rope_spelling=draw(st.sampled_from(["rope_parameters", "rope_theta", "both"])),
    )
    return replace(knobs, rope=draw(st.sampled_from(ROPES)))


ROPES = [
    {"rope_type": "default", "rope_theta": 10000.0},
    {"rope_type": "linear", "rope_theta": 500000.0, "factor": 2.0},
    {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
]
PLACES = (
    "hidden_size", "head_dim", "vocab_size", "rope_theta", "rope_scaling", "rope_parameters", "torch_dtype", "dtype",
    "architectures", "model_type", "draft_vocab_size", "tie_word_embeddings", "norm_output", "norm_before_residual",
    "eagle_config", "eagle_config.eagle_aux_hidden_state_layer_ids", "eagle_config.norm_before_fc",
    "eagle_aux_hidden_state_layer_ids", "num_aux_hidden_states", "sliding_window", "layer_types", "use_sliding_window",
    "transformer_layer_config", "transformer_layer_config.hidden_size", "transformer_layer_config.rope_parameters",
    "speculators_config", "speculators_config.verifier", "speculators_config.verifier.name_or_path",
    "quantization_config", "something.of.my.own", "use_cache", "target_hidden_size",
)  # fmt: skip


@given(st.sampled_from(FORMATS), st.data())
@settings(max_examples=300)
def test_a_config_of_any_content_is_written_again_as_it_was(format: str, data: st.DataObject) -> None:
    schema = load_format(format)
    config = spell_config(data.draw(drafter_knobs(format)))
    for path in data.draw(st.lists(st.sampled_from(PLACES), max_size=3)):
        *parents, last = path.split(".")
        node: Any = config
        for key in parents:
            node = node.setdefault(key, {}) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node[last] = data.draw(JSON)
    spelling = ConfigSpelling(schema)
    patch = tuple(difference(spelling.encode(decoded_fields(spelling, config), "llama"), config))
    step = MapConfig(schema, next(k for k, d in schema.decoders.items() if d.architectures), "decode", patch)
    back = step.inverse().apply(step.apply(State({}, config)))
    assert same(dict(back.config), config)


@given(st.sampled_from(FORMATS), st.data())
def test_canonical_fields_survive_a_config_with_its_residue(format: str, data: st.DataObject) -> None:
    spelling = ConfigSpelling(load_format("vllm"))
    fields = decoded_fields(spelling, spell_config(data.draw(drafter_knobs("vllm"))))
    schema = load_format(format)
    there = decoded_fields(ConfigSpelling(schema), ConfigSpelling(schema).encode(fields, "llama"))
    lost = {name: value for name, value in fields.items() if not same(there.get(name, ABSENT), value)}
    lost |= {name: ABSENT for name in there if name not in fields}
    step = MapConfig(schema, "llama", "encode", (), lost)
    back = step.inverse().apply(step.apply(State({}, fields)))
    assert same(dict(back.config), fields)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=2), JSON, max_size=4), st.data())
def test_an_amendment_is_undone(config: dict[str, Any], data: st.DataObject) -> None:
    after = data.draw(st.dictionaries(st.text("abc", min_size=1, max_size=2), JSON | st.just(ABSENT), max_size=4))
    changes = tuple((name, config.get(name, ABSENT), value) for name, value in after.items())
    comes_back(AmendConfig(changes), {}, config)


@given(JSON, JSON)
def test_the_difference_of_two_configs_leads_from_one_to_the_other(a: Any, b: Any) -> None:
    old, new = {"x": a}, {"x": b}
    assert same(patched(old, difference(old, new)), new)
    assert same(old, json.loads(json.dumps(old))), "the first one is left as it was"
    assert get({"a": {"b": 1}}, "a.b") == 1


# --- paths ------------------------------------------------------------------------------------------------------------


@st.composite
def paths(draw: st.DrawFn) -> tuple[tuple[Transform, ...], dict[str, Tensor], dict[str, Any]]:
    """A random path over a drafter of three aux states, with its files and config."""
    ids, vocab = draw(target_lists())
    files = {
        "fc.weight": draw(tensors("BF16", (2, 6))),
        "input_norm.weight": draw(tensors("BF16", (6,))),
        **{f"fc_norm.{j}.weight": draw(tensors("BF16", (2,))) for j in range(3)},
        "d2t": list_tensor(offsets(ids)),
        "t2d": mask(ids, vocab),
        "layers.0.hidden_norm.weight": draw(tensors("F16", (2,))),
    }
    config = {"aux_layers": (2, 8, 13), "norm_output": False}
    steps: list[Transform] = []
    name, encoding, numbering, value = "layers.0.hidden_norm.weight", "offset", "hidden_states", False
    for kind in draw(st.lists(st.sampled_from(["rename", "recode", "remap", "permute", "amend"]), max_size=8)):
        if kind == "rename":
            new = draw(st.sampled_from(["layers.0.hidden_norm.weight", "midlayer.hidden_norm.weight", "x.weight"]))
            steps.append(RenameTensors(((name, new),)))
            name = new
        elif kind == "recode":
            other = "absolute" if encoding == "offset" else "offset"
            steps.append(RecodeVocabMap(encoding, other))  # type: ignore[arg-type]
            encoding = other
        elif kind == "remap":
            other = draw(st.sampled_from(["hidden_states", "layer_output"]))
            steps.append(RemapAuxLayers(numbering, other, 16))
            numbering = other
        elif kind == "permute":
            steps.append(PermuteFcBlocks(tuple(draw(st.permutations(range(3))))))
        else:
            steps.append(AmendConfig((("norm_output", value, not value),)))
            value = not value
    return tuple(steps), files, config


@given(paths())
@settings(max_examples=200)
def test_a_simplified_path_does_what_the_path_does(
    path: tuple[tuple[Transform, ...], dict[str, Tensor], dict[str, Any]],
) -> None:
    steps, files, config = path
    whole, short = Composite(steps), Composite(steps).simplified()
    assert len(short.steps) <= len(whole.steps)
    a, b = whole.apply(state_of(files, config)), short.apply(state_of(files, config))
    assert same(dict(a.config), dict(b.config))
    assert written(a, files) == written(b, files)
    comes_back_whole(short, files, config)


def comes_back_whole(path: Composite, files: Files, config: Mapping[str, Any]) -> None:
    there = path.apply(state_of(files, config))
    moved = written(there, files)
    back = path.inverse().apply(state_of(moved, there.config))
    assert written(back, moved) == dict(files)
    assert same(dict(back.config), dict(config))


def test_a_step_and_its_inverse_cancel() -> None:
    steps: tuple[Transform, ...] = (
        RenameTensors((("a", "b"),)),
        RecodeVocabMap("offset", "absolute"),
        RemapAuxLayers("layer_output", "hidden_states", 16),
        RemapAuxLayers("hidden_states", "layer_output", 16),
        RecodeVocabMap("absolute", "offset"),
        RenameTensors((("b", "a"),)),
    )
    assert Composite(steps).simplified().steps == ()


# --- the vocab map ----------------------------------------------------------------------------------------------------


def stored(tensor: Tensor | None) -> StoredTensor | None:
    if tensor is None:
        return None
    return StoredTensor("d2t", tensor.dtype, tensor.shape, MemoryFile("memory", tensor.data), 0, len(tensor.data))


@given(target_lists(), st.sampled_from(["offset", "absolute"]), st.booleans())
def test_a_map_in_its_declared_encoding_is_read_as_it_was_written(
    targets: tuple[tuple[int, ...], int], encoding: Any, masked: bool
) -> None:
    ids, vocab = targets
    d2t, t2d = list_tensor(from_targets(ids, encoding)), mask(ids, vocab) if masked else None
    found = judge(stored(d2t), stored(t2d), vocab, encoding)
    assert (found.targets, found.encoding) == (ids, encoding)


@given(target_lists(), st.sampled_from(["offset", "absolute"]))
def test_a_map_in_another_encoding_is_read_right_or_said_to_be_undecided(
    targets: tuple[tuple[int, ...], int], encoding: Any
) -> None:
    ids, vocab = targets
    other: Any = {"offset": "absolute", "absolute": "offset"}[encoding]
    found = judge(stored(list_tensor(from_targets(ids, encoding))), stored(mask(ids, vocab)), vocab, other)
    if found.targets != ids:
        assert found.undecided, "both readings select just the tokens of t2d"
        assert {r.targets for r in found.readings if r.sound} >= {ids}


@given(st.lists(st.integers(-70, 70), min_size=1, max_size=12), st.none() | target_lists(), st.integers(2, 60))
def test_no_map_is_accepted_that_is_not_sound(
    values: list[int], masked: tuple[tuple[int, ...], int] | None, vocab: int
) -> None:
    t2d = mask(masked[0], masked[1]) if masked is not None else None
    limit = masked[1] if masked is not None else vocab
    found = judge(stored(list_tensor(values)), stored(t2d), limit, "offset")
    if found.targets is None:
        assert found.encoding is None
        assert not any(r.sound for r in found.readings)
        return
    assert all(0 <= target < limit for target in found.targets)
    assert len(set(found.targets)) == len(found.targets)
    if masked is not None:
        assert set(found.targets) == set(masked[0])
    if min(values) < 0:
        assert found.encoding == "offset", "a negative value is no target id"


@given(target_lists())
def test_a_mask_and_its_targets_are_one(targets: tuple[tuple[int, ...], int]) -> None:
    ids, vocab = targets
    assert targets_of(mask_of(ids, vocab)) == sorted(ids)
    for encoding in ("offset", "absolute"):
        assert to_targets(from_targets(ids, encoding), encoding) == list(ids)
    sorted_ids = tuple(sorted(ids))
    derived = judge(None, stored(mask(ids, vocab)), vocab, "offset", ascending=True)
    assert (derived.targets, derived.derived) == (sorted_ids, True)


def test_every_format_names_its_convention() -> None:
    for schema in all_formats():
        assert schema.aux_layers.convention in CONVENTIONS
