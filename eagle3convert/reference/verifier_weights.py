"""The verifier's embeddings and head, read from its folder: lent to drafters without their own, and to judge."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from eagle3convert.checkpoint.source import Checkpoint, open_checkpoint
from eagle3convert.checkpoint.stored import StoredTensor
from eagle3convert.errors import CheckpointError
from eagle3convert.reference.weights import gather_rows, read_tensor

BLOCK = 8192  # rows of the head that are in memory at a time
OTHER_NORMS = ("gemma",)  # families whose final norm multiplies with 1 + weight, and whose embeddings are scaled


@dataclass(frozen=True)
class VerifierWeights:
    """A verifier's embedding table, lm_head and final norm, each where it is stored."""

    checkpoint: Checkpoint
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
                f"{self.checkpoint.label}: lm_head takes states of width {self.head.shape[1]}, and the captured ones "
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


def open_verifier(folder: Path) -> VerifierWeights | None:
    """The weights of the verifier in a folder; None where the folder holds its config only."""
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        return None
    checkpoint = open_checkpoint(folder)
    config: dict[str, Any] = checkpoint.config
    text = config.get("text_config")
    text = text if isinstance(text, dict) else config
    if str(text.get("model_type", "")).startswith(OTHER_NORMS):
        checkpoint.close()
        raise CheckpointError(
            f"{folder}: the head of a {text['model_type']} verifier is not computed here, for its norms differ. "
            f"Capture verifier_argmax with the states, and give the verifier's config.json with --verifier-config."
        )
    embedding = _find(checkpoint, "embed_tokens.weight", "wte.weight")
    norm = _find(checkpoint, "model.norm.weight", "norm.weight")
    head = _find(checkpoint, "lm_head.weight") or embedding
    if embedding is None or norm is None or head is None:
        checkpoint.close()
        raise CheckpointError(
            f"{folder}: embed_tokens.weight, norm.weight and lm_head.weight are wanted of the verifier, and one of "
            f"them is not there. Give its whole folder, or the folder of its config.json alone."
        )
    return VerifierWeights(checkpoint, embedding, head, norm, float(text.get("rms_norm_eps", 1e-6)))


def _find(checkpoint: Checkpoint, *endings: str) -> StoredTensor | None:
    """The tensor with one of these names, behind any prefix; the shortest name where there are several."""
    for ending in endings:
        names = [n for n in checkpoint.tensors if n == ending or (n.endswith(f".{ending}") and ".layers." not in n)]
        if names:
            return checkpoint.tensors[min(names, key=len)]
    return None
