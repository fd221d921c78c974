"""What the plan refuses for SGLang's own draft class, SGLang runs otherwise than it was trained: no refusal is vain."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import eagle3convert
from eagle3convert.formats import load_format

from ..drafters import read_config
from .converted import APART, FIXTURES, Job, Ran, run_drafters, verifier_config
from .engines import SGLANG
from .forced import force
from .made_drafters import MADE, Made
from .matrix import record
from .reference import trained_logits

pytestmark = pytest.mark.engine

Proof = Callable[[Ran], object]


def drops(*parts: str) -> Proof:
    return lambda ran: all(any(part in name for name in ran.lost) for part in parts)


def computes_otherwise(ran: Ran) -> bool:
    return ran.found["error"] is None and ran.lost == set() and ran.found["unfilled"] == [] and ran.distance > APART


def never_runs_fc(ran: Ran) -> bool:
    return computes_otherwise(ran) and ran.found["fc_ran"] == [0, 0, 0]


# feature -> the library's drafter that has it (beside no other that is refused), and what SGLang does.
REFUSED: dict[str, tuple[str, Proof]] = {
    "norm_before_residual": ("llama1_nbr", computes_otherwise),
    "attention_bias": ("llama1_attnbias", drops("q_proj.bias", "k_proj.bias", "v_proj.bias")),
    "mlp_bias": ("llama1_mlpbias", drops("gate_proj.bias", "up_proj.bias", "down_proj.bias")),
    "qk_norm": ("qwen3_1", drops("q_norm.weight", "k_norm.weight")),
    "single_aux_layer": ("llama1_1aux", never_runs_fc),
    "mixed_attention": ("llama2_mixed", lambda ran: ran.found["error"] is None and ran.distance > APART),
    "fc_bias": ("llama1", drops("fc.bias")),
    "final_norm": ("llama1", computes_otherwise),
}


def test_every_refusal_of_the_format_is_proven_here() -> None:
    fixed = {name for name, rule in load_format("sglang").features.items() if rule.is_fixed}
    assert set(REFUSED) == fixed


def prepared(feature: str, place: Path) -> Made:
    """The drafter: the library's own, or one that it does not make, in a format that can say it."""
    if feature in MADE:
        return MADE[feature](place)
    folder = FIXTURES / REFUSED[feature][0]
    return Made(folder, "speculators", folder / "oracle.safetensors")


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Ran, Any]]:
    jobs, plans, place = {}, {}, tmp_path_factory.mktemp("refused")
    verifier = verifier_config(place)
    for feature in REFUSED:
        scratch = place / feature
        scratch.mkdir()
        made = prepared(feature, scratch)
        plans[feature] = eagle3convert.plan(made.folder, made.source_format, "sglang", verifier_config=verifier)
        out = force(made.folder, scratch / "out", made.source_format, "sglang", verifier)
        jobs[feature] = Job(out, made.states, 3 if feature == "mixed_attention" else None)
    ran = run_drafters(place, jobs)
    return {feature: (ran[feature], plans[feature]) for feature in REFUSED}


@pytest.mark.parametrize("feature", REFUSED)
def test_a_refused_drafter_would_be_run_otherwise(feature: str, refused: dict[str, tuple[Ran, Any]]) -> None:
    ran, plan = refused[feature]
    assert [finding.data.get("feature") for finding in plan.errors] == [feature], "refused for this reason alone"
    assert REFUSED[feature][1](ran), ran.found
    record(feature, "sglang", SGLANG, "refused", "proven: it would be run otherwise")


def test_the_field_for_a_bias_of_fc_brings_another_that_nothing_fills(tmp_path: Path) -> None:
    """Why fc_bias is refused although SGLang has a field for it (llama_eagle3.py:166, llama.py:339 of 0.5.23)."""
    made = prepared("fc_bias", tmp_path)
    folder = force(made.folder, tmp_path / "out", made.source_format, "sglang", verifier_config(tmp_path))
    (folder / "config.json").write_text(json.dumps(read_config(folder) | {"bias": True}), encoding="utf-8")
    job = Job(folder, FIXTURES / "llama1" / "oracle.safetensors")
    ran = run_drafters(tmp_path, {"bias": job})["bias"]
    assert ran.lost == set()
    assert ran.found["unfilled"] == ["model.layers.0.self_attn.o_proj.bias"]


def test_the_order_of_norm_and_residual_is_all_that_differs(refused: dict[str, tuple[Ran, Any]]) -> None:
    """SGLang gives a norm_before_residual drafter the logits of one that was trained without."""
    ran = refused["norm_before_residual"][0]
    oracle = load_file(FIXTURES / "llama1_nbr" / "oracle.safetensors")
    without = trained_logits(
        FIXTURES / "llama1_nbr", "speculators", oracle["hidden"], oracle["input_ids"], norm_before_residual=False
    )
    found = load_file(ran.logits)
    assert max(float((found[f"logits.{k}"] - x).abs().max()) for k, x in enumerate(without)) < 1e-5
    assert torch.equal(found["logits.0"].argmax(-1), without[0].argmax(-1))
