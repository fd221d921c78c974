"""The receipt: `eagle3convert.json` beside every output says what was done, and remembers what the way back needs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle3convert.byteops import Cast
from eagle3convert.canonical import VOCAB_TENSORS
from eagle3convert.checkpoint.source import Checkpoint
from eagle3convert.destination import Restoration
from eagle3convert.errors import CheckpointError
from eagle3convert.fields import ConfigSpelling
from eagle3convert.nested import ABSENT, difference
from eagle3convert.planning import Plan
from eagle3convert.verification import Verification
from eagle3convert.version import __version__

RECEIPT_FILE = "eagle3convert.json"
RECEIPT_VERSION = 1


def fingerprint(config: Mapping[str, Any], tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> str:
    """A hash of a config and of tensor names, dtypes and shapes: whether a folder is still as it was written."""
    table = {name: [dtype, list(shape)] for name, (dtype, shape) in tensors.items()}
    text = json.dumps([config, table], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def fingerprint_of(checkpoint: Checkpoint) -> str:
    """The fingerprint of a checkpoint as it is now."""
    return fingerprint(checkpoint.config, {n: (t.dtype, t.shape) for n, t in checkpoint.tensors.items()})


def _written(plan: Plan) -> str:
    return fingerprint(plan.output.config, {n: (r.dtype, r.shape) for n, r in plan.output.tensors.items()})


def make_receipt(plan: Plan, verification: Verification | None, created: str) -> dict[str, Any]:
    """The receipt of a conversion; `created` is a time in ISO 8601."""
    reading, statements = plan.drafter.reading, plan.drafter.reading.statements
    described = plan.as_json()
    return {
        "receipt": RECEIPT_VERSION,
        "eagle3convert": __version__,
        "created": created,
        "source": {
            "format": reading.schema.name,
            **reading.checkpoint.provenance(),
            "files": [{"name": file.name, "bytes": file.stat().st_size} for file in reading.checkpoint.files],
        },
        "destination": {
            "format": plan.destination.schema.name,
            "lowest_release": plan.destination.lowest_release,
            "engine_version": plan.destination.release or None,
            "dtype": plan.destination.dtype,
        },
        "launch": described["launch"],
        "tensors": described["tensors"],
        "left_out": described["left_out"],
        "assumptions": {
            "assume": dict(statements.assume),
            "aux_layers": list(statements.aux_layers) if statements.aux_layers is not None else None,
            "d2t_encoding": statements.d2t_encoding,
        },
        "verifier": reading.verifier.as_json(),
        "findings": described["findings"],
        "verification": verification.as_json() if verification is not None else None,
        "written": _written(plan),
        "carried": _carried(plan),
    }


def _carried(plan: Plan) -> dict[str, Any]:
    """What the destination cannot hold and the way back restores."""
    drafter, reading = plan.drafter, plan.drafter.reading
    fields = dict(drafter.fields)
    again = ConfigSpelling(reading.schema).encode(_as_source_ids(plan, fields), drafter.source_decoder)
    lost = plan.destination.encode_config.residue
    return {
        "config_patch": difference(again, reading.checkpoint.config),
        "names": {c: n for c, n in reading.names.names.items() if n != reading.spelling.written(c)},
        "dtypes": {name: old for name, old, new in plan.destination.casts if Cast(old, new).exact},
        "vocab_encoding": reading.vocab.encoding,
        "vocab_tensors": {n: t.dtype for n in VOCAB_TENSORS if (t := reading.tensor(n)) is not None},
        "permutation": list(drafter.permutation),
        "metadata": dict(reading.checkpoint.metadata),
        "facts": {k: v for k, v in lost.items() if k in REMEMBERED and v is not ABSENT},
    }  # fmt: skip


REMEMBERED = frozenset({"norm_before_residual", "norm_output", "norm_before_fc", "fc_norm"})


def _as_source_ids(plan: Plan, fields: dict[str, Any]) -> dict[str, Any]:
    """The canonical fields with the aux layers in the source format's own numbering, as its encode wants them."""
    from eagle3convert.destination import Destination

    reading = plan.drafter.reading
    ids = Destination(plan.drafter, reading.schema).aux_ids
    if ids is None:
        fields.pop("aux_layers", None)
    else:
        fields["aux_layers"] = ids
    return fields


def load_receipt(folder: Path) -> dict[str, Any]:
    """The receipt in a folder; CheckpointError where there is none, or it is not what this version writes."""
    file = folder / RECEIPT_FILE
    try:
        receipt = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{file}: there is no receipt of a conversion here.") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: the receipt cannot be read ({error}).") from error
    if not isinstance(receipt, dict) or receipt.get("receipt") != RECEIPT_VERSION:
        raise CheckpointError(f"{file}: this is no receipt that this version of eagle3convert reads.")
    from eagle3convert.receipt_model import complaint

    if wrong := complaint(receipt):
        raise CheckpointError(f"{file}: the receipt is not as it was written: {wrong}.")
    return receipt


def find_receipt(folder: Path) -> dict[str, Any] | None:
    """The receipt in a folder, or None where `load_receipt` would complain."""
    try:
        return load_receipt(folder)
    except CheckpointError:
        return None


def read_receipt(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """The receipt beside a checkpoint; None where there is none, or the folder is no longer as it was written."""
    receipt = find_receipt(checkpoint.path)
    if receipt is None:
        return None
    return receipt if receipt["written"] == fingerprint_of(checkpoint) else None


def restoration_for(receipt: Mapping[str, Any] | None, source: str, destination: str) -> Restoration | None:
    """What a receipt remembers for the way back from `source` to `destination`; None where it is another way."""
    if receipt is None or (receipt["destination"]["format"], receipt["source"]["format"]) != (source, destination):
        return None
    carried = receipt["carried"]
    return Restoration(
        tuple(carried["config_patch"]),
        carried["names"],
        carried["dtypes"],
        carried["vocab_encoding"],
        carried["vocab_tensors"],
        tuple(carried["permutation"]),
        carried["metadata"],
        receipt["assumptions"],
    )


def remembered(receipt: Mapping[str, Any] | None, source: str) -> dict[str, Any]:
    """Facts of the drafter and its verifier that a receipt holds and the config of this folder cannot."""
    if receipt is None or receipt["destination"]["format"] != source:
        return {}
    return {"verifier": receipt["verifier"], **receipt["carried"]["facts"]}


def write_receipt(folder: Path, receipt: Mapping[str, Any]) -> None:
    (folder / RECEIPT_FILE).write_text(json.dumps(receipt, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
