"""The command line: `eagle3convert SOURCE_FORMAT DESTINATION_FORMAT IN OUT` and its subcommands.

Results go to stdout, progress and warnings to stderr.  Exit codes: 0 done, 1 refused, findings or failed, 2 usage,
130 interrupted, 3 a defect of eagle3convert.  Whatever is not needed for `--help` is imported inside the commands.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eagle3convert.errors import Eagle3ConvertError, UsageError
from eagle3convert.version import __version__

if TYPE_CHECKING:
    pass

SIZES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


class Commands(click.Group):
    """The group of subcommands, in which a first word that is no subcommand means `convert`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help", "-V", "--version"):
            args = ["convert", *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "SOURCE_FORMAT DESTINATION_FORMAT IN OUT [OPTIONS]")
        formatter.write_usage(ctx.command_path, "COMMAND [ARGS]")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, "-V", "--version", prog_name="eagle3convert")
def main() -> None:
    """Convert EAGLE-3 drafters between trainers and inference engines, and prove that nothing changed.

    Formats: `eagle3convert formats` lists them; `auto` as a source format finds it.
    """


class Bytes(click.ParamType[int]):
    """A size such as 5GB, as a number of bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).strip().upper()
        digits = text.rstrip("BGIKM")
        try:
            size = int(float(digits) * SIZES[text[len(digits) :]])
        except (ValueError, KeyError):
            self.fail(f"{value!r} is no size; one looks like 5GB.", param, ctx)
        if size < 1:
            self.fail(f"{value!r}: a shard holds at least one byte.", param, ctx)
        return size


class Layers(click.ParamType[tuple[int, ...]]):
    """A list of layer numbers such as 2,16,29."""

    name = "layers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        try:
            return tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is no list of layers; one looks like 2,16,29.", param, ctx)


@main.command()
@click.argument("source_format")
@click.argument("destination_format")
@click.argument("in_", metavar="IN", type=click.Path(path_type=Path))
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--verifier", metavar="ORG/MODEL|DIR", help="The verifier's name; of a folder its config.json is read.")
@click.option("--verifier-config", type=click.Path(path_type=Path), help="The verifier's config.json.")
@click.option("--assume", multiple=True, metavar="KEY=VALUE", help="State what the source does not say (repeatable).")
@click.option("--aux-layers", type=Layers(), metavar="2,16,29", help="State the aux layers, as hidden_states indices.")
@click.option(
    "--d2t-encoding", type=click.Choice(["offset", "absolute"]), help="State how the source's d2t is encoded."
)
@click.option("--dtype", type=click.Choice(["bfloat16", "float16", "float32"]), help="Cast the float tensors.")
@click.option("--engine-version", default="", metavar="0.5.23", help="Refuse what this release does not read.")
@click.option(
    "--format-file", "format_files", multiple=True, type=click.Path(path_type=Path), help="A format of your own."
)
@click.option(
    "--max-shard-size", type=Bytes(), metavar="5GB", help="Split the weights into files of at most this size."
)
@click.option("--dry-run", is_flag=True, help="Print the plan and write nothing.")
@click.option("--force", is_flag=True, help="Replace the drafter in OUT; it is kept until the new one is verified.")
@click.option(
    "--report", type=click.Path(path_type=Path), metavar="FILE", help="Write the result as JSON to a file, too."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Say only what is wrong.")
@click.option("-v", "--verbose", is_flag=True, help="Print the whole plan and every note.")
def convert(
    source_format: str,
    destination_format: str,
    in_: Path,
    out: Path,
    *,
    dry_run: bool,
    force: bool,
    max_shard_size: int | None,
    report: Path | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    **stated: Any,
) -> None:
    """Convert the drafter in the folder IN and write it, verified, to OUT (the word `convert` may be left out)."""
    from eagle3convert.checkpoint.source import open_checkpoint
    from eagle3convert.conversion import Options, plan_checkpoint, write_plan
    from eagle3convert.reading import parse_assumptions
    from eagle3convert.report import conversion_bar, print_findings, print_plan, print_result

    stated["assume"] = parse_assumptions(stated["assume"])
    with open_checkpoint(in_) as checkpoint:
        plan = plan_checkpoint(checkpoint, source_format, destination_format, Options(**stated))
        described: dict[str, Any] = {"plan": plan.as_json()}
        if not as_json:
            print_findings(plan, notes=verbose, quiet=quiet)
        if plan.errors:
            _finish(described, report, as_json)
            plan.demand()
        if dry_run:
            if not as_json:
                print_plan(plan, str(out))
            _finish(described, report, as_json)
            return
        with conversion_bar(plan, hidden=quiet or as_json) as progress:
            result = write_plan(plan, out, force=force, max_shard_size=max_shard_size, progress=progress.advance)
        described |= {"out": str(out), "verification": result.verification.as_json(), "receipt": result.receipt}
        _finish(described, report, as_json)
        if not as_json and not quiet:
            print_result(result, verbose=verbose)


def _finish(described: dict[str, Any], report: Path | None, as_json: bool) -> None:
    text = json.dumps(described, indent=2, ensure_ascii=False)
    if report is not None:
        try:
            report.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{report}: the report cannot be written: {error.strerror}.") from None
    if as_json:
        click.echo(text)


@main.command()
@click.argument("in_", metavar="IN", type=click.Path(path_type=Path))
@click.option("--format", "format_name", default="auto", help="Read it as this format; found out by default.")
@click.option("--verifier", metavar="ORG/MODEL|DIR")
@click.option("--verifier-config", type=click.Path(path_type=Path), help="The verifier's config.json.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def inspect(in_: Path, format_name: str, verifier: str | None, verifier_config: Path | None, as_json: bool) -> None:
    """Say what the drafter in IN is: its format and why, sizes, vocab map, aux layers in both numberings, features."""
    from eagle3convert.inspection import inspect_drafter

    found = inspect_drafter(in_, format_name, verifier=verifier, verifier_config=verifier_config)
    click.echo(json.dumps(found.as_json(), indent=2, ensure_ascii=False) if as_json else "\n".join(found.lines()))


@main.command()
@click.argument("in_", metavar="IN", type=click.Path(path_type=Path))
@click.option("--for", "engine", metavar="FORMAT", help="The engine that is to serve it, such as sglang or vllm.")
@click.option("--format", "format_name", default="auto", help="Read it as this format; found out by default.")
@click.option(
    "--engine-version", default="", metavar="0.5.23", help="The engine's release; the newest known by default."
)
@click.option(
    "--verifier", metavar="ORG/MODEL|DIR", help="The verifier's name; a folder's config and weights are read."
)
@click.option("--verifier-config", type=click.Path(path_type=Path), help="The verifier's config.json.")
@click.option("--assume", multiple=True, metavar="KEY=VALUE", help="State what the source does not say (repeatable).")
@click.option("--aux-layers", type=Layers(), metavar="2,16,29", help="State the aux layers, as hidden_states indices.")
@click.option("--d2t-encoding", type=click.Choice(["offset", "absolute"]), help="State how d2t is encoded.")
@click.option("--select", default="", metavar="CODES", help="Only these codes, or codes that begin so: E2,W302.")
@click.option("--ignore", default="", metavar="CODES", help="Not these codes, or codes that begin so.")
@click.option("--no-values", is_flag=True, help="Do not scan all values of the weights.")
@click.option("--strict", is_flag=True, help="Exit 1 for warnings, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-v", "--verbose", is_flag=True, help="Show notes and what could not be checked.")
def doctor(
    in_: Path,
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
    """Say why the drafter in IN accepts nothing: findings, the most decisive first; exit 1 where one is an error."""
    from eagle3convert.doctor import examine
    from eagle3convert.doctor_report import report_lines
    from eagle3convert.reading import parse_assumptions
    from eagle3convert.report import Bar

    stated["assume"] = parse_assumptions(stated["assume"])
    with Bar("scan", in_, hidden=as_json or no_values) as bar:
        found = examine(
            in_,
            engine,
            values=not no_values,
            select=_codes(select),
            ignore=_codes(ignore),
            advance=bar.advance,
            **stated,
        )
    click.echo(found.report().model_dump_json(indent=2) if as_json else "\n".join(report_lines(found, notes=verbose)))
    serious = ("error", "warning") if strict else ("error",)
    if any(str(f.severity) in serious for f in found.findings):
        sys.exit(1)


def _codes(text: str) -> tuple[str, ...]:
    return tuple(part.strip().upper() for part in text.split(",") if part.strip())


@main.command()
@click.argument("code", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def explain(code: str | None, as_json: bool) -> None:
    """Explain a code: what it means, why it matters, how it happens, how to fix it; without CODE, list them all."""
    from eagle3convert.explain import explanation, listing

    if code is None:
        click.echo(json.dumps(listing(), indent=2) if as_json else "\n".join(f"{c}  {t}" for c, t in listing().items()))
    else:
        found = explanation(code)
        click.echo(json.dumps(found, indent=2) if as_json else found["text"])


@main.command()
@click.argument("in_", metavar="IN", type=click.Path(path_type=Path))
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "--format-file", "format_files", multiple=True, type=click.Path(path_type=Path), help="A format of yours."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(in_: Path, out: Path, format_files: tuple[Path, ...], as_json: bool) -> None:
    """Verify an existing conversion again: OUT against the IN that it was made from."""
    from eagle3convert.conversion import verify as verify_again

    report = verify_again(in_, out, format_files=format_files)
    if as_json:
        click.echo(json.dumps(report.as_json(), indent=2))
    else:
        for check, outcome in report.checks.items():
            click.echo(f"{check}: {outcome}")
        for defect in report.defects:
            click.echo(defect, err=True)
        click.echo(f"{out}: {'verified' if report.passed else 'not verified'}")
    if not report.passed:
        sys.exit(1)


@main.command()
@click.argument("a", metavar="A", type=click.Path(path_type=Path))
@click.argument("b", metavar="B", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def diff(a: Path, b: Path, as_json: bool) -> None:
    """Compare two drafters in canonical form, whatever formats they are in; exit 1 where they differ."""
    from eagle3convert.comparison import compare

    found = compare(a, b)
    if as_json:
        click.echo(json.dumps({"a": str(a), "b": str(b), "equal": not found, "differences": found}, indent=2))
    else:
        for line in found:
            click.echo(line)
        click.echo(f"{len(found)} difference(s)" if found else f"{a} and {b} are the same drafter")
    if found:
        sys.exit(1)


@main.command()
@click.argument("name", required=False)
@click.option(
    "--graph", type=click.Choice(["mermaid", "dot"]), is_flag=False, flag_value="mermaid", help="Draw the graph."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def formats(name: str | None, graph: str | None, as_json: bool) -> None:
    """List the formats, describe one, or draw the converter graph."""
    from eagle3convert.formats import all_formats, load_format
    from eagle3convert.graph import ConverterGraph
    from eagle3convert.report import format_lines

    if graph is not None:
        click.echo(ConverterGraph(all_formats()).draw(graph))
    elif name is not None:
        schema = load_format(name)
        click.echo(schema.model_dump_json(indent=2) if as_json else "\n".join(format_lines(schema)))
    elif as_json:
        click.echo(json.dumps([s.model_dump(mode="json") for s in all_formats()], indent=2))
    else:
        for schema in all_formats():
            click.echo(
                f"{schema.name:12} {schema.role:8} {schema.releases[0]} to {schema.releases[1]:8} {schema.title}"
            )


@main.command()
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
def demo(directory: Path | None) -> None:
    """Go the whole way on the small real drafter that ships with the package, in DIR (default: eagle3convert-demo)."""
    from eagle3convert.demo import run_demo

    run_demo(directory or Path("eagle3convert-demo"), click.echo)


def run() -> None:
    """The console script: every error becomes a sentence and an exit code, never a traceback."""
    gc.set_threshold(50_000)  # collecting among modules that are just being made costs a tenth of the start
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for plugins costs as much as one bare Python
    try:
        code = main(standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except Eagle3ConvertError as error:
        click.echo(f"eagle3convert: {error}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("eagle3convert: interrupted; nothing was left behind.", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except Exception as error:  # the last net: a defect of ours is reported as one, with what we need to mend it
        from eagle3convert.report import report_defect

        report_defect(error)
        sys.exit(3)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    run()
