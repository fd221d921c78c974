"""VerifierWeights: the verifier's embedding and head, found by their headers in a folder with its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eagle3convert.checkpoint.source import Checkpoint, open_checkpoint
from eagle3convert.checkpoint.stored import StoredTensor
from eagle3convert.errors import CheckpointError

EMBEDDING_NAMES = (
    "model.embed_tokens.weight", "language_model.model.embed_tokens.weight", "model.language_model.embed_tokens.weight",
    "embed_tokens.weight", "transformer.wte.weight",
)  # fmt: skip
HEAD_NAMES = ("lm_head.weight", "language_model.lm_head.weight")


@dataclass(frozen=True)
class VerifierWeights:
    """The two tensors of the verifier that a drafter's own are compared with; the head may be tied to the embedding."""

    checkpoint: Checkpoint
    embedding: StoredTensor | None
    head: StoredTensor | None


def open_verifier(folder: Path) -> VerifierWeights | None:
    """The verifier's weights in a folder; None where it holds its config only."""
    try:
        checkpoint = open_checkpoint(folder)
    except CheckpointError:
        return None
    embedding = next((checkpoint.tensors[n] for n in EMBEDDING_NAMES if n in checkpoint.tensors), None)
    head = next((checkpoint.tensors[n] for n in HEAD_NAMES if n in checkpoint.tensors), None)
    if head is None and checkpoint.config.get("tie_word_embeddings"):
        head = embedding
    return VerifierWeights(checkpoint, embedding, head)
