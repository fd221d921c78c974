"""One decoder layer of the draft model: SGLang's attention and mlp with what speculators' layers have beyond them."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.activation import SiluAndMul
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from sglang.srt.models.llama import LlamaAttention, LlamaMLP
from sglang.srt.models.utils import apply_qk_norm
from sglang.srt.utils import add_prefix
from torch import Tensor, nn


def windows_of(config: Any) -> list[int | None]:
    """SGLang's window size of each layer, None for full attention.

    SGLang's size does not count the query itself (srt/layers/attention/torch_native_backend.py:48), the config's does.
    """
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    return [config.sliding_window - 1 if kind == "sliding_attention" else None for kind in kinds]


class DraftAttention(LlamaAttention):  # type: ignore[misc]
    """Attention of one layer; layer 0 takes [embedding, state], twice the hidden size."""

    def __init__(self, config: Any, layer_id: int, window: int | None, quant_config: Any, prefix: str) -> None:
        rope = dict(config.rope_parameters)
        if "mrope_section" in rope:
            rope["rope_type"] = "default"  # SGLang picks its multimodal rope by the section
        super().__init__(
            config=config,
            hidden_size=config.hidden_size,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            layer_id=layer_id,
            rope_theta=rope["rope_theta"],
            rope_scaling=rope,
            max_position_embeddings=config.max_position_embeddings,
            quant_config=quant_config,
            prefix=prefix,
            bias=config.attention_bias,
        )
        if layer_id == 0:
            self.qkv_proj = QKVParallelLinear(
                2 * config.hidden_size,
                self.head_dim,
                self.total_num_heads,
                self.total_num_kv_heads,
                bias=config.attention_bias,
                quant_config=quant_config,
                prefix=add_prefix("qkv_proj", prefix),
            )
        self.norms_heads = config.model_type == "qwen3"
        if self.norms_heads:
            self.q_norm = RMSNorm(self.head_dim, eps=config.rms_norm_eps)
            self.k_norm = RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        if window is not None:
            self.attn.sliding_window_size = window

    def forward(self, positions: Tensor, hidden_states: Tensor, forward_batch: Any) -> Tensor:
        """[T, hidden or 2 * hidden] -> [T, hidden]."""
        qkv, _ = self.qkv_proj(hidden_states)
        q, k, v = qkv.split([self.q_size, self.kv_size, self.kv_size], dim=-1)
        if self.norms_heads:
            q, k = apply_qk_norm(q=q, k=k, q_norm=self.q_norm, k_norm=self.k_norm, head_dim=self.head_dim)
        q, k = self.rotary_emb(positions, q, k)
        output: Tensor = self.o_proj(self.attn(q, k, v, forward_batch))[0]
        return output


class BiasedMLP(nn.Module):  # type: ignore[misc]
    """The gated MLP with biases, which SGLang's LlamaMLP does not have."""

    def __init__(self, config: Any, quant_config: Any, prefix: str) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_up_proj = MergedColumnParallelLinear(
            hidden, [inner, inner], bias=True, quant_config=quant_config, prefix=add_prefix("gate_up_proj", prefix)
        )
        self.down_proj = RowParallelLinear(
            inner, hidden, bias=True, quant_config=quant_config, prefix=add_prefix("down_proj", prefix)
        )
        if config.hidden_act != "silu":
            raise ValueError(f"hidden_act {config.hidden_act!r}: SGLang's gated MLP computes silu only.")
        self.act_fn = SiluAndMul()

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down_proj(self.act_fn(self.gate_up_proj(x)[0]))[0]
        return output


class DraftLayer(nn.Module):  # type: ignore[misc]
    """One decoder layer; layer 0 joins the token's embedding and the state."""

    def __init__(self, config: Any, layer_id: int, window: int | None, quant_config: Any, prefix: str) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = DraftAttention(config, layer_id, window, quant_config, add_prefix("self_attn", prefix))
        at = add_prefix("mlp", prefix)
        if getattr(config, "mlp_bias", False):
            self.mlp: nn.Module = BiasedMLP(config, quant_config, at)
        else:
            self.mlp = LlamaMLP(hidden, config.intermediate_size, config.hidden_act, quant_config, at)
        self.input_layernorm = RMSNorm(hidden, eps=eps)
        self.post_attention_layernorm = RMSNorm(hidden, eps=eps)
        self.hidden_norm = RMSNorm(hidden, eps=eps) if layer_id == 0 else None
        self.norm_before_residual = config.norm_before_residual

    def forward(
        self, positions: Tensor, embeds: Tensor, hidden_states: Tensor, forward_batch: Any, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """A state and what is still to be added to it -> the same pair; [T, hidden] each."""
        if self.hidden_norm is not None:
            normed = self.hidden_norm(hidden_states)
            residual = normed if self.norm_before_residual else hidden_states
            hidden_states = torch.cat([self.input_layernorm(embeds), normed], dim=-1)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states = self.self_attn(positions, hidden_states, forward_batch)
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        return self.mlp(hidden_states), residual
