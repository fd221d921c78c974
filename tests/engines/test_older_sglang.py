"""Older SGLang releases: each serves just the drafters whose lowest release it has reached.

The drafters are those that the real speculators library wrote; what they must compute is what the library computed.
Every release runs its own LlamaForCausalLMEagle3.  Lowest releases that come from the aux layers (the embedding output,
layers other than SGLang's own with CUDA graphs) are about the verifier: no drafter here has such a one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.version import Version
from safetensors.numpy import load_file, save_file

import eagle3convert
from eagle3convert import Refused

from ..drafters import read_receipt, write_verifier
from ..test_real_speculators import FIXTURES, OUTCOMES, SERVED
from .converted import ROWS, Job, run_drafters
from .engines import OLDER
from .matrix import record

pytestmark = pytest.mark.engine

STEPS = ("logits.0", "logits.1", "logits.2")
WINDOWS = {"llama1_swa4": 3}  # the size does not count the query
NOT_RUN = {"llama2": ["model.layers.1.input_layernorm.weight"]}
"""Parameters that SGLang creates and does not run: layers after the first normalise with hidden_norm."""


@dataclass
class Drafter:
    """A folder that the releases run, and what it must compute: the library's logits, and draft id -> target id."""

    folder: Path
    states: Path
    logits: dict[str, Any]
    targets: list[int] | None
    lowest: str
    window: int | None = None


@dataclass
class Found:
    """What a release made of a drafter."""

    loaded: Mapping[str, Any]
    drafter: Drafter
    logits: dict[str, Any] = field(default_factory=dict)

    @property
    def all_there(self) -> bool:
        """Every tensor but t2d went into a parameter, and every parameter that is run was filled."""
        dropped = set(self.loaded.get("dropped", ["?"])) - {"t2d"}
        return not dropped and self.loaded.get("unfilled") == NOT_RUN.get(self.drafter.folder.name, [])

    @property
    def apart(self) -> float:
        """The largest difference from the library's logits, over three draft steps and the draft vocabulary."""
        if not self.logits:
            return float("inf")
        pairs = [(self.logits[step], self.drafter.logits[step]) for step in STEPS]
        worst = max(np.nan_to_num(np.abs(a[:, : b.shape[1]] - b), nan=np.inf).max() for a, b in pairs)
        return float(worst)  # what was never filled may hold anything, NaN as well

    @property
    def served(self) -> bool:
        same_ids = self.all_there and self.loaded["hot_token_id"] == self.drafter.targets
        return same_ids and self.no_padding and self.apart < 1e-5

    @property
    def no_padding(self) -> bool:
        """The logits are those of the draft vocabulary and no others."""
        return bool(self.logits) and all(self.logits[s].shape == self.drafter.logits[s].shape for s in STEPS)


def changed(
    drafter: Drafter,
    folder: Path,
    config: Callable[[dict[str, Any]], None] = lambda _: None,
    tensors: Callable[[dict[str, Any]], dict[str, Any]] = lambda t: t,
) -> Drafter:
    """A drafter whose folder was changed after its conversion."""
    shutil.copytree(drafter.folder, folder)
    (folder / "eagle3convert.json").unlink()
    said = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config(said)
    (folder / "config.json").write_text(json.dumps(said), encoding="utf-8")
    save_file(tensors(load_file(folder / "model.safetensors")), folder / "model.safetensors")
    return Drafter(folder, drafter.states, drafter.logits, drafter.targets, drafter.lowest)


def targets_of(name: str) -> list[int] | None:
    """Draft id -> token of the verifier; numpy reads no bfloat16, and llama1_bf16 has the map of llama1."""
    files = (FIXTURES / name.removesuffix("_bf16")).glob("model*.safetensors")
    d2t = next((t["d2t"] for t in map(load_file, files) if "d2t" in t), None)
    return None if d2t is None else [int(offset) + i for i, offset in enumerate(d2t)]


def absolute(tensors: dict[str, Any]) -> dict[str, Any]:
    d2t = tensors["d2t"]
    return tensors | {"d2t": d2t + np.arange(len(d2t), dtype=d2t.dtype)}


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verifier")
    return write_verifier(folder, num_hidden_layers=8, hidden_size=32, vocab_size=96, max_position_embeddings=512)


@pytest.fixture(scope="module")
def drafters(tmp_path_factory: pytest.TempPathFactory, verifier: Path) -> dict[str, Drafter]:
    """The library's drafters, converted; and a few of them changed by hand."""
    space, made = tmp_path_factory.mktemp("drafters"), dict[str, Drafter]()
    for name in SERVED:
        source, out = FIXTURES / name, space / name
        eagle3convert.convert(source, out, "speculators", "sglang", verifier_config=verifier)
        oracle = load_file(source / "oracle.safetensors")
        made[name] = Drafter(
            out, source / "oracle.safetensors", oracle, targets_of(name),
            read_receipt(out)["destination"]["lowest_release"], WINDOWS.get(name),
        )  # fmt: skip
    plain, whole = made["llama1"], made["llama1_fullvocab"]
    made["named layers.0"] = changed(
        plain, space / "named", tensors=lambda t: {n.replace("midlayer", "layers.0"): x for n, x in t.items()}
    )
    made["absolute map"] = changed(plain, space / "absolute", tensors=absolute)
    made["rope_theta alone"] = changed(whole, space / "theta", lambda c: c.pop("rope_parameters"))
    made["rope_parameters alone"] = changed(whole, space / "parameters", lambda c: c.pop("rope_theta"))
    made["64 draft tokens"] = changed(
        whole, space / "64", lambda c: c.update(draft_vocab_size=64),
        lambda t: t | {"lm_head.weight": t["lm_head.weight"][:64].copy(), "d2t": np.zeros(64, dtype=np.int64)},
    )  # fmt: skip
    made["the verifier's head"] = changed(
        whole, space / "head", lambda c: c.update(draft_vocab_size=None),
        lambda t: {name: x for name, x in t.items() if name != "lm_head.weight"},
    )  # fmt: skip
    made["64 draft tokens"].logits = {step: whole.logits[step][:, :64] for step in STEPS}
    made["64 draft tokens"].targets = list(range(64))
    return made


@dataclass
class Engines:
    """All releases, each in one process for all drafters."""

    runs: dict[str, Future[dict[str, Found]]]

    def __call__(self, release: str, name: str) -> Found:
        return self.runs[release].result()[name]


@pytest.fixture(scope="module")
def engines(drafters: dict[str, Drafter], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    def run(release: str, space: Path) -> dict[str, Found]:
        jobs = {name: Job(drafter.folder, drafter.states, drafter.window) for name, drafter in drafters.items()}
        return {
            name: Found(ran.found, drafters[name], load_file(ran.logits) if ran.found["stage"] == "done" else {})
            for name, ran in run_drafters(space, jobs, release).items()
        }

    with ThreadPoolExecutor(max_workers=2) as pool:
        yield Engines({r: pool.submit(run, r, tmp_path_factory.mktemp(f"sglang-{r}")) for r in OLDER})


def reached(release: str, lowest: str) -> bool:
    return Version(release) >= Version(lowest)


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("release", OLDER)
def test_a_release_serves_a_drafter_just_from_its_lowest_release_on(
    engines: Engines, drafters: dict[str, Drafter], verifier: Path, tmp_path: Path, release: str, name: str
) -> None:
    found, lowest = engines(release, name), drafters[name].lowest
    if reached(release, lowest):
        assert found.loaded["error"] is None
        assert found.all_there, found.loaded
        assert found.loaded["hot_token_id"] == drafters[name].targets
        assert found.loaded["fc_ran"] == [1, 0, 0], "on the verifier's states, not on its own"
        assert found.apart < 1e-5
        how = "logits of three draft steps equal speculators'"
    else:
        assert not found.served
        with pytest.raises(Refused, match=release):
            eagle3convert.convert(
                FIXTURES / name, tmp_path / "out", "speculators", "sglang", verifier_config=verifier,
                engine_version=release,
            )  # fmt: skip
        how = "it loads, and the logits are others" if found.all_there else "tensors are dropped without a word"
        if found.apart < 1e-5:
            how = "it may draft the head's padding, which hot_token_id does not know"
        if found.loaded["error"]:
            how = f"{found.loaded['stage']}: {found.loaded['error']}"
    padded = lowest == "0.5.5" and not found.served  # for its vocabulary of 40, and not for what is special about it
    for row in ROWS.get(name, ()):
        if row != "plain" and (not padded or row == "odd vocabulary"):
            record(row, "sglang", release, "served" if found.served else "refused", how)


FAILURES = {
    "llama2": ("construction", "EAGLE3 currently only supports 1 layer"),
    "llama1_4aux_inner": ("load_weights", "Attempted to load weight"),
    "llama1_fcnorm": ("done", ["fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight"]),
    "llama1_normfc": ("done", ["input_norm.weight"]),
    "llama1_normout": ("done", []),
    "llama1_swa4": ("done", []),
}


@pytest.mark.parametrize(
    ("release", "name"), [(r, name) for name in FAILURES for r in OLDER if not reached(r, OUTCOMES[name].lowest)]
)
def test_only_some_of_what_a_release_lacks_stops_it(engines: Engines, release: str, name: str) -> None:
    loaded, (stage, what) = engines(release, name).loaded, FAILURES[name]
    assert loaded["stage"] == stage
    if stage == "done":
        assert sorted(set(loaded["dropped"]) - {"t2d"}) == what
        assert loaded["unfilled"] == []
        assert engines(release, name).apart > 0.1
    else:
        assert what in loaded["error"]


@pytest.mark.parametrize("release", OLDER)
def test_a_layer_named_layers_0_is_lost_without_a_word_up_to_0_5_11(
    engines: Engines, drafters: dict[str, Drafter], verifier: Path, release: str
) -> None:
    found, folder = engines(release, "named layers.0"), drafters["named layers.0"].folder
    examined = eagle3convert.diagnose(folder, "sglang", engine_version=release, verifier_config=verifier)
    assert found.loaded["error"] is None
    if reached(release, "0.5.12"):
        assert found.served
        assert examined.outcome() == "draft as trained"
        return record("named layers.0", "sglang", release, "served", "logits equal speculators'")
    whole_layer = {name for name in load_file(folder / "model.safetensors") if name.startswith("layers.0.")}
    assert len(whole_layer) == 10
    assert set(found.loaded["dropped"]) == whole_layer | {"t2d"}
    unfilled = {name.removeprefix("model.midlayer.") for name in found.loaded["unfilled"]}
    assert unfilled == {
        "self_attn.qkv_proj.weight", "self_attn.o_proj.weight", "mlp.gate_up_proj.weight", "mlp.down_proj.weight",
        "input_layernorm.weight", "hidden_norm.weight", "post_attention_layernorm.weight",
    }  # fmt: skip
    assert found.apart > 0.1
    assert examined.outcome() == "load and accept almost nothing"
    named = {f.code: f.subject for f in examined.errors if f.code != "E408"}  # 0.4.9: 40 draft tokens
    assert named == {"E108": "layers.0.* (10 tensors)", "E109": "midlayer.* (10 tensors)"}
    return record("named layers.0", "sglang", release, "wrong", "the whole layer is dropped without a word")


@pytest.mark.parametrize("release", OLDER)
def test_absolute_ids_in_d2t_turn_into_other_tokens(
    engines: Engines, drafters: dict[str, Drafter], verifier: Path, release: str
) -> None:
    found, drafter = engines(release, "absolute map"), drafters["absolute map"]
    assert found.loaded["error"] is None
    assert found.apart < 1e-5, "nothing but the tokens is wrong"
    assert drafter.targets is not None
    assert found.loaded["hot_token_id"] == [target + i for i, target in enumerate(drafter.targets)]
    examined = eagle3convert.diagnose(drafter.folder, "sglang", engine_version=release, verifier_config=verifier)
    assert examined.outcome() == "load and accept almost nothing"
    record("absolute d2t", "sglang", release, "wrong", "hot_token_id holds d2t[i] + i")


@pytest.mark.parametrize("release", OLDER)
def test_both_spellings_of_the_rope_are_needed(engines: Engines, release: str) -> None:
    assert engines(release, "rope_theta alone").served
    assert engines(release, "rope_parameters alone").served == reached(release, "0.5.10")
    assert engines(release, "rope_parameters alone").all_there


@pytest.mark.parametrize("release", OLDER)
def test_a_drafter_may_use_the_verifiers_head_from_0_5_2_on(engines: Engines, release: str) -> None:
    loaded = engines(release, "the verifier's head").loaded
    if reached(release, "0.5.2"):
        assert loaded["error"] is None
        assert (loaded["dropped"], loaded["unfilled"]) == ([], ["lm_head.weight"])
        assert loaded["head_of_the_verifier"]
        record("shared_lm_head", "sglang", release, "served", "the draft class asks for the verifier's head")
    else:
        assert (loaded["stage"], loaded["error"].split(":")[0]) == ("construction", "TypeError")
        record("shared_lm_head", "sglang", release, "refused", "TypeError at construction")


@pytest.mark.parametrize("release", OLDER)
def test_0_4_9_drafts_with_the_padding_of_a_head_as_well(engines: Engines, release: str) -> None:
    """0.4.9-0.5.4 cut a padded head's logits to the verifier's vocabulary, 0.5.5 and later to the draft's.

    A head is padded to a multiple of 64.  A token of the padding has a logit of 0, and no entry in hot_token_id.
    """
    padded = engines(release, "llama1")
    rows = padded.logits["logits.0"].shape[1]
    assert rows == (40 if reached(release, "0.5.5") else 64)
    assert not padded.logits["logits.0"][:, 40:].any()
    assert len(padded.loaded["hot_token_id"]) == 40
    whole = engines(release, "64 draft tokens")
    assert whole.served
    assert whole.logits["logits.0"].shape[1] == 64
    assert engines(release, "llama1_fullvocab").logits["logits.0"].shape[1] == 96
    record("plain", "sglang", release, "served", "64 draft tokens")
