"""As SGLang's draft worker runs a drafter: its loader and batches, the verifier's embedding, and over two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import eagle3convert

from .converted import APART, FIXTURES, NAMES, PLUGIN, TOLERANCE, convert_allowed, verifier_config
from .engines import SGLANG, run_host
from .made_drafters import shared_lm_head
from .matrix import record

pytestmark = pytest.mark.engine
WAYS = [("sglang", 1), ("sglang", 2), ("sglang-plugin", 1), ("sglang-plugin", 2)]
OTHER = "llama1"
"""The drafter that is offered an embedding which is not its own."""
STOCK = ("llama1", "llama1_normfc", "llama1_4aux_inner", "llama2")


def run_worker(place: Path, destination: str, ranks: int) -> dict[str, dict[str, Any]]:
    names = NAMES if destination == "sglang-plugin" else STOCK
    jobs, _, _ = convert_allowed(place, destination, names)
    cases = [
        {"name": n, "folder": str(j.folder), "states": str(j.states), "logits": str(place / f"{n}.logits.safetensors")}
        for n, j in jobs.items()
    ]
    own = load_file(FIXTURES / OTHER / "model.safetensors")["embed_tokens.weight"].float()
    for name, embed in (("same", own), ("another", own.flip(0).contiguous())):
        save_file({"embed": embed}, place / f"{name}.safetensors")
        case = next(case for case in cases if case["name"] == OTHER)
        offered = {"embed": str(place / f"{name}.safetensors"), "logits": str(place / f"{name}.logits.safetensors")}
        cases.append({**case, "name": name, **offered})
    made, head = shared_lm_head(place)
    folder = made.folder
    if destination != made.source_format:
        verifier = verifier_config(place)
        folder = eagle3convert.convert(
            folder, place / "shared", made.source_format, destination, verifier_config=verifier
        ).path
    files = {"folder": str(folder), "states": str(made.states), "logits": str(place / "shared.logits.safetensors")}
    cases.append({"name": "shared", "embed": str(place / "same.safetensors"), "head": str(head), **files})
    job = {"cases": cases, "ranks": ranks}
    environment = PLUGIN if destination == "sglang-plugin" else {}
    told = run_host(f"sglang-{SGLANG}", "sglang_worker.py", job, place / "found.json", environment=environment)
    assert told["release"] == SGLANG
    return {
        case["name"]: told["cases"][case["name"]]
        | {"distance": _distance(Path(case["logits"]), load_file(case["states"]))}
        for case in cases
    }


def _distance(found: Path, wanted: dict[str, Any]) -> float:
    if not found.is_file():
        return float("inf")
    ours = load_file(found)
    pairs = [(ours[f"logits.{k}"], wanted[f"logits.{k}"]) for k in range(3)]
    pairs.append((ours["prefill"], wanted["logits.0"][-1:]))
    return max(float((a - b).abs().max()) for a, b in pairs)


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: f"{way[0]}-{way[1]}")
def worker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    destination, ranks = request.param
    return destination, ranks, run_worker(tmp_path_factory.mktemp("worker"), destination, ranks)


def test_the_logits_are_those_of_the_speculators_library(worker: Any) -> None:
    destination, ranks, found = worker
    drafters = {name: one for name, one in found.items() if name not in ("same", "another", "shared")}
    assert {name: one["error"] for name, one in drafters.items() if one["error"]} == {}
    assert {name: one["distance"] for name, one in drafters.items() if one["distance"] > TOLERANCE} == {}
    wanted = "SpeculatorsForCausalLMEagle3" if destination == "sglang-plugin" else "LlamaForCausalLMEagle3"
    assert {one["class"] for one in found.values()} == {wanted}
    if destination == "sglang-plugin":
        assert len(drafters) == len(NAMES) - 1, "all but the one on the final state"
    if ranks == 2:
        record("two ranks", destination, SGLANG, "served", "logits")


def test_the_verifiers_own_embedding_is_shared(worker: Any) -> None:
    same = worker[2]["same"]
    assert same["shares_the_verifiers_embedding"] is True
    assert same["distance"] <= TOLERANCE


def test_the_verifiers_head_is_taken_where_the_drafter_has_none(worker: Any) -> None:
    destination, _, found = worker
    assert found["shared"]["error"] is None
    assert found["shared"]["distance"] <= TOLERANCE
    record("shared_lm_head", destination, SGLANG, "served", "logits")


def test_another_embedding_replaces_the_drafters_in_sglang_and_not_in_the_model_package(worker: Any) -> None:
    """So schemas/sglang.toml says embed_tokens = "replaced", and E705 refuses a drafter whose own embedding differs."""
    destination, _, found = worker
    another = found["another"]
    if destination == "sglang":
        assert another["shares_the_verifiers_embedding"] is True
        assert another["distance"] > APART
        record("own embedding", "sglang", SGLANG, "refused", "the verifier's replaces it")
    else:
        assert another["shares_the_verifiers_embedding"] is False
        assert another["distance"] <= TOLERANCE
        record("own embedding", "sglang-plugin", SGLANG, "served", "logits")
