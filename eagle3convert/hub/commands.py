"""The command line's part about the Hub: `push`, `convert-all`, and the options with which `convert` pushes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

from eagle3convert.errors import UsageError

if TYPE_CHECKING:
    from eagle3convert.hub.push import PushResult
    from eagle3convert.hub.rights import Rights

F = TypeVar("F", bound=Callable[..., Any])

_PLACE = (
    click.option("--private", is_flag=True, help="Make the repo private, where the push makes it."),
    click.option("--create-pr", is_flag=True, help="Propose the change instead of making it."),
    click.option("--branch", metavar="NAME", help="Push to this branch; it is made where it is not there."),
    click.option("--commit-message", metavar="TEXT", help="The first line of the commit."),
)


def place_options(command: F) -> F:
    """The options that say where on the Hub a push goes."""
    for option in reversed(_PLACE):
        command = option(command)
    return command


def push_options(command: F) -> F:
    """`--push-to-hub` and what goes with it, for `convert`; `Pushing.taken_from` takes them out of its arguments."""
    return click.option("--push-to-hub", metavar="ORG/NAME", help="Push the result to the Hub.")(place_options(command))


@dataclass(frozen=True)
class Pushing:
    """A push that a conversion was asked for."""

    repo: str
    private: bool
    create_pr: bool
    branch: str | None
    commit_message: str | None

    @classmethod
    def taken_from(cls, stated: dict[str, Any]) -> Self | None:
        """Takes the options of ``push_options`` out of a command's arguments; None where no push is asked for."""
        repo = stated.pop("push_to_hub")
        rest = {name: stated.pop(name) for name in ("private", "create_pr", "branch", "commit_message")}
        if repo is None:
            extra = next((name for name, value in rest.items() if value), None)
            if extra is not None:
                raise UsageError(f"--{extra.replace('_', '-')} goes with --push-to-hub ORG/NAME, which is not given.")
            return None
        if rest["create_pr"] and rest["branch"]:
            raise UsageError("--create-pr and --branch exclude each other: say where the commit goes once.")
        return cls(repo, **rest)

    def check(self) -> Rights:
        """Asks for the rights; to be called before the conversion."""
        from eagle3convert.hub.rights import check_rights

        return check_rights(self.repo, create_pr=self.create_pr, private=self.private or None)

    def push(self, out: Path, rights: Rights) -> PushResult:
        from eagle3convert.hub.push import push_to_hub

        return push_to_hub(
            out,
            self.repo,
            private=self.private or None,
            create_pr=self.create_pr,
            branch=self.branch,
            commit_message=self.commit_message,
            rights=rights,
        )


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.argument("repo", metavar="ORG/NAME")
@place_options
@click.option("--revision", metavar="NAME", help="Push to this branch, which must be there.")
@click.option("--dry-run", is_flag=True, help="Show files, sizes and card, and push nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Say only what is wrong.")
def push(out: Path, repo: str, *, private: bool, as_json: bool, quiet: bool, **where: Any) -> None:
    """Push the converted drafter in the folder OUT to the Hub: one commit, with a card, read back afterwards."""
    from eagle3convert.hub.client import be_quiet
    from eagle3convert.hub.push import push_to_hub

    if quiet or as_json:
        be_quiet()
    result = push_to_hub(out, repo, private=private or None, **where)
    show_push(result, as_json=as_json, quiet=quiet)


def show_push(result: PushResult, *, as_json: bool, quiet: bool) -> None:
    """Prints what a push did; its notes go to stderr."""
    if as_json:
        click.echo(json.dumps(result.as_json(), indent=2, ensure_ascii=False))
        return
    if not quiet:
        for note in result.notes:
            click.echo(note, err=True)
        click.echo("\n".join(result.lines()))


@click.command("convert-all")
@click.argument("source_format")
@click.argument("destination_format")
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.argument("out_dir", type=click.Path(path_type=Path))
@click.option("--verifier", metavar="ORG/MODEL|DIR", help="The verifier's name; of a folder its config.json is read.")
@click.option("--verifier-config", type=click.Path(path_type=Path), help="The verifier's config.json.")
@click.option("--assume", multiple=True, metavar="KEY=VALUE", help="State what the sources do not say (repeatable).")
@click.option("--dtype", type=click.Choice(["bfloat16", "float16", "float32"]), help="Cast the float tensors.")
@click.option("--engine-version", default="", metavar="0.5.23", help="Refuse what this release does not read.")
@click.option(
    "--push-to-hub", metavar="ORG/NAME", help="Push each one that is converted to a branch named like its folder."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def convert_all(
    source_format: str, destination_format: str, run_dir: Path, out_dir: Path, *, as_json: bool, **stated: Any
) -> None:
    """Convert every checkpoint in RUN_DIR to OUT_DIR; what is converted and unchanged is left alone.

    One line for each; exit 1 where one failed.
    """
    from eagle3convert.assumptions import parse_assumptions
    from eagle3convert.hub.run_dir import convert_all as outcomes_of

    repo = stated.pop("push_to_hub")
    stated["assume"] = parse_assumptions(stated["assume"])
    rights = _rights(repo)
    failed = False
    for outcome in outcomes_of(run_dir, out_dir, source_format, destination_format, **stated):
        told, lines = outcome.as_json(), [outcome.line]
        failed |= outcome.status == "failed"
        if rights is not None and outcome.status in ("converted", "unchanged"):
            from eagle3convert.hub.push import push_to_hub

            result = push_to_hub(outcome.out, repo, branch=branch_of(outcome.name), rights=rights)
            rights = rights.existing()
            told |= {"pushed": result.as_json()}
            if not result.unchanged:
                lines.append(f"  {result.repo}@{result.revision}: {result.url}")
        click.echo(json.dumps(told, ensure_ascii=False) if as_json else "\n".join(lines))
    if failed:
        sys.exit(1)


def _rights(repo: str | None) -> Rights | None:
    from eagle3convert.hub.rights import check_rights

    return check_rights(repo) if repo is not None else None


def branch_of(name: str) -> str:
    """The branch for a checkpoint: its folder's name, such as epoch_3."""
    return name.rsplit("/", 1)[-1]


def add_commands(main: click.Group) -> None:
    """Adds the commands of this module to the command line."""
    main.add_command(push)
    main.add_command(convert_all)
