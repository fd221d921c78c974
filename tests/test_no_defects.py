"""Whatever a config or a set of tensors holds, the command line ends with a result or a sentence, never a defect."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3convert.cli import run
from eagle3convert.nested import same

from .drafters import FORMATS, make_drafter, read_config, write_safetensors, write_verifier


def run_inside(*words: str | Path) -> tuple[int, str]:
    """The command line in this process: (exit code, all that it said).  Many examples need no process each."""
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "argv", ["eagle3convert", *map(str, words)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as stop,
    ):
        run()
    code = stop.value.code
    assert isinstance(code, int)
    return code, out.getvalue() + err.getvalue()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def fields_of(config: dict[str, Any]) -> list[str]:
    nested = (
        f"{key}.{inner}" for key, value in config.items() if isinstance(value, dict) for inner in fields_of(value)
    )
    return sorted({*config, *nested})


FIELDS = {name: fields_of(make_drafter(name, norm_output=True, window=64).config) for name in FORMATS}
EXTRA = (
    "rope_scaling", "rope_parameters", "rope_theta", "layer_types", "sliding_window", "use_sliding_window", "dtype",
    "torch_dtype", "quantization_config", "target_hidden_size", "norm_output", "fc_norm", "num_aux_hidden_states",
    "eagle_config", "eagle_aux_hidden_state_layer_ids", "eagle_config.eagle_aux_hidden_state_layer_ids",
    "speculators_config.verifier", "transformer_layer_config.rope_parameters", "use_aux_norm", "partial_rotary_factor",
)  # fmt: skip


@given(st.sampled_from(FORMATS), st.sampled_from(FORMATS), st.data())
@settings(max_examples=100)
def test_no_content_of_a_config_is_a_defect(source: str, destination: str, data: st.DataObject) -> None:
    import tempfile

    drafter = make_drafter(source)
    for path in data.draw(st.lists(st.sampled_from([*FIELDS[source], *EXTRA]), min_size=1, max_size=3)):
        parents = path.split(".")[:-1]
        if all(isinstance(drafter.config.get(key), dict | None) for key in parents):
            with contextlib.suppress(AttributeError, TypeError):
                drafter = drafter.with_config({path: data.draw(JSON)})
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        drafter.write(work / "drafter")
        verifier = write_verifier(work / "verifier")
        code, said = run_inside(
            source, destination, work / "drafter", work / "out", "--verifier-config", verifier / "config.json", "-q"
        )
        assert code in (0, 1), said
        assert "Traceback" not in said
        assert "defect of eagle3convert" not in said, said
        assert (code == 0) == (work / "out").is_dir()
        assert run_inside("inspect", work / "drafter")[0] in (0, 1)
        if code == 0:
            code, said = run_inside(destination, source, work / "out", work / "back", "-q")
            assert code in (0, 1), said  # 1: the config says what no drafter of its own format can
            assert "defect of eagle3convert" not in said, said
            if code == 0:
                assert same(read_config(work / "back"), drafter.config)


@given(st.dictionaries(st.text(max_size=6), JSON, max_size=4))
@settings(max_examples=40)
def test_no_verifier_config_is_a_defect(config: dict[str, Any]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        make_drafter("sglang", aux=(3, 8, 13)).write(work / "drafter")
        told = {**dict.fromkeys(("model_type", "num_hidden_layers", "architectures", "text_config")), **config}
        keys = list(told)
        values = [*config.values(), *(None for _ in keys)]
        (work / "verifier.json").write_text(json.dumps(dict(zip(keys, values, strict=False))))
        code, said = run_inside(
            "sglang", "vllm", work / "drafter", work / "out", "--verifier-config", work / "verifier.json"
        )
        assert code in (0, 1, 2), said
        assert "defect" not in said


STRAYS = ("x", "fc", "layers.7.x", "layers.0.self_attn.q_proj.weight_scale", "t2d", "d2t", "model.norm.weight")


@given(st.data())
@settings(max_examples=60)
def test_no_set_of_tensors_is_a_defect(data: st.DataObject) -> None:
    import tempfile

    drafter = make_drafter(data.draw(st.sampled_from(["speculators", "sglang", "vllm"])))
    names = sorted(drafter.tensors)
    tensors = dict(drafter.tensors)
    for name in data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)):
        held = tensors[name]
        what = data.draw(st.sampled_from(["gone", "flat", "scalar", "empty", "cube", "bytes"]))
        if what == "gone":
            tensors.pop(name, None)
        elif what == "flat":
            tensors[name] = held._replace(shape=(len(held.data),), dtype="U8")
        elif what == "scalar":
            tensors[name] = held._replace(shape=(), data=held.data[:1], dtype="U8")
        elif what == "empty":
            tensors[name] = held._replace(shape=(0, 4), data=b"")
        elif what == "cube":
            tensors[name] = held._replace(shape=(1, *held.shape))
        else:
            tensors[name] = held._replace(dtype="I8", shape=(len(held.data),))
        if name not in tensors:
            tensors[data.draw(st.sampled_from(STRAYS))] = held
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        drafter.write(work / "drafter")
        write_safetensors(work / "drafter" / "model.safetensors", tensors)
        code, said = run_inside("auto", "sglang", work / "drafter", work / "out")
        assert code in (0, 1), said
        assert "defect" not in said, said
