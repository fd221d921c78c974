"""`eagle3convert doctor` and `explain` as a user and a CI job run them."""

from __future__ import annotations

import json
import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest

from eagle3convert.cli import run
from eagle3convert.explain import listing
from eagle3convert.formats import schemas_folder

from ..conftest import Command
from ..drafters import (
    TARGETS,
    Drafter,
    encode,
    list_tensor,
    make_drafter,
    mask,
    weight,
    write_safetensors,
    write_verifier,
)
from .building import build, with_elements
from .test_cases import CASES

jsonschema: Any = import_module("jsonschema")  # it has no types of its own

GOLDEN = Path(__file__).parent / "golden_report.json"
SCHEMA = json.loads((schemas_folder() / "doctor.schema.json").read_text(encoding="utf-8"))


def sound() -> Drafter:
    return make_drafter("sglang")


def warned() -> Drafter:
    """A drafter with one warning (W506) and no error."""
    return make_drafter("sglang", dtype="F32").with_config({"torch_dtype": "bfloat16"})


def wrong() -> Drafter:
    """A drafter with an error (E212), a warning (W205) and a note (N511)."""
    changed = {"d2t": list_tensor(TARGETS), "t2d": mask(TARGETS, 40)}
    return make_drafter("sglang").with_tensors(changed).with_config({"colour": "blue"})


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_verifier(tmp_path / "verifier") / "config.json"


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


class Here(Protocol):
    def __call__(self, *words: str | Path) -> Done: ...


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """The console script in this process, which is ten times as fast as one of its own."""

    def call(*words: str | Path) -> Done:
        monkeypatch.setattr("sys.argv", ["eagle3convert", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            run()
        code = stop.value.code
        assert isinstance(code, int)
        return Done(code, *capsys.readouterr())

    return call


def report_of(done: Any) -> dict[str, Any]:
    """The one JSON object that stdout must be, valid under the published schema."""
    report: dict[str, Any] = json.loads(done.stdout)
    jsonschema.validate(report, SCHEMA)
    return report


def codes(report: dict[str, Any]) -> set[str]:
    return {finding["code"] for finding in report["findings"]}


# --- exit codes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("drafter", "words", "code"),
    [
        (sound(), [], 0),
        (sound(), ["--strict"], 0),
        (sound().with_config({"colour": "blue"}), ["--strict"], 0),  # a note is nothing that CI should stop at
        (warned(), [], 0),
        (warned(), ["--strict"], 1),
        (warned(), ["--strict", "--ignore", "W506"], 0),
        (warned(), ["--strict", "--ignore", "W5"], 0),
        (warned(), ["--strict", "--select", "E"], 0),
        (wrong(), [], 1),
        (wrong(), ["--ignore", "E212"], 0),
        (wrong(), ["--ignore", "E212", "--strict"], 1),
        (wrong(), ["--ignore", "e212, W205", "--strict"], 0),
        (wrong(), ["--select", "E1,W5"], 0),
        (wrong(), ["--select", "E2"], 1),
        (wrong(), ["--select", "E2", "--ignore", "E212"], 0),
    ],
)
def test_exit_code(drafter: Drafter, words: list[str], code: int, tmp_path: Path, config: Path, here: Here) -> None:
    folder = drafter.write(tmp_path / "drafter")
    for more in ([], ["--json"]):
        done = here("doctor", folder, "--for", "sglang", "--verifier-config", config, *words, *more)
        assert done.returncode == code, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--for", "nobody"], "nobody"),
        (["--for", "specforge"], "specforge"),
        (["--format", "nobody"], "nobody"),
        (["--select", "E999"], "E999"),
        (["--ignore", "X"], "X"),
        (["--for", "sglang", "--engine-version", "new"], "new"),
        (["--assume", "colour=blue"], "colour"),
        (["--verifier-config", "nowhere.json"], "nowhere.json"),
    ],
)
def test_usage(words: list[str], named: str, tmp_path: Path, here: Here) -> None:
    done = here("doctor", sound().write(tmp_path / "drafter"), *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert named in done.stderr
    assert done.stdout == ""


# --- files that cannot be read ----------------------------------------------------------------------------------------


def shard_missing(folder: Path) -> str:
    sound().write(folder, "sharded")
    (folder / "model-00002-of-00003.safetensors").unlink()
    return "model-00002-of-00003.safetensors"


def index_missing(folder: Path) -> str:
    sound().write(folder, "sharded")
    (folder / "model.safetensors.index.json").unlink()
    return "model.safetensors.index.json"


def index_names_no_tensor(folder: Path) -> str:
    sound().write(folder, "sharded")
    file = folder / "model.safetensors.index.json"
    index = json.loads(file.read_text(encoding="utf-8"))
    index["weight_map"]["ghost.weight"] = "model-00001-of-00003.safetensors"
    file.write_text(json.dumps(index), encoding="utf-8")
    return "ghost.weight"


def lfs_pointer(folder: Path) -> str:
    sound().write(folder)
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    (folder / "model.safetensors").write_text(text, encoding="utf-8")
    return "git lfs"


def stray_file(folder: Path) -> str:
    sound().write(folder)
    write_safetensors(folder / "second.safetensors", {"fc.weight": weight(1, (12, 36), "BF16")})
    return "second.safetensors"


def truncated(folder: Path) -> str:
    file = sound().write(folder) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    return "model.safetensors"


def empty(folder: Path) -> str:
    folder.mkdir()
    return "config.json"


@pytest.mark.parametrize(
    "spoil", [shard_missing, index_missing, index_names_no_tensor, lfs_pointer, stray_file, truncated, empty]
)
def test_files_that_cannot_be_read(spoil: Any, tmp_path: Path, here: Here) -> None:
    named = spoil(tmp_path / "drafter")
    done = here("doctor", tmp_path / "drafter", "--for", "sglang")
    assert done.returncode == 1
    assert named.lower() in done.stderr.lower()


# --- JSON -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["E108_layers_0_in_an_old_release", "E105_p_eagle", "E524_speculators_for_sglang"])
def test_json_is_one_object_of_the_schema(name: str, tmp_path: Path, command: Command) -> None:
    case = CASES[name]
    built = build(case, tmp_path)
    words = ["--for", case["for"], "--engine-version", case.get("engine_version", ""), "--json"]
    done = command("doctor", built.folder, *words)
    report = report_of(done)
    assert done.stderr == ""
    assert codes(report) >= set(case["findings"])
    assert all(code in listing() for code in {*codes(report), *report["skipped"]})
    assert not codes(report) & set(report["skipped"])


def test_json_without_an_engine(tmp_path: Path, command: Command) -> None:
    report = report_of(command("doctor", wrong().write(tmp_path / "drafter"), "--json"))
    assert (report["engine"], report["release"], report["outcome"], report["mend"]) == (None, None, None, None)
    assert codes(report) == {"W205", "N511"}
    assert report["skipped"]["E212"] == "no destination is named"


def test_the_schema_refuses_what_is_no_report() -> None:
    report = json.loads(GOLDEN.read_text(encoding="utf-8"))
    jsonschema.validate(report, SCHEMA)
    for changed in ({**report, "more": 1}, {**report, "outcome": "good"}, {**report, "findings": [{}]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(changed, SCHEMA)


def test_json_is_stable(tmp_path: Path, command: Command) -> None:
    """The whole report of one drafter.  More codes may be skipped in later releases; nothing else may change."""
    wrong().write(tmp_path / "drafter")
    report = report_of(command("doctor", "drafter", "--for", "sglang", "--json", cwd=tmp_path))
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    skipped = golden.pop("skipped")
    assert report["skipped"].items() >= skipped.items()
    assert {**report, "skipped": None} == {**golden, "skipped": None}


# --- text -------------------------------------------------------------------------------------------------------------


def text_of(drafter: Drafter, place: Path, command: Command, *words: str | Path) -> str:
    return command("doctor", drafter.write(place / "drafter"), "--for", "sglang", *words).stdout


def test_text_leads_with_the_verdict(tmp_path: Path, config: Path, command: Command) -> None:
    text = text_of(wrong(), tmp_path, command, "--verifier-config", config)
    first, second = text.split("\n\n")[:2]
    assert first.startswith("Served by SGLang 0.5.23 as it stands, this drafter will load and accept almost nothing, ")
    assert "\n" not in first
    assert [line.split()[0] for line in second.splitlines() if re.match(r"  [EWN]\d", line)] == ["E212", "W205"]
    assert "N511" not in text


def test_text_of_a_sound_drafter(tmp_path: Path, config: Path, command: Command) -> None:
    text = text_of(sound(), tmp_path, command, "--verifier-config", config)
    assert text.startswith("Served by SGLang 0.5.23 as it stands, this drafter will draft as trained")
    assert "mends" not in text


def test_verbose_shows_notes_and_what_was_not_checked(tmp_path: Path, command: Command) -> None:
    text = text_of(wrong(), tmp_path, command, "-v")
    assert "N511 note" in text
    assert re.search(r"[EN]70[45]: --verifier names no folder with weights", text)


def rows_below(text: str, heading: str) -> list[list[str]]:
    """The cells of the table whose heading line holds these words."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if heading in line)
    rows = []
    for line in lines[start + 1 :]:
        if not re.fullmatch(r"[\s\d?]+", line):
            break
        rows.append(line.split())
    return rows


def test_table_of_states(tmp_path: Path, command: Command) -> None:
    changed = {"architectures": ["LlamaForCausalLMEagle3"]}
    drafter = make_drafter("vllm", aux=(0, 3, 14)).with_config(changed)
    config = write_verifier(tmp_path / "verifier") / "config.json"
    text = text_of(drafter, tmp_path, command, "--verifier-config", config)
    assert rows_below(text, "fc block") == [["0", "0", "2"], ["1", "3", "8"], ["2", "14", "13"]]


def test_table_of_the_map(tmp_path: Path, config: Path, command: Command) -> None:
    text = text_of(wrong(), tmp_path, command, "--verifier-config", config)
    trained_and_read = [[str(i), str(t), str(i + t)] for i, t in enumerate(TARGETS[:5])]
    assert rows_below(text, "target id as trained") == trained_and_read


def test_layers_are_folded(tmp_path: Path, command: Command) -> None:
    lost = [f"layers.{i}.mlp.up_proj.weight" for i in range(3)]
    drafter = make_drafter("vllm", layers=3).with_tensors({}, lost)
    done = command("doctor", drafter.write(tmp_path / "drafter"), "--for", "vllm")
    assert "layers.{0..2}.mlp.up_proj.weight is missing" in done.stdout
    assert done.stdout.count("E101 error") == 1


def test_other_engines_that_serve_it(tmp_path: Path, config: Path, command: Command) -> None:
    drafter = make_drafter("speculators", norm_before_residual=True)
    text = text_of(drafter, tmp_path, command, "--verifier-config", config)
    assert "norm_before_residual" in text.split("\n\n")[0]
    assert "vllm can serve this drafter as it was trained." in text
    assert "mends" not in text


@pytest.mark.parametrize("select", ["W205", "E5"])
def test_the_verdict_does_not_depend_on_what_is_listed(
    select: str, tmp_path: Path, config: Path, command: Command
) -> None:
    """A drafter does not become a good one by being asked about one code only."""
    text = text_of(wrong(), tmp_path, command, "--verifier-config", config, "--select", select)
    assert "this drafter will draft as trained" not in text
    assert "E212 error" not in text


# --- the command that mends it ----------------------------------------------------------------------------------------


def run_mend(folder: Path, engine: str, command: Command, *words: str | Path) -> Path:
    """Run the command that the doctor prints, word for word, and give the folder that it writes."""
    asked = ["--for", engine, *words]
    mend = report_of(command("doctor", folder, *asked, "--json"))["mend"]
    assert mend is not None
    program, *rest = shlex.split(mend)
    assert program == "eagle3convert"
    done = command(*rest)
    assert done.returncode == 0, f"{mend}\n{done.stderr}"
    return Path(rest[3])


@pytest.mark.parametrize(
    ("drafter", "engine", "words"),
    [
        (wrong(), "sglang", []),
        (make_drafter("speculators"), "sglang", []),
        (make_drafter("safeailab", aux=None), "sglang", []),
        (make_drafter("vllm", aux=(2, 6, 10, 13)).with_config({}, ["num_aux_hidden_states"]), "vllm", []),
        (make_drafter("speculators", norm_before_residual=None), "vllm", ["--assume", "norm_before_residual=false"]),
    ],
    ids=["map", "speculators", "safeailab", "count", "assumed"],
)
def test_the_command_that_mends_it(
    drafter: Drafter, engine: str, words: list[str], tmp_path: Path, config: Path, command: Command
) -> None:
    folder = drafter.write(tmp_path / "drafter")
    asked = [*words, "--verifier-config", str(config)]
    out = run_mend(folder, engine, command, *asked)
    again = command("doctor", out, "--for", engine, "--verifier-config", config)
    assert again.returncode == 0, again.stdout
    assert "this drafter will draft as trained" in again.stdout


def test_the_command_that_mends_a_folder_with_a_space_in_its_name(
    tmp_path: Path, config: Path, command: Command
) -> None:
    folder = wrong().write(tmp_path / "my drafter")
    out = run_mend(folder, "sglang", command, "--verifier-config", config)
    assert (out / "config.json").is_file()


def test_text_ends_with_the_command_that_mends_it(tmp_path: Path, config: Path, here: Here) -> None:
    asked = ["doctor", str(wrong().write(tmp_path / "drafter")), "--for", "sglang", "--verifier-config", str(config)]
    mend = report_of(here(*asked, "--json"))["mend"]
    assert here(*asked).stdout.endswith(f"This command mends it:\n  {mend}\n")


@pytest.mark.parametrize("words", [["--aux-layers", "3,9,14"], ["--d2t-encoding", "offset"]])
def test_the_doctor_takes_what_its_remedies_name(words: list[str], tmp_path: Path, here: Here) -> None:
    done = here("doctor", sound().write(tmp_path / "drafter"), *words)
    assert done.returncode in (0, 1), done.stderr


# --- values -----------------------------------------------------------------------------------------------------------


def with_nan() -> Drafter:
    head = sound().tensors["lm_head.weight"]
    return sound().with_tensors({"lm_head.weight": with_elements(head, {61: float("nan")})})


def test_no_values(tmp_path: Path, config: Path, command: Command) -> None:
    folder = with_nan().write(tmp_path / "drafter")
    asked = ["--for", "sglang", "--verifier-config", str(config), "--json"]
    scanned = report_of(command("doctor", folder, *asked))
    not_scanned = report_of(command("doctor", folder, *asked, "--no-values"))
    assert codes(scanned) == {"E605"}
    assert codes(not_scanned) == set()
    assert not_scanned["skipped"]["E605"] == "the values were not scanned"


def test_values_of_a_bin_file(tmp_path: Path, config: Path, command: Command) -> None:
    pytest.importorskip("torch")
    folder = with_nan().write(tmp_path / "drafter", "bin")
    report = report_of(command("doctor", folder, "--for", "sglang", "--verifier-config", config, "--json"))
    assert codes(report) == {"E605"}


def test_verifier_with_weights(tmp_path: Path, command: Command) -> None:
    verifier = write_verifier(tmp_path / "verifier")
    theirs = {"model.embed_tokens.weight": weight(90, (40, 12), "BF16"), "lm_head.weight": weight(91, (40, 12), "BF16")}
    write_safetensors(verifier / "model.safetensors", theirs)
    folder = sound().write(tmp_path / "drafter")
    report = report_of(command("doctor", folder, "--for", "sglang", "--verifier", verifier, "--json"))
    assert codes(report) == {"E705", "N704"}


def test_verifier_with_tied_weights(tmp_path: Path, command: Command) -> None:
    verifier = write_verifier(tmp_path / "verifier", tie_word_embeddings=True)
    embedding = weight(90, (40, 12), "BF16")
    write_safetensors(verifier / "model.safetensors", {"model.embed_tokens.weight": embedding})
    rows = [embedding.data[24 * i : 24 * (i + 1)] for i in TARGETS]
    mine = {"embed_tokens.weight": embedding, "lm_head.weight": embedding._replace(shape=(10, 12), data=b"".join(rows))}
    folder = sound().with_tensors(mine).write(tmp_path / "drafter")
    report = report_of(command("doctor", folder, "--for", "sglang", "--verifier", verifier, "--json"))
    assert codes(report) == set()


# --- explain ----------------------------------------------------------------------------------------------------------


def test_explain_lists_every_code(command: Command) -> None:
    lines = command("explain").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(listing())
    assert json.loads(command("explain", "--json").stdout) == listing()


@pytest.mark.parametrize("code", ["E212", "e212"])
def test_explain_prints_the_page(code: str, here: Here) -> None:
    done = here("explain", code)
    assert done.returncode == 0
    assert done.stdout.startswith("E212 (error)\n\nThe engine reads other target ids out of d2t")
    assert json.loads(here("explain", code, "--json").stdout)["code"] == "E212"


@pytest.mark.parametrize("code", ["E999", "X", "E21"])
def test_explain_knows_no_such_code(code: str, here: Here) -> None:
    done = here("explain", code)
    assert done.returncode == 2
    assert code in done.stderr
    assert done.stdout == ""


def test_encode_makes_the_nan_that_the_tests_mean() -> None:
    assert encode([float("nan")], "BF16") == b"\xc0\x7f"
