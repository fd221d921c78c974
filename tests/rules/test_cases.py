"""Every case in `cases/`: a drafter, who is to serve it, and exactly what the rules find.

A case is a JSON file whose name begins with the code that it is about; `README.md` says what its fields mean.  A new
case needs no code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from eagle3convert.checkpoint.source import open_checkpoint
from eagle3convert.conversion import plan_checkpoint
from eagle3convert.doctor import examine
from eagle3convert.findings import Finding
from eagle3convert.options import Options
from eagle3convert.rules import Case, all_rules, skipped

from .building import FIELDS, build

CODES = {rule.code() for rule in all_rules()}
LETTERS = {"E": "error", "W": "warning", "N": "note"}


def load(file: Path) -> dict[str, Any]:
    case: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    assert set(case) <= FIELDS, f"{file.name}: unknown fields {set(case) - FIELDS}"
    assert {"says", "base", "findings"} <= set(case), f"{file.name}: says, base and findings are wanted"
    assert not ({"for", "to"} <= set(case)), f"{file.name}: `for` asks the doctor and `to` plans a conversion"
    return case


CASES = {file.stem: load(file) for file in sorted((Path(__file__).parent / "cases").glob("*.json"))}


def code_of(name: str) -> str:
    return name.split("_", 1)[0]


def expected_codes(case: dict[str, Any]) -> set[str]:
    return {*case["findings"], *case.get("notes", ())}


class Answer(NamedTuple):
    findings: tuple[Finding, ...]
    skipped: dict[str, str]
    outcome: str | None


def ask(case: dict[str, Any], place: Path) -> Answer:
    """What the doctor, or the plan of a conversion, finds in the drafter of a case."""
    built = build(case, place)
    stated = built.options(case)
    if "to" in case:
        stated["engine_version"] = case.get("engine_version", "")
        with open_checkpoint(built.folder) as checkpoint:
            plan = plan_checkpoint(checkpoint, case.get("format", "auto"), case["to"], Options(**stated))
            return Answer(plan.findings, skipped(Case(plan.drafter, plan.destination)), None)
    found = examine(
        built.folder,
        case.get("for"),
        format_name=case.get("format", "auto"),
        engine_version=case.get("engine_version", ""),
        values=case.get("values", True),
        **stated,
    )
    return Answer(found.findings, found.skipped, found.outcome())


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, tmp_path: Path) -> None:
    case, code = CASES[name], code_of(name)
    if case.get("container") == "bin":
        pytest.importorskip("torch")

    answer = ask(case, tmp_path)

    said = "\n".join(map(str, answer.findings))
    serious = {f.code: str(f.severity) for f in answer.findings if f.severity != "note"}
    assert serious == case["findings"], said
    assert {f.code for f in answer.findings if f.severity == "note"} == set(case.get("notes", ())), said
    for word in case.get("names", ()):
        assert any(word in str(f) for f in answer.findings if f.code == code), f"{code} does not name {word!r}:\n{said}"
    if "outcome" in case:
        assert answer.outcome == case["outcome"]
    if code not in expected_codes(case):
        assert code not in answer.skipped, f"{code} was not checked: {answer.skipped[code]}"


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_code_has_a_case_that_fails_and_one_that_passes(code: str) -> None:
    mine = [case for name, case in CASES.items() if code_of(name) == code]
    assert any(code in expected_codes(case) for case in mine), f"no case {code}_….json in which {code} is found"
    assert any(code not in expected_codes(case) for case in mine), f"no case {code}_….json in which {code} is not found"


@pytest.mark.parametrize("name", CASES)
def test_no_case_speaks_of_an_unknown_code(name: str) -> None:
    assert {code_of(name), *expected_codes(CASES[name])} <= CODES


@pytest.mark.parametrize("name", CASES)
def test_the_case_of_a_code_that_is_found_names_what_it_is_about(name: str) -> None:
    case = CASES[name]
    if code_of(name) in expected_codes(case):
        assert case.get("names"), "`names` holds the words that the message must name"


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.code())
def test_the_letter_of_a_code_is_its_severity(rule: Any) -> None:
    assert LETTERS[rule.code()[0]] == str(rule.severity)
