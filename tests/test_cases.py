"""Every case in `cases/`: a drafter, what a user asks of it, and what must come of it.

A case is a JSON file; `cases/README.md` says what its fields mean.  A new case needs no code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import Command, left_behind
from .drafters import (
    FORMATS,
    Drafter,
    Knobs,
    Tensor,
    encode,
    list_tensor,
    make_drafter,
    permuted,
    read_config,
    read_receipt,
    read_tensors,
    spell_tensors,
    weight,
    write_verifier,
)

CASES = Path(__file__).parent / "cases"
EXIT = {"written": 0, "refused": 1, "usage": 2}
CASE_FIELDS = {
    "says", "reference", "drafter", "config", "without_config", "tensors", "without_tensors", "rename", "container",
    "delete", "convert",
}  # fmt: skip
EXPECTED_FIELDS = {
    "from", "to", "options", "verifier", "outcome", "says", "says_not", "drafter", "tensors", "config",
    "config_without", "receipt",
}  # fmt: skip


def load(file: Path) -> dict[str, Any]:
    case: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    assert set(case) <= CASE_FIELDS, f"{file}: unknown fields {set(case) - CASE_FIELDS}"
    for wanted in case["convert"]:
        assert set(wanted) <= EXPECTED_FIELDS, f"{file}: unknown fields {set(wanted) - EXPECTED_FIELDS}"
    return case


ALL = [
    pytest.param(load(file), number, id=f"{file.stem}-{number}-{wanted['to']}-{wanted['outcome']}")
    for file in sorted(CASES.glob("*.json"))
    for number, wanted in enumerate(load(file)["convert"])
]


def tensor_of(rule: dict[str, Any], source: dict[str, Tensor]) -> Tensor:
    """The tensor that a case describes: listed values, a fill, a ramp, or another one changed."""
    if "of" in rule:
        found = source[rule["of"]]
        return permuted(found, rule["permuted"]) if "permuted" in rule else found
    dtype = rule.get("dtype", "BF16")
    if "values" in rule:
        return list_tensor(rule["values"], dtype)
    if "fill" in rule:
        number = float(rule["fill"])
        total = 1
        for axis in rule["shape"]:
            total *= axis
        return Tensor(dtype, tuple(rule["shape"]), encode([number] * total, dtype))
    return weight(rule["ramp"], rule["shape"], dtype)


def source_of(case: dict[str, Any]) -> Drafter:
    drafter = make_drafter(**_tuples(case["drafter"]))
    drafter = drafter.with_config(case.get("config", {}), case.get("without_config", ()))
    drafter = drafter.renamed(case.get("rename", {}))
    changes = {name: tensor_of(rule, drafter.tensors) for name, rule in case.get("tensors", {}).items()}
    return drafter.with_tensors(changes, case.get("without_tensors", ()))


def _tuples(knobs: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in knobs.items()}


def wanted_tensors(case: dict[str, Any], wanted: dict[str, Any], source: Drafter) -> dict[str, Tensor]:
    """What the output must hold: the drafter of the case spelled in the destination, and the listed exceptions."""
    knobs = {**case["drafter"], **wanted.get("drafter", {}), "format": wanted["to"]}
    if wanted["to"] in ("sglang", "sglang-plugin", "vllm", "my-sglang") and "t2d" not in knobs:
        knobs["t2d"] = any(name.endswith("t2d") for name in source.tensors)  # engines read over it: it stays as it was
    if wanted["to"] not in FORMATS:
        knobs["format"] = "sglang"  # a format of the case's own spells tensors as SGLang does
    made = spell_tensors(Knobs(**_tuples(knobs)))
    for name, rule in wanted.get("tensors", {}).items():
        if rule is None:
            made.pop(name)
        else:
            made[name] = tensor_of(rule, source.tensors)
    return made


def nulls(config: Any, at: str = "") -> set[str]:
    if isinstance(config, dict):
        return {path for key, value in config.items() for path in nulls(value, f"{at}.{key}".strip("."))}
    return {at} if config is None else set()


def value_at(config: Any, path: str) -> Any:
    for key in path.split("."):
        if not isinstance(config, dict) or key not in config:
            return "absent"
        config = config[key]
    return config


@pytest.mark.parametrize(("case", "number"), ALL)
def test_case(case: dict[str, Any], number: int, tmp_path: Path, command: Command) -> None:
    wanted = case["convert"][number]
    source = source_of(case)
    if case.get("container") == "bin":
        pytest.importorskip("torch")
    folder = source.write(tmp_path / "drafter", case.get("container", "single"))
    for name in case.get("delete", ()):
        (folder / name).unlink()
    words = [word.replace("{cases}", str(CASES)) for word in wanted.get("options", ())]
    if wanted.get("verifier", {}) is not None:
        verifier = write_verifier(tmp_path / "verifier", **wanted.get("verifier", {}))
        words += ["--verifier-config", str(verifier / "config.json")]
    out = tmp_path / "out"

    done = command(wanted["from"], wanted["to"], folder, out, *words)

    talk = (done.stdout + done.stderr).replace(str(tmp_path), "")  # the folder's name must not stand in for a word
    assert done.returncode == EXIT[wanted["outcome"]], talk
    for word in wanted.get("says", ()):
        assert word.lower() in talk.lower(), f"{word!r} is not named:\n{talk}"
    for word in wanted.get("says_not", ()):
        assert word.lower() not in talk.lower(), f"{word!r} is named:\n{talk}"
    assert left_behind(tmp_path) == []
    if wanted["outcome"] != "written":
        assert not out.exists()
        return

    got, want = read_tensors(out), wanted_tensors(case, wanted, source)
    assert sorted(got) == sorted(want)
    assert {name for name in want if got[name] != want[name]} == set(), "these tensors are not what they should be"
    config = read_config(out)
    for path, value in wanted.get("config", {}).items():
        found = value_at(config, path)
        assert found == value, f"config.json: {path}"
        assert type(found) is type(value), f"config.json: {path}"
    for path in wanted.get("config_without", ()):
        assert value_at(config, path) == "absent", f"config.json: {path}"
    allowed = {path for path, value in wanted.get("config", {}).items() if value is None}
    allowed.add("speculators_config.verifier.name_or_path")  # the library insists on the field, and takes null
    assert nulls(config) <= allowed, "no field of the output is null unless the case says so"
    for path, value in wanted.get("receipt", {}).items():
        assert value_at(read_receipt(out), path) == value, f"receipt: {path}"


def test_there_is_a_case_for_every_format_as_source_and_as_destination() -> None:
    pairs = {(wanted["from"], wanted["to"]) for case, number in _listed() for wanted in [case["convert"][number]]}
    formats = {"modelopt", "safeailab", "sglang", "specforge", "speculators", "vllm"}
    assert formats <= {source for source, _ in pairs}
    assert formats <= {destination for _, destination in pairs}


def _listed() -> list[tuple[dict[str, Any], int]]:
    return [(param.values[0], param.values[1]) for param in ALL]  # type: ignore[misc]
