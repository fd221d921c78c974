"""Options: what a caller may state beside the files, and where the facts and formats that it names come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3convert.assumptions import check_assumptions
from eagle3convert.canonical import is_whole
from eagle3convert.errors import UsageError
from eagle3convert.reading import Statements
from eagle3convert.verifier import VerifierFacts, from_config, from_file
from eagle3convert.verifier_weights import VerifierWeights, open_verifier


@dataclass(frozen=True)
class Options:
    """What a caller may state beside the two formats and the folders; the command line's options, one by one."""

    verifier: str | Path | None = None
    verifier_config: str | Path | None = None
    assume: Mapping[str, Any] | None = None
    aux_layers: Sequence[int] | None = None
    d2t_encoding: str | None = None
    dtype: str | None = None
    engine_version: str = ""
    format_files: Sequence[str | Path] = ()

    def __post_init__(self) -> None:
        check_assumptions(self.assume or {})
        if self.d2t_encoding not in (None, "offset", "absolute"):
            raise UsageError(f"d2t_encoding {self.d2t_encoding!r}: say offset or absolute.")
        layers = self.aux_layers
        if layers is not None and not (isinstance(layers, list | tuple) and all(map(is_whole, layers))):
            raise UsageError(f"aux_layers {layers!r}: a list of layers is wanted, like [2, 16, 29].")
        if self.verifier is not None and not str(self.verifier):
            raise UsageError("verifier '': say the verifier's name, or a folder with its config.json.")

    def statements(self, receipt_facts: Mapping[str, Any]) -> Statements:
        return Statements(
            dict(self.assume or {}),
            tuple(self.aux_layers) if self.aux_layers is not None else None,
            self.d2t_encoding,  # type: ignore[arg-type]
            self.verifier_facts(),
            receipt_facts,
        )

    def verifier_facts(self) -> VerifierFacts:
        """The verifier's facts from --verifier (a name, or a folder with its config) and --verifier-config."""
        facts = VerifierFacts()
        if self.verifier is not None:
            folder = Path(self.verifier)
            if folder.is_dir():
                facts = from_file(folder, str(self.verifier))
            else:
                facts = VerifierFacts(name=str(self.verifier))
        if self.verifier_config is not None:
            facts = facts.filled_from(from_file(Path(self.verifier_config)))
        return facts

    def verifier_weights(self) -> VerifierWeights:
        """The verifier's weights; nothing where --verifier is no folder that holds them."""
        return open_verifier(Path(self.verifier) if self.verifier is not None else None)


WANT_VERIFIER = frozenset({"E305", "E306"})  # refusals that the verifier's config.json may lift


def facts_from_hub(options: Options, why: str) -> VerifierFacts | None:
    """The facts of a verifier that is only named, from its config.json on the Hub; None where it cannot be there."""
    from eagle3convert.hub.names import HubSource, parse_source

    named = str(options.verifier) if options.verifier is not None else ""
    if options.verifier_config is not None or not named or not isinstance(parse_source(named), HubSource):
        return None
    from eagle3convert.hub.cache import verifier_config
    from eagle3convert.hub.client import is_offline
    from eagle3convert.hub.errors import HubError

    try:
        return from_config(verifier_config(named), named)
    except HubError as error:
        if is_offline():
            return None
        raise HubError(
            f"{error} Its config.json is wanted because {why} It can be given with --verifier-config."
        ) from error
