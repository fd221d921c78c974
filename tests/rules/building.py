"""A case of `cases/` as files on disk: a base drafter of `bases.json`, edited as the case says.

`README.md` says what the fields of a case mean.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ..drafters import WIDTHS, Drafter, Tensor, encode, make_drafter, weight, write_safetensors

HERE = Path(__file__).parent
FIELDS = {
    "says", "reference", "base", "knobs", "config", "without_config", "rename", "tensors", "without_tensors",
    "container", "delete", "files",
    "weights_beside", "verifier", "verifier_tensors", "format", "for", "to", "engine_version", "options",
    "values", "findings", "notes", "names", "outcome",
}  # fmt: skip
VERIFIER = "verifier:"  # what a tensor's `of` begins with where it is one of the verifier's


@cache
def bases() -> dict[str, Any]:
    """`bases.json`."""
    described: dict[str, Any] = json.loads((HERE / "bases.json").read_text(encoding="utf-8"))
    return described


@dataclass(frozen=True)
class Built:
    """A case on disk: the drafter's folder and what goes with it; `verifier` holds config.json, and maybe weights."""

    folder: Path
    verifier: Path | None

    def options(self, case: dict[str, Any]) -> dict[str, Any]:
        """The keyword arguments of `eagle3convert.Options` for this case."""
        stated = dict(case.get("options", {}))
        if self.verifier is not None and "verifier_tensors" in case:
            stated["verifier"] = self.verifier
        elif self.verifier is not None:
            stated["verifier_config"] = self.verifier / "config.json"
        return stated


def build(case: dict[str, Any], place: Path) -> Built:
    """Write the drafter and the verifier of a case into `place`."""
    theirs = {name: tensor_of(rule, {}) for name, rule in case.get("verifier_tensors", {}).items()}
    folder = drafter_of(case, theirs).write(place / "drafter", case.get("container", "single"))
    for name in case.get("delete", ()):
        (folder / name).unlink()
    for name, text in case.get("files", {}).items():
        (folder / name).write_text(text, encoding="utf-8")
    for name, rules in case.get("weights_beside", {}).items():
        write_safetensors(folder / name, {tensor: tensor_of(rule, {}) for tensor, rule in rules.items()})
    changes = case.get("verifier", {})
    if changes is None:
        return Built(folder, None)
    verifier = place / "verifier"
    verifier.mkdir()
    (verifier / "config.json").write_text(json.dumps(bases()["verifier"] | changes), encoding="utf-8")
    if theirs:
        write_safetensors(verifier / "model.safetensors", theirs)
    return Built(folder, verifier)


def drafter_of(case: dict[str, Any], theirs: dict[str, Tensor] | None = None) -> Drafter:
    """The drafter of a case in memory: base, knobs, config, names, tensors, in this order."""
    drafter = base(case["base"], **case.get("knobs", {}))
    drafter = drafter.with_config(case.get("config", {}), case.get("without_config", ()))
    missing = set(case.get("without_tensors", ())) - set(drafter.tensors)
    assert not missing, f"the base has no tensor {sorted(missing)}"
    drafter = replace(
        drafter, tensors={n: t for n, t in drafter.tensors.items() if n not in case.get("without_tensors", ())}
    )
    drafter = drafter.renamed(case.get("rename", {}))
    known = {**drafter.tensors, **{VERIFIER + name: tensor for name, tensor in (theirs or {}).items()}}
    return drafter.with_tensors({name: tensor_of(rule, known) for name, rule in case.get("tensors", {}).items()})


def base(name: str, **knobs: Any) -> Drafter:
    """A base of `bases.json` with some of its knobs (the fields of `tests.drafters.Knobs`) changed."""
    own = {key: value for key, value in bases()["bases"][name].items() if key != "says"}
    chosen = {**bases()["sizes"], **own, **knobs}
    return make_drafter(name, **{k: tuple(v) if isinstance(v, list) else v for k, v in chosen.items()})


def tensor_of(rule: dict[str, Any], known: dict[str, Tensor]) -> Tensor:
    """The tensor that a rule describes: listed values, a fill, a ramp, or another one, with elements set."""
    dtype = rule.get("dtype", "BF16")
    if "of" in rule:
        made = known[rule["of"]]
    elif "values" in rule:
        numbers = rule["values"]
        made = Tensor(dtype, tuple(rule.get("shape", (len(numbers),))), encode(map(float, numbers), dtype))
    elif "fill" in rule:
        total = 1
        for axis in rule["shape"]:
            total *= axis
        made = Tensor(dtype, tuple(rule["shape"]), encode([float(rule["fill"])] * total, dtype))
    else:
        made = weight(rule["ramp"], rule["shape"], dtype)
    if "rows" in rule:
        width = len(made.data) // made.shape[0]
        rows = [made.data[i * width : (i + 1) * width] for i in rule["rows"]]
        made = Tensor(made.dtype, (len(rows), *made.shape[1:]), b"".join(rows))
    return with_elements(made, {int(at): float(value) for at, value in rule.get("set", {}).items()})


def with_elements(tensor: Tensor, values: dict[int, float]) -> Tensor:
    """The tensor with some of its elements, counted in row-major order, set."""
    data, width = bytearray(tensor.data), WIDTHS[tensor.dtype]
    for at, value in values.items():
        data[at * width : (at + 1) * width] = encode([value], tensor.dtype)
    return tensor._replace(data=bytes(data))
