"""`inspect`, `doctor`, `diff` and `replay`: looking at drafters without writing any."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from eagle3convert.commands.options import json_option, stated_options


@click.command()
@click.argument("in_", metavar="IN")
@click.option("--format", "format_name", default="auto", help="Read it as this format; found out by default.")
@click.option("--verifier", metavar="ORG/MODEL|DIR", help="The verifier's name; of a folder its config.json is read.")
@click.option("--verifier-config", type=click.Path(path_type=Path), help="The verifier's config.json.")
@json_option
def inspect(in_: str, format_name: str, verifier: str | None, verifier_config: Path | None, as_json: bool) -> None:
    """Say what the drafter IN is: its format and why, sizes, vocab map, aux layers in both numberings, features."""
    from eagle3convert.inspection import inspect_drafter

    found = inspect_drafter(in_, format_name, verifier=verifier, verifier_config=verifier_config)
    click.echo(json.dumps(found.as_json(), indent=2, ensure_ascii=False) if as_json else "\n".join(found.lines()))


@click.command()
@click.argument("in_", metavar="IN")
@click.option("--for", "engine", metavar="FORMAT", help="The engine that is to serve it, such as sglang or vllm.")
@click.option("--format", "format_name", default="auto", help="Read it as this format; found out by default.")
@click.option(
    "--engine-version", default="", metavar="0.5.23", help="The engine's release; by default the newest known."
)
@stated_options
@click.option("--select", default="", metavar="CODES", help="Only these codes, or codes that begin so: E2,W302.")
@click.option("--ignore", default="", metavar="CODES", help="Not these codes, or codes that begin so.")
@click.option("--no-values", is_flag=True, help="Do not scan all values of the weights.")
@click.option("--strict", is_flag=True, help="Exit 1 for warnings, too.")
@json_option
@click.option("-v", "--verbose", is_flag=True, help="Show notes and what could not be checked.")
def doctor(
    in_: str,
    engine: str | None,
    *,
    select: str,
    ignore: str,
    no_values: bool,
    strict: bool,
    as_json: bool,
    verbose: bool,
    **stated: Any,
) -> None:
    """Say why the drafter IN accepts nothing: findings, the most decisive first; exit 1 where one is an error."""
    from eagle3convert.assumptions import parse_assumptions
    from eagle3convert.doctor import examine
    from eagle3convert.doctor_report import report_lines
    from eagle3convert.report import Bar

    stated["assume"] = parse_assumptions(stated["assume"])
    with Bar("scan", Path(in_), hidden=as_json or no_values) as bar:
        found = examine(
            in_,
            engine,
            values=not no_values,
            select=_codes(select),
            ignore=_codes(ignore),
            advance=bar.advance,
            **stated,
        )
    report = found.report()
    click.echo(report.model_dump_json(indent=2) if as_json else "\n".join(report_lines(report, notes=verbose)))
    if note := found.case.reading.checkpoint.read_note():
        click.echo(note, err=True)
    serious = ("error", "warning") if strict else ("error",)
    if any(str(f.severity) in serious for f in found.findings):
        sys.exit(1)


def _codes(text: str) -> tuple[str, ...]:
    return tuple(part.strip().upper() for part in text.split(",") if part.strip())


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@json_option
def diff(a: str, b: str, as_json: bool) -> None:
    """Compare two drafters in canonical form, whatever formats they are in; exit 1 where they differ."""
    from eagle3convert.comparison import compare

    found = compare(a, b)
    if as_json:
        click.echo(json.dumps({"a": a, "b": b, "equal": not found, "differences": found}, indent=2))
    else:
        for line in found:
            click.echo(line)
        click.echo(f"{len(found)} difference(s)" if found else f"{a} and {b} are the same drafter")
    if found:
        sys.exit(1)


@click.command()
@click.argument("drafter", type=click.Path(path_type=Path))
@click.option("--states", "files", multiple=True, required=True, type=click.Path(path_type=Path), metavar="FILE",
              help="Captured hidden states (repeatable).")  # fmt: skip
@click.option("--verifier", type=click.Path(path_type=Path), metavar="DIR", help="The verifier's folder.")
@click.option("--for", "engine", metavar="FORMAT", help="The engine that is to serve it.")
@click.option("--format", "format_name", default="auto", help="Read it as this format; found out by default.")
@click.option("--steps", default=3, show_default=True, type=click.IntRange(1, 16), help="Draft steps.")
@click.option(
    "--plot", type=click.Path(path_type=Path), metavar="FILE.png", help="Draw the readings (needs matplotlib)."
)
@click.option("--write-fix", is_flag=True, help="Print only the command that converts it under the winning reading.")
@json_option
def replay(
    drafter: Path,
    files: tuple[Path, ...],
    *,
    verifier: Path | None,
    engine: str | None,
    format_name: str,
    steps: int,
    plot: Path | None,
    write_fix: bool,
    as_json: bool,
) -> None:
    """Measure how well the drafter drafts on captured hidden states, as declared and under every other reading.

    Needs torch; exit 1 where another reading than the declared one drafts best, or none drafts well.
    """
    from eagle3convert.reference.replay import replay as run_replay
    from eagle3convert.report import Steps

    with Steps("readings", hidden=as_json) as bar:
        found = run_replay(
            drafter,
            files,
            format_name=format_name,
            for_format=engine,
            steps=steps,
            verifier=verifier,
            progress=bar.at,
        )
    if plot is not None:
        found.plot(plot)
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=2, ensure_ascii=False))
    elif write_fix:
        click.echo("\n".join(found.fix.edits))
        click.echo(found.fix_command or found.sentence)
    else:
        click.echo("\n".join(found.lines()))
    if not (found.sound and found.declared_wins):
        sys.exit(1)
