"""The command line: `eagle3convert SOURCE_FORMAT DESTINATION_FORMAT IN OUT` and its subcommands.

Results go to stdout, progress and warnings to stderr.  Exit codes: 0 done, 1 refused, findings or failed, 2 usage,
130 interrupted, 3 a defect of eagle3convert.  Whatever is not needed for `--help` is imported inside the commands.
"""

from __future__ import annotations

import gc
import os
import sys

import click

from eagle3convert.commands.convert import convert, verify
from eagle3convert.commands.examine import diff, doctor, inspect, replay
from eagle3convert.commands.knowledge import demo, explain, formats
from eagle3convert.errors import Eagle3ConvertError
from eagle3convert.hub.commands import add_commands
from eagle3convert.version import __version__


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


for _command in (convert, verify, inspect, doctor, diff, replay, formats, explain, demo):
    main.add_command(_command)
add_commands(main)


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
    except (KeyboardInterrupt, click.Abort) as stop:
        said = str(stop.__cause__ or stop)  # whoever was writing says what it left; nobody else can
        click.echo(f"eagle3convert: interrupted{f'; {said}' if said else '.'}", err=True)
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
