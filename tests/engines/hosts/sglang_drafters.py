"""Runs drafter folders in SGLang's own draft classes on the CPU.

Job: {"cases": [{"name", "folder", "states", "logits", "window"?}], "results": FILE}.  `states` is a safetensors file
with `hidden` [T, A*H] and `input_ids` [T] (the token after each row); `logits` is where the logits [T, draft tokens] of
three draft steps go.  What is found of a case: the tensors that load_weights dropped, the parameters that it left
unfilled, hot_token_id, the number of times fc ran at each step, the windows of the layers; or `error` and at which
stage it came.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import sglang_cpu

import torch
from attention import RowAttention
from safetensors.torch import load_file, save_file
from torch import Tensor

STEPS = 3
OUTSIDE = os.environ.get("SGLANG_EXTERNAL_MODEL_PACKAGE")


def model_class(config: Any) -> Any:
    """The class that SGLang's registry gives for a config's architecture."""
    if OUTSIDE:  # the registry then holds the outside package alone, and imports SGLang's 200 models only when asked
        from sglang.srt.models.registry import ModelRegistry

        return ModelRegistry.resolve_model_cls(config.architectures)[0]
    from sglang.srt.models import llama_eagle3

    known = {cls.__name__: cls for cls in llama_eagle3.EntryClass}
    if config.architectures[0] not in known:
        raise ValueError(f"{config.architectures[0]} is no draft class of this SGLang")
    return known[config.architectures[0]]


def unset(parameters: dict[str, Any]) -> dict[str, int]:
    return {name: int(torch.isnan(p.data).sum()) for name, p in parameters.items()}


def load(model: Any, tensors: dict[str, Tensor], found: dict[str, Any]) -> None:
    """load_weights, watched: every parameter starts as NaN, and a tensor that changes none of them was dropped."""
    parameters = dict(model.named_parameters())
    started = {name: p.data.clone() for name, p in parameters.items()}
    for parameter in parameters.values():
        parameter.data.fill_(float("nan"))
    dropped: list[str] = []

    def watched() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in tensors.items():
            before = unset(parameters)
            yield name, tensor.float() if tensor.is_floating_point() else tensor
            if unset(parameters) == before:
                dropped.append(name)

    found["stage"] = "load_weights"
    model.load_weights(watched())
    left = unset(parameters)
    hot = model.hot_token_id
    found["dropped"] = sorted(n for n in dropped if not (n == "d2t" and hot is not None))
    found["unfilled"] = sorted(name for name, count in left.items() if count)
    found["hot_token_id"] = hot.tolist() if hot is not None else None
    found["head_of_the_verifier"] = bool(getattr(model, "load_lm_head_from_target", False))  # since 0.5.2
    for name, parameter in parameters.items():  # what a server would go on with: the values of the start
        missing = torch.isnan(parameter.data)
        parameter.data[missing] = started[name][missing]


def batch(hidden: Tensor, first: bool) -> Any:
    """What a draft model reads of SGLang's ForwardBatch: the verifier's states on the first step, then its own."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    return types.SimpleNamespace(
        spec_info=types.SimpleNamespace(hidden_states=hidden), mm_input_embeds=None, mrope_positions=None,
        forward_mode=ForwardMode.EXTEND if first else ForwardMode.DECODE, contains_mm_inputs=lambda: False,
    )  # fmt: skip


def draft(model: Any, states: dict[str, Tensor], found: dict[str, Any], attention: RowAttention) -> dict[str, Tensor]:
    """The logits of three draft steps at every row of a text."""
    found["stage"] = "forward"
    attention.reset()
    ran: list[int] = []
    hook = model.model.fc.register_forward_hook(lambda *_: ran.append(1))
    hidden, tokens = states["hidden"].float(), states["input_ids"].long()
    head = model.lm_head.weight.data[: model.logits_processor.config.vocab_size]
    logits, runs = {}, []
    with torch.no_grad():
        for step in range(STEPS):
            ran.clear()
            positions = torch.arange(len(tokens)) + 1 + step
            out, carried = model.model(tokens, positions, batch(hidden, step == 0))
            hidden, tokens = carried[0], torch.cat([tokens[1:], tokens.new_zeros(1)])
            logits[f"logits.{step}"] = (out @ head.T).contiguous()
            runs.append(len(ran))
    hook.remove()
    found["fc_ran"] = runs
    found["windows"] = [layer.self_attn.attn.sliding_window_size for layer in layers(model)]
    return logits


def layers(model: Any) -> list[Any]:
    """The decoder layers; up to 0.5.11 there is one, and it is called midlayer."""
    return list(model.model.layers) if hasattr(model.model, "layers") else [model.model.midlayer]


def tensors_of(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        if file.name != "oracle.safetensors":
            tensors |= load_file(file)
    return tensors


def run(case: dict[str, Any], attention: RowAttention) -> dict[str, Any]:
    from transformers import AutoConfig

    folder = Path(case["folder"])
    found: dict[str, Any] = {"stage": "config", "error": None}
    try:
        config = AutoConfig.from_pretrained(folder)
        found["stage"] = "construction"
        with sglang_cpu.draft_window(case.get("window")):
            model = model_class(config)(config)
        found["class"] = type(model).__name__
        load(model, tensors_of(folder), found)
        logits = draft(model, load_file(case["states"]), found, attention)
        save_file(logits, case["logits"])
        found["stage"] = "done"
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
    return found


def find(job: dict[str, Any], attention: RowAttention) -> dict[str, Any]:
    return {"cases": {case["name"]: run(case, attention) for case in job["cases"]}}


if __name__ == "__main__":
    sglang_cpu.serve(find)
