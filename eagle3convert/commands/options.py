"""Options that several commands share, and the types of their values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

SIZES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


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


_STATED = (
    click.option(
        "--verifier", metavar="ORG/MODEL|DIR", help="The verifier's name; of a folder its config.json is read."
    ),
    click.option("--verifier-config", type=click.Path(path_type=Path), help="The verifier's config.json."),
    click.option(
        "--assume", multiple=True, metavar="KEY=VALUE", help="State what the source does not say (repeatable)."
    ),
    click.option(
        "--aux-layers", type=Layers(), metavar="2,16,29", help="State the aux layers, as hidden_states indices."
    ),
    click.option("--d2t-encoding", type=click.Choice(["offset", "absolute"]), help="State how d2t is encoded."),
)


def stated_options(command: F) -> F:
    """The options with which a user states what the files do not say; they are the fields of `Options`."""
    for option in reversed(_STATED):
        command = option(command)
    return command


format_files_option = click.option(
    "--format-file", "format_files", multiple=True, type=click.Path(path_type=Path), help="A format of your own."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
