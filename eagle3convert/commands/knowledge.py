"""`formats`, `explain` and `demo`: what eagle3convert knows, and what it does."""

from __future__ import annotations

import json
from pathlib import Path

import click

from eagle3convert.commands.options import json_option


@click.command()
@click.argument("name", required=False)
@click.option(
    "--graph", type=click.Choice(["mermaid", "dot"]), is_flag=False, flag_value="mermaid", help="Draw the graph."
)
@json_option
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
            span = f"{schema.releases[0]} to {schema.releases[1]}"
            click.echo(f"{schema.name:14} {schema.role:8} {span:18} {schema.title}")


@click.command()
@click.argument("code", required=False)
@json_option
def explain(code: str | None, as_json: bool) -> None:
    """Explain a code: what it means, why it matters, how it happens, how to fix it; without CODE, list them all."""
    from eagle3convert.explain import explanation, listing

    if code is None:
        codes = listing()
        click.echo(json.dumps(codes, indent=2) if as_json else "\n".join(f"{c}  {t}" for c, t in codes.items()))
    else:
        found = explanation(code)
        click.echo(json.dumps(found, indent=2) if as_json else found["text"])


@click.command()
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
def demo(directory: Path | None) -> None:
    """Go the whole way on the small real drafter that ships with the package, in DIR (default: eagle3convert-demo)."""
    from eagle3convert.demo import run_demo

    run_demo(directory or Path("eagle3convert-demo"), click.echo)
