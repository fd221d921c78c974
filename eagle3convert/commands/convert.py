"""`convert` and `verify`: writing a drafter in another format, and proving it again later."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from eagle3convert.commands.options import Bytes, format_files_option, json_option, stated_options
from eagle3convert.errors import UsageError
from eagle3convert.hub.client import be_quiet
from eagle3convert.hub.commands import Pushing, push_options, show_push


@click.command()
@click.argument("source_format")
@click.argument("destination_format")
@click.argument("in_", metavar="IN")
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@stated_options
@click.option("--dtype", type=click.Choice(["bfloat16", "float16", "float32"]), help="Cast the float tensors.")
@click.option("--engine-version", default="", metavar="0.5.23", help="Refuse what this release does not read.")
@format_files_option
@click.option("--max-shard-size", type=Bytes(), metavar="5GB", help="Split the weights into files of this size.")
@click.option("--numeric", is_flag=True, help="Compare source and output in numbers, too (needs torch).")
@push_options
@click.option("--dry-run", is_flag=True, help="Print the plan and write nothing.")
@click.option("--force", is_flag=True, help="Replace the drafter in OUT; it is kept until the new one is verified.")
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Write the result to a file as JSON.")
@json_option
@click.option("-q", "--quiet", is_flag=True, help="Say only what is wrong.")
@click.option("-v", "--verbose", is_flag=True, help="Print the whole plan and every note.")
def convert(
    source_format: str,
    destination_format: str,
    in_: str,
    out: Path,
    *,
    max_shard_size: int | None,
    numeric: bool,
    dry_run: bool,
    force: bool,
    report: Path | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    **stated: Any,
) -> None:
    """Convert the drafter IN and write it, verified, to the folder OUT (the word `convert` may be left out).

    IN is a folder, or a repo on the Hub: ORG/NAME, ORG/NAME@REVISION, hf://ORG/NAME@REVISION/FOLDER.
    """
    from eagle3convert.assumptions import parse_assumptions
    from eagle3convert.conversion import on_this_machine, plan_checkpoint, write_plan
    from eagle3convert.hub.opening import open_source
    from eagle3convert.options import Options
    from eagle3convert.report import conversion_bar, print_findings, print_plan, print_result

    pushing = Pushing.taken_from(stated)
    if quiet or as_json:
        be_quiet()
    stated["assume"] = parse_assumptions(stated["assume"])
    options = Options(**stated)
    rights = pushing.check() if pushing is not None and not dry_run else None
    with open_source(in_) as checkpoint:
        plan = plan_checkpoint(checkpoint, source_format, destination_format, options)
        described: dict[str, Any] = {"plan": plan.as_json()}
        if not as_json:
            print_findings(plan, notes=verbose, quiet=quiet)
        if plan.errors:
            _finish(described, report, as_json)
            plan.demand()
        if dry_run:
            if not as_json:
                print_plan(plan, str(out))
            if checkpoint.is_remote:
                click.echo(checkpoint.read_note(), err=True)
            _finish(described, report, as_json)
            return
        with (
            on_this_machine(plan, source_format, destination_format, options) as plan,
            conversion_bar(plan, hidden=quiet or as_json) as bar,
        ):
            result = write_plan(
                plan, out, force=force, max_shard_size=max_shard_size, numeric=numeric, progress=bar.advance
            )
    described |= {"out": str(out), "verification": result.verification.as_json(), "receipt": result.receipt}
    if not as_json and not quiet:
        print_result(result, verbose=verbose)
    if pushing is not None and rights is not None:
        pushed = pushing.push(out, rights)
        described["pushed"] = pushed.as_json()
        if not as_json:
            show_push(pushed, as_json=False, quiet=quiet)
    _finish(described, report, as_json)


def _finish(described: dict[str, Any], report: Path | None, as_json: bool) -> None:
    text = json.dumps(described, indent=2, ensure_ascii=False)
    if report is not None:
        try:
            report.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{report}: the report cannot be written: {error.strerror}.") from None
    if as_json:
        click.echo(text)


@click.command()
@click.argument("in_", metavar="IN")
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--numeric", is_flag=True, help="Compare the two in numbers, too (needs torch).")
@format_files_option
@json_option
def verify(in_: str, out: Path, *, numeric: bool, format_files: tuple[Path, ...], as_json: bool) -> None:
    """Verify an existing conversion again: OUT against the IN that it was made from."""
    from eagle3convert.conversion import verify as verify_again

    report = verify_again(in_, out, format_files=format_files)
    numbers = None
    if numeric:
        from eagle3convert.reference.compare import verify_numeric

        numbers = verify_numeric(in_, out, format_files=format_files)
    passed = report.passed and (numbers is None or numbers.equal)
    if as_json:
        told = report.as_json() | ({"numeric": numbers.as_json()} if numbers is not None else {})
        click.echo(json.dumps(told, indent=2))
    else:
        for check, outcome in report.checks.items():
            click.echo(f"{check}: {outcome}")
        for defect in report.defects:
            click.echo(defect, err=True)
        for line in numbers.lines() if numbers is not None else ():
            click.echo(line)
        click.echo(f"{out}: {'verified' if passed else 'not verified'}")
    if not passed:
        sys.exit(1)
