"""Small synthetic drafters, written in the spelling of any format.

The spellings below are the tests' own: nothing here asks the code under test or its format files, so that a wrong
format file is seen.  A canonical tensor has the same bytes in every format, which makes the drafter of one format the
expected result of converting that of another.
"""

from __future__ import annotations

import copy
import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import deserialize

FORMATS = ("modelopt", "safeailab", "sglang", "sglang-plugin", "specforge", "speculators", "vllm")
TARGETS = (0, 1, 3, 4, 7, 11, 18, 23, 31, 39)
BY_FREQUENCY = (7, 3, 31, 0, 18, 1, 39, 4, 23, 11)
VERIFIER: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 16,
    "hidden_size": 12,
    "vocab_size": 40,
    "max_position_embeddings": 256,
}
WIDTHS = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "BOOL": 1, "F8_E4M3": 1, "U8": 1, "I8": 1}
_INTEGERS = {"I64": "q", "I32": "i", "BOOL": "?", "U8": "B", "I8": "b"}
_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}


class Tensor(NamedTuple):
    """A tensor as a file holds it: safetensors dtype, shape, bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def __repr__(self) -> str:  # a failing test names its tensors; their bytes would bury the message
        return f"{self.dtype}{list(self.shape)}#{zlib.crc32(self.data):08x}"


def encode(values: Iterable[float], dtype: str) -> bytes:
    """Numbers as the bytes of a dtype; every value that is used here is exact in all float dtypes."""
    if dtype in _INTEGERS:
        return b"".join(struct.pack(f"<{_INTEGERS[dtype]}", int(v)) for v in values)
    if dtype == "BF16":
        return b"".join(struct.pack("<f", v)[2:] for v in values)
    return b"".join(struct.pack({"F16": "<e", "F32": "<f", "F64": "<d"}[dtype], v) for v in values)


def count(shape: Sequence[int]) -> int:
    total = 1
    for axis in shape:
        total *= axis
    return total


def weight(seed: int, shape: Sequence[int], dtype: str) -> Tensor:
    """A weight whose values follow from `seed`: no two seeds below 127 give the same values."""
    numbers = ((((5 * k + 11 * seed) % 127) - 63) / 64 for k in range(count(shape)))
    return Tensor(dtype, tuple(shape), encode(numbers, dtype))


def list_tensor(values: Sequence[float], dtype: str = "I64") -> Tensor:
    return Tensor(dtype, (len(values),), encode(values, dtype))


def offsets(targets: Sequence[int]) -> list[int]:
    return [target - draft for draft, target in enumerate(targets)]


def mask(targets: Sequence[int], vocab: int) -> Tensor:
    selected = set(targets)
    return list_tensor([token in selected for token in range(vocab)], "BOOL")


def permuted(tensor: Tensor, order: Sequence[int]) -> Tensor:
    """The last axis in equal blocks, block b of the result being block order[b]."""
    row = tensor.shape[-1] * WIDTHS[tensor.dtype]
    block = row // len(order)
    rows = [tensor.data[at : at + row] for at in range(0, len(tensor.data), row)]
    return tensor._replace(data=b"".join(r[i * block : (i + 1) * block] for r in rows for i in order))


@dataclass(frozen=True)
class Knobs:
    """What a drafter is, whatever format it is written in.

    `aux` counts as transformers counts hidden_states; None leaves the ids out.  `targets` None drafts over the whole
    vocabulary without maps.  `t2d` None is what the format writes.  `norm_before_residual` None leaves the field out.
    """

    format: str = "speculators"
    layers: int = 1
    aux: tuple[int, ...] | None = (2, 8, 13)
    aux_count: int = 3  # where aux is None
    norm_before_residual: bool | None = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    qk_norm: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    window: int | None = None
    dtype: str = "BF16"
    targets: tuple[int, ...] | None = TARGETS
    full_maps: bool = False  # a d2t of zeros (and t2d of ones) over the whole vocabulary
    t2d: bool | None = None
    d2t_dtype: str = "I64"
    embed: bool = True
    lm_head: bool = True
    rope: Mapping[str, Any] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0})
    rope_spelling: str = ""  # "rope_parameters", "rope_theta" or "both"; empty: what the format writes
    hidden: int = 12
    target_hidden: int | None = None
    intermediate: int = 20
    heads: int = 3
    kv_heads: int = 1
    head_dim: int = 4
    vocab: int = 40
    draft_vocab: int = 10
    verifier_name: str | None = "example-org/tiny-target"
    seed: int = 0

    @property
    def states(self) -> int:
        return len(self.aux) if self.aux is not None else self.aux_count

    @property
    def head_rows(self) -> int:
        return len(self.targets) if self.targets is not None else self.vocab


@dataclass(frozen=True)
class Drafter:
    """A checkpoint in memory: its config and its tensors in data order."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]

    def with_config(self, changes: Mapping[str, Any], without: Iterable[str] = ()) -> Drafter:
        """The same drafter with dotted config fields set and removed."""
        config = copy.deepcopy(self.config)
        for path, value in changes.items():
            *parents, last = path.split(".")
            node = config
            for key in parents:
                node = node.setdefault(key, {})
            node[last] = value
        for path in without:
            *parents, last = path.split(".")
            node = config
            for key in parents:
                node = node.get(key, {})
            node.pop(last, None)
        return replace(self, config=config)

    def with_tensors(self, changes: Mapping[str, Tensor], without: Iterable[str] = ()) -> Drafter:
        kept = {name: tensor for name, tensor in self.tensors.items() if name not in set(without)}
        return replace(self, tensors={**kept, **changes})

    def renamed(self, pairs: Mapping[str, str]) -> Drafter:
        """The same drafter with prefixes of tensor names replaced; "" puts a prefix before every name."""

        def new(name: str) -> str:
            found = next((old for old in pairs if old and name.startswith(old)), "" if "" in pairs else None)
            return name if found is None else pairs[found] + name.removeprefix(found)

        return replace(self, tensors={new(name): tensor for name, tensor in self.tensors.items()})

    def write(self, folder: Path, container: str = "single", shards: int = 3) -> Path:
        """Write the folder: "single" or "sharded" safetensors, or "bin" (needs torch)."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config, indent=2) + "\n", encoding="utf-8")
        if container == "bin":
            write_torch(folder / "pytorch_model.bin", self.tensors)
        elif container == "sharded":
            write_shards(folder, self.tensors, shards)
        else:
            write_safetensors(folder / "model.safetensors", self.tensors)
        return folder


def make_drafter(format: str = "speculators", **knobs: Any) -> Drafter:
    """A drafter in the spelling of a format; the keyword arguments are the fields of `Knobs`."""
    return spell(Knobs(format=format, **knobs))


def spell(knobs: Knobs) -> Drafter:
    return Drafter(spell_config(knobs), spell_tensors(knobs))


# --- tensors ----------------------------------------------------------------------------------------------------------


def canonical_shapes(k: Knobs) -> dict[str, tuple[int, ...]]:
    """Every weight of the drafter by its canonical name."""
    wide, narrow = k.heads * k.head_dim, k.kv_heads * k.head_dim
    state = k.target_hidden or k.hidden
    shapes: dict[str, tuple[int, ...]] = {}
    if k.embed:
        shapes["embed_tokens.weight"] = (k.vocab, k.hidden)
    if k.norm_before_fc:
        shapes["input_norm.weight"] = (k.states * state,)
    if k.fc_norm:
        shapes |= {f"fc_norm.{j}.weight": (state,) for j in range(k.states)}
    shapes["fc.weight"] = (k.hidden, k.states * state)
    for i in range(k.layers):
        at, width = f"layers.{i}.", 2 * k.hidden if i == 0 else k.hidden
        if i == 0:
            shapes[f"{at}hidden_norm.weight"] = (k.hidden,)
        shapes[f"{at}input_layernorm.weight"] = (k.hidden,)
        heads = (("q", wide, width), ("k", narrow, width), ("v", narrow, width), ("o", k.hidden, wide))
        for name, rows, columns in heads:
            shapes[f"{at}self_attn.{name}_proj.weight"] = (rows, columns)
            if k.attention_bias:
                shapes[f"{at}self_attn.{name}_proj.bias"] = (rows,)
        if k.qk_norm:
            shapes |= {f"{at}self_attn.{n}_norm.weight": (k.head_dim,) for n in "qk"}
        shapes[f"{at}post_attention_layernorm.weight"] = (k.hidden,)
        mlp = (("gate", k.intermediate, k.hidden), ("up", k.intermediate, k.hidden), ("down", k.hidden, k.intermediate))
        for name, rows, columns in mlp:
            shapes[f"{at}mlp.{name}_proj.weight"] = (rows, columns)
            if k.mlp_bias:
                shapes[f"{at}mlp.{name}_proj.bias"] = (rows,)
    shapes["norm.weight"] = (k.hidden,)
    if k.lm_head:
        shapes["lm_head.weight"] = (k.head_rows, k.hidden)
    return shapes


# Seeds by canonical name, so that a tensor has the same bytes however many others stand before it.
_PARTS = (
    "embed_tokens.weight", "input_norm.weight", "fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight",
    "fc_norm.3.weight", "fc.weight", "norm.weight", "lm_head.weight",
)  # fmt: skip
_LAYER_PARTS = (
    "hidden_norm.weight", "input_layernorm.weight", "post_attention_layernorm.weight",
    *(f"self_attn.{n}_proj.{kind}" for n in "qkvo" for kind in ("weight", "bias")),
    "self_attn.q_norm.weight", "self_attn.k_norm.weight",
    *(f"mlp.{n}_proj.{kind}" for n in ("gate", "up", "down") for kind in ("weight", "bias")),
)  # fmt: skip


def seed_of(canonical: str) -> int:
    if canonical in _PARTS:
        return 1 + _PARTS.index(canonical)
    _, layer, part = canonical.split(".", 2)
    return 20 + 22 * int(layer) + _LAYER_PARTS.index(part)


def spelled_name(format: str, canonical: str) -> str:
    """The name of a canonical tensor in a format."""
    if canonical.startswith("layers.0.") and format in ("sglang", "specforge", "safeailab"):
        return "midlayer." + canonical.removeprefix("layers.0.")
    if format == "sglang" and canonical.startswith("layers.") and canonical.endswith(".input_layernorm.weight"):
        return canonical.replace("input_layernorm", "hidden_norm")
    return canonical


def spell_tensors(k: Knobs) -> dict[str, Tensor]:
    tensors = {
        spelled_name(k.format, name): weight(seed_of(name) + k.seed, shape, k.dtype)
        for name, shape in canonical_shapes(k).items()
    }
    masked = k.t2d if k.t2d is not None else k.format in ("speculators", "specforge", "safeailab")
    targets = tuple(range(k.vocab)) if k.full_maps else k.targets
    if targets is not None:
        tensors["d2t"] = list_tensor(offsets(targets), k.d2t_dtype)
        if masked:
            tensors["t2d"] = mask(targets, k.vocab)
    return tensors


# --- config -----------------------------------------------------------------------------------------------------------


def spell_config(k: Knobs) -> dict[str, Any]:
    return _speculators(k) if k.format == "speculators" else _flat(k)


def _block(k: Knobs) -> dict[str, Any]:
    """The decoder's fields as transformers writes them."""
    block: dict[str, Any] = {
        "model_type": "qwen3" if k.qk_norm else "llama",
        "hidden_size": k.hidden,
        "intermediate_size": k.intermediate,
        "num_hidden_layers": k.layers,
        "num_attention_heads": k.heads,
        "num_key_value_heads": k.kv_heads,
        "head_dim": k.head_dim,
        "vocab_size": k.vocab,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-05,
        "max_position_embeddings": 256,
        "attention_bias": k.attention_bias,
        "mlp_bias": k.mlp_bias,
    }
    spelling = k.rope_spelling or ("rope_parameters" if k.format == "speculators" else "rope_theta")
    if spelling in ("rope_parameters", "both"):
        block["rope_parameters"] = dict(k.rope)
    if spelling in ("rope_theta", "both"):
        block["rope_theta"] = k.rope["rope_theta"]
        scaling = {key: value for key, value in k.rope.items() if key != "rope_theta"}
        if scaling.get("rope_type") != "default":
            block["rope_scaling"] = scaling
    if k.window is not None:
        sliding = ["sliding_attention"] * k.layers
        block |= {"sliding_window": k.window, "use_sliding_window": True, "layer_types": sliding}
    return block


def _speculators(k: Knobs) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "draft_vocab_size": k.head_rows,
        "dtype": _NAMES[k.dtype],
        "norm_before_fc": k.norm_before_fc,
        "fc_norm": k.fc_norm,
        "norm_output": k.norm_output,
        "embed_requires_grad": False,
        "target_hidden_size": k.target_hidden,
        "tie_word_embeddings": False,
        "eagle_aux_hidden_state_layer_ids": list(k.aux) if k.aux is not None else None,
        "transformer_layer_config": _block(k),
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy", "speculative_tokens": 5, "accept_tolerance": 0.0,
                    "verifier_accept_k": 1,
                }
            ],
            "verifier": {"name_or_path": k.verifier_name, "architectures": ["LlamaForCausalLM"]},
        },
        "transformers_version": "5.19.0",
    }  # fmt: skip
    if k.states != 3:
        config["transformer_layer_config"]["num_aux_hidden_states"] = k.states
    if k.norm_before_residual is not None:
        config["norm_before_residual"] = k.norm_before_residual
    return config


_ARCHITECTURES = {
    "sglang": "LlamaForCausalLMEagle3", "specforge": "LlamaForCausalLMEagle3", "modelopt": "LlamaForCausalLMEagle3",
    "safeailab": "LlamaForCausalLM", "vllm": "Eagle3LlamaForCausalLM", "sglang-plugin": "SpeculatorsForCausalLMEagle3",
}  # fmt: skip


def _flat(k: Knobs) -> dict[str, Any]:
    name = _ARCHITECTURES[k.format]
    if k.format == "vllm" and k.qk_norm:
        name = "Eagle3Qwen3ForCausalLM"
    config: dict[str, Any] = {
        "architectures": [name],
        **_block(k),
        "draft_vocab_size": k.head_rows if k.lm_head or k.targets is not None else None,
        "tie_word_embeddings": False,
        "torch_dtype": _NAMES[k.dtype],
    }
    if k.target_hidden is not None:
        config["target_hidden_size"] = k.target_hidden
    if k.format in ("vllm", "sglang-plugin"):
        config["num_aux_hidden_states"] = k.states
        if k.aux is not None and k.format == "vllm":
            config["eagle_aux_hidden_state_layer_ids"] = list(k.aux)
        if k.norm_before_residual is not None:
            config["norm_before_residual"] = k.norm_before_residual
        config |= {"norm_before_fc": k.norm_before_fc, "fc_norm": k.fc_norm, "norm_output": k.norm_output}
    if k.format == "sglang-plugin":
        config |= {"fc_bias": False, "eagle_config": {"use_aux_hidden_state": True}}
        if k.aux is not None:
            config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [state - 1 for state in k.aux]
    if k.format in ("vllm", "sglang-plugin"):
        return config
    if k.format != "safeailab":
        nested: dict[str, Any] = {} if k.format == "specforge" else {"use_aux_hidden_state": True}
        if k.aux is not None:
            nested["eagle_aux_hidden_state_layer_ids"] = [state - 1 for state in k.aux]
        if k.format == "modelopt":
            nested |= {
                "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True,
                "use_mtp_layernorm": False, "next_layer_regular": True,
            }  # fmt: skip
        if k.norm_before_fc:
            nested["norm_before_fc"] = True
        if nested:
            config["eagle_config"] = nested
    if k.fc_norm:
        config["fc_norm"] = True
    if k.norm_output:
        config["norm_output"] = True
    if k.states != 3 and k.format == "sglang":
        config["num_aux_hidden_states"] = k.states
    return config


# --- files ------------------------------------------------------------------------------------------------------------


def write_safetensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [at, at + len(tensor.data)],
        }  # fmt: skip
        at += len(tensor.data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t.data for t in tensors.values()))


def write_shards(folder: Path, tensors: Mapping[str, Tensor], shards: int) -> None:
    names = list(tensors)
    files = {
        name: f"model-{i * shards // len(names) + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(names)
    }
    for file in sorted(set(files.values())):
        write_safetensors(folder / file, {name: tensors[name] for name in names if files[name] == file})
    index = {"metadata": {"total_size": sum(len(t.data) for t in tensors.values())}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")


def write_torch(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """A pytorch_model.bin, saved by torch itself."""
    import torch

    kinds = {
        "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64,
        "I64": torch.int64, "I32": torch.int32, "BOOL": torch.bool,
    }  # fmt: skip
    held = {
        name: torch.frombuffer(bytearray(tensor.data), dtype=kinds[tensor.dtype]).reshape(tensor.shape)
        for name, tensor in tensors.items()
    }
    torch.save(held, file)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a folder, read by the safetensors library itself."""
    return {
        name: Tensor(row["dtype"], tuple(row["shape"]), bytes(row["data"]))
        for file in sorted(folder.glob("model*.safetensors"))
        for name, row in deserialize(file.read_bytes())  # type: ignore[no-untyped-call]
    }


def read_config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config


def read_receipt(folder: Path) -> dict[str, Any]:
    receipt: dict[str, Any] = json.loads((folder / "eagle3convert.json").read_text(encoding="utf-8"))
    return receipt


def write_verifier(folder: Path, **changes: Any) -> Path:
    """A verifier's folder that holds its config.json only."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(VERIFIER | changes), encoding="utf-8")
    return folder
