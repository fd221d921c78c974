"""Which hidden states SGLang's own verifier classes capture for a list of aux-layer ids, on the CPU.

Job: {"captures": [{"name", "model_type", "config", "ids"}], "setters": [{"name", "architecture", "layers", "ids"}],
"classes": BOOL, "results": FILE}; `ids` null leaves them to the engine.

A capture makes a small verifier with transformers, writes its folder, loads it into SGLang's class with the class's own
load_weights and runs the class's own forward pass.  What is found, for every block of what the drafter would get:
`states`, the hidden_states index of transformers that it equals, null where it equals none; `branches`, the number of
the layer whose last norm's output it equals, before the residual is added; `off`, how far it is from the nearest state;
`apart`, how far any two states are from each other at least; and `alike`, whether the verifier itself computes the
logits of transformers, without which its states say nothing.

A setter runs `set_eagle3_layers_to_capture` alone (`sglang_setters.py`): `states`, the entries of layers_to_capture,
which count as hidden_states do.  `classes` asks for every class that has the setter.
"""

from __future__ import annotations

import json
import sys
import tempfile
import types
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
import sglang_cpu
import sglang_releases

import torch
from attention import RowAttention
from safetensors.torch import load_file
from sglang_setters import classes_with_setter, entry_class, run_setter, stand_in_kernels
from torch import Tensor

TEXT = [1 + 7 * k % 60 for k in range(11)]
NEAR = 1e-5
BACKEND = {
    "token_to_kv_pool": types.SimpleNamespace(set_kv_buffer=lambda *_, **__: None),
    "prefill_attention_backend_str": None,
    "decode_attention_backend_str": None,
}
"""What DeepSeek's attention asks of the backend; the cache that it fills is read by no one in one prompt's pass."""
SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 8, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "tie_word_embeddings": False,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
SILENT = ("alpha_p", "alpha_n", "sinks")
"""Parameters whose part SGLang computes in bfloat16 or in its attention kernel: at -100 it is nothing on both sides."""


class Truth(NamedTuple):
    """What transformers computes on TEXT: states and branches by their numbers, and the last token's logits."""

    states: dict[int, Tensor]
    branches: dict[int, Tensor]
    logits: Tensor


def make_verifier(case: dict[str, Any], folder: Path) -> Truth:
    """Write a small verifier with random weights; its residual stream on TEXT, by transformers."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(case["model_type"], **{**SMALL, **case.get("config", {})})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    for name, parameter in model.named_parameters():
        if name.endswith(SILENT):
            parameter.data.fill_(-100.0)
        elif parameter.dim() > 1:
            parameter.data.normal_(0, 0.1)
        else:
            parameter.data.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    states: dict[int, Tensor] = {}
    branches: dict[int, Tensor] = {}
    layers = model.model.layers
    for k, module in enumerate([*layers, model.model.norm]):
        module.register_forward_pre_hook(
            lambda _, args, kwargs, k=k: states.__setitem__(
                k, (args[0] if args else kwargs["hidden_states"])[0].clone()
            ),
            with_kwargs=True,
        )
    for k, layer in enumerate(layers):
        if hasattr(layer, "post_feedforward_layernorm"):
            layer.post_feedforward_layernorm.register_forward_hook(
                lambda _, args, output, k=k: branches.__setitem__(k, output[0].clone())
            )
    with torch.no_grad():
        logits = model(torch.tensor([TEXT])).logits[0, -1]
    return Truth(states, branches, logits)


MADE: dict[str, tuple[Path, Truth]] = {}


def verifier(case: dict[str, Any], space: Path) -> tuple[Path, Truth]:
    """The verifier of a case; those that are the same are made once."""
    key = json.dumps([case["model_type"], case.get("config")], sort_keys=True)
    if key not in MADE:
        folder = space / str(len(MADE))
        MADE[key] = (folder, make_verifier(case, folder))
    return MADE[key]


def batch() -> Any:
    """SGLang's own batch of one request: a prompt of which every hidden state is wanted."""
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode

    rows = len(TEXT)
    one, places = torch.zeros(1, dtype=torch.long), torch.arange(rows)
    return ForwardBatch(
        forward_mode=ForwardMode.EXTEND, batch_size=1, input_ids=torch.tensor(TEXT), req_pool_indices=one,
        seq_lens=one + rows, out_cache_loc=places, seq_lens_sum=rows, positions=places,
        extend_seq_lens=one + rows, extend_seq_lens_cpu=[rows], extend_prefix_lens_cpu=[0],
        capture_hidden_mode=CaptureHiddenMode.FULL,
    )  # fmt: skip


def load(folder: Path) -> Any:
    """SGLang's class of a folder's architecture with the folder's weights, as its own loader fills them in."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    model = entry_class(config.architectures[0])(config)
    for parameter in model.parameters():
        parameter.data.fill_(float("nan"))
    tensors = {name: t for file in sorted(folder.glob("*.safetensors")) for name, t in load_file(file).items()}
    model.load_weights(iter(tensors.items()))
    left = [name for name, parameter in model.named_parameters() if torch.isnan(parameter.data).any()]
    if left:
        raise AssertionError(f"load_weights left {left}")
    return model


def off(block: Tensor, state: Tensor) -> float:
    """How far two states differ, in parts of the larger one's largest number where that is above 1."""
    return float((block - state).abs().max()) / max(1.0, float(state.abs().max()))


def equal_one(block: Tensor, states: dict[int, Tensor]) -> int | None:
    """The only state that a block equals."""
    equal = [k for k, state in states.items() if off(block, state) <= NEAR]
    return equal[0] if len(equal) == 1 else None


def run_capture(case: dict[str, Any], space: Path, attention: RowAttention) -> dict[str, Any]:
    """One list of ids in a fresh model: some setters add to what an earlier call marked."""
    attention.reset()
    found: dict[str, Any] = {"stage": "making", "error": None, "states": None, "branches": None, "alike": None}
    try:
        folder, truth = verifier(case, space)
        states = truth.states
        found["apart"] = min(off(states[j], states[k]) for k in states for j in range(k))
        found["stage"] = "load"
        model = load(folder)
        found |= {"class": type(model).__name__, "stage": "set"}
        model.set_eagle3_layers_to_capture(case["ids"])
        found["stage"] = "forward"
        wanted = batch()
        with torch.no_grad(), sglang_releases.backend(wanted, types.SimpleNamespace(**BACKEND)):
            out = model(wanted.input_ids, wanted.positions, wanted)
        blocks = out.hidden_states.split(states[0].shape[-1], dim=-1)
        found["states"] = [equal_one(block, states) for block in blocks]
        found["off"] = [min(off(block, state) for state in states.values()) for block in blocks]
        found["branches"] = [equal_one(block, truth.branches) for block in blocks]
        found["alike"] = off(out.next_token_logits[0], truth.logits) <= 1e-4
        found["stage"] = "done"
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
    return found


def find(job: dict[str, Any], attention: RowAttention) -> dict[str, Any]:
    stand_in_kernels()
    with tempfile.TemporaryDirectory() as space:
        return {
            "captures": {c["name"]: run_capture(c, Path(space), attention) for c in job.get("captures", [])},
            "classes": classes_with_setter() if job.get("classes") else None,
            "setters": {c["name"]: run_setter(c) for c in job.get("setters", [])},
        }


if __name__ == "__main__":
    sglang_cpu.serve(find)
