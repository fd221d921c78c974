from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from eagle3convert.checkpoint import exchange as exchange_module
from eagle3convert.checkpoint import output
from eagle3convert.checkpoint.output import OutputFolder, cannot_write
from eagle3convert.checkpoint.signals import Terminated
from eagle3convert.errors import OutputError

SLOW_WRITER = """
import sys, time
from pathlib import Path
from eagle3convert.checkpoint.writer import OutputFolder, OutputTensor, write_safetensors
def chunks():
    for i in range(200):
        yield bytes(100_000)
        if i == 20:
            print("writing", flush=True)
        if i >= 20:
            time.sleep(0.05)
with OutputFolder(sys.argv[1], force=len(sys.argv) > 2) as tmp:
    (tmp / "config.json").write_text("{}")
    write_safetensors(tmp / "model.safetensors", [OutputTensor("x", "U8", (20_000_000,), None, chunks)], {})
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fill(out: Path, text: str = "new") -> None:
    with OutputFolder(out, force=True) as tmp:
        (tmp / "config.json").write_text(text)


def refused(out: Path, message: str, **options: Any) -> None:
    before = sorted(str(path) for path in out.parent.parent.rglob("*"))
    with pytest.raises(OutputError, match=message), OutputFolder(out, **options):
        raise AssertionError("the block was entered")
    assert sorted(str(path) for path in out.parent.parent.rglob("*")) == before


def test_the_folder_appears_whole_when_the_block_ends(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with OutputFolder(out) as tmp:
        assert tmp.parent == tmp_path
        assert tmp.name.startswith(f".out.tmp-{os.getpid()}-")
        (tmp / "config.json").write_text("{}")
        (tmp / "sub").mkdir()
        (tmp / "sub" / "x").write_text("y")
        assert not out.exists()
    assert names(tmp_path) == ["out"]
    assert names(out) == ["config.json", "sub"]


def test_an_empty_folder_is_taken_and_missing_parents_are_made(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    fill(tmp_path / "empty")
    fill(tmp_path / "a" / "b" / "c")
    assert names(tmp_path / "empty") == names(tmp_path / "a" / "b" / "c") == ["config.json"]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt, SystemExit, OutputError])
def test_any_failure_leaves_everything_as_it_was(tmp_path: Path, failure: type[BaseException]) -> None:
    fill(tmp_path / "old", "old")
    for out in (tmp_path / "old", tmp_path / "a" / "b" / "out"):

        def fail(out: Path = out) -> None:
            with OutputFolder(out, force=True) as tmp:
                (tmp / "config.json").write_text("new")
                raise failure

        with pytest.raises(failure):
            fail()
    assert names(tmp_path) == ["old"]
    assert (tmp_path / "old" / "config.json").read_text() == "old"


def test_a_checkpoint_is_replaced_only_by_force(tmp_path: Path) -> None:
    out = tmp_path / "out"
    fill(out, "old")
    refused(out, "exists already and is not empty .*--force")
    fill(out, "new")
    assert (out / "config.json").read_text() == "new"
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS])
def test_a_checkpoint_is_replaced_where_the_kernel_cannot_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(exchange_module, "_exchange_at_once", lambda new, old: False)
    out = tmp_path / "out"
    fill(out, "old")
    fill(out, "new")
    assert (out / "config.json").read_text() == "new"
    assert names(tmp_path) == ["out"]


def test_the_old_folder_is_put_back_where_the_new_one_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange_module, "_exchange_at_once", lambda new, old: False)
    out = tmp_path / "out"
    fill(out, "old")
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if target == out and not self.name.endswith(".old"):
            raise OSError(errno.ENOTEMPTY if out.exists() else errno.EACCES, "no")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(OutputError, match="out: cannot be written"):
        fill(out, "new")
    assert (out / "config.json").read_text() == "old"
    assert names(tmp_path) == ["out"]


def test_a_folder_filled_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def be_overtaken() -> None:
        with OutputFolder(out) as tmp:
            (tmp / "config.json").write_text("new")
            out.mkdir()
            (out / "theirs").write_text("x")

    with pytest.raises(OutputError, match="exists already and is not empty"):
        be_overtaken()
    assert names(out) == ["theirs"]
    assert names(tmp_path) == ["out"]


class TestRefusals:
    def test_the_source_itself_or_inside_or_around_it(self, tmp_path: Path) -> None:
        source = tmp_path / "box" / "in"
        fill(source)
        refused(source, "is the folder that is read from", source=source, force=True)
        refused(source / "out", "lies inside .*in, the folder that is read from", source=source)
        refused(tmp_path / "box", "holds .*in, the folder that is read from", source=source, force=True)
        (tmp_path / "link").symlink_to(source)
        refused(tmp_path / "link", "is the folder that is read from", source=source, force=True)

    def test_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_text("")
        refused(tmp_path / "x", "x: is a file")
        refused(tmp_path / "x" / "out", "x is a file, so no folder can be made in it")

    def test_force_does_not_replace_what_is_no_checkpoint(self, tmp_path: Path) -> None:
        (tmp_path / "thesis").mkdir()
        (tmp_path / "thesis" / "chapter1.tex").write_text("x")
        refused(tmp_path / "thesis", "holds no checkpoint .*chapter1.tex.* not replaced", force=True)

    def test_the_working_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        refused(tmp_path / "here", "is the current working folder", force=True)

    def test_a_mount_point(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "volume").mkdir()
        monkeypatch.setattr(os.path, "ismount", lambda path: Path(path).name == "volume")
        refused(tmp_path / "volume", "is a mount point.*volume/drafter")

    def test_no_permission(self, tmp_path: Path) -> None:
        if os.geteuid() == 0:
            pytest.skip("root may write anywhere")
        (tmp_path / "shut").mkdir(mode=0o500)
        refused(tmp_path / "shut" / "out", "no permission to write into")

    @pytest.mark.parametrize(
        ("code", "word"),
        [
            (errno.EACCES, "no permission to write into"),
            (errno.EROFS, "file system is read-only"),
            (errno.ENAMETOOLONG, "the name is too long"),
            (errno.ENOSPC, "disk is full"),
            (errno.EIO, "Input/output error"),
        ],
    )
    def test_each_failure_of_the_system_is_a_sentence(self, tmp_path: Path, code: int, word: str) -> None:
        error = cannot_write(tmp_path / "out", OSError(code, os.strerror(code)))
        assert word in str(error)
        assert str(error).startswith(f"{tmp_path / 'out'}: ")

    def test_a_name_too_long(self, tmp_path: Path) -> None:
        refused(tmp_path / ("x" * 250), "the name is too long")


def test_an_output_through_a_link_leaves_the_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    fill(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path / "real") == ["config.json"]


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_mode_of_the_folder_is_that_of_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        fill(tmp_path / "out")
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o777 & ~umask


class TestLeftovers:
    def dead_pid(self) -> int:
        process = subprocess.Popen([sys.executable, "-c", ""])
        process.wait()
        return process.pid

    def test_those_of_dead_runs_are_cleared_and_others_are_not(self, tmp_path: Path) -> None:
        dead = self.dead_pid()
        keep = [
            f".out.tmp-{os.getpid()}-00000000",
            f".other.tmp-{dead}-00000000",
            f".out.tmp-{dead}-xyz",
            ".out.tmp-notes",
        ]
        for name in [*keep, f".out.tmp-{dead}-0123abcd"]:
            (tmp_path / name).mkdir()
            (tmp_path / name / "x").write_text("x")
        folder = OutputFolder(tmp_path / "out")
        with folder as tmp:
            (tmp / "config.json").write_text("")
        assert names(tmp_path) == sorted([*keep, "out"])
        assert "left by a run that was killed; removed" in folder.notes[0]

    def test_one_that_is_locked_is_in_use_whatever_its_process_id(self, tmp_path: Path) -> None:
        fcntl = pytest.importorskip("fcntl")
        busy = tmp_path / f".out.tmp-{self.dead_pid()}-0123abcd"
        busy.mkdir()
        fd = os.open(busy, os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX)
        fill(tmp_path / "out")
        assert busy.is_dir()
        os.close(fd)
        fill(tmp_path / "out")
        assert not busy.exists()

    def test_an_output_moved_aside_comes_back(self, tmp_path: Path) -> None:
        dead = self.dead_pid()
        for name in (f".out.tmp-{dead}-0123abcd", f".out.tmp-{dead}-0123abcd.old"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "config.json").write_text(name)
        with pytest.raises(ValueError, match="stop"), OutputFolder(tmp_path / "out"):
            raise ValueError("stop")
        assert names(tmp_path) == ["out"]
        assert (tmp_path / "out" / "config.json").read_text().endswith(".old")


class TestSignals:
    def start(self, out: Path, *arguments: str, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*prefix, sys.executable, "-c", SLOW_WRITER, str(out), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        return process

    @pytest.mark.parametrize(
        ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, -signal.SIGINT)]
    )
    def test_a_signal_leaves_nothing_behind(self, tmp_path: Path, number: signal.Signals, code: int) -> None:
        fill(tmp_path / "old", "old")
        for out, arguments in ((tmp_path / "new" / "out", ()), (tmp_path / "old", ("force",))):
            process = self.start(out, *arguments)
            process.send_signal(number)
            _, errors = process.communicate(timeout=20)
            assert process.returncode == code
            assert number == signal.SIGINT or errors == ""
        assert names(tmp_path) == ["old"]
        assert (tmp_path / "old" / "config.json").read_text() == "old"

    def test_kill_9_leaves_the_output_absent_and_the_next_run_clears_up(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        process = self.start(out)
        process.kill()
        process.communicate(timeout=20)
        assert not out.exists()
        assert len(names(tmp_path)) == 1
        fill(out)
        assert names(tmp_path) == ["out"]

    def test_kill_9_at_any_moment_leaves_the_old_or_the_new(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        code = (
            "import sys\nfrom eagle3convert.checkpoint.output import OutputFolder\nn = 0\nwhile True:\n"
            "    n += 1\n    with OutputFolder(sys.argv[1], force=True, durable=False) as tmp:\n"
            "        for name in ('config.json', 'model.safetensors'): (tmp / name).write_text(str(n))\n"
            "    if n == 1: print('on', flush=True)\n"
        )
        for wait in (0.0, 0.013, 0.029, 0.047, 0.061):
            process = subprocess.Popen([sys.executable, "-c", code, str(out)], stdout=subprocess.PIPE)
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(wait)
            process.kill()
            process.communicate(timeout=20)
            assert (out / "config.json").read_text() == (out / "model.safetensors").read_text()

    def test_nohup_is_respected(self, tmp_path: Path) -> None:
        code = (
            "import os, signal, sys\nfrom eagle3convert.checkpoint.output import OutputFolder\n"
            "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
            "with OutputFolder(sys.argv[1]) as tmp:\n    os.kill(os.getpid(), signal.SIGHUP)\n"
            "    (tmp / 'config.json').write_text('')\n"
        )
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "out")], check=True)
        assert names(tmp_path) == ["out"]

    def test_handlers_are_put_back(self, tmp_path: Path) -> None:
        numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
        before = [signal.getsignal(number) for number in numbers]
        fill(tmp_path / "out")
        refused(tmp_path / "out", "not empty")
        with pytest.raises(ValueError, match="stop"), OutputFolder(tmp_path / "out2"):
            raise ValueError("stop")
        assert [signal.getsignal(number) for number in numbers] == before

    def test_a_handler_of_the_program_itself_stays(self, tmp_path: Path) -> None:
        heard: list[int] = []
        before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
        try:
            with OutputFolder(tmp_path / "out") as tmp:
                (tmp / "config.json").write_text("")
                os.kill(os.getpid(), signal.SIGTERM)
        finally:
            signal.signal(signal.SIGTERM, before)
        assert heard == [signal.SIGTERM]
        assert names(tmp_path) == ["out"]

    def test_a_signal_during_the_last_step_lets_it_finish(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = output._sync_tree

        def sync(folder: Path) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            real(folder)

        monkeypatch.setattr(output, "_sync_tree", sync)
        with pytest.raises(Terminated) as caught, OutputFolder(tmp_path / "out") as tmp:
            (tmp / "config.json").write_text("")
        assert caught.value.code == 143
        assert names(tmp_path) == ["out"]
        assert names(tmp_path / "out") == ["config.json"]

    def test_ctrl_c_during_the_last_step_says_that_the_output_is_whole(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = output._sync_tree

        def sync(folder: Path) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            real(folder)

        monkeypatch.setattr(output, "_sync_tree", sync)
        with pytest.raises(KeyboardInterrupt, match="out was written, and is whole"):
            fill(tmp_path / "out")
        assert names(tmp_path) == ["out"]

    def test_ctrl_c_while_writing_says_that_nothing_is_left(self, tmp_path: Path) -> None:
        with pytest.raises(KeyboardInterrupt, match="nothing was left behind"), OutputFolder(tmp_path / "out"):
            os.kill(os.getpid(), signal.SIGINT)
        assert names(tmp_path) == []

    def test_another_thread_can_write_too(self, tmp_path: Path) -> None:
        thread = threading.Thread(target=fill, args=(tmp_path / "out",))
        thread.start()
        thread.join()
        assert names(tmp_path) == ["out"]
