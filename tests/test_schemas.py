"""The format files: each loads, is described by the JSON Schema beside it, and says nothing that no code reads."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eagle3convert
from eagle3convert import FormatError
from eagle3convert.canonical import FEATURES, concrete_table
from eagle3convert.formats import all_formats, load_format, load_format_file, schemas_folder
from eagle3convert.generated import format_json_schema
from eagle3convert.graph import CANONICAL, ConverterGraph
from eagle3convert.releases import version
from eagle3convert.spelling import TensorSpelling

from .drafters import FORMATS, Knobs, canonical_shapes, spelled_name

FILES = sorted(schemas_folder().glob("*.toml"))
OWN = Path(__file__).parent / "cases" / "my_sglang.toml"


def test_the_formats_are_the_known_ones() -> None:
    assert eagle3convert.format_names() == FORMATS
    assert sorted(file.stem for file in FILES) == list(FORMATS)


def test_the_json_schema_is_current() -> None:
    stored = json.loads((schemas_folder() / "format.schema.json").read_text(encoding="utf-8"))
    assert stored == format_json_schema()
    jsonschema.Draft202012Validator.check_schema(stored)


@pytest.mark.parametrize("file", [*FILES, OWN], ids=lambda f: f.stem)
def test_a_format_file_is_valid_by_the_json_schema(file: Path) -> None:
    jsonschema.validate(tomllib.loads(file.read_text(encoding="utf-8")), format_json_schema())


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_a_format_file_names_its_schema_and_its_own_name(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.startswith("#:schema ./format.schema.json\n")
    assert load_format_file(file).name == file.stem


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_the_tests_that_a_format_names_as_evidence_are_there(file: Path) -> None:
    named = set(re.findall(r"\btests/[\w/]+\.py|\btest_\w+\.py", file.read_text(encoding="utf-8")))
    there = Path(__file__).parent
    assert {name for name in named if not (there / "engines" / Path(name).name).is_file()} == set()


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_states_its_evidence(name: str) -> None:
    schema = load_format(name)
    assert schema.evidence
    assert any(re.search(r"\d+\.\d+|@[0-9a-f]{7}", line) for line in schema.evidence), "with a release or a commit"
    assert schema.vocab_map.evidence
    assert schema.aux_layers.evidence
    assert version(schema.releases[0]) <= version(schema.releases[1])


@pytest.mark.parametrize("name", FORMATS)
def test_the_features_of_a_format_are_the_closed_list_and_every_limit_has_its_reason(name: str) -> None:
    schema = load_format(name)
    assert set(schema.features) == set(FEATURES)
    for feature, rule in schema.features.items():
        if rule.is_fixed:
            assert len(rule.reason) > 20, f"{feature} says why"
            assert rule.reason.endswith(".")
    for kind in schema.decoders.values():
        assert kind.architectures or kind.reason.endswith(".")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_format_spells_every_tensor_and_reads_it_again(name: str, layers: int) -> None:
    spelling = TensorSpelling(load_format(name), layers, 3)
    names = [canonical for canonical, _ in concrete_table(layers, 3)] + ["d2t", "t2d"]
    written = [spelling.written(canonical) for canonical in names]
    assert len(set(written)) == len(names), "no two tensors have one name"
    assert [spelling.canonical(spelled) for spelled in written] == names
    for suffix in ("weight_scale", "qweight", "input_scale"):
        companion = f"layers.0.mlp.up_proj.{suffix}"
        assert spelling.canonical(spelling.written(companion)) == companion
    for wrapper in load_format(name).wrappers:
        assert [spelling.canonical(wrapper + spelled) for spelled in written] == names
    assert spelling.canonical("adapter.weight") is None


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_spells_tensors_as_its_program_does(name: str) -> None:
    knobs = Knobs(layers=2, norm_before_fc=True, fc_norm=True, qk_norm=True, attention_bias=True)
    spelling = TensorSpelling(load_format(name), 2, 3)
    for canonical in canonical_shapes(knobs):
        if name in ("specforge", "safeailab") and canonical.startswith("layers.1"):
            continue
        assert spelling.written(canonical) == spelled_name(name, canonical)


# --- what no format file may say --------------------------------------------------------------------------------------


def changed(tmp_path: Path, change: str, to: str) -> Path:
    text = OWN.read_text(encoding="utf-8")
    assert change in text
    file = tmp_path / "changed.toml"
    file.write_text(text.replace(change, to, 1), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("change", "to", "says"),
    [
        ('role = "engine"', 'role = "engine"\ncolour = "blue"', "colour"),
        ('encoding = "offset"', 'encoding = "offset"\nspeling = 1', "vocab_map.speling"),
        ('encoding = "offset"', 'encoding = "relative"', "vocab_map.encoding"),
        ('"layers.0.*" = "midlayer.*"', '"layers.0.*" = "midlayer.weight"', "wildcards"),
        ('"layers.0.*" = "midlayer.*"', '"layers.{i}.fc" = "midlayer.fc"', "wildcards"),
        ('"layers.0.*" = "midlayer.*"', '"layers.0.*" = { write = "m.*", accepts = ["n"] }', "wildcards"),
        ('convention = "layer_output"', 'convention = "by_feeling"', "by_feeling"),
        ("[features.fc_norm]", "[features.fc_norms]", "fc_norms"),
        ('[features.mlp_bias]\nfixed = false\nreason = "The fork has no biases."\n', "", "mlp_bias"),
        ('reason = "The fork has no fc_norm."', "", "reason"),
        ('config_key = "residual_after_norm"', 'config_key = "x"\nany_value = true', "any_value"),
        ('role = "engine"', 'role = "wish"', "role"),
        ('name = "my-sglang"', 'name = "My SGLang"', "name"),
        ('releases = ["0.5.23", "0.5.23"]', 'releases = "0.5.23"', "releases"),
        ('name = "my-sglang"', 'name = "my-sglang', "TOML"),
        ('name = "my-sglang"\n', "", "name"),
    ],
)
def test_a_wrong_format_file_is_refused_by_its_field(change: str, to: str, says: str, tmp_path: Path) -> None:
    file = changed(tmp_path, change, to)
    with pytest.raises(FormatError) as error:
        load_format_file(file)
    assert str(file) in str(error.value)
    assert says in str(error.value)
    assert "\n" not in str(error.value).strip() or len(str(error.value)) < 600


@pytest.mark.parametrize(
    ("change", "to", "says"),
    [
        ('releases = ["0.5.23", "0.5.23"]', 'releases = ["newest", "0.5.23"]', "newest"),
        ('releases = ["0.5.23", "0.5.23"]', 'releases = ["0.6", "0.5"]', "releases"),
        ('name = "my-sglang"', 'name = "convert"', "convert"),
        ('name = "my-sglang"', 'name = "auto"', "auto"),
        ('convention = "layer_output"', 'convention = "layer_output"\nfamilies_of = "gguf"', "gguf"),
        ('convention = "layer_output"', 'convention = "layer_output"\ndefault = ["2", "half", "n-3"]', "half"),
        ('architectures = ["MyEagle3"]\nmodel_types = ["llama"]', 'architectures = ["MyEagle3"]', "model_types"),
        ("[decoders.mla]", "[decoders.mamba]", "mamba"),
        ('"layers.0.*" = "midlayer.*"', '"layers.0.*" = "midlayer.*"\n"attention.weight" = "a"', "attention.weight"),
    ],
)
def test_a_format_file_that_could_never_work_is_refused_when_it_is_read(
    change: str, to: str, says: str, tmp_path: Path
) -> None:
    file = changed(tmp_path, change, to)
    with pytest.raises(FormatError) as error:
        load_format_file(file)
    assert says in str(error.value)


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.integers(-2, 9) | st.sampled_from(["", "x", "0.5.1", "offset"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["write", "a"]), inner, max_size=2),
    max_leaves=4,
)


@given(st.lists(st.tuples(st.integers(0, 40), VALUES), min_size=1, max_size=2))
@settings(max_examples=80)
def test_no_content_of_a_format_file_is_more_than_an_error_with_its_name(edits: list[tuple[int, Any]]) -> None:
    import tempfile

    lines = OWN.read_text(encoding="utf-8").splitlines()
    keyed = [i for i, line in enumerate(lines) if " = " in line]
    for place, value in edits:
        at = keyed[place % len(keyed)]
        key = lines[at].split(" = ")[0]
        lines[at] = f"{key} = {toml(value)}"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "own.toml"
        file.write_text("\n".join(lines), encoding="utf-8")
        said = "own.toml"
        try:
            load_format_file(file)
        except FormatError as error:
            said = str(error)
        assert "own.toml" in said


def toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {toml(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


# --- the graph --------------------------------------------------------------------------------------------------------


def test_the_graph_has_two_edges_for_each_format_and_a_path_for_each_pair() -> None:
    graph = ConverterGraph(all_formats())
    assert len(graph.edges) == 2 * len(FORMATS)
    for a in FORMATS:
        for b in FORMATS:
            if a != b:
                assert [(e.source, e.target) for e in graph.path(a, b)] == [(a, CANONICAL), (CANONICAL, b)]
        assert [(e.source, e.target) for e in graph.path(a, CANONICAL)] == [(a, CANONICAL)]
    with pytest.raises(FormatError, match="gguf"):
        graph.path("gguf", "vllm")
    assert "RemapAuxLayers" in graph.edges[CANONICAL, "sglang"].changes
    assert "RenameTensors" in graph.edges["sglang", CANONICAL].changes
    assert "RemapAuxLayers" not in graph.edges["speculators", CANONICAL].changes


def test_a_format_of_the_user_joins_the_graph() -> None:
    graph = ConverterGraph([*all_formats(), load_format_file(OWN)])
    assert len(graph.edges) == 2 * len(FORMATS) + 2
    assert len(graph.path("speculators", "my-sglang")) == 2
    assert "my-sglang" in graph.draw()
