"""What a drafter is: its format with the evidence, its sizes, vocab map, aux layers in both numberings and features."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3convert.canonical import FEATURES, fold_names
from eagle3convert.drafter import Drafter
from eagle3convert.findings import Finding
from eagle3convert.hub.opening import open_source
from eagle3convert.identify import Candidate, candidates, source_schema
from eagle3convert.options import Options
from eagle3convert.reading import Reading
from eagle3convert.receipt import read_receipt, remembered
from eagle3convert.rules import Case, lint

SIZES = (
    "hidden_size", "target_hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "vocab_size", "draft_vocab_size", "max_position_embeddings",
)  # fmt: skip


@dataclass(frozen=True)
class Inspection:
    """The description of one drafter; `as_json` and `lines` say the same."""

    drafter: Drafter
    candidates: tuple[Candidate, ...]
    receipt: dict[str, Any] | None
    findings: tuple[Finding, ...]

    def as_json(self) -> dict[str, Any]:
        reading, drafter = self.drafter.reading, self.drafter
        checkpoint, aux, vocab = reading.checkpoint, reading.aux, reading.vocab
        return {
            "path": checkpoint.label,
            "format": reading.schema.name,
            "candidates": [c.as_json() for c in self.candidates if c.evidence],
            "receipt": self.receipt["source"]["format"] if self.receipt else None,
            "container": checkpoint.container,
            "files": [{"name": f.name, "bytes": f.stat().st_size} for f in checkpoint.files],
            "parameters": sum(t.numel for t in checkpoint.tensors.values()),
            "dtype": drafter.dtype,
            "decoder": reading.decoder,
            "sizes": {name: _fact(reading, name) for name in SIZES},
            "rope": drafter.fields.get("rope"),
            "vocab_map": {
                "encoding": vocab.encoding, "decided_by": vocab.decided_by if vocab.encoding else None,
                "d2t": vocab.values is not None, "t2d": vocab.mask is not None,
                "draft_vocab_size": reading.dims.DV, "vocab_size": reading.dims.V,
                "first_targets": list((drafter.targets or ())[:8]),
            },
            "aux_layers": {
                "stated": list(aux.ids) if aux.ids is not None else None,
                "convention": aux.convention,
                "origin": str(aux.origin),
                "hidden_states": list(aux.ascending) if aux.ascending is not None else None,
                "layer_output": [s - 1 for s in aux.ascending] if aux.ascending is not None else None,
                "default": list(aux.default),
            },
            "features": {name: _fact(reading, name) for name in FEATURES},
            "verifier": reading.verifier.as_json(),
            "tensors": [
                {"name": t.name, "dtype": t.dtype, "shape": list(t.shape), "canonical": canonical}
                for canonical, name in reading.names.names.items()
                for t in (checkpoint.tensors[name],)
            ],
            "unexpected": list(reading.names.unexpected),
            "findings": [f.as_json() for f in self.findings],
            "notes": [*checkpoint.notes, *filter(None, [checkpoint.read_note()])],
        }  # fmt: skip

    def lines(self) -> list[str]:
        reading, told = self.drafter.reading, self.as_json()
        chosen = next((c for c in self.candidates if c.schema.name == reading.schema.name), None)
        why = ", ".join(chosen.evidence) if chosen is not None and chosen.evidence else "as stated"
        if self.receipt is not None:
            why = f"written by eagle3convert from {told['receipt']}"
        sizes = ", ".join(f"{n} {told['sizes'][n]['value']}" for n in SIZES if told["sizes"][n]["value"] is not None)
        lines = [
            f"{told['path']}: {reading.schema.title}",
            f"  known by: {why}",
            f"  {told['container']}, {told['parameters']:,} parameters in {told['dtype']}, {told['decoder']} decoder",
            f"  {sizes}",
            f"  rope: {told['rope']}",
            f"  vocab map: {self._vocab(told)}",
            f"  aux layers: {self._aux(told)}",
            "  features: " + ", ".join(self._feature(name) for name in FEATURES if self._worth_saying(name)),
        ]
        if told["verifier"]["name"] or told["verifier"]["architectures"] or told["verifier"]["model_types"]:
            family = ", ".join([*told["verifier"]["model_types"], *told["verifier"]["architectures"]])
            lines.append(f"  verifier: {told['verifier']['name'] or 'unnamed'} ({family or 'family unknown'})")
        lines += [f"  not a tensor of this format: {name}" for name in fold_names(told["unexpected"])]
        return lines + [f"  {finding}" for finding in self.findings] + [f"  note: {note}" for note in told["notes"]]

    @staticmethod
    def _vocab(told: dict[str, Any]) -> str:
        vocab = told["vocab_map"]
        if vocab["encoding"] is None:
            full = vocab["draft_vocab_size"] == vocab["vocab_size"]
            return "full vocabulary, no map needed" if full and not vocab["d2t"] else "no sound d2t"
        by = {
            "t2d": "t2d agrees",
            "range": "the other reading is impossible",
            "user": "as you say",
            "format": "the format's own; both readings are possible",
        }
        return (
            f"{vocab['draft_vocab_size']} of {vocab['vocab_size']} tokens, d2t holds {vocab['encoding']} values "
            f"({by.get(vocab['decided_by'], '')}); first target ids {vocab['first_targets']}"
        )

    @staticmethod
    def _aux(told: dict[str, Any]) -> str:
        aux = told["aux_layers"]
        if aux["hidden_states"] is None:
            return f"not known; the format's default is [{', '.join(aux['default'])}] of n layers (hidden_states)"
        said = f"stated as {aux['stated']}" if aux["stated"] is not None else aux["origin"]
        states, outputs = aux["hidden_states"], aux["layer_output"]
        return f"hidden_states {states} = outputs of layers {outputs} ({said}, {aux['convention']})"

    def _worth_saying(self, name: str) -> bool:
        fact = self.drafter.reading.feature(name)
        return not fact.known or fact.value != FEATURES[name].plain or name in ("norm_before_residual", "norm_output")

    def _feature(self, name: str) -> str:
        fact = self.drafter.reading.feature(name)
        return f"{name} {str(fact.value).lower() if fact.known else 'unknown'} ({fact.origin})"


def _fact(reading: Reading, name: str) -> dict[str, Any]:
    fact = reading.fact(name)
    return {"value": fact.value, "origin": str(fact.origin), "where": fact.where}


def inspect_drafter(folder: str | Path, format_name: str = "auto", **stated: Any) -> Inspection:
    """Describe the drafter in a folder; `format_name` "auto" finds the format.

    Keyword arguments are the fields of `eagle3convert.conversion.Options`.
    """
    options = Options(**stated)
    with open_source(folder) as checkpoint:
        receipt = read_receipt(checkpoint)
        schema = source_schema(checkpoint, format_name, receipt)
        drafter = Drafter(Reading(checkpoint, schema, options.statements(remembered(receipt, schema.name))))
        found = lint(Case(drafter))
        inspection = Inspection(drafter, candidates(checkpoint), receipt, found)
        inspection.as_json()  # everything that reads the files is read while they are open
        return inspection
