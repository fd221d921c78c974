"""The EAGLE-3 draft model as speculators trains it, on SGLang's own layers.  Written against SGLang 0.5.23.

What it does beyond SGLang's LlamaForCausalLMEagle3 (srt/models/llama_eagle3.py): the residual of layer 0 before or
after `hidden_norm`, later layers with their own `input_layernorm`, norms on q and k, biases, a sliding window from the
config, `fc` also for a single aux state, the drafter's own embedding where it is not the verifier's, and no tensor lost
or missing.  `eagle3convert/reference/forward.py` is the same forward pass in plain torch.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable
from typing import Any

import sglang
import torch
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from sglang.srt.models.llama_eagle3 import LlamaForCausalLMEagle3
from sglang.srt.runtime_context import get_parallel, get_spec
from sglang.srt.utils import add_prefix
from torch import Tensor, nn

from eagle3convert.engines.sglang.draft_layers import DraftLayer, windows_of
from eagle3convert.engines.sglang.strict_loading import load_strictly, target_ids

logger = logging.getLogger(__name__)
RUN_WITH = "0.5.23"
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "fc_bias")


def demand(config: Any) -> None:
    """Every field that this class reads and nothing can be assumed of; ValueError names the one that is missing."""
    wrong = [(name, "true or false") for name in FLAGS if not isinstance(getattr(config, name, None), bool)]
    if not isinstance(getattr(config, "num_aux_hidden_states", None), int):
        wrong.append(("num_aux_hidden_states", "a number"))
    if not hasattr(config, "draft_vocab_size"):
        wrong.append(("draft_vocab_size", "a number, or null for the verifier's head"))
    for name, wanted in wrong:
        raise ValueError(
            f"config.json: {name} is {getattr(config, name, None)!r}, wanted {wanted}. Nothing can be assumed of it; "
            f"`eagle3convert auto sglang-plugin IN OUT` writes it as the drafter was trained."
        )
    found = getattr(sglang, "__version__", "unknown")
    if found != RUN_WITH:
        logger.warning("eagle3convert's draft class was run with SGLang %s only; this is %s.", RUN_WITH, found)


class DraftModel(nn.Module):  # type: ignore[misc]
    """Everything between the aux states and lm_head; SGLang's graph runners know it by `layers` and this `forward`."""

    def __init__(self, config: Any, quant_config: Any, prefix: str) -> None:
        super().__init__()
        eps, states = config.rms_norm_eps, config.num_aux_hidden_states
        wide = getattr(config, "target_hidden_size", None) or config.hidden_size
        self.hidden_size, self.norm_output = config.hidden_size, config.norm_output
        self.is_mrope_enabled = "mrope_section" in config.rope_parameters
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, prefix=add_prefix("embed_tokens", prefix)
        )
        self.input_norm = RMSNorm(states * wide, eps=eps) if config.norm_before_fc else None
        self.fc_norm = nn.ModuleList([RMSNorm(wide, eps=eps) for _ in range(states)]) if config.fc_norm else None
        self.fc = nn.Linear(states * wide, config.hidden_size, bias=config.fc_bias)
        self.layers = nn.ModuleList(
            [
                DraftLayer(config, i, window, quant_config, add_prefix(f"layers.{i}", prefix))
                for i, window in enumerate(windows_of(config))
            ]
        )
        self.norm = RMSNorm(config.hidden_size, eps=eps)

    def fuse(self, states: Tensor) -> Tensor:
        """The verifier's aux states [T, states * target_hidden] -> the drafter's first state [T, hidden]."""
        if states.shape[-1] != self.fc.in_features:
            raise RuntimeError(
                f"The verifier gave states of width {states.shape[-1]}, and fc takes {self.fc.in_features}. Is "
                f"--speculative-algorithm EAGLE3 set, and are all of the drafter's aux layers captured?"
            )
        if self.input_norm is not None:
            states = self.input_norm(states)
        if self.fc_norm is not None:
            blocks = states.chunk(len(self.fc_norm), dim=-1)
            states = torch.cat([norm(x.contiguous()) for norm, x in zip(self.fc_norm, blocks, strict=True)], dim=-1)
        fused: Tensor = self.fc(states)
        return fused

    def first_state(self, states: Tensor, mode: Any) -> Tensor:
        """The verifier's states fused, or the drafter's own as they are.

        SGLang decides by width, so that a single aux state never meets fc.  The mode knows: the verifier's states come
        with EXTEND and DRAFT_EXTEND_V2, the drafter's own with DECODE (speculative/eagle_worker_v2.py:1009, 1149, 738).
        IDLE batches come with either, and their outputs are thrown away.
        """
        if mode.is_decode() or (mode.is_idle() and states.shape[-1] == self.hidden_size):
            return states
        return self.fuse(states)

    def embed(self, input_ids: Tensor, forward_batch: Any) -> Tensor:
        """The tokens' embeddings [T, hidden]; where the verifier saw images, its own embeddings of them."""
        mode, embeds = forward_batch.forward_mode, forward_batch.mm_input_embeds
        if embeds is None:
            found: Tensor = self.embed_tokens(input_ids)
            return found
        if mode.is_extend() and not mode.is_draft_extend_v2() and forward_batch.contains_mm_inputs():
            # The tokens are the text shifted by one: the last of each sequence is new to the verifier.
            last = (forward_batch.extend_start_loc + forward_batch.extend_seq_lens - 1).long()
            embeds[last] = self.embed_tokens(input_ids[last])
        return embeds

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        forward_batch: Any,
        input_embeds: Tensor | None = None,
        pp_proxy_tensors: Any = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Tokens [T] -> what lm_head takes [T, hidden], and the state for the next draft step [T, hidden]."""
        states = forward_batch.spec_info.hidden_states
        if states.shape[0] == 0:  # another rank's batch
            nothing = states.new_empty(0, self.hidden_size)
            return nothing, [nothing]
        embeds = self.embed(input_ids, forward_batch) if input_embeds is None else input_embeds
        if self.is_mrope_enabled:
            positions = forward_batch.mrope_positions
        hidden_states, residual = self.first_state(states, forward_batch.forward_mode), None
        for layer in self.layers:
            hidden_states, residual = layer(positions, embeds, hidden_states, forward_batch, residual)
        normed, state = self.norm(hidden_states, residual)
        return normed, [normed if self.norm_output else state]


class SpeculatorsForCausalLMEagle3(LlamaForCausalLMEagle3):  # type: ignore[misc]
    """The drafter as SGLang's speculative workers know it; the name is none of SGLang's, so nothing else loads it."""

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        nn.Module.__init__(self)  # SGLang's own __init__ would build its own model
        demand(config)
        self.config, self.quant_config = config, quant_config
        self.pp_group = get_parallel().pp_group
        self.model = DraftModel(config, quant_config, add_prefix("model", prefix))
        windows = [layer.self_attn.attn.sliding_window_size for layer in self.model.layers]
        self._draft_window_size = max((size for size in windows if size > 0), default=None)
        if get_spec().speculative_draft_window_size is not None:  # whoever sets the server's flag means it
            self._draft_window_size = get_spec().speculative_draft_window_size
            for layer in self.model.layers:
                layer.self_attn.attn.sliding_window_size = self._draft_window_size
        self.load_lm_head_from_target = config.draft_vocab_size is None
        if self.load_lm_head_from_target:
            config.draft_vocab_size = config.vocab_size  # the graph runners read it
        self.lm_head = ParallelLMHead(
            config.draft_vocab_size, config.hidden_size, quant_config=quant_config, prefix=add_prefix("lm_head", prefix)
        )
        drafts = copy.copy(config)
        drafts.vocab_size = config.draft_vocab_size
        self.logits_processor = LogitsProcessor(drafts)
        self.capture_aux_hidden_states = True  # forward() then takes a pair from the model
        self.hot_token_id: Tensor | None = None
        self._own_embedding = self._loaded = False

    # --- weights ------------------------------------------------------------------------------------------------------

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Fill every parameter; ValueError where a tensor has no place or a parameter stays unfilled."""
        optional = {"lm_head.weight"} if self.load_lm_head_from_target else set()
        if not self._has_its_own_width:
            optional.add("model.embed_tokens.weight")
        filled, vocab = load_strictly(self, weights, frozenset(optional), whole=not self._loaded)
        self._own_embedding |= "model.embed_tokens.weight" in filled
        if "d2t" in vocab:
            self.hot_token_id = target_ids(vocab["d2t"], vocab.get("t2d"), self.config.vocab_size)
        if self.hot_token_id is None and self.config.draft_vocab_size != self.config.vocab_size:
            raise ValueError(
                f"d2t is missing: draft_vocab_size is {self.config.draft_vocab_size} of {self.config.vocab_size}, so "
                f"draft ids are not target ids."
            )
        self._loaded = True

    @property
    def _has_its_own_width(self) -> bool:
        width: int = getattr(self.config, "target_hidden_size", None) or self.config.hidden_size
        return bool(width != self.config.hidden_size)

    def _differs(self, embed: Tensor) -> bool:
        """Whether the drafter has an embedding of its own that is not the verifier's."""
        own = self.model.embed_tokens.weight
        alike = own.shape == embed.shape and own.dtype == embed.dtype
        differs: bool = self._own_embedding and not (alike and torch.equal(own, embed))
        return differs

    def set_embed(self, embed: Tensor) -> None:
        """Share the verifier's embedding, unless the drafter was trained with another one."""
        if not self._differs(embed):
            super().set_embed(embed)

    def set_embed_and_head(self, embed: Tensor, head: Tensor) -> None:
        own = self.model.embed_tokens.weight if self._differs(embed) else embed
        super().set_embed_and_head(own, head)


EntryClass = [SpeculatorsForCausalLMEagle3]
