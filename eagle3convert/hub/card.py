"""The card of a pushed drafter: README.md, made from what the receipt proves and what the source's card says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from eagle3convert.canonical import FEATURES
from eagle3convert.errors import FormatError
from eagle3convert.formats import load_format
from eagle3convert.hub.client import page
from eagle3convert.hub.front_matter import (
    COMMON_TAGS,
    check_front_matter,
    join_card,
    kept_front_matter,
    made_front_matter,
    repo_name,
    split_card,
)
from eagle3convert.hub.names import HubOrigin
from eagle3convert.inspection import inspect_drafter
from eagle3convert.schema import FormatSchema

BEGIN: Final = "<!-- eagle3convert: what follows is written anew at every push, up to the next mark -->"
END: Final = "<!-- eagle3convert: end -->"
_MANAGED: Final = re.compile(re.escape(BEGIN) + r".*?" + re.escape(END), re.S)

SIZES: Final = (
    ("hidden_size", "hidden size"), ("num_hidden_layers", "decoder layers"), ("num_attention_heads", "attention heads"),
    ("num_key_value_heads", "key/value heads"), ("draft_vocab_size", "draft vocabulary"),
    ("vocab_size", "verifier vocabulary"),
)  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """What a card is about: a converted folder, its receipt, and where it is going to be."""

    folder: Path
    receipt: Mapping[str, Any]
    repo: str
    revision: str | None = None

    @property
    def origin(self) -> HubOrigin | None:
        return HubOrigin.of(self.receipt["source"])

    @property
    def destination(self) -> str:
        name: str = self.receipt["destination"]["format"]
        return name

    def product(self, which: str) -> str:
        """The program of the source's or the destination's format; of a user's own format, its name."""
        name: str = self.receipt[which]["format"]
        schema = _known(name)
        return schema.product if schema is not None else name

    @property
    def launch_note(self) -> str:
        """What must be there before the launch command can be given."""
        schema = _known(self.destination)
        return schema.launch_note if schema is not None else ""


def _known(name: str) -> FormatSchema | None:
    """The format of that name; None for a format of the user's own, whose file is not at hand here."""
    try:
        return load_format(name)
    except FormatError:
        return None


def make_card(subject: Subject, source_card: str | None, there: str | None) -> str:
    """README.md for a push.

    ``there`` is the README.md that the repo has already: its text and front matter stay, the part between the marks is
    renewed. Otherwise it is made from the source's card, whose text is kept below, or from nothing.
    Raises PushRefused for a front matter that the Hub would refuse.
    """
    made = {
        "base_model": _base_model(subject),
        "library_name": "speculators" if subject.destination == "speculators" else "transformers",
        "pipeline_tag": "text-generation",
        "tags": [*COMMON_TAGS, *_product_tags(subject)],
    }
    block = f"{BEGIN}\n{_body(subject)}\n{END}"
    if there is not None:
        data, text = _split(there, f"{subject.repo}: README.md")
        fresh = made_front_matter(_source_data(source_card), made)
        data = kept_front_matter(data, fresh)
        text = _MANAGED.sub(lambda _: block, text) if _MANAGED.search(text) else f"{block}\n\n{text.strip()}"
    else:
        data = made_front_matter(_source_data(source_card), made)
        kept = _kept_text(subject, source_card)
        text = f"# {subject.repo.split('/')[-1]}\n\n{block}" + (f"\n\n{kept}" if kept else "")
    check_front_matter(data, f"{subject.repo}: README.md")
    return join_card(data, text)


def _split(card: str, where: str) -> tuple[dict[str, Any], str]:
    from eagle3convert.hub.errors import PushRefused

    try:
        return split_card(card)
    except ValueError as error:
        raise PushRefused(f"{where}: its front matter is no valid YAML: {error}. Correct it first.") from error


def _source_data(card: str | None) -> dict[str, Any]:
    """The source's front matter; a broken one says nothing, and least of all a licence."""
    if card is None:
        return {}
    try:
        return split_card(card)[0]
    except ValueError:
        return {}


def _kept_text(subject: Subject, card: str | None) -> str:
    if card is None:
        return ""
    try:
        text = split_card(card)[1]
    except ValueError:
        text = card
    text = _MANAGED.sub("", text).strip()
    if not text:
        return ""
    origin = subject.origin
    if origin is not None:
        text = _absolute_links(text, origin)
    whose = f"[{origin.repo}]({page(origin.repo)})" if origin else "the drafter it was converted from"
    return f"---\n\n*The card of {whose} follows as it was.*\n\n{text}"


def _absolute_links(text: str, origin: HubOrigin) -> str:
    """Links and images that are relative to the source's repo, made to point there."""
    folder = f"{origin.folder}/" if origin.folder else ""
    base = page(origin.repo, "resolve", origin.commit)
    return re.sub(
        r"(\]\()(?!https?://|#|/|mailto:|data:)(?:\./)?([^)\s]+)", lambda m: f"{m[1]}{base}/{folder}{m[2]}", text
    )


def _base_model(subject: Subject) -> str | None:
    origin = subject.origin
    return origin.repo if origin is not None else repo_name(subject.receipt["verifier"]["name"])


def _product_tags(subject: Subject) -> list[str]:
    return [re.sub(r"[^a-z0-9.-]+", "-", subject.product("destination").lower()).strip("-")]


# --- the part between the marks -----------------------------------------------------------------------------------


def _body(subject: Subject) -> str:
    try:
        table = _table(subject, inspect_drafter(subject.folder, subject.destination).as_json())
    except FormatError:  # a format of the user's own, whose file is not at hand here
        table = ""
    parts = [_summary(subject), _launch(subject), table, _proof(subject)]
    return "\n\n".join(part for part in parts if part)


def _summary(subject: Subject) -> str:
    receipt, origin = subject.receipt, subject.origin
    verifier = repo_name(receipt["verifier"]["name"])
    whose = f" for [{verifier}]({page(verifier)})" if verifier else ""
    if origin is not None:
        inside = f", folder `{origin.folder}`" if origin.folder else ""
        source = f"[{origin.repo}]({page(origin.repo, 'tree', origin.commit)}){inside} at commit `{origin.commit[:12]}`"
    else:
        source = f"a {subject.product('source')} checkpoint"
    return (
        f"An EAGLE-3 draft model{whose}, converted from the {subject.product('source')} format to the "
        f"{subject.product('destination')} format by eagle3convert {receipt['eagle3convert']}. Source: {source}. "
        f"It computes what the source computes{_cast(receipt)}; where a tensor was changed, the table below says so."
    )


def _cast(receipt: Mapping[str, Any]) -> str:
    dtype = receipt["destination"]["dtype"]
    return f", its float tensors cast to {dtype}" if dtype else ""


def _launch(subject: Subject) -> str:
    words = list(subject.receipt["launch"])
    if not words:
        return ""
    verifier = subject.receipt["verifier"]["name"]
    if verifier and repo_name(verifier) is None:  # a folder of whoever converted it
        words = [word.replace(verifier, "VERIFIER") for word in words]
    command = shlex.join(word.replace("{drafter}", subject.repo) for word in words)
    lowest = subject.receipt["destination"]["lowest_release"]
    pinned = ""
    if subject.revision not in (None, "main"):
        pinned = (
            f"\n\nThis drafter is at revision `{subject.revision}`: `hf download {subject.repo} --revision "
            f"{subject.revision}` fetches it, and its folder can be given instead."
        )
    engine, note = subject.product("destination"), subject.launch_note
    told = f" {note}" if note else ""
    return f"Served by {engine} >= {lowest}:{told}\n\n```bash\n{command}\n```{pinned}"


def _table(subject: Subject, told: Mapping[str, Any]) -> str:
    sizes, aux, vocab = told["sizes"], told["aux_layers"], told["vocab_map"]
    rows = [("format", f"{subject.destination} (from {subject.receipt['source']['format']})")]
    rows.append(("weights", f"{told['parameters']:,} parameters, {told['dtype']}, {told['decoder']} decoder"))
    rows += [(name, f"{sizes[key]['value']:,}") for key, name in SIZES if isinstance(sizes[key]["value"], int)]
    rows.append(("d2t", f"{vocab['encoding']} values" if vocab["encoding"] else "none, full vocabulary"))
    if aux["hidden_states"] is not None:
        rows.append(("aux layers, as hidden_states indices (0 = embedding)", _list(aux["hidden_states"])))
        rows.append(("aux layers, as layers whose output is taken", _list(aux["layer_output"])))
    else:
        rows.append(("aux layers", f"the default, {_list(aux['default'])} of n layers"))
    features = [_feature(name, told["features"][name]["value"]) for name in FEATURES if _worth(name, told)]
    rows.append(("features", ", ".join(features) or "plain"))
    changed = [row for row in subject.receipt["tensors"] if row["change"] != "bytes unchanged"]
    rows += [(f"changed: {row['name']}", row["change"]) for row in changed[:12]]
    lines = [f"| {name} | {value} |" for name, value in rows]
    return "\n".join(["| | |", "|---|---|", *lines])


def _list(values: Any) -> str:
    return ", ".join(map(str, values))


def _worth(name: str, told: Mapping[str, Any]) -> bool:
    value = told["features"][name]["value"]
    return value is not None and (value != FEATURES[name].plain or name in ("norm_before_residual", "norm_output"))


def _feature(name: str, value: Any) -> str:
    return f"{name} {str(value).lower()}"


def _proof(subject: Subject) -> str:
    report = subject.receipt["verification"]
    lines = [f"- {check}: {outcome}" for check, outcome in report["checks"].items()]
    stated = subject.receipt["assumptions"]
    said = [f"{key} = {value}" for key, value in stated["assume"].items()]
    said += [f"{key} = {stated[key]}" for key in ("aux_layers", "d2t_encoding") if stated[key] is not None]
    if said:
        lines.append(f"- stated by whoever converted it, not by the source: {', '.join(said)}")
    head = "Verified by reading the result again and undoing the conversion; `eagle3convert.json` is the full report:"
    return "\n".join([head, "", *lines])
