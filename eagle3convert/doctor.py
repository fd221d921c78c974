"""The doctor: why a drafter accepts nothing, said before any engine starts."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3convert.checkpoint.source import Checkpoint
from eagle3convert.destination import Destination
from eagle3convert.drafter import Drafter
from eagle3convert.errors import UsageError
from eagle3convert.findings import Finding, Severity
from eagle3convert.formats import find_format
from eagle3convert.hub.opening import open_source
from eagle3convert.identify import source_schema
from eagle3convert.options import Options
from eagle3convert.planning import Plan
from eagle3convert.reading import Reading
from eagle3convert.receipt import read_receipt, remembered
from eagle3convert.rules import Case, all_rules, lint, skipped
from eagle3convert.schema import FormatSchema
from eagle3convert.schema_reader import Fault
from eagle3convert.served import ServedReading, unreadable
from eagle3convert.values import scan
from eagle3convert.vocab import to_targets

if TYPE_CHECKING:
    from eagle3convert.doctor_report import DoctorReport

FIRST_ROWS = 5
ORDER = ("E524", "E521", "E523", "E101", "E102", "E212", "E311", "E312", "E401", "E410", "E108", "E109")
"""Codes in the order of how decisively they end a drafter; the others follow by severity."""


@dataclass(frozen=True)
class Examination:
    """What the doctor found, with everything that the report is made of."""

    case: Case
    everything: tuple[Finding, ...]  # all of them: the verdict does not depend on what is listed
    findings: tuple[Finding, ...]  # those that were selected and not ignored
    skipped: dict[str, str]
    options: Options

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.everything if f.severity is Severity.ERROR)

    @property
    def engine(self) -> FormatSchema | None:
        return self.case.destination.schema if self.case.destination is not None else None

    def outcome(self) -> str:
        """What the engine will do: one of the values of `DoctorReport.outcome`."""
        codes = {f.code for f in self.errors}
        if codes & UNTOLD:
            return "not examined"
        if any(map(self._stops, self.errors)):
            return "fail to start"
        if UNSAID in codes:
            return "not examined"
        return "load and accept almost nothing" if codes else "draft as trained"

    def _stops(self, finding: Finding) -> bool:
        """Whether the engine does not start because of this; some engines do not start where others go on."""
        reader = self.engine.reader if self.engine is not None else None
        fault = BY_READER.get(finding.code)
        strict = reader is not None and fault is not None and reader.stops_at(fault, finding.code == BEYOND)
        return strict or finding.code in STOPPING or finding.data.get("outcome") == "stops"

    def verdict(self) -> str:
        """The answer in one paragraph."""
        engine, path = self.engine, self.case.reading.checkpoint.label
        because = "; ".join(f.message.rstrip(".") for f in self.errors[:3])
        more = f" (and {len(self.errors) - 3} more)" if len(self.errors) > 3 else ""
        if engine is None or self.case.destination is None:
            if not self.errors:
                return f"{path}: nothing is wrong with this {self.case.source} drafter that its files can show."
            return f"{path}: this {self.case.source} drafter is unsound, because {because}{more}."
        if self.outcome() == "not examined":
            return f"{path}: how {engine.product} would serve this drafter cannot be told, because {because}{more}."
        served = f"Served by {engine.product} {self.case.destination.version} as it stands"
        head = f"{served}, this drafter will {self.outcome()}"
        if self.errors:
            return f"{head}, because {because}{more}."
        warnings = sum(f.severity is Severity.WARNING for f in self.everything)
        return f"{head}, as far as its files can show{f'; {warnings} warning(s) follow' if warnings else ''}."

    def mend(self) -> str | None:
        """The command that makes a folder which the engine serves as trained, or None where nothing would."""
        dest = self.case.destination
        if dest is None or not self.everything:
            return None
        path, source = self.case.reading.checkpoint.label, self.case.reading.schema.name
        codes = {f.code for f in Plan(self.case.drafter, dest, self.case.weights_of_verifier).errors}
        if codes - {"E306"} or not any(f.code in MENDED for f in self.errors):
            return None
        words = ["eagle3convert", source, dest.schema.name, path, f"{path}-{dest.schema.name}"]
        stated = {
            "--verifier": self.options.verifier,
            "--verifier-config": self.options.verifier_config,
            "--d2t-encoding": self.options.d2t_encoding,
        }
        if self.options.aux_layers is not None:
            stated["--aux-layers"] = ",".join(map(str, self.options.aux_layers))
        words += [word for flag, value in stated.items() if value is not None for word in (flag, str(value))]
        words += [
            w for key, value in (self.options.assume or {}).items() for w in ("--assume", f"{key}={json.dumps(value)}")
        ]
        return shlex.join(words) + (" --verifier-config VERIFIER/config.json" if codes else "")

    def served_by(self) -> list[str]:
        """The other engines that could serve this drafter as it was trained, where this one cannot."""
        dest = self.case.destination
        if dest is None or self.mend() is not None or not self.errors:
            return []
        return Plan(self.case.drafter, dest, self.case.weights_of_verifier).served_by()

    # --- what the engine will see -------------------------------------------------------------------------------------

    def aux_table(self) -> list[dict[str, Any]]:
        """fc block -> the state it was trained on and the one that the engine feeds it, in hidden_states numbering."""
        served = self.case.served
        trained = self.case.reading.aux.trained
        if served is None or trained is None:
            return []
        fed = served.aux.ascending or ()
        rows = max(len(trained), len(fed))
        return [
            {
                "fc_block": i,
                "trained": trained[i] if i < len(trained) else None,
                "served": fed[i] if i < len(fed) else None,
            }
            for i in range(rows)
        ]

    def map_table(self) -> list[dict[str, Any]]:
        """The first rows of draft id -> target id, as trained and as the engine reads them."""
        vocab, engine = self.case.reading.vocab, self.engine
        if vocab.values is None or vocab.targets is None or engine is None:
            return []
        read = to_targets(vocab.values[:FIRST_ROWS], engine.vocab_map.encoding)
        return [{"draft_id": i, "trained": vocab.targets[i], "served": t} for i, t in enumerate(read)]

    def report(self) -> DoctorReport:
        """The report as its Pydantic model, which `--json` prints."""
        from eagle3convert.doctor_report import DoctorReport, FindingReport

        dest = self.case.destination
        return DoctorReport(
            path=self.case.reading.checkpoint.label,
            format=self.case.reading.schema.name,
            engine=dest.schema.name if dest is not None else None,
            release=dest.version if dest is not None else None,
            outcome=self.outcome() if dest is not None else None,
            verdict=self.verdict(),
            findings=[FindingReport.model_validate(f.as_json()) for f in self.findings],
            aux_layers=self.aux_table(),
            vocab_map=self.map_table(),
            mend=self.mend(),
            served_by=self.served_by(),
            skipped=self.skipped,
        )


STOPPING = frozenset({"E104", "E301", "E303", "E207", "E507", "E501"})
"""Errors at which every engine stops at start: shapes that do not fit."""
BY_READER: dict[str, Fault] = {
    "E101": "missing_tensors", "E102": "unknown_tensors", "E201": "wrong_map", "E202": "wrong_map",
    "E203": "wrong_map", "E204": "wrong_map", "E211": "wrong_map", "E403": "missing_tensors",
}  # fmt: skip
"""Which word of a reader says whether it starts with a drafter that has this fault."""
BEYOND = "E201"
"""Ids beyond the vocabulary: some engines stop at these, and propose by other wrong maps."""
UNTOLD = frozenset({"E105", "E106", "E510", "E209", "E406"})
"""Errors after which nothing can be said of how an engine would serve it: another method, a false statement."""
UNSAID = "E402"
"""How it was trained is not known; whether the engine starts is."""
MENDED = frozenset({
    "E108", "E109", "E212", "E311", "E312", "E410", "E521", "E522", "E523", "E524", "E526",
})  # fmt: skip
"""Errors of a folder as it stands that a conversion mends."""


def examine(
    folder: str | Path,
    engine: str | None = None,
    *,
    format_name: str = "auto",
    engine_version: str = "",
    values: bool = True,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    advance: Callable[[int], None] | None = None,
    **stated: Any,
) -> Examination:
    """Examine the drafter in a folder, for an engine's format where `engine` names one.

    `values` scans every element of the weights.  `select` and `ignore` are codes or beginnings of codes.  Keyword
    arguments beyond these are the fields of `eagle3convert.Options`.
    """
    options = Options(engine_version=engine_version, **stated)
    with open_source(folder) as checkpoint:
        case = make_case(checkpoint, engine, format_name, options, values, advance)
        everything = tuple(sorted(lint(case), key=_decisive))
        found = Examination(case, everything, _chosen(everything, select, ignore), skipped(case), options)
        found.report()  # everything that reads the files, while they are open
        return found


def make_case(
    checkpoint: Checkpoint,
    engine: str | None,
    format_name: str,
    options: Options,
    values: bool,
    advance: Callable[[int], None] | None,
) -> Case:
    """The case of a checkpoint: as its own format reads it, and as the engine would take it."""
    receipt = read_receipt(checkpoint)
    schema = source_schema(checkpoint, format_name, receipt)
    drafter = Drafter(Reading(checkpoint, schema, options.statements(remembered(receipt, schema.name))))
    destination, served = None, None
    if engine is not None:
        wanted = find_format(engine, options.format_files)
        if wanted.role != "engine":
            raise UsageError(
                f"--for {engine}: {wanted.product} trains drafters and does not serve them; name an engine."
            )
        destination = Destination(drafter, wanted, options.engine_version)
        if unreadable(wanted, checkpoint, schema.name) is None:
            served = ServedReading(checkpoint, wanted, schema.name, destination.version, drafter.reading.verifier)
    stats = scan(checkpoint.tensors.values(), advance) if values and not checkpoint.is_remote else None
    weights = options.verifier_weights()
    return Case(drafter, destination, served, stats, weights, examined=True)


def _chosen(found: Sequence[Finding], select: Sequence[str], ignore: Sequence[str]) -> tuple[Finding, ...]:
    known = tuple(rule.code() for rule in all_rules())
    for prefix in (*select, *ignore):
        if not any(code.startswith(prefix) for code in known):
            raise UsageError(f"{prefix}: no code begins so. `eagle3convert explain` lists them.")
    return tuple(
        f
        for f in found
        if (not select or f.code.startswith(tuple(select))) and not (ignore and f.code.startswith(tuple(ignore)))
    )


def _decisive(finding: Finding) -> tuple[int, int]:
    severity = [Severity.ERROR, Severity.WARNING, Severity.NOTE].index(finding.severity)
    return severity, ORDER.index(finding.code) if finding.code in ORDER else len(ORDER)
