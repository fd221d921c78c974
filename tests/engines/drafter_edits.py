"""Changes to a drafter, one thing each: every one edits the config and the tensors of a served drafter in place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Config = dict[str, Any]
Tensors = dict[str, torch.Tensor]
Edit = Callable[[Config, Tensors], object]
PAIR = Path(__file__).parent / "pair"
VOCAB, HIDDEN = 160, 64  # of the verifier in pair/verifier
L = "layers.0."
IDS = "eagle_aux_hidden_state_layer_ids"
COUNT = "num_aux_hidden_states"


def read_folder(folder: Path) -> tuple[Config, Tensors]:
    """The config and the tensors of a drafter."""
    return json.loads((folder / "config.json").read_text(encoding="utf-8")), load_file(folder / "model.safetensors")


def write_folder(folder: Path, config: Config, tensors: Tensors) -> Path:
    """A drafter's folder, with nothing else in it."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    return folder


# --- edits of the config ----------------------------------------------------------------------------------------------


def stating(**fields: Any) -> Edit:
    """States other values."""
    return lambda config, tensors: config.update(fields)


def silent_on(*fields: str) -> Edit:
    """Leaves fields out, which the config must have held."""
    return lambda config, tensors: [config.pop(field) for field in fields]


def flipped(field: str) -> Edit:
    return lambda config, tensors: config.update({field: not config[field]})


def shifted(by: int) -> Edit:
    return lambda config, tensors: config.update({IDS: [k + by for k in config[IDS]]})


def ids_in_eagle_config(config: Config, tensors: Tensors) -> None:
    """States the aux layers where vLLM's older runner looks as well, and nothing that counts them."""
    config["eagle_config"] = {IDS: config.pop(IDS)}
    config.pop(COUNT)


def without_a_window(config: Config, tensors: Tensors) -> None:
    config["layer_types"] = ["full_attention" for _ in config["layer_types"]]
    config["sliding_window"] = None


def sliding_in(*layers: int) -> Edit:
    """A window of two tokens in some layers, full attention in the others."""

    def edit(config: Config, tensors: Tensors) -> None:
        kinds = ["sliding_attention" if i in layers else "full_attention" for i in range(config["num_hidden_layers"])]
        config.update(layer_types=kinds, sliding_window=2, use_sliding_window=True)

    return edit


# --- edits of the tensors ---------------------------------------------------------------------------------------------


def without(part: str) -> Edit:
    """Leaves out every tensor whose name begins so."""
    return lambda config, tensors: [tensors.pop(name) for name in list(tensors) if name.startswith(part)]


def renamed(old: str, new: str) -> Edit:
    def edit(config: Config, tensors: Tensors) -> None:
        for name in [name for name in tensors if old in name]:
            tensors[name.replace(old, new, 1)] = tensors.pop(name)

    return edit


def wrapped(config: Config, tensors: Tensors) -> None:
    for name in [name for name in tensors if name not in ("d2t", "t2d")]:
        tensors[f"model.{name}"] = tensors.pop(name)


def absolute_ids(config: Config, tensors: Tensors) -> None:
    tensors["d2t"] += torch.arange(len(tensors["d2t"]))


def absolute_ids_in_range(config: Config, tensors: Tensors) -> None:
    """As above; no entry points outside the vocabulary, whichever way it is read."""
    absolute_ids(config, tensors)
    places = torch.arange(len(tensors["d2t"]))
    tensors["d2t"] = torch.minimum(tensors["d2t"], VOCAB - 1 - places)


def ids_beyond_the_vocabulary(config: Config, tensors: Tensors) -> None:
    """The map of a larger vocabulary: no reading of it stays inside this one."""
    tensors["d2t"] += VOCAB


def adding(name: str, *shape: int, value: float = 10.0) -> Edit:
    """A tensor more: large numbers, so that it shows where it is used."""

    def edit(config: Config, tensors: Tensors) -> None:
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        tensors[name] = (value * noise).to(torch.bfloat16)

    return edit


def both(*edits: Edit) -> Edit:
    def edit(config: Config, tensors: Tensors) -> None:
        for one in edits:
            one(config, tensors)

    return edit


ATTENTION = {"self_attn.q_proj": 64, "self_attn.k_proj": 32, "self_attn.v_proj": 32, "self_attn.o_proj": 64}
MLP = {"mlp.gate_proj": 128, "mlp.up_proj": 128, "mlp.down_proj": 64}


def _biased(field: str, rows: dict[str, int], loud: str) -> Edit:
    """Biases on the projections of every layer: zero, but for the one on `loud`."""

    def edit(config: Config, tensors: Tensors) -> None:
        config[field] = True
        for i in range(config["num_hidden_layers"]):
            for name, size in rows.items():
                adding(f"layers.{i}.{name}.bias", size, value=10.0 if name == loud else 0.0)(config, tensors)

    return edit


def attention_bias(loud: str) -> Edit:
    return _biased("attention_bias", ATTENTION, f"self_attn.{loud}")


def mlp_bias(loud: str) -> Edit:
    return _biased("mlp_bias", MLP, f"mlp.{loud}")


def one_more_aux_layer(layer: int) -> Edit:
    """fc takes one aux state more, from a later layer, and makes nothing of it."""

    def edit(config: Config, tensors: Tensors) -> None:
        config[IDS] = [*config[IDS], layer]
        fc = tensors["fc.weight"]
        tensors["fc.weight"] = torch.cat([fc, torch.zeros(len(fc), HIDDEN, dtype=fc.dtype)], 1)

    return edit


def full_vocabulary(config: Config, tensors: Tensors) -> None:
    """Drafts over all tokens of the verifier, in its order; the head gives those that it had none for a logit of 0."""
    head, d2t = tensors["lm_head.weight"], tensors.pop("d2t")
    tensors.pop("t2d")
    rows = torch.zeros(VOCAB, HIDDEN, dtype=head.dtype)
    rows[torch.arange(len(d2t)) + d2t] = head
    tensors["lm_head.weight"] = rows
    config["draft_vocab_size"] = VOCAB


def odd_vocabulary(config: Config, tensors: Tensors) -> None:
    """Drafts over six tokens more, which the head gives a logit of 0: 70 in all, no multiple of 64."""
    size = len(tensors["d2t"]) + 6
    kept = tensors["t2d"].clone()
    kept[(~kept).nonzero().flatten()[:6]] = True
    full_vocabulary(config, tensors)
    targets = kept.nonzero().flatten()
    tensors["lm_head.weight"] = tensors["lm_head.weight"][targets]
    tensors["d2t"], tensors["t2d"] = targets - torch.arange(size), kept
    config["draft_vocab_size"] = size


def permuted_vocabulary(config: Config, tensors: Tensors) -> None:
    """Drafts over all tokens of the verifier in reverse order, with a d2t that says so."""
    full_vocabulary(config, tensors)
    tensors["lm_head.weight"] = tensors["lm_head.weight"].flip(0)
    tensors["d2t"] = VOCAB - 1 - 2 * torch.arange(VOCAB)


def more_heads(config: Config, tensors: Tensors) -> None:
    """Two attention heads more, of which o_proj makes nothing: heads times head size is 128, the hidden size 64."""
    config["num_attention_heads"] += 2
    for name, axis in ((L + "self_attn.q_proj.weight", 0), (L + "self_attn.o_proj.weight", 1)):
        tensor = tensors[name]
        tensors[name] = torch.cat([tensor, torch.zeros_like(tensor)], axis)


def negated(*names: str) -> Edit:
    return lambda config, tensors: [tensors[name].neg_() for name in names]


def wider(config: Config, tensors: Tensors) -> None:
    """The same drafter in half as many dimensions more than the verifier has, all of them zero.

    A norm over 96 dimensions divides by less than one over the 64 that hold something; its weight makes up for it.
    """
    width = HIDDEN * 3 // 2
    config.update(hidden_size=width, target_hidden_size=HIDDEN)

    def padded(tensor: torch.Tensor, axis: int) -> torch.Tensor:
        shape = list(tensor.shape)
        shape[axis] = width - HIDDEN
        return torch.cat([tensor, tensor.new_zeros(shape)], axis)

    for name, tensor in tensors.items():
        if "norm" in name:
            tensors[name] = padded(tensor.float() * (HIDDEN / width) ** 0.5, 0)
        elif name in ("embed_tokens.weight", "lm_head.weight") or "gate_proj" in name or "up_proj" in name:
            tensors[name] = padded(tensor, 1)
        elif name == "fc.weight" or "o_proj" in name or "down_proj" in name:
            tensors[name] = padded(tensor, 0)
        elif "self_attn" in name:  # q, k and v of the first layer take the embedding and the hidden state
            tensors[name] = torch.cat([padded(half, 1) for half in tensor.split(HIDDEN, 1)], 1)


def verifiers_head(config: Config, tensors: Tensors) -> None:
    """Drafts over all tokens of the verifier with the verifier's own head."""
    full_vocabulary(config, tensors)
    tensors["lm_head.weight"] = load_file(PAIR / "verifier" / "model.safetensors")["lm_head.weight"]


def norm_reversed(config: Config, tensors: Tensors) -> None:
    tensors["norm.weight"] = tensors["norm.weight"].flip(0)
