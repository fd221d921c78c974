"""ConverterGraph: every format is a node, and its file gives two edges, to and from the canonical drafter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from eagle3convert.errors import FormatError
from eagle3convert.schema import FormatSchema

CANONICAL = "canonical"


@dataclass(frozen=True)
class Edge:
    """One direction between a format and the canonical drafter, with what its transforms would change."""

    source: str
    target: str
    schema: FormatSchema

    @property
    def changes(self) -> tuple[str, ...]:
        """The transforms of this edge that are more than the identity for some drafter."""
        schema = self.schema
        found = ["MapConfig"]
        if any(s.write != canonical for canonical, s in schema.spellings().items()):
            found.append("RenameTensors")
        if schema.vocab_map.encoding != "absolute":
            found.append("RecodeVocabMap")
        conventions = {schema.aux_layers.convention, *(f.convention for f in schema.aux_layers.families)} - {None}
        if conventions != {"hidden_states"}:
            found.append("RemapAuxLayers")
        if schema.aux_layers.fc_order != "ascending":
            found.append("PermuteFcBlocks")
        if schema.vocab_map.t2d == "never" or schema.vocab_map.full == "never":
            found.append("DropTensors" if self.source == CANONICAL else "DeriveTensors")
        return tuple(found)


class ConverterGraph:
    """The graph of formats; nothing in it is written by hand."""

    def __init__(self, schemas: Iterable[FormatSchema]) -> None:
        self.schemas = {schema.name: schema for schema in schemas}
        self.edges = {
            (edge.source, edge.target): edge
            for schema in self.schemas.values()
            for edge in (Edge(schema.name, CANONICAL, schema), Edge(CANONICAL, schema.name, schema))
        }

    def path(self, source: str, target: str) -> tuple[Edge, ...]:
        """The edges from one format to another, through the canonical drafter."""
        for name in (source, target):
            if name != CANONICAL and name not in self.schemas:
                raise FormatError(f"{name!r} is no node of the graph; its formats are {', '.join(self.schemas)}.")
        stops = [source, *([] if CANONICAL in (source, target) else [CANONICAL]), target]
        return tuple(self.edges[a, b] for a, b in pairwise(stops) if a != b)

    def draw(self, language: str = "mermaid") -> str:
        """The graph as Mermaid or DOT text."""
        lines = []
        for edge in self.edges.values():
            label = ", ".join(edge.changes)
            if language == "dot":
                lines.append(f'  "{edge.source}" -> "{edge.target}" [label="{label}"];')
            else:
                lines.append(f"  {edge.source} -->|{label}| {edge.target}")
        if language == "dot":
            return "\n".join(["digraph formats {", "  rankdir=LR;", *lines, "}"])
        return "\n".join(["graph LR", *lines])
