"""What older SGLang releases capture: just the states that a plan for that release lets a drafter be fed with.

So the releases of schemas/sglang.toml from which a family captures, takes the embedding output or the final state, or
captures no longer what it should, are what these releases do.  The embedding comes first: without it the drafter of a
Kimi-K2.5, whose text model is a deepseek_v3, was served with other layers than it was trained on.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from eagle3convert.aux_layers import rule_at
from eagle3convert.conventions import Ids
from eagle3convert.formats import load_format
from eagle3convert.releases import holds
from tests.engines.captures import LAYERS, LISTS, NO_VERIFIERS, RUN, Engine, by_hand, capture, tell
from tests.engines.engines import OLDER

pytestmark = pytest.mark.engine

SCHEMA = load_format("sglang")
ALL_ALONG = ("llama", "phi3", "mistral", "qwen2", "qwen3", "gemma3_text")
SINCE_5_9 = (*ALL_ALONG, "qwen2_moe", "qwen3_moe", "glm4_moe", "apertus")
SINCE_5_10 = (*SINCE_5_9, "deepseek_v3", "glm4_moe_lite")
SINCE_5_16 = (*SINCE_5_10, "ministral3", "mellum", "gpt_oss", "gemma4_text")
COMPARED: dict[str, tuple[str, ...]] = {
    "0.4.9": ALL_ALONG,
    "0.5.9": SINCE_5_9,
    "0.5.10": SINCE_5_10,
    "0.5.11": (*SINCE_5_10, "gemma4_text"),
    "0.5.12": tuple(name for name in SINCE_5_10 if name != "gemma3_text"),
    "0.5.16": SINCE_5_16,
    "0.5.17": SINCE_5_16,
}
"""Release -> the verifiers that it computes here as transformers does.

Of the others either transformers or SGLang knows no such model yet, or cannot load what this transformers writes, or
SGLang computes other logits from it: then nothing can be told of the states that it captures.
"""
INHERITED = {
    "Glm4MoeLiteForCausalLM", "InternS2PreviewForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration",
}  # fmt: skip
"""Classes that inherited a setter before their forward pass captured (glm4_moe_lite.py of 0.5.12, qwen3_5.py of 0.5.17
read no layers_to_capture)."""
CASES = [(release, model_type) for release, names in COMPARED.items() for model_type in names]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Engine]]]:
    with ThreadPoolExecutor(2) as pool:
        yield {
            release: pool.submit(capture, tmp_path_factory.mktemp(f"captures-{release}"), release, release)
            for release in COMPARED
        }


def refused_for_the_family(release: str, model_type: str, states: Ids) -> bool:
    """Whether the table says that no ids make this release capture these states of these verifiers.

    A plan may refuse a list for more: ids that mean other states to a later release; and before 0.5.11 every list but
    the default one, for CUDA graphs were then captured with that (as read: no run on a CPU can show it).
    """
    family = next(f for f in SCHEMA.aux_layers.families if RUN[model_type][0] in f.architectures)
    rule = rule_at(SCHEMA, family, release)
    return not rule.captures or rule.lacks_embedding(states) or rule.lacks_final(states, LAYERS)


def test_every_older_release_is_compared() -> None:
    assert tuple(COMPARED) == OLDER


@pytest.mark.parametrize("release", COMPARED)
def test_what_is_compared_is_all_that_can_be(engines: dict[str, Future[Engine]], release: str) -> None:
    captures = engines[release].result().captures
    sound = set()
    for model_type in RUN:
        mine = [found for name, found in captures.items() if name.split()[0] == model_type]
        if all(found["alike"] if found["stage"] == "done" else found["stage"] in ("set", "forward") for found in mine):
            sound.add(model_type)
    assert sound == set(COMPARED[release])


@pytest.mark.parametrize("release", COMPARED)
def test_a_family_captures_in_just_the_releases_that_the_table_says(
    engines: dict[str, Future[Engine]], release: str
) -> None:
    """By the setter that its class has; the table may be later only for a class whose forward pass does not read it."""
    classes = engines[release].result().classes
    first = {name: family.since for family in SCHEMA.aux_layers.families for name in family.architectures}
    said = {name for name, since in first.items() if holds(release, since)}
    there = set(classes["there"]) - NO_VERIFIERS
    assert set(classes["unread"]) <= {"minimax_m2", "minimax_m3", "mllama4", "qwen3_moe"}  # they want missing packages
    assert there - said <= INHERITED
    assert (said & set(classes["known"])) - there == set()


@pytest.mark.parametrize(("release", "model_type"), CASES)
def test_a_release_captures_the_states_that_the_plan_for_it_writes(
    engines: dict[str, Future[Engine]], release: str, model_type: str
) -> None:
    engine = engines[release].result()
    for states in LISTS:
        found = engine.written[model_type, states]
        if not found.errors:
            assert engine.states(f"{model_type} {states}") == list(states), f"{states} written as {found.ids}"
            tell(release, model_type, states, "served")


@pytest.mark.parametrize(("release", "model_type"), CASES)
def test_what_the_table_refuses_can_be_had_with_no_ids(
    engines: dict[str, Future[Engine]], release: str, model_type: str
) -> None:
    engine = engines[release].result()
    for states in LISTS:
        if not refused_for_the_family(release, model_type, states):
            continue
        found = engine.written[model_type, states]
        assert "E305" in found.errors
        for ids in found.candidates:
            assert engine.states(f"{model_type} {by_hand(states, ids)}") != list(states), (states, ids)
        tell(release, model_type, states, "refused")
