"""convert, plan and verify: the whole way from a drafter in one format to a proven drafter in another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3convert.checkpoint.output import OutputFolder
from eagle3convert.checkpoint.source import Checkpoint
from eagle3convert.checkpoint.writer import OutputTensor, write_weights
from eagle3convert.errors import CheckpointError, UsageError, VerificationFailed
from eagle3convert.formats import find_format
from eagle3convert.hub.opening import fetched, open_source
from eagle3convert.identify import contradiction, source_schema
from eagle3convert.options import WANT_VERIFIER, Options, facts_from_hub
from eagle3convert.planning import DTYPES, Plan, make_plan
from eagle3convert.receipt import (
    make_receipt,
    read_receipt,
    remembered,
    restoration_for,
    write_receipt,
)
from eagle3convert.replanning import replan
from eagle3convert.schema import FormatSchema
from eagle3convert.verification import Progress, Verification, verify_output

if TYPE_CHECKING:
    from eagle3convert.reference.compare import NumericReport

CONFIG_FILE = "config.json"


@dataclass(frozen=True)
class Result:
    """A finished conversion: the folder, its plan, its verification report and its receipt."""

    path: Path
    plan: Plan
    verification: Verification
    receipt: dict[str, Any]
    notes: tuple[str, ...] = ()
    numeric: NumericReport | None = None


def plan(
    source: str | Path, source_format: str, destination_format: str, options: Options | None = None, **stated: Any
) -> Plan:
    """Plan the conversion of the drafter in the folder `source`; nothing is written.

    `source_format` may be "auto".  The keyword arguments are the fields of `Options`.  What stands against the
    conversion is in the plan's `errors`; a source that cannot be read is a CheckpointError.
    """
    return plan_checkpoint(open_source(source), source_format, destination_format, options or Options(**stated))


def plan_checkpoint(checkpoint: Checkpoint, source_format: str, destination_format: str, options: Options) -> Plan:
    """Plan the conversion of an open checkpoint."""
    if options.dtype is not None and options.dtype not in DTYPES:
        raise UsageError(f"dtype {options.dtype!r}: say one of {', '.join(DTYPES)}.")
    receipt = read_receipt(checkpoint)
    destination = find_format(destination_format, options.format_files)
    schema = source_schema(checkpoint, source_format, receipt, options.format_files)
    if source_format != "auto":
        refuse_contradiction(checkpoint, schema)
    statements = options.statements(remembered(receipt, schema.name))
    back = restoration_for(receipt, schema.name, destination.name)
    weights, how = options.verifier_weights(), (options.engine_version, options.dtype, back)
    planned = make_plan(checkpoint, schema, destination, statements, *how, weights)
    wanting = next((f for f in planned.errors if f.code in WANT_VERIFIER), None)
    facts = facts_from_hub(options, wanting.message) if wanting is not None else None
    if facts is None:
        return planned
    statements = replace(statements, verifier=statements.verifier.filled_from(facts))
    return make_plan(checkpoint, schema, destination, statements, *how, weights)


def refuse_contradiction(checkpoint: Checkpoint, schema: FormatSchema) -> None:
    """A stated format that a field of the config rules out is refused by that field."""
    field = contradiction(checkpoint, schema)
    if field is not None:
        raise CheckpointError(
            f"{checkpoint.label}: config.json has {field}, so this is no {schema.name} drafter. "
            f"`eagle3convert inspect {checkpoint.label}` says which format it is; `auto` as a source format finds it."
        )


def convert(
    source: str | Path,
    out: str | Path,
    source_format: str,
    destination_format: str,
    *,
    force: bool = False,
    max_shard_size: int | None = None,
    progress: Progress | None = None,
    durable: bool = True,
    verify: bool = True,
    numeric: bool = False,
    **stated: Any,
) -> Result:
    """Convert the drafter in the folder `source` and write it, verified, to the folder `out`.

    Keyword arguments beyond those named are the fields of `Options`.  `progress` is called with the number of bytes
    written or compared since the last call.  `durable` waits for the disk.  Raises Refused with every reason, where the
    destination would compute something else; CheckpointError, OutputError or VerificationFailed otherwise.  In every
    such case `out` is as it was before.  `verify=False` is for measuring only: such an output says that it is unproven.
    """
    options = Options(**stated)
    with open_source(source) as checkpoint:
        planned = plan_checkpoint(checkpoint, source_format, destination_format, options)
        with on_this_machine(planned, source_format, destination_format, options) as planned:
            return write_plan(
                planned,
                Path(out),
                force=force,
                max_shard_size=max_shard_size,
                progress=progress,
                durable=durable,
                check=verify,
                numeric=numeric,
            )


@contextmanager
def on_this_machine(planned: Plan, source_format: str, destination_format: str, options: Options) -> Iterator[Plan]:
    """The plan over weights that are here: once it holds, a drafter on the Hub is downloaded and planned again."""
    planned.demand()
    checkpoint = planned.drafter.reading.checkpoint
    with fetched(checkpoint) as local:
        if local is not checkpoint:
            planned = plan_checkpoint(local, source_format, destination_format, options)
            planned.demand()
        yield planned


def write_plan(
    planned: Plan,
    out: Path,
    *,
    force: bool = False,
    max_shard_size: int | None = None,
    progress: Progress | None = None,
    durable: bool = True,
    check: bool = True,
    numeric: bool = False,
) -> Result:
    """Carry out a plan: write beside `out`, verify, and rename into place only what passed.

    `numeric` also runs the reference forward pass (torch) on both and demands that they compute the same.
    """
    checkpoint = planned.drafter.reading.checkpoint
    folder = OutputFolder(out, force=force, durable=durable, source=checkpoint.path)
    with folder as tmp:
        metadata = output_metadata(planned)
        write_weights(tmp, output_tensors(planned), metadata, max_shard_size, progress, durable=False)  # folder syncs
        write_config(tmp, planned.output.config)
        report = verify_output(planned, tmp, progress) if check else Verification({"all": "skipped"}, ["skipped"])
        if check and not report.passed:
            raise VerificationFailed(
                f"{out}: not written, for what was written failed its verification: {' '.join(report.defects)} "
                f"The source is untouched. This is a defect of eagle3convert or of the disk: please report it."
            )
        numbers = _numbers(planned, tmp, out) if numeric else None
        receipt = make_receipt(planned, report, datetime.now(UTC).isoformat(timespec="milliseconds"))
        if numbers is not None:
            receipt["numeric"] = numbers.as_json()
        write_receipt(tmp, receipt)
    return Result(out, planned, report, receipt, tuple(folder.notes), numbers)


def _numbers(planned: Plan, written: Path, out: Path) -> NumericReport:
    """A plan's source against what was written for it, in numbers; VerificationFailed where they differ."""
    from eagle3convert.reference.compare import compare_plan

    numbers = compare_plan(planned, written)
    if not numbers.equal:
        raise VerificationFailed(f"{out}: not written, for it computes something else. {' '.join(numbers.lines())}")
    return numbers


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    import json

    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def output_tensors(planned: Plan) -> list[OutputTensor]:
    """The plan's tensors as the writer wants them: bytes of the source, or blocks made on the way."""
    tensors = planned.drafter.reading.checkpoint.tensors
    rows = []
    for name, row in planned.output.tensors.items():
        stored = tensors[row.origin] if row.origin is not None else None
        if stored is not None and not row.ops:
            rows.append(OutputTensor(name, row.dtype, row.shape, stored))
            continue
        rows.append(OutputTensor(name, row.dtype, row.shape, None, partial(row.blocks, stored)))
    return rows


def output_metadata(planned: Plan) -> dict[str, str]:
    """The safetensors metadata: the source's, with the `format` that transformers insists on."""
    back = planned.destination.restoration
    if back is not None and back.metadata:
        return dict(back.metadata)
    return {"format": "pt"} | dict(planned.drafter.reading.checkpoint.metadata)


def verify(
    source: str | Path,
    out: str | Path,
    *,
    format_files: Sequence[str | Path] = (),
    progress: Progress | None = None,
) -> Verification:
    """Verify an existing conversion again: `out` against the folder `source` that it was made from.

    The formats and everything that was stated are taken from the receipt in `out`; formats of the user's own are read
    from `format_files` again.
    """
    with open_source(source) as checkpoint:
        planned = replan(checkpoint, Path(out), format_files)
        planned.demand()
        return verify_output(planned, Path(out), progress)
