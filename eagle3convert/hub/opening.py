"""Opening a drafter wherever it is: the one door through which commands take their IN."""

from __future__ import annotations

from pathlib import Path

from eagle3convert.checkpoint.source import Checkpoint, open_checkpoint
from eagle3convert.hub.names import LocalSource, parse_source


def open_source(text: str | Path) -> Checkpoint:
    """The drafter that ``text`` names, opened by its headers: a local folder, or a repo on the Hub.

    Raises CheckpointError, UsageError or HubError. A remote one is a HubCheckpoint; ``fetched`` downloads it.
    """
    source = parse_source(text)
    if isinstance(source, LocalSource):
        return open_checkpoint(source.path)
    from eagle3convert.hub.errors import HubError
    from eagle3convert.hub.sources import open_hub_checkpoint

    try:
        return open_hub_checkpoint(source)
    except HubError as error:
        if str(text) != source.repo:
            raise
        raise HubError(f"{error} (There is no folder {text} here, so the repo was meant.)") from error


def fetched(checkpoint: Checkpoint) -> Checkpoint:
    """The same drafter with its weights on this machine; a local one is returned as it is, a remote one is closed."""
    if getattr(checkpoint, "outline", None) is None:
        return checkpoint
    from eagle3convert.hub.sources import HubCheckpoint, downloaded

    return downloaded(checkpoint) if isinstance(checkpoint, HubCheckpoint) else checkpoint
