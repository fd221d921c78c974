"""convert_all: every checkpoint of a training run, those apart that are converted and unchanged already."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from eagle3convert.checkpoint.source import open_checkpoint
from eagle3convert.conversion import convert
from eagle3convert.errors import CheckpointError, Eagle3ConvertError, UsageError
from eagle3convert.hub.names import HubOrigin
from eagle3convert.options import Options
from eagle3convert.planning import DTYPES
from eagle3convert.receipt import find_receipt, fingerprint_of

DEPTH: Final = 3
"""How many folders deep a run's checkpoints are looked for: run/checkpoints/epoch_3 and a level to spare."""

Status = Literal["converted", "unchanged", "skipped", "failed"]


@dataclass(frozen=True)
class Outcome:
    """What became of one checkpoint: ``name`` is its folder within the run, ``said`` why it failed or was skipped."""

    name: str
    status: Status
    source: Path
    out: Path
    said: str = ""

    @property
    def line(self) -> str:
        first = self.said.splitlines()[0] if self.said else ""
        return f"{self.name}: {self.status}" + (f": {first}" if first else f" -> {self.out}")

    def as_json(self) -> dict[str, Any]:
        told = {"name": self.name, "status": self.status, "said": self.said}
        return told | {"source": str(self.source), "out": str(self.out)}


def convert_all(
    run_dir: str | Path, out_dir: str | Path, source_format: str, destination_format: str, **options: Any
) -> Iterator[Outcome]:
    """Convert every checkpoint folder in ``run_dir`` to a folder of the same name in ``out_dir``, one after the other.

    Keyword arguments are those of ``convert`` but ``force``. A checkpoint whose conversion is there, was made in the
    same way and is not older than any of its files is left alone. A failure is an outcome and does not stop the rest.
    Raises UsageError at once where there is nothing to convert.
    """
    run, out = Path(run_dir), Path(out_dir)
    found = checkpoints_in(run, out)
    if not found:
        single = " It is a checkpoint itself: use `eagle3convert convert`." if (run / "config.json").is_file() else ""
        raise UsageError(f"{run}: no folder with a config.json and weights is in it.{single}")
    return _outcomes(run, out, found, (source_format, destination_format), options)


def checkpoints_in(run: Path, out: Path | None = None) -> list[Path]:
    """The checkpoint folders of a run, in the order of their numbers; ``out`` and everything in it is none of them."""
    if not run.is_dir():
        raise CheckpointError(f"{run}: there is no such folder. Give the folder that the trainer saves its epochs in.")
    apart = out.resolve() if out is not None else None

    def walk(folder: Path, depth: int) -> Iterator[Path]:
        for inner in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
            if inner.resolve() == apart:
                continue
            if (inner / "config.json").is_file():
                yield inner
            elif depth > 1:
                yield from walk(inner, depth - 1)

    return sorted(walk(run, DEPTH), key=lambda path: _natural(path.relative_to(run).as_posix()))


def _natural(name: str) -> list[tuple[int, str]]:
    """A sort key under which epoch_10 follows epoch_9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _outcomes(
    run: Path, out: Path, found: list[Path], formats: tuple[str, str], options: Mapping[str, Any]
) -> Iterator[Outcome]:
    places: dict[Path, str] = {}
    for source in sorted(found, key=Path.is_symlink):
        places.setdefault(source.resolve(), source.relative_to(run).as_posix())
    for source in found:
        name = source.relative_to(run).as_posix()
        first = places[source.resolve()]
        if first != name:
            yield Outcome(name, "skipped", source, out / name, f"is a link to {first}")
            continue
        yield _one(name, source, out / name, formats, options)


def _one(name: str, source: Path, out: Path, formats: tuple[str, str], options: Mapping[str, Any]) -> Outcome:
    try:
        receipt = find_receipt(out)
        if receipt is not None and _is_intact(out, receipt) and _is_current(receipt, source, formats, options):
            return Outcome(name, "unchanged", source, out)
        convert(source, out, *formats, force=receipt is not None, **options)
    except Eagle3ConvertError as error:
        return Outcome(name, "failed", source, out, str(error))
    return Outcome(name, "converted", source, out)


def _is_current(receipt: Mapping[str, Any], source: Path, formats: tuple[str, str], options: Mapping[str, Any]) -> bool:
    """Whether ``receipt`` is of this source, as it is now, converted in this way, into what is there now."""
    told, made, report = receipt["source"], receipt["destination"], receipt["verification"]
    verified = report is not None and report["passed"] and made["format"] == formats[1]
    same_source = Path(told["path"]).resolve() == source.resolve() and HubOrigin.of(told) is None
    if not (verified and same_source and formats[0] in ("auto", told["format"]) and _same_way(receipt, options)):
        return False
    sizes = {item["name"]: item["bytes"] for item in told["files"]}
    try:
        written = datetime.fromisoformat(receipt["created"]).timestamp()
    except ValueError:
        return False
    with open_checkpoint(source) as checkpoint:
        files = [*checkpoint.files, source / "config.json", *source.glob("*.index.json")]
        now = {file.name: file.stat().st_size for file in checkpoint.files}
    return now == sizes and all(file.stat().st_mtime < written for file in files)


def _same_way(receipt: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    """Whether the statements of the earlier conversion are those of this one."""
    stated = Options(**{key: value for key, value in options.items() if key in Options.__dataclass_fields__})
    said, made = receipt["assumptions"], receipt["destination"]
    layers = list(stated.aux_layers) if stated.aux_layers is not None else None
    dtype = DTYPES[stated.dtype] if stated.dtype else None
    facts = stated.verifier_facts()
    return bool(
        said["assume"] == dict(stated.assume or {})
        and said["aux_layers"] == layers
        and said["d2t_encoding"] == stated.d2t_encoding
        and made["dtype"] == dtype
        and (made["engine_version"] or "") == stated.engine_version
        and (facts.name is None or receipt["verifier"]["name"] == facts.name)
    )


def _is_intact(out: Path, receipt: Mapping[str, Any]) -> bool:
    """Whether a converted folder is still as its receipt says."""
    try:
        with open_checkpoint(out) as checkpoint:
            return bool(receipt["written"] == fingerprint_of(checkpoint))
    except CheckpointError:
        return False
