"""The two ends of the verifier, its embedding and its head: lent to drafters without their own, and to judge."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from eagle3convert.checkpoint.stored import StoredTensor
from eagle3convert.errors import CheckpointError
from eagle3convert.reference.weights import gather_rows, read_tensor
from eagle3convert.verifier_weights import EMBEDDING, HEAD, NORM, VerifierWeights

BLOCK = 8192  # rows of the head that are in memory at a time
OTHER_NORMS = ("gemma",)  # families whose final norm multiplies with 1 + weight, and whose embeddings are scaled


@dataclass(frozen=True)
class VerifierEnds:
    """A verifier's embedding table, lm_head and final norm, each where it is stored."""

    label: str
    embedding: StoredTensor
    head: StoredTensor
    norm: StoredTensor
    eps: float

    def embed(self, ids: Tensor) -> Tensor:
        wanted, places = torch.unique(ids, return_inverse=True)
        return gather_rows(self.embedding, wanted)[places].float()

    def lm_head(self) -> Tensor:
        return read_tensor(self.head)

    def choices(self, output: Tensor, normed: bool) -> Tensor:
        """The verifier's greedy token [T] after each position, from its last hidden states [T, H]."""
        state = output.float()
        if state.shape[1] != self.head.shape[1]:
            raise CheckpointError(
                f"{self.label}: lm_head takes states of width {self.head.shape[1]}, and the captured ones "
                f"have {state.shape[1]}. Give the verifier that the states were captured from."
            )
        if not normed:
            wide = state * torch.rsqrt(state.pow(2).mean(-1, keepdim=True) + self.eps)
            state = wide * read_tensor(self.norm).float()
        best = torch.full((len(state),), float("-inf"))
        choice = torch.zeros(len(state), dtype=torch.int64)
        for first in range(0, self.head.shape[0], BLOCK):
            ids = torch.arange(first, min(first + BLOCK, self.head.shape[0]))
            score, place = functional.linear(state, gather_rows(self.head, ids).float()).max(-1)
            better = score > best
            best, choice = torch.where(better, score, best), torch.where(better, place + first, choice)
        return choice


def ends_of(weights: VerifierWeights) -> VerifierEnds | None:
    """The two ends of a verifier; None where there are no weights of it.  CheckpointError where they cannot be used."""
    if weights.error is not None:
        raise weights.error
    if weights.folder is None:
        return None
    text = weights.config.get("text_config")
    text = text if isinstance(text, dict) else weights.config
    if str(text.get("model_type", "")).startswith(OTHER_NORMS):
        raise CheckpointError(
            f"{weights.folder}: the head of a {text['model_type']} verifier is not computed here, for its norms "
            f"differ. Capture verifier_argmax with the states, and give the verifier's config.json with "
            f"--verifier-config."
        )
    missing = [name for name in (EMBEDDING, NORM, HEAD) if name not in weights.tensors]
    if missing:
        raise CheckpointError(
            f"{weights.folder}: {' and '.join(missing)} cannot be told among the verifier's weights. Give its whole "
            f"folder, or the folder of its config.json alone."
        )
    found = weights.tensors
    eps = float(text.get("rms_norm_eps", 1e-6))
    return VerifierEnds(str(weights.folder), found[EMBEDDING], found[HEAD], found[NORM], eps)
