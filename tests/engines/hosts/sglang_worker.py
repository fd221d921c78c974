"""Runs drafters the way SGLang's draft worker does: its loader, the verifier's embedding, its batches and logits.

Job: {"cases": [{"name", "folder", "states", "logits", "embed"?, "head"?}], "ranks": N, "results": FILE}.  `embed` and
`head` are files with the verifier's `embed` and `head` [V, hidden], which the worker offers to the draft model.  With
two ranks the drafter is split over two processes (tensor parallelism).  What is found of a case: its class, whether the
embedding in use is the verifier's, and the error if there is one; `logits` is as in sglang_drafters.py.

The first step is a DRAFT_EXTEND_V2 batch (after the verifier checked the drafted tokens), the later ones are DECODE
batches; `prefill` holds the last row's logits of the same text as an EXTEND batch (after the verifier's prefill).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import sglang_cpu
import sglang_releases

import torch
from attention import RowAttention
from safetensors.torch import load_file, save_file
from torch import Tensor

STEPS = 3
RANK, MEETING = "EAGLE3CONVERT_TEST_RANK", "EAGLE3CONVERT_TEST_MEETING"


def load(folder: Path) -> Any:
    """The draft model as the worker gets it: config, registry, class, weights."""
    from sglang.srt.configs.device_config import DeviceConfig
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.model_loader import get_model

    config = ModelConfig(str(folder), is_draft_model=True, dtype="float32", trust_remote_code=False)
    return get_model(model_config=config, load_config=LoadConfig(), device_config=DeviceConfig("cpu"))


def batch(kind: str, tokens: Tensor, positions: Tensor, states: Tensor) -> Any:
    """SGLang's own ForwardBatch: one request of the whole text, or, when decoding, one request for each row."""
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
    from sglang.srt.speculative.eagle_info import EagleDraftExtendInput, EagleDraftInput

    rows = len(tokens)
    requests = rows if kind == "DECODE" else 1
    lengths = torch.full((requests,), rows // requests, dtype=torch.int64)
    spec = EagleDraftInput if kind == "DECODE" else EagleDraftExtendInput
    return ForwardBatch(
        forward_mode=ForwardMode[kind],
        batch_size=requests,
        input_ids=tokens,
        req_pool_indices=torch.arange(requests),
        seq_lens=lengths,
        out_cache_loc=torch.arange(rows),
        seq_lens_sum=rows,
        positions=positions,
        extend_seq_lens=lengths,
        extend_seq_lens_cpu=lengths.tolist(),
        extend_start_loc=torch.zeros_like(lengths),
        spec_info=spec(hidden_states=states),
        capture_hidden_mode=CaptureHiddenMode.FULL,
    )


def draft(model: Any, states: dict[str, Tensor], attention: RowAttention) -> dict[str, Tensor]:
    hidden, tokens = states["hidden"].float(), states["input_ids"].long()
    places = torch.arange(len(tokens)) + 1

    def forward(kind: str, step: int) -> tuple[Tensor, Tensor]:
        positions = places + step
        out = model.forward(tokens, positions, batch(kind, tokens, positions, hidden))
        return out.next_token_logits, out.hidden_states

    attention.reset()
    logits = {"prefill": forward("EXTEND", 0)[0]}
    attention.reset()
    for step in range(STEPS):
        logits[f"logits.{step}"], hidden = forward("DECODE" if step else "DRAFT_EXTEND_V2", step)
        tokens = torch.cat([tokens[1:], tokens.new_zeros(1)])
    return {name: values.float().contiguous() for name, values in logits.items()}


def part(whole: Tensor, like: Tensor, rank: int) -> Tensor:
    """What a rank holds of the verifier's embedding or head: its rows, and zeros after the vocabulary's end."""
    made = torch.zeros_like(like)
    rows = whole[rank * len(like) : (rank + 1) * len(like)]
    made[: len(rows)] = rows
    return made


def run(case: dict[str, Any], rank: int, attention: RowAttention) -> dict[str, Any]:
    found: dict[str, Any] = {"error": None}
    try:
        model = load(Path(case["folder"]))
        found["class"] = type(model).__name__
        if "embed" in case:
            embed = load_file(case["embed"])["embed"].float()
            offered = torch.nn.Parameter(part(embed, model.model.embed_tokens.weight, rank), requires_grad=False)
            if model.load_lm_head_from_target:  # eagle_worker_v2.py:336-375 of 0.5.23
                head = load_file(case["head"])["head"].float()
                model.set_embed_and_head(offered, torch.nn.Parameter(part(head, model.lm_head.weight, rank)))
            else:
                model.set_embed(offered)
            found["shares_the_verifiers_embedding"] = model.model.embed_tokens.weight is offered
        logits = draft(model, load_file(case["states"]), attention)
        if rank == 0:
            save_file(logits, case["logits"])
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
    return found


def main() -> None:
    text = sys.stdin.read()
    job, rank = json.loads(text), int(os.environ.get(RANK, "0"))
    meeting = os.environ.get(MEETING) or tempfile.mktemp(prefix="sglang-")
    others = []
    if RANK not in os.environ:
        for other in range(1, job["ranks"]):
            environment = {**os.environ, RANK: str(other), MEETING: meeting}
            others.append(subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, env=environment))
            stdin = others[-1].stdin
            assert stdin is not None
            stdin.write(text.encode())
            stdin.close()
    sglang_cpu.judge(
        job,
        lambda attention: {"cases": {case["name"]: run(case, rank, attention) for case in job["cases"]}},
        lambda: sglang_releases.by_rank(rank, job["ranks"], meeting),
        tells=rank == 0,
    )
    for process in others:
        process.wait(timeout=300)


if __name__ == "__main__":
    main()
    sglang_cpu.leave()
