"""The command line as a user meets it: its words, its exit codes, and what it says about bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import eagle3convert
from eagle3convert.cli import main

from .conftest import Command, left_behind
from .drafters import FORMATS, make_drafter, read_config, read_tensors, write_verifier

FIXTURE = Path(__file__).parent / "fixtures" / "speculators" / "llama1"
SUBCOMMANDS = {"convert", "inspect", "verify", "diff", "formats", "demo"}
OPTIONS = (
    "--verifier", "--verifier-config", "--assume", "--aux-layers", "--d2t-encoding", "--dtype", "--engine-version",
    "--format-file", "--max-shard-size", "--dry-run", "--force", "--report", "--json", "--quiet", "--verbose",
)  # fmt: skip


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    return make_drafter("speculators").write(tmp_path / "drafter")


@pytest.fixture
def unsayable(tmp_path: Path) -> Path:
    """A drafter that SGLang cannot run as it was trained."""
    return make_drafter("speculators", norm_before_residual=True, attention_bias=True).write(tmp_path / "unsayable")


@pytest.fixture
def verifier(tmp_path: Path) -> list[str]:
    return ["--verifier-config", str(write_verifier(tmp_path / "verifier") / "config.json")]


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# --- the words --------------------------------------------------------------------------------------------------------


def test_the_card_s_command_converts(drafter: Path, tmp_path: Path, command: Command) -> None:
    done = command("speculators", "sglang", drafter, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "verified" in done.stdout
    assert "--speculative-algorithm EAGLE3" in done.stdout
    assert str(tmp_path / "out") in done.stdout
    assert sorted(f.name for f in (tmp_path / "out").iterdir()) == [
        "config.json", "eagle3convert.json", "model.safetensors",
    ]  # fmt: skip


def test_the_word_convert_may_be_said(drafter: Path, tmp_path: Path, command: Command) -> None:
    assert command("convert", "speculators", "vllm", drafter, tmp_path / "out").returncode == 0
    assert (tmp_path / "out" / "config.json").is_file()


def test_the_console_script_is_the_same_command_line(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("eagle3convert")
    if not script.exists():
        pytest.skip("this environment has no console scripts")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, f"eagle3convert, version {eagle3convert.__version__}")


def test_help_names_the_card_s_form_and_every_subcommand(command: Command) -> None:
    done = command("--help")
    assert done.returncode == 0
    assert "SOURCE_FORMAT DESTINATION_FORMAT IN OUT" in done.stdout
    for name in main.commands:
        if not main.commands[name].hidden:
            assert name in done.stdout
    assert set(main.commands) >= SUBCOMMANDS


def test_every_subcommand_has_its_help(command: Command) -> None:
    done = command("convert", "--help")
    for option in OPTIONS:
        assert option in done.stdout
    for name, subcommand in main.commands.items():
        assert subcommand.help, f"{name} says what it does"
    assert command("inspect", "-h").returncode == 0


def test_no_format_is_named_like_a_subcommand() -> None:
    assert not {*eagle3convert.format_names(), "auto"} & set(main.commands)


def test_formats_are_listed_described_and_drawn(command: Command) -> None:
    listed = command("formats").stdout
    for name in FORMATS:
        assert name in listed
        described = command("formats", name).stdout
        assert "evidence" in described
        assert "norm_before_residual" in described
    drawn, dot = command("formats", "--graph").stdout, command("formats", "--graph", "dot").stdout
    assert drawn.startswith("graph LR")
    assert dot.startswith("digraph")
    for text in (drawn, dot):
        assert text.count("canonical") == 2 * len(FORMATS), "two edges for each format, to and from the canonical one"
    assert [f["name"] for f in json.loads(command("formats", "--json").stdout)] == list(FORMATS)
    unknown = command("formats", "gguf")
    assert (unknown.returncode, "gguf" in unknown.stderr) == (2, True)


def test_the_demo_goes_the_whole_way(tmp_path: Path, command: Command) -> None:
    done = command("demo", tmp_path / "demo")
    assert done.returncode == 0, done.stderr
    for word in ("sglang", "vllm", "verified"):
        assert word in done.stdout
    assert len(list((tmp_path / "demo").rglob("eagle3convert.json"))) >= 2


# --- options ----------------------------------------------------------------------------------------------------------


def test_a_dry_run_writes_nothing(drafter: Path, verifier: list[str], tmp_path: Path, command: Command) -> None:
    before = tree(tmp_path)
    done = command("speculators", "sglang", drafter, tmp_path / "out", "--dry-run", *verifier)
    assert done.returncode == 0
    assert tree(tmp_path) == before
    for word in ("midlayer.hidden_norm.weight", "bytes unchanged", "config.json", "0.5.5", "--speculative-algorithm"):
        assert word in done.stdout


def test_a_dry_run_of_a_refused_conversion_is_refused(unsayable: Path, tmp_path: Path, command: Command) -> None:
    before = tree(tmp_path)
    done = command("speculators", "sglang", unsayable, tmp_path / "out", "--dry-run")
    assert done.returncode == 1
    assert "norm_before_residual" in done.stderr
    assert tree(tmp_path) == before


def test_json_is_one_object_on_stdout_and_nothing_else(
    drafter: Path, verifier: list[str], tmp_path: Path, command: Command
) -> None:
    done = command("speculators", "sglang", drafter, tmp_path / "out", "--json", *verifier)
    told = json.loads(done.stdout)
    assert isinstance(told, dict)
    assert told["out"] == str(tmp_path / "out")
    assert told["plan"]["lowest_release"] == "0.5.5"
    assert told["verification"]["passed"] is True
    assert told["receipt"] == json.loads((tmp_path / "out" / "eagle3convert.json").read_text())
    rows = {row["name"]: row for row in told["plan"]["tensors"]}
    assert rows.keys() == read_tensors(tmp_path / "out").keys()
    assert rows["midlayer.hidden_norm.weight"]["source"] == "layers.0.hidden_norm.weight"
    assert done.stderr == ""


def test_json_of_a_dry_run_is_the_whole_plan(drafter: Path, tmp_path: Path, command: Command) -> None:
    told = json.loads(command("auto", "vllm", drafter, tmp_path / "out", "--dry-run", "--json").stdout)
    assert told["plan"]["refused"] is False
    assert told["plan"]["config"]["architectures"] == ["Eagle3LlamaForCausalLM"]
    assert told["plan"]["launch"][:2] == ["vllm", "serve"]
    assert "verification" not in told


def test_json_of_a_refusal_lists_the_findings(unsayable: Path, tmp_path: Path, command: Command) -> None:
    done = command("speculators", "sglang", unsayable, tmp_path / "out", "--json")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert told["plan"]["refused"] is True
    errors = [f for f in told["plan"]["findings"] if f["severity"] == "error"]
    assert {f["data"].get("feature") for f in errors} == {"norm_before_residual", "attention_bias"}
    assert all(f["code"] and f["message"] for f in errors)
    assert told["plan"]["served_by"] == ["sglang-plugin", "vllm"]


def test_a_report_is_the_same_object_in_a_file(drafter: Path, tmp_path: Path, command: Command) -> None:
    report = tmp_path / "report.json"
    done = command("speculators", "vllm", drafter, tmp_path / "out", "--report", report)
    assert done.returncode == 0
    told = json.loads(report.read_text())
    assert told["verification"]["passed"] is True
    assert told["plan"]["destination"]["format"] == "vllm"
    assert command("speculators", "vllm", drafter, tmp_path / "2", "--report", report, "--json").stdout.strip() == (
        report.read_text().strip()
    )


def test_a_refusal_is_reported_too(unsayable: Path, tmp_path: Path, command: Command) -> None:
    done = command("speculators", "sglang", unsayable, tmp_path / "out", "--report", tmp_path / "report.json")
    assert done.returncode == 1
    assert json.loads((tmp_path / "report.json").read_text())["plan"]["refused"] is True


def test_a_report_that_cannot_be_written_is_named(drafter: Path, tmp_path: Path, command: Command) -> None:
    done = command("speculators", "vllm", drafter, tmp_path / "out", "--report", tmp_path / "absent" / "report.json")
    assert done.returncode != 0
    assert "report.json" in done.stderr


def test_quiet_says_nothing_where_nothing_is_wrong(drafter: Path, tmp_path: Path, command: Command) -> None:
    done = command("speculators", "sglang", drafter, tmp_path / "out", "-q")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_quiet_still_says_why_it_refuses(unsayable: Path, tmp_path: Path, command: Command) -> None:
    done = command("speculators", "sglang", unsayable, tmp_path / "out", "-q")
    assert done.returncode == 1
    assert "norm_before_residual" in done.stderr


def test_verbose_prints_the_plan_too(drafter: Path, tmp_path: Path, command: Command) -> None:
    done = command("speculators", "sglang", drafter, tmp_path / "out", "-v")
    assert "midlayer.mlp.up_proj.weight" in done.stdout


def test_results_go_to_stdout_and_warnings_to_stderr(tmp_path: Path, command: Command) -> None:
    drafter = make_drafter("sglang", aux=None).write(tmp_path / "drafter")
    verifier = write_verifier(tmp_path / "verifier")
    done = command("sglang", "vllm", drafter, tmp_path / "out", "--verifier", verifier)
    assert done.returncode == 0
    assert "assumed" in done.stderr
    assert "assumed" not in done.stdout
    assert "verified" in done.stdout


def test_an_output_that_exists_is_kept_without_force(drafter: Path, tmp_path: Path, command: Command) -> None:
    out = tmp_path / "out"
    assert command("speculators", "sglang", drafter, out).returncode == 0
    before = tree(out)
    done = command("speculators", "vllm", drafter, out)
    assert done.returncode == 1
    assert str(out) in done.stderr
    assert "--force" in done.stderr
    assert tree(out) == before
    assert command("speculators", "vllm", drafter, out, "--force").returncode == 0
    assert read_config(out)["architectures"] == ["Eagle3LlamaForCausalLM"]
    assert left_behind(tmp_path) == []


def test_force_keeps_the_old_drafter_where_the_new_one_is_refused(
    drafter: Path, unsayable: Path, tmp_path: Path, command: Command
) -> None:
    out = tmp_path / "out"
    assert command("speculators", "sglang", drafter, out).returncode == 0
    before = tree(out)
    assert command("speculators", "sglang", unsayable, out, "--force").returncode == 1
    assert tree(out) == before


def test_force_does_not_take_a_folder_of_something_else(drafter: Path, tmp_path: Path, command: Command) -> None:
    out = tmp_path / "my thesis"
    out.mkdir()
    (out / "chapter1.tex").write_text("x")
    done = command("speculators", "sglang", drafter, out, "--force")
    assert done.returncode == 1
    assert "my thesis" in done.stderr
    assert tree(out) == {"chapter1.tex": b"x"}


@pytest.mark.parametrize("words", [["."], ["drafter"], ["drafter/inside"]])
def test_the_source_is_never_the_output(words: list[str], drafter: Path, tmp_path: Path, command: Command) -> None:
    before = tree(tmp_path)
    done = command("speculators", "sglang", "drafter", *words, "--force", cwd=tmp_path)
    assert done.returncode == 1, done.stdout
    assert tree(tmp_path) == before


def test_a_relative_output_and_a_trailing_slash_are_fine(drafter: Path, tmp_path: Path, command: Command) -> None:
    assert command("speculators", "sglang", "drafter/", "out/", cwd=tmp_path).returncode == 0
    assert (tmp_path / "out" / "config.json").is_file()


def test_a_name_with_spaces_and_quotes_stays_one_word_of_the_launch_command(tmp_path: Path, command: Command) -> None:
    drafter = make_drafter("speculators").write(tmp_path / "my drafter's")
    done = command("speculators", "sglang", drafter, tmp_path / "the out's")
    assert done.returncode == 0
    import shlex

    line = next(line for line in done.stdout.splitlines() if "launch_server" in line)
    assert str(tmp_path / "the out's") in shlex.split(line)


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("config.json", b"", "config.json"),
        ("config.json", b"{", "config.json"),
        ("config.json", b"[]", "config.json"),
        ("config.json", b"\xff\xfe\x00", "config.json"),
        ("config.json", b'{"a": 1, "a": 2}', "config.json"),
        ("config.json", b'{"rms_norm_eps": NaN}', "config.json"),
        ("config.json", b"[" * 100_000, "config.json"),
        ("config.json", b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 3\n", "LFS"),
        ("model.safetensors", b"", "model.safetensors"),
        ("model.safetensors", b"\x00" * 7, "model.safetensors"),
        ("model.safetensors", b"\xff" * 64, "model.safetensors"),
        ("model.safetensors", b"PK\x03\x04not a zip", "model.safetensors"),
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 850000000\n", "LFS"),
        ("model.safetensors", b"\x02\x00\x00\x00\x00\x00\x00\x00{}", "tensor"),
        ("model.safetensors.index.json", b"{}", "model.safetensors"),
        ("params.json", b"{}", ""),
    ],
)  # fmt: skip
def test_a_damaged_file_is_named(
    name: str, content: bytes, says: str, drafter: Path, tmp_path: Path, command: Command
) -> None:
    (drafter / name).write_bytes(content)
    done = command("speculators", "sglang", drafter, tmp_path / "out")
    if says:
        assert done.returncode == 1, done.stdout
        assert says in done.stderr
        assert not (tmp_path / "out").exists()
    assert command("inspect", drafter).returncode in (0, 1)


def test_a_second_weights_file_is_left_aside_and_named(drafter: Path, tmp_path: Path, command: Command) -> None:
    (drafter / "pytorch_model.bin").write_bytes(b"\x80\x02}.")
    done = command("speculators", "sglang", drafter, tmp_path / "out", "-v")
    assert done.returncode == 0, done.stderr
    assert "pytorch_model.bin" in done.stderr
    assert "pytorch_model.bin" in command("inspect", drafter).stdout


@pytest.mark.parametrize("cut", [1, 9, 200, 2000, -1])
def test_a_truncated_file_is_named(cut: int, drafter: Path, tmp_path: Path, command: Command) -> None:
    file = drafter / "model.safetensors"
    file.write_bytes(file.read_bytes()[:cut])
    done = command("speculators", "sglang", drafter, tmp_path / "out")
    assert done.returncode == 1
    assert "model.safetensors" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_path_that_is_no_drafter_is_named(drafter: Path, tmp_path: Path, command: Command) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for source in ("absent", "file", "empty", "drafter/model.safetensors"):
        done = command("speculators", "sglang", source, "out", cwd=tmp_path)
        assert done.returncode == 1, done.stdout
        assert source in done.stderr
    for subcommand in (["inspect", "absent"], ["verify", "drafter", "absent"], ["diff", "drafter", "absent"]):
        done = command(*subcommand, cwd=tmp_path)
        assert done.returncode == 1
        assert "absent" in done.stderr


def test_an_output_that_cannot_be_written_is_named(drafter: Path, tmp_path: Path, command: Command) -> None:
    (tmp_path / "file").write_text("x")
    for out in ("file", "file/out"):
        done = command("speculators", "sglang", drafter, tmp_path / out)
        assert done.returncode == 1
        assert "file" in done.stderr
    assert (tmp_path / "file").read_text() == "x"


def test_usage_errors_exit_with_2(drafter: Path, tmp_path: Path, command: Command) -> None:
    for words in (["speculators"], ["speculators", "sglang", drafter], ["inspect"], ["--no-such-option"],
                  ["speculators", "sglang", drafter, tmp_path / "out", "--no-such-option"]):  # fmt: skip
        done = command(*words)
        assert done.returncode == 2, words
        assert done.stdout == ""
        assert "Usage" in done.stderr or "eagle3convert" in done.stderr


def test_a_misspelt_format_is_answered_with_the_known_ones(drafter: Path, tmp_path: Path, command: Command) -> None:
    done = command("speculator", "sglang", drafter, tmp_path / "out")
    assert done.returncode == 2
    for name in FORMATS:
        assert name in done.stderr


def test_a_closed_pipe_ends_quietly(drafter: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "eagle3convert", "formats", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read().decode()
    process.wait(timeout=60)
    process.stderr.close()
    assert "Traceback" not in said
    assert "Exception" not in said


def test_the_working_folder_may_be_read_only(drafter: Path, tmp_path: Path, command: Command) -> None:
    if os.geteuid() == 0:
        pytest.skip("root writes everywhere")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    done = command("speculators", "sglang", drafter, closed / "out")
    assert done.returncode == 1
    assert "permission" in done.stderr
