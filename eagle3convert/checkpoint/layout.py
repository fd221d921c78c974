"""What the files of a checkpoint folder are: weights, an index, a trainer's own files, or something else."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from eagle3convert.checkpoint.stored import cannot_read
from eagle3convert.errors import CheckpointError

TRAINER_FILES: Final = (
    "optimizer*.pt",
    "optimizer*.pth",
    "optimizer*.bin",
    "scheduler*.pt",
    "scheduler*.bin",
    "lr_scheduler*.pt",
    "scaler.pt",
    "training_args.bin",
    "training_state*.pt",
    "trainer_state*.pt",
    "rng_state*.pth",
    "rng_state*.pt",
    "random_states_*",
)
"""Names that trainers give to what they need to go on training: never weights of the drafter."""

ADAPTER_FILES: Final = ("adapter_model.safetensors", "adapter_model.bin")
SAFETENSORS_INDEX: Final = "model.safetensors.index.json"
SAFETENSORS_FILE: Final = "model.safetensors"
TORCH_INDEX: Final = "pytorch_model.bin.index.json"
TORCH_FILE: Final = "pytorch_model.bin"
TORCH_ENDINGS: Final = (".bin", ".pt", ".pth")

_DEEPSPEED_REMEDY: Final = "Run the zero_to_fp32.py in it to get the weights, and give the folder it writes."
_SHARD: Final = re.compile(r"^(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.(safetensors|bin)$")
_WEIGHT_NAME: Final = re.compile(r"(^|\.)(d2t|t2d)$|\.(weight|bias|q?weight_\w+|qweight|qzeros|scales|input_scale)$")


def is_trainer_file(name: str) -> bool:
    """Whether a file of this name is a trainer's state rather than weights."""
    return any(fnmatchcase(name, pattern) for pattern in TRAINER_FILES)


def looks_like_weight(tensor: str) -> bool:
    """Whether a tensor of this name is of the kind that a drafter loads."""
    return _WEIGHT_NAME.search(tensor) is not None


def shard_parts(name: str) -> int:
    """How many shards the file name says there are; 1 for a name that speaks of none."""
    match = _SHARD.match(name)
    return int(match["parts"]) if match else 1


@dataclass(frozen=True)
class Folder:
    """The names in a checkpoint folder, sorted, each file in the one group that its name puts it in."""

    path: Path
    files: frozenset[str]
    subfolders: tuple[str, ...]
    safetensors: tuple[str, ...]
    safetensors_indexes: tuple[str, ...]
    torch: tuple[str, ...]
    torch_indexes: tuple[str, ...]
    trainer: tuple[str, ...]
    adapters: tuple[str, ...]


def read_folder(path: Path) -> Folder:
    """Sorts the names in ``path``; links are followed, and a link to nowhere counts as a file.

    Raises CheckpointError where ``path`` is no folder that can be listed.
    """
    if not path.is_dir():
        raise CheckpointError(_not_a_folder(path))
    try:
        with os.scandir(path) as entries:
            kinds = {entry.name: entry.is_dir() for entry in entries}
    except OSError as error:
        raise CheckpointError(cannot_read(path, error)) from error
    files = sorted(name for name, is_folder in kinds.items() if not is_folder)
    trainer = [name for name in files if is_trainer_file(name)]
    adapters = [name for name in files if name in ADAPTER_FILES]
    rest = [name for name in files if name not in trainer and name not in adapters and not name.startswith(".")]
    return Folder(
        path=path,
        files=frozenset(files),
        subfolders=tuple(sorted(name for name, is_folder in kinds.items() if is_folder)),
        safetensors=tuple(name for name in rest if name.endswith(".safetensors")),
        safetensors_indexes=tuple(name for name in rest if name.endswith(".safetensors.index.json")),
        torch=tuple(name for name in rest if name.endswith(TORCH_ENDINGS)),
        torch_indexes=tuple(name for name in rest if name.endswith(".bin.index.json")),
        trainer=tuple(trainer),
        adapters=tuple(adapters),
    )


def _not_a_folder(path: Path) -> str:
    if path.is_symlink() and not path.exists():
        return f"{path}: the link points to '{os.readlink(path)}', which does not exist. Name the folder itself."
    if not path.exists():
        return f"{path}: there is no such folder. Give the folder that holds config.json and the drafter's weights."
    return (
        f"{path}: this is a file. A drafter is a folder with config.json beside its weights; give the folder: "
        f"{path.parent}"
    )


def no_config(folder: Folder) -> str:
    """Why a folder without config.json is no checkpoint, and where the checkpoint may be."""
    inner = _subfolders_with_config(folder.path, folder.subfolders)
    remedy = "Give the folder that holds the drafter's config.json."
    if inner:
        others = f" (there are also {_listed(inner[1:])})" if len(inner) > 1 else ""
        remedy = f"The folder inside it, {folder.path / inner[0]}, has one; give that one{others}."
    start = f"{folder.path}: there is no config.json in this folder"
    if not folder.files and not folder.subfolders:
        return f"{folder.path}: the folder is empty; config.json and the drafter's weights were wanted. {remedy}"
    if "params.json" in folder.files:
        return (
            f"{start}, but a params.json: this is Mistral's params.json layout, whose tensors are named otherwise. Use "
            "the release of this drafter in the Hugging Face layout."
        )
    if "adapter_config.json" in folder.files:
        return f"{start}, but an adapter_config.json: this is a LoRA adapter, not a drafter. {remedy}"
    if folder.trainer and not folder.safetensors and not folder.torch:
        return (
            f"{start}: it holds a trainer's state ({_listed(folder.trainer)}), which is what training resumes from, "
            f"not the drafter. {remedy}"
        )
    if _is_deepspeed(folder):
        return f"{start}, but a DeepSpeed training state. {_DEEPSPEED_REMEDY}"
    if inner:
        return f"{start}. {remedy}"
    if folder.safetensors or folder.torch:
        return f"{start}, though weights. Put the config.json that the drafter was trained with beside them."
    held = _listed(sorted(folder.files)) if folder.files else f"the folders {_listed(folder.subfolders)}"
    return f"{start} (it holds {held}). {remedy}"


def no_weights(folder: Folder) -> str:
    """Why a folder with config.json but without weights cannot be converted."""
    start = f"{folder.path}: there are no weights beside config.json"
    if folder.adapters:
        return (
            f"{start}, only those of a LoRA adapter ({_listed(folder.adapters)}). Merge the adapter into the drafter "
            "and give the merged folder."
        )
    gguf = sorted(name for name in folder.files if name.endswith(".gguf"))
    if gguf:
        return f"{start} but {_listed(gguf)}, and GGUF is not read. Use the drafter's release in safetensors."
    if folder.trainer:
        return (
            f"{start}, only a trainer's state ({_listed(folder.trainer)}). Export the drafter from the trainer first, "
            "or give the folder it was exported to."
        )
    if _is_deepspeed(folder):
        return f"{start}, only a DeepSpeed training state. {_DEEPSPEED_REMEDY}"
    inner = [
        name
        for name in folder.subfolders
        if any(entry.name.endswith((".safetensors", ".bin")) for entry in _entries(folder.path / name))
    ]
    if inner:
        return f"{start}, but some in {folder.path / inner[0]}. Bring config.json and weights into one folder."
    return (
        f"{start}: neither model.safetensors nor an index of shards nor pytorch_model.bin. Download the folder again."
    )


def _is_deepspeed(folder: Folder) -> bool:
    return "zero_to_fp32.py" in folder.files or any(name.startswith("global_step") for name in folder.subfolders)


def _subfolders_with_config(path: Path, names: tuple[str, ...]) -> list[str]:
    """The folders below, at most two levels down, that hold a config.json; a trainer's best one first."""
    found = [name for name in names if (path / name / "config.json").is_file()]
    if not found:
        found = [
            f"{name}/{inner.name}"
            for name in names[:200]
            for inner in _entries(path / name)
            if (path / name / inner.name / "config.json").is_file()
        ]
    return sorted(found, key=lambda name: ("best" not in name, _natural(name)))


def _natural(name: str) -> list[tuple[int, str]]:
    """A sort key under which epoch_10 follows epoch_9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _entries(path: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


def _listed(names: list[str] | tuple[str, ...], most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
