"""For every pair of formats and every drafter that both can say, converting there and back is the identity."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import eagle3convert
from eagle3convert.nested import same

from .drafters import (
    BY_FREQUENCY,
    FORMATS,
    TARGETS,
    Drafter,
    Knobs,
    read_config,
    read_tensors,
    spell,
    write_verifier,
)

PAIRS = list(permutations(FORMATS, 2))
CHAINS = [
    ("specforge", "sglang", "vllm"), ("speculators", "vllm", "sglang"), ("modelopt", "speculators", "sglang"),
    ("safeailab", "vllm", "speculators"), ("vllm", "speculators", "modelopt"), ("sglang", "specforge", "safeailab"),
]  # fmt: skip
FAMILIES = [
    {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    {"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"]},
    {"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"]},
    {"model_type": "minimax_m3_vl", "architectures": ["MiniMaxM3SparseForConditionalGeneration"]},
    {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
]
ROPES = [
    {"rope_type": "default", "rope_theta": 10000.0},
    {"rope_type": "linear", "rope_theta": 500000.0, "factor": 2.0},
    {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0, "original_max_position_embeddings": 64},
]  # fmt: skip


@st.composite
def knobs(draw: st.DrawFn, format: str) -> Knobs:
    """A drafter that the format can say; a plain one more often than one with every feature."""

    def rarely() -> bool:
        return draw(st.integers(0, 4)) == 4

    wide = format in ("speculators", "vllm")  # formats that say more than the plain drafter
    made = Knobs(
        format=format,
        layers=2 if rarely() and format not in ("specforge", "safeailab") else 1,
        aux=draw(st.sampled_from([(2, 8, 13), (2, 8, 13), (1, 4, 9), (3, 8, 13), (2, 7, 15)])),
        norm_before_residual=rarely() and wide,
        norm_before_fc=rarely() and format in ("speculators", "vllm", "sglang", "modelopt"),
        fc_norm=rarely() and format in ("speculators", "vllm", "sglang", "specforge"),
        norm_output=rarely() and format in ("speculators", "vllm", "sglang"),
        qk_norm=rarely() and wide,
        window=64 if rarely() and wide else None,
        dtype=draw(st.sampled_from(["BF16", "BF16", "F32", "F16"])),
        targets=draw(st.sampled_from([TARGETS, TARGETS, BY_FREQUENCY, None, tuple(range(10, 20))])),
        d2t_dtype=draw(st.sampled_from(["I64", "I64", "I32"])),
        embed=draw(st.booleans()),
        rope=draw(st.sampled_from(ROPES)),
        head_dim=draw(st.sampled_from([4, 8])),
        kv_heads=draw(st.sampled_from([1, 3])),
    )
    if rarely() and format in ("speculators", "vllm", "sglang"):
        made = replace(made, aux=(0, 2, 8, 13), aux_count=4)
    if rarely() and wide and not made.qk_norm:
        made = replace(made, attention_bias=True)
    if format == "safeailab" and made.aux != (2, 8, 13):
        made = replace(made, aux=(2, 8, 13))
    return made


@st.composite
def drafters(draw: st.DrawFn, format: str) -> Drafter:
    """A drafter with what trainers leave in a config beside it, and with the other spellings of its names."""
    made = spell(draw(knobs(format)))
    if draw(st.booleans()):
        made = made.with_config(
            draw(
                st.sampled_from(
                    [
                        {"use_cache": True, "bos_token_id": 1, "transformers_version": "4.57.1"},
                        {"my.own": {"notes": [1, None]}, "auto_map": {"": "config.X"}, "eagle": None},
                        {"architectures": ["LlamaForCausalLMEagle3", "Other"]} if format == "sglang" else {"pad": 0},
                    ]
                )
            )
        )
    if draw(st.integers(0, 4)) == 4:
        first = "midlayer." if format in ("sglang", "specforge", "safeailab") else "layers.0."
        other = "layers.0." if first == "midlayer." else "midlayer."
        made = made.renamed(draw(st.sampled_from([{first: other}, {"": "model."}])))
    return made


@contextmanager
def work() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="round-trip-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def options(verifier: Path) -> dict[str, Any]:
    return {"verifier_config": verifier / "config.json", "durable": False}


@pytest.mark.parametrize(("source", "destination"), PAIRS)
@given(data=st.data())
@settings(max_examples=8)
def test_there_and_back_is_the_identity(source: str, destination: str, data: st.DataObject) -> None:
    drafter, family = data.draw(drafters(source)), data.draw(st.sampled_from([FAMILIES[0], *FAMILIES]))
    with work() as folder:
        verifier = write_verifier(folder / "verifier", **family)
        start = drafter.write(folder / "start")
        if eagle3convert.plan(start, source, destination, verifier_config=verifier / "config.json").errors:
            event("refused")
            return
        event("converted")
        there = folder / "there"
        result = eagle3convert.convert(start, there, source, destination, **options(verifier))
        assert result.verification.passed

        eagle3convert.convert(there, folder / "back", destination, source, durable=False)
        assert read_tensors(folder / "back") == drafter.tensors, "with the receipt: the same bytes"
        assert same(read_config(folder / "back"), drafter.config), "with the receipt: an equal config"

        (there / "eagle3convert.json").unlink()
        eagle3convert.convert(
            there, folder / "alike", destination, source, verifier="example-org/tiny-target", **options(verifier)
        )
        assert differences(start, folder / "alike", source, verifier) == [], "without it: the same drafter"
        assert weights(folder / "alike") == sorted(t.data for t in drafter.tensors.values() if t.dtype[0] in "BF"
                                                   and t.dtype != "BOOL")  # fmt: skip


def weights(folder: Path) -> list[bytes]:
    return sorted(t.data for t in read_tensors(folder).values() if t.dtype in ("BF16", "F16", "F32"))


def differences(a: Path, b: Path, format: str, verifier: Path) -> list[str]:
    """The two drafters in canonical form, read as the same format with the same facts about the verifier."""
    found = []
    left, right = (
        eagle3convert.inspect(folder, format, verifier_config=verifier / "config.json").drafter for folder in (a, b)
    )
    for name in sorted({*left.fields, *right.fields}):
        if name.startswith(("neutral.", "verifier.")) or name == "layer_types":
            continue
        x, y = left.fields.get(name, "absent"), right.fields.get(name, "absent")
        if x != y:
            found.append(f"{name}: {x!r} and {y!r}")
    if left.targets != right.targets:
        found.append(f"targets: {left.targets} and {right.targets}")
    return found


@pytest.mark.parametrize(("source", "middle", "end"), CHAINS)
@given(data=st.data())
@settings(max_examples=6)
def test_a_chain_of_three_formats_leads_back_step_by_step(
    source: str, middle: str, end: str, data: st.DataObject
) -> None:
    drafter = data.draw(drafters(source))
    with work() as folder:
        verifier = write_verifier(folder / "verifier")
        start = drafter.write(folder / "start")
        if any(
            eagle3convert.plan(start, source, step, verifier_config=verifier / "config.json").errors
            for step in (middle, end)
        ):
            event("refused")
            return
        event("converted")
        eagle3convert.convert(start, folder / "1", source, middle, **options(verifier))
        eagle3convert.convert(folder / "1", folder / "2", middle, end, durable=False)
        eagle3convert.convert(folder / "2", folder / "3", end, middle, durable=False)
        assert read_tensors(folder / "3") == read_tensors(folder / "1")
        assert same(read_config(folder / "3"), read_config(folder / "1"))
        direct, plain = folder / "direct", folder / "plain"
        eagle3convert.convert(start, direct, source, end, **options(verifier))
        assert weights(folder / "2") == weights(direct)
        eagle3convert.convert(folder / "2", plain, end, source, **options(verifier))
        assert differences(start, plain, source, verifier) == []


@pytest.mark.parametrize("format", FORMATS)
@given(data=st.data())
@settings(max_examples=5)
def test_a_drafter_becomes_a_clean_one_of_its_own_format_and_comes_back(format: str, data: st.DataObject) -> None:
    drafter = data.draw(drafters(format))
    with work() as folder:
        verifier = write_verifier(folder / "verifier")
        start = drafter.write(folder / "start")
        if eagle3convert.plan(start, format, format, verifier_config=verifier / "config.json").errors:
            return
        eagle3convert.convert(start, folder / "clean", format, format, **options(verifier))
        assert differences(start, folder / "clean", format, verifier) == []
        eagle3convert.convert(folder / "clean", folder / "back", format, format, durable=False)
        assert read_tensors(folder / "back") == drafter.tensors
        assert same(read_config(folder / "back"), drafter.config)


@pytest.mark.parametrize(
    "stated",
    [
        {"assume": {"fc_order": "as_listed"}, "aux": (13, 2, 8)},
        {"assume": {"fc_order": "as_listed"}, "aux": (8, 2, 13), "fc_norm": True, "norm_before_fc": True},
        {"assume": {"norm_before_residual": False}, "norm_before_residual": None},
        {"aux_layers": (3, 9, 14), "aux": None},
        {"d2t_encoding": "absolute", "targets": tuple(range(0, 20, 2)), "t2d": False},
        {"dtype": "float32"},
    ],
    ids=str,
)
@pytest.mark.parametrize("destination", ["sglang", "vllm", "modelopt", "specforge", "safeailab"])
def test_what_the_user_stated_is_undone_on_the_way_back(
    stated: dict[str, Any], destination: str, tmp_path: Path
) -> None:
    said = {name: stated[name] for name in ("assume", "aux_layers", "d2t_encoding", "dtype") if name in stated}
    drafter = spell(Knobs(**{name: value for name, value in stated.items() if name not in said}))
    start, verifier = drafter.write(tmp_path / "start"), write_verifier(tmp_path / "verifier")
    if eagle3convert.plan(start, "speculators", destination, verifier_config=verifier, **said).errors:
        pytest.skip(f"{destination} cannot say it")
    eagle3convert.convert(start, tmp_path / "there", "speculators", destination, verifier_config=verifier, **said)
    assert eagle3convert.verify(start, tmp_path / "there").passed
    eagle3convert.convert(tmp_path / "there", tmp_path / "back", destination, "speculators")
    assert read_tensors(tmp_path / "back") == drafter.tensors
    assert same(read_config(tmp_path / "back"), drafter.config)


@pytest.mark.parametrize("container", ["sharded", "bin"])
def test_a_container_changes_no_byte(container: str, tmp_path: Path) -> None:
    if container == "bin":
        pytest.importorskip("torch")
    drafter = spell(Knobs(format="safeailab"))
    start, verifier = drafter.write(tmp_path / "start", container), write_verifier(tmp_path / "verifier")
    eagle3convert.convert(start, tmp_path / "there", "safeailab", "sglang", verifier_config=verifier)
    eagle3convert.convert(tmp_path / "there", tmp_path / "back", "sglang", "safeailab")
    assert read_tensors(tmp_path / "back") == drafter.tensors
    assert same(read_config(tmp_path / "back"), drafter.config)


def test_an_output_in_shards_holds_the_same_tensors(tmp_path: Path) -> None:
    drafter = spell(Knobs())
    start, verifier = drafter.write(tmp_path / "start"), write_verifier(tmp_path / "verifier")
    eagle3convert.convert(start, tmp_path / "out", "speculators", "vllm", verifier_config=verifier, max_shard_size=1500)
    assert (tmp_path / "out" / "model.safetensors.index.json").is_file()
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 2
    assert read_tensors(tmp_path / "out") == drafter.tensors
    assert eagle3convert.verify(start, tmp_path / "out").passed
