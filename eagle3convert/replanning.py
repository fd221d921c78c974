"""The plan of a conversion that was made before, from the receipt that it left beside its output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from eagle3convert.checkpoint.source import Checkpoint
from eagle3convert.errors import CheckpointError
from eagle3convert.formats import find_format
from eagle3convert.options import Options
from eagle3convert.planning import DTYPES, Plan, make_plan
from eagle3convert.receipt import load_receipt, read_receipt, remembered, restoration_for


def replan(checkpoint: Checkpoint, out: Path, format_files: Sequence[str | Path] = ()) -> Plan:
    """The plan by which `out` was made from a checkpoint, as the receipt in `out` tells it."""
    try:
        receipt = load_receipt(out)
    except CheckpointError as error:
        raise CheckpointError(f"{error} So nothing says how {out} was made. Convert again.") from error
    said, made = receipt["assumptions"], receipt["destination"]
    own = read_receipt(checkpoint)
    facts = {"verifier": receipt["verifier"], **remembered(own, receipt["source"]["format"])}
    options = Options(assume=said["assume"], aux_layers=said["aux_layers"], d2t_encoding=said["d2t_encoding"])
    schema, destination = (find_format(n, format_files) for n in (receipt["source"]["format"], made["format"]))
    back = restoration_for(own, schema.name, destination.name)
    dtype = next((name for name, kind in DTYPES.items() if kind == made["dtype"]), None)
    release = made["engine_version"] or ""
    return make_plan(checkpoint, schema, destination, options.statements(facts), release, dtype, back)
