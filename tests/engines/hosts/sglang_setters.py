"""`set_eagle3_layers_to_capture` of SGLang's verifier classes, run alone on objects without weights."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
import types
from collections.abc import Hashable
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import sglang_cpu  # noqa: F401

import torch

SETTER = "set_eagle3_layers_to_capture"
KERNELS = (
    "fused_sigmoid_mul_cpu", "fused_qk_gemma_rmsnorm_cpu", "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
)  # fmt: skip
"""sgl_kernel's names that srt/models/qwen3_5.py:284-297 of 0.5.23 takes at import; no setter calls them."""
HELD = {
    "apertus.ApertusForCausalLM": "model apertus.ApertusModel",
    "bailing_moe.BailingMoEForCausalLM": "model bailing_moe.BailingMoEModel",
    "deepseek_v2.DeepseekV2ForCausalLM": "model deepseek_v2.DeepseekV2Model",
    "exaone_moe.ExaoneMoEForCausalLM": "model exaone_moe.ExaoneMoEModel",
    "gemma3_causal.Gemma3ForCausalLM": "model gemma3_causal.Gemma3TextModel",
    "gemma3_mm.Gemma3ForConditionalGeneration": "language_model gemma3_causal.Gemma3ForCausalLM",
    "gemma4_causal.Gemma4ForCausalLM": "model gemma4_causal.Gemma4TextModel",
    "gemma4_mm.Gemma4ForConditionalGeneration": "language_model gemma4_causal.Gemma4TextModel",
    "glm4_moe.Glm4MoeForCausalLM": "model glm4_moe.Glm4MoeModel",
    "glm4_moe_lite.Glm4MoeLiteForCausalLM": "model glm4_moe_lite.Glm4MoeLiteModel",
    "glm5_next.Glm5NextForConditionalGeneration": "model glm5_next.Glm5NextModel",
    "gpt_oss.GptOssForCausalLM": "model gpt_oss.GptOssModel",
    "interns1pro.InternS1ProForConditionalGeneration": "model interns1pro.InternS1ProTextModel",
    "interns2_mobius.InternS2MobiusForConditionalGeneration": "model interns2_mobius.InternS2MobiusForCausalLM",
    "kimi_k25.KimiK25ForConditionalGeneration": "language_model deepseek_v2.DeepseekV3ForCausalLM",
    "llama.LlamaForCausalLM": "model llama.LlamaModel",
    "llama4.Llama4ForCausalLM": "model llama4.Llama4Model",
    "longcat_flash.LongcatFlashForCausalLM": "model longcat_flash.LongcatFlashModel",
    "mellum.MellumForCausalLM": "model mellum.MellumModel",
    "minimax_m2.MiniMaxM2ForCausalLM": "model minimax_m2.MiniMaxM2Model",
    "minimax_m3.MiniMaxM3SparseForCausalLM": "model minimax_m3.MiniMaxM3Model",
    "minimax_m3_vl.MiniMaxM3SparseForConditionalGeneration": "model minimax_m3.MiniMaxM3Model",
    "ministral3.Ministral3ForCausalLM": "model ministral3.Ministral3Model",
    "mllama4.Llama4ForConditionalGeneration": "language_model llama4.Llama4ForCausalLM",
    "qwen2.Qwen2ForCausalLM": "model qwen2.Qwen2Model",
    "qwen2_5_vl.Qwen2_5_VLForConditionalGeneration": "model qwen2.Qwen2Model",
    "qwen2_moe.Qwen2MoeForCausalLM": "model qwen2_moe.Qwen2MoeModel",
    "qwen3.Qwen3ForCausalLM": "model qwen3.Qwen3Model",
    "qwen3_5.Qwen3_5ForConditionalGeneration": "model qwen3_5.Qwen3_5ForCausalLM",
    "qwen3_5.Qwen3_5MoeForConditionalGeneration": "model qwen3_5.Qwen3_5MoeForCausalLM",
    "qwen3_5_text.Qwen3_5ForCausalLM": "model qwen3_5.Qwen3_5ForCausalLM",
    "qwen3_5_text.Qwen3_5MoeForCausalLM": "model qwen3_5.Qwen3_5MoeForCausalLM",
    "qwen3_moe.Qwen3MoeForCausalLM": "model qwen3_moe.Qwen3MoeModel",
    "qwen3_next.Qwen3NextForCausalLM": "model qwen3_next.Qwen3NextModel",
    "qwen3_vl.Qwen3VLForConditionalGeneration": "model qwen3_vl.Qwen3LLMModel",
    "qwen3_vl_moe.Qwen3VLMoeForConditionalGeneration": "model qwen3_vl_moe.Qwen3MoeLLMModel",
    "qwen4_exp.Qwen4ExpForConditionalGeneration": "model qwen4_exp.Qwen4ExpVLModel",
    "teleflm.TeleFLMForCausalLM": "model teleflm.TeleFLMModel",
}
"""What the constructor of a model class, or of the class that it derives from, makes under which name."""


def stand_in_kernels() -> None:
    for name in KERNELS:
        if not hasattr(torch.ops.sgl_kernel, name):
            setattr(torch.ops.sgl_kernel, name, None)


@cache
def entry_class(architecture: str) -> Any:
    """The class that SGLang's registry would give: the one of this name in a model module's EntryClass."""
    package = Path(importlib.import_module("sglang.srt.models").__path__[0])
    named = re.compile(rf"\nEntryClass\b[^\n]*=(?s:.*)\b{architecture}\b")
    for file in sorted(package.glob("*.py")):
        if named.search(file.read_text(encoding="utf-8")):
            entries = importlib.import_module(f"sglang.srt.models.{file.stem}").EntryClass
            for entry in entries if isinstance(entries, list) else [entries]:
                if entry.__name__ == architecture:
                    return entry
    raise LookupError(f"no model of this SGLang is called {architecture}")


@cache
def source_of(cls: Hashable) -> str:
    assert isinstance(cls, type)
    own = [base for base in cls.__mro__ if base.__module__.startswith("sglang.srt.models")]
    return "\n".join(map(inspect.getsource, own))


def bare(cls: Any, layers: int) -> Any:
    """An object of a model class without weights, holding what its setter asks for."""
    from sglang.srt.runtime_context import get_parallel

    made = cls.__new__(cls)
    torch.nn.Module.__init__(made)
    numbers = types.SimpleNamespace(num_hidden_layers=layers)
    made.__dict__.update(
        config=types.SimpleNamespace(num_hidden_layers=layers, text_config=numbers),
        pp_group=get_parallel().pp_group,
    )
    places = [f"{base.__module__.rpartition('.')[2]}.{base.__name__}" for base in cls.__mro__]
    held = next((HELD[place] for place in places if place in HELD), None)
    if held is None:
        made.__dict__["layers"] = [types.SimpleNamespace() for _ in range(layers)]
        return made
    attribute, module, name = re.split("[ .]", held)
    assert re.search(rf"\b{name}\b", source_of(cls)), f"{cls.__name__} makes no {name}"
    inside = getattr(importlib.import_module(f"sglang.srt.models.{module}"), name)
    made.__dict__[attribute] = bare(inside, layers)
    return made


def capturer(model: Any) -> Any:
    """The object whose forward pass runs the layers."""
    while "layers" not in vars(model):
        model = vars(model).get("language_model") or vars(model)["model"]
    return model


def captured_by(at: Any) -> list[int]:
    """layers_to_capture, where the forward pass reads it, or reads the layers' marks, which must say the same."""
    chosen = [int(k) for k in at.layers_to_capture]
    marked = [k for k, layer in enumerate(at.layers) if getattr(layer, "_is_layer_to_capture", False)]
    source = source_of(at.__class__)
    reads_list = re.search(r"if (i|layer_idx) in self\.layers_to_capture", source)
    reads_marks = re.search(r'if getattr\(layer, "_is_layer_to_capture"', source)
    if not reads_list and not (reads_marks and marked):
        raise AssertionError(f"the forward pass of {type(at).__name__} does not read what was set")
    if marked and marked != sorted({k for k in chosen if 0 <= k < len(at.layers)}):
        raise AssertionError(f"layers_to_capture is {chosen}, and the layers {marked} are marked")
    return chosen


def run_setter(case: dict[str, Any]) -> dict[str, Any]:
    """The entries of layers_to_capture for a list of ids, and whether the forward pass asks for the final state."""
    found: dict[str, Any] = {"stage": "import", "error": None, "states": None, "final": None}
    try:
        cls = entry_class(case["architecture"])
        found["stage"] = "set"
        model = bare(cls, case["layers"])
        source = source_of(capturer(model).__class__)
        found["final"] = bool(re.search(r"if (self\.end_layer|num_layers) in self\.layers_to_capture", source))
        model.set_eagle3_layers_to_capture(case["ids"])
        found |= {"states": captured_by(capturer(model)), "stage": "done"}
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
    return found


def classes_with_setter() -> dict[str, Any]:
    """Every class that SGLang registers, those with the setter, and modules that name it and cannot be imported."""
    models = importlib.import_module("sglang.srt.models")
    there: set[str] = set()
    known: set[str] = set()
    unread: list[str] = []
    for module in pkgutil.iter_modules(models.__path__):
        try:
            entries = getattr(importlib.import_module(f"{models.__name__}.{module.name}"), "EntryClass", [])
        except Exception:  # packages that this environment lacks
            if SETTER in (Path(models.__path__[0]) / f"{module.name}.py").read_text(encoding="utf-8"):
                unread.append(module.name)
            continue
        entries = entries if isinstance(entries, list) else [entries]
        known |= {entry.__name__ for entry in entries}
        there |= {entry.__name__ for entry in entries if hasattr(entry, SETTER)}
    return {"known": sorted(known), "there": sorted(there), "unread": unread}
