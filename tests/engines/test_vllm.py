"""The real vLLM as the judge: a converted drafter accepts exactly as many tokens as the one it came from.

Every drafter drafts for one verifier, on the same prompts, and vLLM counts what it accepts. Exact counts, so that
"the same" means the same. Beside the conversions stand drafters with one thing changed: what the doctor calls an error
must stop vLLM or cost acceptance, and what it lets pass must change nothing.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import eagle3convert
from eagle3convert.doctor import Examination
from eagle3convert.findings import Severity
from tests.engines.drafter_edits import PAIR, read_folder, write_folder
from tests.engines.engines import run_host
from tests.engines.matrix import Verdict, record
from tests.engines.vllm_cases import APPLIED, CHANGES, FAULTS, HARMLESS, IGNORED, SHAPES

pytestmark = pytest.mark.engine

VERIFIER = PAIR / "verifier"
DEMO = Path(eagle3convert.__file__).parent / "demo_drafter"
STATES = DEMO / "captured_states.safetensors"
STATED: dict[str, Any] = {"verifier_config": VERIFIER / "config.json"}

AS_IT_IS = ("demo", "trainer_defaults", "qwen3_two_layers")
CONVERTED_ONLY = ("biases_window_fcnorm", "one_aux_layer")
"""Llama drafters with four aux states and with one: vLLM 0.32 takes three for every llama speculators folder."""
DRAFTERS = (*AS_IT_IS, *CONVERTED_ONLY)


FEATURES_OF = {
    "demo": ("plain", "aux layers with embedding"),
    "trainer_defaults": ("norm_before_residual", "norm_before_fc", "norm_output"),
    "qwen3_two_layers": ("qk_norm", "multi_layer"),
    "biases_window_fcnorm": (
        "fc_norm", "attention_bias", "sliding_window", "four aux layers", "aux layers with embedding", "final state",
    ),
    "one_aux_layer": ("single_aux_layer",),
}  # fmt: skip


ROWS = {
    "the whole vocabulary": "full vocabulary",
    "a vocabulary of 70": "odd vocabulary",
    "heads beside the hidden size": "head_dim",
    "an embedding of its own": "own embedding",
    "wider than the verifier": "narrow",
}


def examine(folder: Path) -> Examination:
    """What the doctor says of a folder for vLLM."""
    return eagle3convert.diagnose(folder, "vllm", **STATED)


def errors(folder: Path) -> set[str]:
    """The codes of the doctor's errors."""
    return {f.code for f in examine(folder).everything if f.severity is Severity.ERROR}


@dataclass(frozen=True)
class Served:
    """What vLLM made of every folder, by name: `vllm/demo` is the demo drafter in vLLM's format."""

    release: str
    cases: dict[str, dict[str, Any]]
    folders: dict[str, Path]

    def counts(self, name: str) -> tuple[int, int, list[int]]:
        """Tokens accepted, drafts made, and tokens accepted at each place of a draft."""
        case = self.cases[name]
        assert case["error"] is None, f"{name}: {case['error']}"
        return case["accepted"], case["drafts"], case["per_position"]

    def length(self, name: str) -> float:
        """The acceptance length: tokens per step of the verifier, 1 where nothing is accepted, 4 where all is."""
        accepted, drafts, _ = self.counts(name)
        return 1 + accepted / drafts

    def words(self, name: str) -> set[str]:
        """What vLLM warns of with this drafter and not with the sound one."""
        return set(self.cases[name]["warnings"]) - set(self.cases["vllm/demo"]["warnings"])

    def stopped(self, name: str, words: str) -> bool:
        """Whether vLLM ended with an error that holds these words."""
        error = self.cases[name]["error"]
        assert error is not None, f"{name}: vLLM served it, acceptance length {self.length(name):.2f}"
        assert re.search(words, error), f"{name}: {error}"
        return True

    def record(self, feature: str, verdict: Verdict, how: str) -> None:
        """A row of the table of features."""
        record(feature, "vllm", self.release, verdict, how)


def make_folders(scratch: Path) -> dict[str, Path]:
    """Every folder that vLLM is to serve."""
    folders = {f"speculators/{name}": PAIR / name for name in DRAFTERS if name != "demo"}
    folders["speculators/demo, with its captured states"] = DEMO
    folders["speculators/demo"] = write_folder(scratch / "speculators" / "demo", *read_folder(DEMO))
    for name in DRAFTERS:
        folders[f"vllm/{name}"] = scratch / "vllm" / name
        eagle3convert.convert(folders[f"speculators/{name}"], folders[f"vllm/{name}"], "speculators", "vllm", **STATED)
    folders["sglang/demo"], folders["by way of sglang/demo"] = scratch / "sglang" / "demo", scratch / "way" / "demo"
    eagle3convert.convert(folders["speculators/demo"], folders["sglang/demo"], "speculators", "sglang", **STATED)
    eagle3convert.convert(folders["sglang/demo"], folders["by way of sglang/demo"], "sglang", "vllm", **STATED)
    config, tensors = read_folder(DEMO)
    config["speculators_config"]["verifier"]["name_or_path"] = str(VERIFIER)
    folders["alone/demo"] = write_folder(scratch / "alone" / "demo", config, tensors)
    # A copy without the receipt: a changed folder is as any other program could have left it.
    for name, change in CHANGES.items():
        config, tensors = read_folder(folders[change.base])
        change.edit(config, tensors)
        folders[name] = write_folder(scratch / "changed" / name.replace("/", " "), config, tensors)
    return folders


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """All cases, served by one run of the host."""
    scratch = tmp_path_factory.mktemp("vllm")
    folders = make_folders(scratch)
    job = {
        "verifier": str(VERIFIER),
        "prompts": json.loads((PAIR / "prompts.json").read_text(encoding="utf-8")),
        "tokens": 10,
        "cases": [
            {"name": name, "drafter": str(folder), "alone": name.startswith("alone/")}
            for name, folder in folders.items()
        ],
    }
    found = run_host("vllm", "vllm_acceptance.py", job, scratch / "results.json", timeout=3600)
    return Served(found["release"], found["cases"], folders)


# --- conversions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", AS_IT_IS)
def test_a_converted_drafter_accepts_exactly_as_its_source(served: Served, name: str) -> None:
    assert served.counts(f"vllm/{name}") == served.counts(f"speculators/{name}")
    assert served.length(f"vllm/{name}") > 3.5
    for feature in FEATURES_OF[name]:
        served.record(feature, "served", f"accepts exactly as the speculators folder that it came from ({name})")


@pytest.mark.parametrize("name", CONVERTED_ONLY)
def test_vllm_stops_at_this_speculators_folder_and_serves_it_once_converted(served: Served, name: str) -> None:
    assert served.stopped(f"speculators/{name}", SHAPES)
    assert "E312" in errors(served.folders[f"speculators/{name}"])
    _, drafts, per_position = served.counts(f"vllm/{name}")
    assert per_position[0] >= 0.9 * drafts
    assert served.length(f"vllm/{name}") > 3.5
    for feature in FEATURES_OF[name]:
        served.record(feature, "served", f"accepts as trained, {served.length(f'vllm/{name}'):.2f} of 4 ({name})")


@pytest.mark.parametrize("name", ["by way of sglang/demo", "alone/demo"])
def test_so_it_does_by_way_of_sglang_and_without_a_named_verifier(served: Served, name: str) -> None:
    assert served.counts(name) == served.counts("speculators/demo")


def test_vllm_takes_every_safetensors_file_beside_a_drafter_for_weights(served: Served) -> None:
    assert served.stopped("speculators/demo, with its captured states", "no module or parameter named 'hidden_states'")


def test_a_drafter_for_sglang_stops_vllm(served: Served) -> None:
    assert served.stopped("sglang/demo", "is invalid for input of size")
    assert "E311" in errors(served.folders["sglang/demo"])


def test_the_output_never_depends_on_the_drafter(served: Served) -> None:
    outputs = {case["output"] for case in served.cases.values() if case["error"] is None}
    assert len(outputs) == 1


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, change in FAULTS.items() if change.stops])
def test_this_fault_stops_vllm(served: Served, name: str) -> None:
    assert served.stopped(name, FAULTS[name].stops)


@pytest.mark.parametrize("name", [name for name, change in FAULTS.items() if not change.stops])
def test_this_fault_costs_acceptance_without_a_word(served: Served, name: str) -> None:
    assert served.length(name) < served.length(FAULTS[name].base) - 0.15
    assert not served.words(name)
    if name == "absolute ids in d2t, in range":
        served.record(
            "absolute d2t", "wrong", "accepts nothing; where an id leaves the vocabulary, stops at the first draft"
        )


@pytest.mark.parametrize("name", [n for n, c in FAULTS.items() if n.startswith("no ") and not c.stops])
def test_without_this_part_nothing_is_accepted(served: Served, name: str) -> None:
    assert served.length(name) < 1.25


@pytest.mark.parametrize("name", [name for name, change in FAULTS.items() if change.says])
def test_the_doctor_names_this_fault(served: Served, name: str) -> None:
    found = examine(served.folders[name])
    assert FAULTS[name].says in {f.code for f in found.everything}
    if FAULTS[name].says.startswith("E"):
        assert found.errors


@pytest.mark.parametrize("name", [name for name, change in FAULTS.items() if change.says.startswith("E")])
def test_the_doctor_tells_an_engine_that_stops_from_one_that_goes_on(served: Served, name: str) -> None:
    told = examine(served.folders[name]).outcome()
    if told != "not examined":
        assert told == ("fail to start" if FAULTS[name].stops else "load and accept almost nothing")


@pytest.mark.parametrize("name", [name for name, change in FAULTS.items() if change.replay])
def test_replay_names_the_fault_that_no_file_shows(served: Served, name: str) -> None:
    assert not errors(served.folders[name])
    found = eagle3convert.replay(served.folders[name], [STATES], **STATED)
    assert [difference.subject for difference in found.winner.differences] == [FAULTS[name].replay]


# --- what is no fault -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HARMLESS)
def test_this_makes_no_difference(served: Served, name: str) -> None:
    assert served.counts(name) == served.counts(HARMLESS[name].base)
    assert not served.words(name)
    if feature := ROWS.get(name):
        served.record(feature, "served", "accepts exactly as the same drafter without it")


def test_the_doctor_sees_no_fault_in_what_makes_no_difference(served: Served) -> None:
    # A speculators folder that does not state the switch is another drafter to the library than to vLLM: E402.
    doubtful = "norm_before_residual true not stated in speculators"
    assert {name: errors(served.folders[name]) for name in HARMLESS if name != doubtful} == {
        name: set() for name in HARMLESS if name != doubtful
    }


# --- what vLLM can and cannot do --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", IGNORED)
def test_vllm_drops_this_part_and_the_plan_refuses_it(served: Served, name: str) -> None:
    assert served.counts(name) == served.counts(IGNORED[name].base)
    assert bool(served.words(name)) == (name == "mask_hidden")  # the only one that vLLM warns of
    planned = eagle3convert.plan(served.folders[name], "vllm", "vllm", **STATED)
    assert IGNORED[name].says in {f.code for f in planned.errors}
    if name == "a bias of fc":
        served.record("fc_bias", "refused", "vLLM drops a bias of fc without a word")


@pytest.mark.parametrize("name", APPLIED)
def test_vllm_uses_this_part(served: Served, name: str) -> None:
    assert served.counts(name) != served.counts(APPLIED[name].base)
    if name == "a bias of down":
        served.record("mlp_bias", "served", "llama layers: large biases change what is accepted; qwen3 is refused")
    if name == "the final norm":
        served.record("final_norm", "refused", "vLLM applies it: another norm.weight changes what is accepted")


def test_a_drafter_without_a_head_drafts_with_the_verifiers(served: Served) -> None:
    assert served.counts("the head of the verifier, shared") == served.counts("the head of the verifier")
    served.record("shared_lm_head", "served", "accepts exactly as with the verifier's head in its own file")


def test_a_permuted_full_vocabulary_is_refused(served: Served) -> None:
    name = "a permuted full vocabulary"
    assert served.stopped(name, "draft_id_to_target_id")
    planned = eagle3convert.plan(served.folders[name], "vllm", "vllm", **STATED)
    assert "E401" in {f.code for f in planned.errors}
    served.record("permuted_vocabulary", "refused", "vLLM stops at the d2t of a full vocabulary")


@pytest.mark.parametrize("name", ["a window in the first layer only", "a window in the second layer only"])
def test_vllm_stops_where_one_layer_slides_and_another_does_not(served: Served, name: str) -> None:
    # vllm 0.32.0 v1/spec_decode/llm_base_proposer.py:1707, the older model runner, which the CPU has
    assert served.stopped(name, "All drafting layers should belong to the same kv cache group")
    assert "W411" in {f.code for f in examine(served.folders[name]).everything}
    served.record("mixed_attention", "stops", "vLLM's V1 model runner: one kv cache group for all draft layers")
