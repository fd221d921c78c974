"""What the engine tests found, feature by feature: the rows of the generated table in docs/engines.md."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["served", "refused", "plugin", "stops", "wrong"]

DRAFTERS = {
    "plain": "one llama layer, three aux layers",
    "norm_before_residual": "`norm_before_residual` true",
    "norm_before_fc": "`norm_before_fc`",
    "fc_norm": "`fc_norm`",
    "norm_output": "`norm_output`",
    "qk_norm": "qwen3 layers (norms on q and k)",
    "attention_bias": "biases on the attention projections",
    "mlp_bias": "biases on the mlp projections",
    "fc_bias": "a bias on fc",
    "sliding_window": "a sliding window",
    "mixed_attention": "a sliding window in some layers only",
    "multi_layer": "two layers",
    "single_aux_layer": "one aux layer",
    "four aux layers": "four aux layers",
    "aux layers with embedding": "aux layers with the embedding output",
    "final state": "aux layers with the final state",
    "final state of gpt_oss and gemma4": "aux layers with the final state of gpt_oss and gemma4",
    "rope": "scaled rope (linear, llama3, yarn)",
    "head_dim": "heads × head size is not the hidden size",
    "narrow": "a drafter of another width than its verifier",
    "full vocabulary": "the verifier's whole vocabulary",
    "odd vocabulary": "a draft vocabulary that is no multiple of 64",
    "permuted_vocabulary": "the whole vocabulary in another order",
    "shared_lm_head": "the verifier's lm_head",
    "own embedding": "an embedding that is not the verifier's",
    "final_norm": "drafts without the final norm",
    "two ranks": "split over two ranks (tensor parallelism, CPU)",
}
VERIFIERS = {
    f"{name}{suffix}": f"`{name}`{label}"
    for name in (
        "llama", "phi3", "mistral", "ministral3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "mellum", "glm4_moe",
        "exaone_moe", "apertus", "gpt_oss", "gemma3_text", "gemma4_text", "deepseek_v2", "deepseek_v3", "glm4_moe_lite",
    )
    for suffix, label in (("", ""), (" with embedding", ", with the embedding output"))
}  # fmt: skip
FAULTS = {
    "named layers.0": "tensors named `layers.0.*` in an SGLang drafter",
    "absolute d2t": "absolute ids in `d2t`",
}
ENGINES = {"sglang": "SGLang", "sglang-plugin": "SGLang with the model package", "vllm": "vLLM"}


@dataclass(frozen=True, order=True)
class Finding:
    """One cell: an engine's release does this with drafters that have this feature."""

    feature: str
    engine: str
    release: str
    verdict: Verdict
    how: str


FOUND: set[Finding] = set()


def record(feature: str, engine: str, release: str, verdict: Verdict, how: str) -> None:
    """Keep a proven outcome; called by a test after its assertions."""
    assert feature in DRAFTERS | VERIFIERS | FAULTS, f"{feature}: no row of the table"
    assert engine in ENGINES
    FOUND.add(Finding(feature, engine, release, verdict, how))


def cells(found: Iterable[Finding]) -> dict[tuple[str, str, str], str]:
    """(feature, engine, release) -> the word of the table."""
    verdicts: dict[tuple[str, str, str], set[str]] = {}
    for one in found:
        verdicts.setdefault((one.feature, one.engine, one.release), set()).add(one.verdict)
    plugin = {(feature, release) for (feature, engine, release), v in verdicts.items() if engine == "sglang-plugin"}
    words = {}
    for (feature, engine, release), said in verdicts.items():
        assert len(said) == 1, f"{feature}, {engine} {release}: the tests say {' and '.join(sorted(said))}"
        word = said.pop()
        if word == "refused" and engine == "sglang" and (feature, release) in plugin:
            word = "plugin"
        words[feature, engine, release] = word
    return words


def columns(found: Iterable[Finding]) -> list[tuple[str, str]]:
    """(engine, release) in the order of the table: by engine, oldest release first."""
    order = list(ENGINES)
    pairs = {(one.engine, one.release) for one in found}
    return sorted(pairs, key=lambda pair: (order.index(pair[0]), [int(part) for part in pair[1].split(".")]))


def table(found: Iterable[Finding], head: str, rows: dict[str, str]) -> str:
    """A Markdown table of these rows; what was not run is a dash."""
    mine = [one for one in found if one.feature in rows]
    heads, words = columns(mine), cells(mine)
    lines = [
        f"| {head} | " + " | ".join(f"{ENGINES[engine]} {release}" for engine, release in heads) + " |",
        "|---" * (len(heads) + 1) + "|",
    ]
    for feature, label in rows.items():
        said = [words.get((feature, *head), "–") for head in heads]
        if any(word != "–" for word in said):
            lines.append(f"| {label} | " + " | ".join(said) + " |")
    return "\n".join(lines)
