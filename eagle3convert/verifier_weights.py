"""VerifierWeights: the verifier's embedding, head and final norm, found by their headers in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3convert.checkpoint.layout import read_folder
from eagle3convert.checkpoint.source import open_checkpoint
from eagle3convert.checkpoint.stored import StoredTensor
from eagle3convert.errors import CheckpointError

EMBEDDING, HEAD, NORM = "embed_tokens.weight", "lm_head.weight", "norm.weight"


@dataclass(frozen=True)
class VerifierWeights:
    """The verifier's tensors that a drafter's own are held against, by canonical name."""

    folder: Path | None = None
    tensors: Mapping[str, StoredTensor] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    error: CheckpointError | None = None  # why the weights that the folder holds could not be read

    def why_not(self, name: str, mine: StoredTensor) -> str:
        """Why the drafter's tensor `mine` cannot be compared with the verifier's tensor `name`, or nothing.

        Rows are compared byte by byte, so both must be stored alike; a head has rows for some target ids only.
        """
        if self.error is not None:
            return str(self.error).rstrip(".")
        if self.folder is None:
            return "--verifier names no folder with weights"
        theirs = self.tensors.get(name)
        if theirs is None:
            return f"{self.folder} holds not exactly one {name}"
        first = 1 if name == HEAD else 0
        if (mine.dtype, mine.shape[first:]) != (theirs.dtype, theirs.shape[first:]):
            return f"{_stored(mine)} here and {_stored(theirs)} in {self.folder}"
        return ""

    def close(self) -> None:
        """Close the files."""
        for tensor in self.tensors.values():
            tensor.file.close()


NO_WEIGHTS = VerifierWeights()


def _stored(tensor: StoredTensor) -> str:
    return f"{tensor.name} is {tensor.dtype} {list(tensor.shape)}"


def open_verifier(folder: Path | None) -> VerifierWeights:
    """The verifier's weights in a folder; nothing where it holds its config only, or where there is no folder.

    Weights that cannot be read (large verifiers are often there in part) are no error here: `error` says why.
    """
    if folder is None or not folder.is_dir():
        return NO_WEIGHTS
    try:
        here = read_folder(folder)
        if not (here.safetensors or here.safetensors_indexes or here.torch or here.torch_indexes):
            return NO_WEIGHTS
        checkpoint = open_checkpoint(folder)
    except CheckpointError as error:
        return VerifierWeights(folder, error=error)
    return VerifierWeights(folder, _find(checkpoint.tensors), checkpoint.config)


def _find(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The tensors by canonical name, behind whatever prefix wraps the model; none where more than one could be meant.

    Layers have embeddings and heads of their own where a verifier predicts several tokens; speech models have a second
    language model.  The norm stands beside the embedding, for vision towers and projectors have norms, too.
    """
    found = {}
    heads = _ending(tensors, HEAD)
    embeddings = _ending(tensors, EMBEDDING) or _ending(tensors, "wte.weight")
    if len(embeddings) == 1:
        found[EMBEDDING] = tensors[embeddings[0]]
        norm = embeddings[0].removesuffix(EMBEDDING) + NORM
        if norm in tensors:
            found[NORM] = tensors[norm]
        if not heads:  # no verifier has none: it is tied to the embedding
            found[HEAD] = found[EMBEDDING]
    if len(heads) == 1:
        found[HEAD] = tensors[heads[0]]
    return found


def _ending(tensors: Mapping[str, StoredTensor], name: str) -> list[str]:
    return [n for n in tensors if n == name or (n.endswith(f".{name}") and ".layers." not in n)]
