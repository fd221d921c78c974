"""DoctorReport: the stable JSON of `eagle3convert doctor --json`, and the text that says the same.

The JSON Schema is `schemas/doctor.schema.json`.  Fields and codes are stable: new ones may come, none change meaning.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from eagle3convert.canonical import fold_names


class FindingReport(BaseModel):
    """One finding: its stable code, how serious and how sure it is, what it is about, and its sentences."""

    model_config = ConfigDict(extra="forbid")

    code: str
    severity: Literal["error", "warning", "note"]
    confidence: Literal["fact", "inference"]
    subject: str = Field(description="The tensor, field or file that it is about.")
    message: str
    remedy: str
    data: dict[str, Any]


class DoctorReport(BaseModel):
    """Everything that the doctor says of one drafter."""

    model_config = ConfigDict(extra="forbid")

    path: str
    format: str = Field(description="The format that the drafter is in.")
    engine: str | None = Field(description="The format of the engine asked for.")
    release: str | None
    outcome: Literal["draft as trained", "load and accept almost nothing", "fail to start", "not examined"] | None
    verdict: str
    findings: list[FindingReport]
    aux_layers: list[dict[str, Any]] = Field(description="fc block -> hidden_states index, as trained and as served.")
    vocab_map: list[dict[str, Any]] = Field(
        description="First rows of draft id -> target id, as trained and as served."
    )
    mend: str | None = Field(description="The command that mends it, where there is one.")
    served_by: list[str] = Field(description="Other engines that can serve the drafter as it was trained.")
    skipped: dict[str, str] = Field(description="Codes that could not be checked, with the reason.")


def report_lines(report: DoctorReport, notes: bool = False) -> list[str]:
    """The report as text: the answer, the findings, what the engine will see, the command that mends it."""
    shown = [f for f in report.findings if notes or f.severity != "note"]
    lines = [report.verdict, ""]
    for code, severity, remedy in dict.fromkeys((f.code, f.severity, f.remedy) for f in shown):
        group = [f for f in shown if (f.code, f.severity, f.remedy) == (code, severity, remedy)]
        folded = fold_names([f.message for f in group]) if len(group) > 2 else [f.message for f in group]
        lines += [f"  {code} {severity}: {message}" for message in folded]
        if remedy:
            lines.append(f"      {remedy}")
    lines += _tables(report)
    if report.mend is not None:
        lines += ["", "This command mends it:", f"  {report.mend}"]
    if report.served_by:
        lines += ["", f"{' and '.join(report.served_by)} can serve this drafter as it was trained."]
    if notes and report.skipped:
        reasons = dict.fromkeys(report.skipped.values())
        lines += ["", "Not checked:"]
        lines += [f"  {', '.join(c for c, r in report.skipped.items() if r == reason)}: {reason}" for reason in reasons]
    return lines


def _tables(report: DoctorReport) -> list[str]:
    lines = []
    if report.aux_layers:
        lines += ["", "  fc block   trained on hidden_states   fed by the engine"]
        lines += [
            f"  {r['fc_block']:>8}   {_cell(r['trained']):>24}   {_cell(r['served']):>17}" for r in report.aux_layers
        ]
    if report.vocab_map:
        lines += ["", "  draft id   target id as trained   as the engine reads it"]
        lines += [
            f"  {r['draft_id']:>8}   {_cell(r['trained']):>20}   {_cell(r['served']):>22}" for r in report.vocab_map
        ]
    return lines


def _cell(value: int | None) -> str:
    return "?" if value is None else str(value)
