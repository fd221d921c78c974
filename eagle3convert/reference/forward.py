"""The forward pass of an EAGLE-3 drafter: the specification that engines and trainers are held against.

A drafter guesses, at every position t of a text, the tokens after the next one.  It reads the verifier's hidden
states at t (the aux states) and the token t + 1, which the verifier has chosen already:

    x      = input_norm(aux) | concat(fc_norm_i(aux_i)) | aux         norm_before_fc | fc_norm | neither
    h      = fc(x)                                                    once, before the first draft step
    layer 0:   a = hidden_norm(h),  e = input_layernorm(embedding of the token)
               residual = a if norm_before_residual else h
               h = residual + attention(concat(e, a));  h = h + mlp(post_attention_layernorm(h))
    layers >= 1: the decoder layer of llama or qwen3
    logits = lm_head(norm(h))
    the next draft step gets the next token, and norm(h) if norm_output else h
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from eagle3convert.errors import CheckpointError
from eagle3convert.reference.cache import ChainCache, Packed, RowCache, Window
from eagle3convert.reference.form import Form
from eagle3convert.reference.rope import Rope
from eagle3convert.reference.weights import Weights

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
}


class Cache(Protocol):
    """Keeps the keys and values of a layer, and attends over those that a query may see."""

    def attend(self, layer: int, window: int | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...


class DraftModel:
    """A drafter that can be run: its form and its weights.  All tensors are [T, …]; T rows are T positions of text."""

    def __init__(self, form: Form, weights: Weights) -> None:
        if form.activation not in ACTIVATIONS:
            raise CheckpointError(
                f"hidden_act {form.activation!r}: the reference forward pass computes {', '.join(ACTIVATIONS)} only."
            )
        self.form, self.weights = form, weights
        self.rope = Rope(form.rope, form.head_dim, form.longest)
        self.activation = ACTIVATIONS[form.activation]

    # --- the parts ----------------------------------------------------------------------------------------------------

    def norm(self, name: str, x: Tensor) -> Tensor:
        """RMSNorm over the last axis, computed in float32 as transformers does."""
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.form.eps)
        return self.weights.get(f"{name}.weight", x.shape[-1]) * normed.to(x.dtype)

    def linear(self, name: str, x: Tensor, width: int, bias: bool) -> Tensor:
        weight = self.weights.get(f"{name}.weight", width, x.shape[-1])
        return functional.linear(x, weight, self.weights.get(f"{name}.bias", width) if bias else None)

    def fuse(self, aux: Sequence[Tensor]) -> Tensor:
        """The aux states [T, target_hidden] in the order of fc's blocks -> the drafter's first state [T, hidden]."""
        form, dtype = self.form, self.weights.dtype
        states = [x.to(self.weights.device, dtype) for x in aux]
        if form.fc_bypassed:
            return states[-1]
        if form.fc_norm:
            states = [self.norm(f"fc_norm.{j}", x) for j, x in enumerate(states)]
        x = torch.cat(states, dim=-1)
        if form.norm_before_fc:
            x = self.norm("input_norm", x)
        return self.linear("fc", x, form.hidden_size, form.fc_bias)

    def decode(self, state: Tensor, token_ids: Tensor, positions: Tensor, cache: Cache) -> Tensor:
        """One pass through all decoder layers: states [T, hidden] and tokens [T] -> states [T, hidden]."""
        form = self.form
        embedding = self.weights.embed(token_ids, form.vocab_size, form.hidden_size)
        on_state, on_embedding = "layers.0.hidden_norm", "layers.0.input_layernorm"
        if form.norms_swapped:
            on_state, on_embedding = on_embedding, on_state
        normed = self.norm(on_state, state)
        residual = normed if form.norm_before_residual else state
        x = torch.cat([self.norm(on_embedding, embedding), normed], dim=-1)
        for i in range(form.layers):
            if i > 0:
                residual, x = state, self.norm(f"layers.{i}.input_layernorm", state)
            state = residual + self.attention(i, x, positions, cache)
            state = state + self.mlp(i, self.norm(f"layers.{i}.post_attention_layernorm", state))
        return state

    def attention(self, i: int, x: Tensor, positions: Tensor, cache: Cache) -> Tensor:
        form, at = self.form, f"layers.{i}.self_attn"

        def heads(name: str, count: int) -> Tensor:
            flat = self.linear(f"{at}.{name}_proj", x, count * form.head_dim, form.attention_bias)
            split = flat.view(len(x), count, form.head_dim)
            if form.qk_norm and name in "qk":
                split = self.norm(f"{at}.{name}_norm", split)
            return split.transpose(0, 1)

        q, k, v = heads("q", form.heads), heads("k", form.kv_heads), heads("v", form.kv_heads)
        q, k = self.rope.rotate(positions, q, k)
        context = cache.attend(i, form.windows[i], q, k, v).transpose(0, 1).reshape(len(x), -1)
        return self.linear(f"{at}.o_proj", context, form.hidden_size, form.attention_bias)

    def mlp(self, i: int, x: Tensor) -> Tensor:
        form, at = self.form, f"layers.{i}.mlp"
        width = self._intermediate(i)
        gate = self.activation(self.linear(f"{at}.gate_proj", x, width, form.mlp_bias))
        up = self.linear(f"{at}.up_proj", x, width, form.mlp_bias)
        return self.linear(f"{at}.down_proj", gate * up, form.hidden_size, form.mlp_bias)

    def _intermediate(self, i: int) -> int:
        row = self.weights.rows.get(f"layers.{i}.mlp.gate_proj.weight")
        return row.shape[0] if row is not None else 4 * self.form.hidden_size

    def head(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [T, draft_vocab_size] of a state, and the state that the next draft step gets."""
        form = self.form
        normed = self.norm("norm", state)
        head = self.weights.head if "lm_head.weight" not in self.weights.rows else None
        width = head.shape[0] if head is not None else form.draft_vocab_size
        logits = self.linear("lm_head", normed if form.final_norm else state, width, bias=False)
        return logits, normed if form.norm_output else state

    # --- drafting -----------------------------------------------------------------------------------------------------

    def draft_rows(
        self, aux: Sequence[Tensor], token_ids: Tensor, packed: Packed, steps: int, window: Window = "moving"
    ) -> Iterator[Tensor]:
        """Draft from every row of the text at once: yields the logits [T, draft_vocab_size] of each draft step.

        This is the form of training (training-time test): `token_ids` [T] holds the token after each row, and step s
        reads the text's own tokens s further on (0 past the end of a sequence), so that each row drafts upon tokens
        that the verifier chose.  A row sees the keys of step 0 of its own and earlier rows, and its own keys of later
        steps: just what the KV cache of an engine holds after it verified up to this row.  The two differ in one
        thing: with `window` "anchored" a sliding window stays where it was at step 0, as the trainers mask it;
        "moving" lets it slide with the drafted position, as engines do.  Positions count from 1 in each sequence.
        """
        with torch.inference_mode():
            cache, state = RowCache(packed, window), self.fuse(aux)
        for step in range(steps):
            with torch.inference_mode():
                shifted = packed.shifted(token_ids, step)
                positions = (packed.places + 1 + step).to(self.weights.device)
                logits, state = self.head(self.decode(state, shifted, positions, cache))
            yield logits

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def draft_chain(
        self, aux: Sequence[Tensor], token_ids: Tensor, steps: int, targets: Tensor | None = None
    ) -> tuple[list[int], list[Tensor]]:
        """Draft after one text with a plain KV cache, feeding back its own tokens: what an engine does.

        Returns the drafted target tokens and the logits [draft_vocab_size] they were taken from.  `targets` [DV] maps
        draft ids to target ids.  Equal, up to rounding, to the last row of `draft_rows` with a moving window wherever
        the text goes on with the drafted tokens.
        """
        cache, count = ChainCache(), len(token_ids)
        state, positions = self.fuse(aux), torch.arange(1, count + 1)
        tokens: list[int] = []
        seen: list[Tensor] = []
        for step in range(steps):
            decoded = self.decode(state, token_ids, positions.to(self.weights.device), cache)
            logits, state = self.head(decoded[-1:])
            choice = int(logits[0].argmax())
            seen.append(logits[0])
            tokens.append(int(targets[choice]) if targets is not None else choice)
            token_ids, positions = torch.tensor(tokens[-1:]), torch.tensor([count + 1 + step])
        return tokens, seen
