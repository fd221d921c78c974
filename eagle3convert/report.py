"""What the command line shows: plans, results, formats, a progress bar, and defects of eagle3convert itself."""

from __future__ import annotations

import platform
import sys
import tempfile
import traceback
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

from eagle3convert.findings import Severity
from eagle3convert.version import __version__

if TYPE_CHECKING:
    from eagle3convert.conversion import Result
    from eagle3convert.planning import Plan
    from eagle3convert.schema import FormatSchema

BAR_FROM = 64 << 20  # bytes from which on a progress bar is worth its import


class _OnStderr:
    """A progress bar on stderr, imported and shown only where there is a terminal to show it on."""

    def __init__(self, hidden: bool, **shown: Any) -> None:
        self._hidden = hidden or not sys.stderr.isatty()
        self._shown = shown
        self._bar: Any = None

    def __enter__(self) -> Self:
        if not self._hidden:
            from tqdm import tqdm

            self._bar = tqdm(leave=False, **self._shown)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()


class Bar(_OnStderr):
    """A progress bar over so many bytes, or over those of a folder; silent for small drafters."""

    def __init__(self, what: str, size: int | Path, hidden: bool) -> None:
        total = size if isinstance(size, int) else _folder_size(size)
        super().__init__(hidden or total < BAR_FROM, total=total, unit="B", unit_scale=True, desc=what)

    def advance(self, count: int) -> None:
        if self._bar is not None:
            self._bar.update(count)


class Steps(_OnStderr):
    """A progress bar over a number of runs that is known only while they are made."""

    def __init__(self, what: str, hidden: bool) -> None:
        super().__init__(hidden, desc=what)

    def at(self, done: int, most: int) -> None:
        """So many runs are done, of so many at the most."""
        if self._bar is not None:
            self._bar.total = most
            self._bar.update(done - self._bar.n)


def conversion_bar(plan: Plan, hidden: bool) -> Bar:
    """The bar of a conversion: every byte is written once and verified once."""
    return Bar(
        "convert and verify", 2 * sum(t.nbytes for t in plan.drafter.reading.checkpoint.tensors.values()), hidden
    )


def _folder_size(folder: Path) -> int:
    try:
        return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    except OSError:
        return 0


def print_findings(plan: Plan, notes: bool, quiet: bool) -> None:
    """Warnings (and notes where asked for) on stderr; errors come with the refusal."""
    wanted = {Severity.WARNING, Severity.NOTE} if notes else {Severity.WARNING}
    for finding in plan.findings:
        if finding.severity in wanted and not quiet:
            click.echo(str(finding), err=True)
    for note in plan.drafter.reading.checkpoint.notes:
        if notes:
            click.echo(f"note: {note}", err=True)


def print_plan(plan: Plan, out: str) -> None:
    for line in plan.lines():
        click.echo(line)
    if plan.launch:
        click.echo(f"launch: {plan.launch_command(out)}")
        _print_note(plan)


def _print_note(plan: Plan) -> None:
    if note := plan.destination.schema.launch_note:
        click.echo(f"  {note}")


def print_result(result: Result, verbose: bool) -> None:
    plan = result.plan
    reading, destination = plan.drafter.reading, plan.destination
    if verbose:
        print_plan(plan, str(result.path))
    checks = result.verification.checks
    way = f"{reading.schema.name} -> {destination.schema.name}"
    click.echo(f"{result.path}: {way}, verified: {checks['bytes']}; the way back gives the source again.")
    if reading.vocab.encoding is not None:
        there = destination.schema.vocab_map.encoding
        same = "bytes unchanged" if there == reading.vocab.encoding else "recoded"
        click.echo(f"d2t: {reading.vocab.encoding} -> {there}, {same}")
    if destination.states is not None:
        written = (
            f"written as {list(destination.aux_ids)}" if destination.aux_ids is not None else "the format's default"
        )
        click.echo(f"aux layers: hidden_states {list(destination.states)}, {written}")
    if unread := plan.embedding_not_compared:
        click.echo(f"embed_tokens: {destination.schema.embed_reason} Not compared: {unread}.")
    if destination.schema.role == "engine":
        click.echo(f"served by {destination.schema.product} >= {destination.lowest_release}:")
        click.echo(f"  {plan.launch_command(str(result.path))}")
        _print_note(plan)
    if result.numeric is not None:
        click.echo("\n".join(result.numeric.lines()))
    for note in result.notes:
        click.echo(note, err=True)


def format_lines(schema: FormatSchema) -> list[str]:
    """A format as text: what it spells how, what it can say, and on what evidence."""
    aux, vocab = schema.aux_layers, schema.vocab_map
    lines = [
        f"{schema.name}: {schema.title}",
        f"{schema.role}, {schema.product} {schema.releases[0]} to {schema.releases[1]}",
        "tensors (canonical = written; also read):",
    ]
    for canonical, spelling in schema.spellings().items():
        also = f"; also {', '.join(spelling.accepts)}" if spelling.accepts else ""
        since = f" (since {spelling.accepts_since})" if spelling.accepts_since else ""
        lines.append(f"  {canonical} = {spelling.write}{also}{since}")
    lines += [
        "  every other tensor under its canonical name",
        f"d2t: {vocab.encoding}; t2d: {vocab.t2d}; with a full vocabulary: {vocab.full}",
        f"aux layers: {', '.join(aux.keys) or 'no field'}; numbering {aux.convention}; absent means "
        f"[{', '.join(aux.default)}] of hidden_states",
    ]
    for family in aux.families:
        if family.convention:
            since = f" since {family.convention_since}" if family.convention_since else ""
            lines.append(f"  for {', '.join(family.model_types)}: {family.convention}{since}")
        if family.broken_since:
            lines.append(f"  for {', '.join(family.model_types)}: from {family.broken_since} on it {family.broken}")
    lines.append("features:")
    for name, rule in schema.features.items():
        if rule.any_value:
            said = "any value"
        elif rule.is_fixed:
            said = f"only {rule.fixed}: {rule.reason}"
        else:
            said = f"{rule.config_key}"
        since = f" (since {rule.since})" if rule.since else ""
        lines.append(f"  {name}: {said}{since}")
        if rule.caution:
            lines.append(f"    {rule.caution}")
    if schema.launch_note:
        lines.append(schema.launch_note)
    evidence = [*schema.evidence, *vocab.evidence, *aux.evidence]
    evidence += [f"{', '.join(family.model_types)}: {line}" for family in aux.families for line in family.evidence]
    evidence += [f"{name}: {line}" for name, rule in schema.features.items() for line in rule.evidence]
    return [*lines, "evidence:", *(f"  {line}" for line in evidence)]


def report_defect(error: Exception) -> None:
    """Say that eagle3convert is at fault, and keep what is needed to mend it in a file."""
    with tempfile.NamedTemporaryFile("w", prefix="eagle3convert-defect-", suffix=".log", delete=False) as log:
        log.write(f"eagle3convert {__version__}, Python {platform.python_version()}, {platform.platform()}\n")
        log.write(f"arguments: {sys.argv[1:]}\n\n")
        log.write("".join(traceback.format_exception(error)))
    click.echo(
        f"eagle3convert: this is a defect of eagle3convert ({type(error).__name__}: {error}). Nothing was written. "
        f"Please report it with {log.name}.",
        err=True,
    )
