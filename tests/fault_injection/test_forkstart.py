"""A program that is forked must not be able to tell: each is run both ways and compared."""

import importlib.machinery
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fault_injection.attempt import Attempt, Settings, run_attempt
from fault_injection.forkstart import is_forkable
from fault_injection.guardian import guarded

from .attempts import ENVIRONMENT, Remote, command, python, script

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: subreapers")


# What a preloaded trainer brings along, and what remembers something of its process.
PRELOAD = ["numpy.random", "tempfile", "logging", "multiprocessing.resource_tracker", "asyncio"]


@pytest.fixture(autouse=True)
def started_as_its_children_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Started in the C locale the interpreter takes UTF-8 for itself and asks its children for it
    by LC_CTYPE, so that none of them would be started as this process was."""
    if sys.flags.utf8_mode and os.environ.get("LC_CTYPE") == "C.UTF-8":
        monkeypatch.delenv("LC_CTYPE")


@pytest.fixture(scope="module")
def remote() -> Iterator[Remote]:
    """A clean worker to fork from, of the environment that the programs get."""
    with guarded() as guard:
        target = "tests.fault_injection.attempts:serve"
        (worker,) = guard.start_workers(target, 1, env=ENVIRONMENT, preload=PRELOAD)
        yield Remote(worker)


_ADDRESS = re.compile("0x[0-9a-f]+")


def shown(attempt: Attempt) -> tuple[object, ...]:
    """What a user of the program sees of it."""
    return (
        attempt.exit_code,
        attempt.signal,
        _ADDRESS.sub("0x...", attempt.stdout.decode()),
        _ADDRESS.sub("0x...", attempt.stderr.decode()),
        attempt.left_behind,
        attempt.timed_out,
    )


PROGRAMS = {
    "what it is": """
        import sys
        print(__name__, __file__, __spec__, __package__, __doc__, type(__loader__).__name__)
        print(sorted(globals()), sys.argv, sys.orig_argv, sys.path, sys.flags)
        print(__builtins__.__name__, __import__("__main__").__file__)
    """,
    "its surroundings": """
        import os, sys, signal, time, threading, gc, resource
        print(os.getcwd(), sorted(os.environ.items()), sorted(os.listdir("/proc/self/fd")))
        print(os.getpid() == os.getpgrp() == os.getsid(0), oct(os.umask(0)), time.tzname)
        print([(s.name, signal.getsignal(s)) for s in sorted(signal.valid_signals())
               if isinstance(s, signal.Signals)], signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        for s in (sys.stdin, sys.stdout, sys.stderr):
            print(s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through,
                  s.isatty(), s.fileno(), repr(s), s.newlines, type(s.buffer).__name__)
        print(sys.__stdout__ is sys.stdout, repr(sys.stdin.read()))
        print(threading.current_thread() is threading.main_thread(), threading.active_count())
        print(threading.Thread().name, gc.isenabled(), gc.get_threshold(), sys.gettrace())
        print(sys.getrecursionlimit(), sys.getswitchinterval(), sys.excepthook.__name__)
        print(resource.getrlimit(resource.RLIMIT_NOFILE), sys.warnoptions, sys.dont_write_bytecode)
    """,
    "a variable of time": """
        import os, time
        print(time.tzname, time.localtime(0).tm_hour, os.environ["TZ"])
    """,
    "exit 3": "raise SystemExit(3)",
    "exit none": "import sys; sys.exit()",
    "exit true": "raise SystemExit(True)",
    "exit negative": "raise SystemExit(-1)",
    "exit large": "raise SystemExit(2**40 + 3)",
    "exit 256": "raise SystemExit(256 + 7)",
    "exit text": "print('out'); raise SystemExit('no such thing')",
    "exit tuple": "raise SystemExit(1, 2)",
    "exit now": "import os; print('lost'); os._exit(9)",
    "an exception": """
        def f(x):
            return 1 / x
        try:
            f(0)
        except ZeroDivisionError as e:
            raise ValueError("bad") from e
    """,
    "an excepthook": """
        import sys
        sys.excepthook = lambda t, v, tb: print("hook", t.__name__, v, file=sys.stderr)
        raise RuntimeError("x")
    """,
    "keyboard interrupt": "raise KeyboardInterrupt",
    "killed by itself": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "abort": "import os; os.abort()",
    "exit handlers": """
        import atexit, threading, time, weakref, sys
        class C: pass
        c = C()
        weakref.finalize(c, print, "finalize")
        atexit.register(print, "first registered")
        atexit.register(lambda: 1 / 0)
        atexit.register(print, "last registered")
        def late():
            time.sleep(0.05); print("thread", threading.current_thread().name)
        threading.Thread(target=late).start()
        print("main done")
    """,
    "a daemon thread": """
        import threading, time
        threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
        f = open("kept.txt", "w"); f.write("kept")
        print("done")
        raise SystemExit(4)
    """,
    "a busy daemon thread": """
        # While modules are destroyed no other thread runs any more.
        import threading
        open("mine.py", "w").write(
            "import os, time\\n"
            "class Slow:\\n"
            "    def __del__(self, sleep=time.sleep, say=os.write):\\n"
            "        before = self.count[0]; sleep(0.05)\\n"
            "        say(1, b'%d' % (self.count[0] == before))\\n"
            "slow = Slow()\\n"
        )
        import mine
        mine.slow.count = count = [0]
        began = threading.Event()
        def work():
            began.set()
            while True: count[0] += 1
        threading.Thread(target=work, daemon=True).start()
        began.wait()
    """,
    "a failing thread": """
        import threading
        t = threading.Thread(target=lambda: 1 / 0, name="T"); t.start(); t.join()
    """,
    "globals at the end": """
        import sys
        class Loud:
            def __init__(self, name): self.name = name
            def __del__(self): print("del", self.name)
        b = Loud("b"); a = Loud("a"); _private = Loud("private")
        cycle = [Loud("cycle")]; cycle.append(cycle)
        f = open("flushed.txt", "w"); f.write("flushed")
    """,
    "unbuffered": """
        import sys, os
        sys.stdout.write("text "); os.write(1, b"raw "); sys.stdout.flush()
        sys.stderr.write("e1 "); os.write(2, b"e2 ")
        print("end")
    """,
    "stdout closed": "import sys; print('a'); sys.stdout.close()",
    "stdout broken": """
        import os, sys
        r, w = os.pipe(); os.close(r); os.dup2(w, 1)
        print("into nothing")
    """,
    "a handler": """
        import os, signal, time
        def on(number, frame): print("got", number); raise SystemExit(5)
        signal.signal(signal.SIGTERM, on)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
    """,
    "interrupted": "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(10)",
    "multiprocessing": """
        import multiprocessing as mp, pickle, sys
        class Job:
            def __init__(self, n): self.n = n
        def work(job, q): print("child", job.n, mp.current_process().name); q.put(job.n + 1)
        if __name__ == "__main__":
            print(pickle.loads(pickle.dumps(Job(3))).n, mp.current_process().name)
            for how in ("fork", "spawn"):
                c = mp.get_context(how)
                q = c.Queue()
                p = c.Process(target=work, args=(Job(1), q)); p.start()
                print(q.get(timeout=20)); p.join(); print(p.exitcode)
    """,
    "pools": """
        from concurrent.futures import ThreadPoolExecutor, ProcessPoolExecutor
        if __name__ == "__main__":
            print(list(ThreadPoolExecutor(2).map(abs, [-1, -2])))
            with ProcessPoolExecutor(1) as p: print(p.submit(abs, -3).result())
    """,
    "subprocess": """
        import subprocess, sys
        print(subprocess.run([sys.executable, "-c", "import sys; print(sys.argv, sys.path[1:])"],
                             capture_output=True, text=True).stdout)
        subprocess.run(["sh", "-c", "echo through; ls /proc/self/fd | wc -l; exit 3"])
        print(subprocess.run(["sh", "-c", "kill -PIPE $$"]).returncode)
    """,
    "a fork": """
        import os, sys
        pid = os.fork()
        if pid == 0: print("child"); sys.exit(6)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """,
    "modules beside it": """
        import os
        open("mine.py", "w").write("import sys\\nx = sys._getframe().f_globals['__name__']")
        import mine
        print(mine.x, mine.__file__)
    """,
    "warnings and logging": """
        import warnings, logging
        # A preloaded library has added its own, as it would when it is imported.
        print([f for f in warnings.filters if "numpy" not in repr(f)])
        warnings.warn("w"); warnings.warn("d", DeprecationWarning)
        logging.warning("l"); logging.info("unseen")
    """,
    "asyncio": "import asyncio; print(asyncio.run(asyncio.sleep(0.001, 'slept')))",
    "argparse": """
        import argparse
        argparse.ArgumentParser().parse_args(["--nonsense"])
    """,
    "c stdio": "import ctypes; ctypes.CDLL(None).puts(b'from C')",
    "tempfile": """
        import tempfile, os
        with tempfile.TemporaryDirectory() as d: print(os.path.dirname(d))
        t = tempfile.TemporaryDirectory(dir="."); print(len(os.listdir(".")))
    """,
}


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_forked_program_shows_what_a_process_shows(
    remote: Remote, tmp_path: Path, name: str
) -> None:
    asked = python(tmp_path, PROGRAMS[name], "--word", "two words", env={"TZ": "Etc/GMT-5"})
    states = []
    for fork in (False, True):
        for left in tmp_path.iterdir():
            if left.name != "program.py" and left.is_file():
                left.unlink()
        settings = Settings(str(tmp_path), timeout_s=20, supervise=False, fork=fork)
        attempt = remote.run(asked, settings)
        files = {
            path.name: path.read_bytes()
            for path in sorted(tmp_path.iterdir())
            if path.is_file() and path.name != "program.py"
        }
        states.append((shown(attempt), files))
    own, forked = states
    assert forked == own


@pytest.mark.parametrize("options", [(), ("-u",), ("-W", "error"), ("-Xdev",), ("-Bu",)])
def test_an_option_gives_the_same_program_or_is_refused_by_name(
    remote: Remote, tmp_path: Path, options: tuple[str, ...]
) -> None:
    path = script(tmp_path, PROGRAMS["unbuffered"])
    asked = command(sys.executable, *options, path, cwd=tmp_path)
    own, forked = (
        remote.run(asked, Settings(str(tmp_path), timeout_s=20, supervise=False, fork=fork))
        for fork in (False, True)
    )
    if options in ((), ("-u",)):
        assert shown(forked) == shown(own)
        # With a buffer, what was written first comes after what needed no flush.
        assert own.stdout == (b"text raw end\n" if options else b"raw text end\n")
    else:
        assert forked.start_error.startswith("cannot be forked: this process was started differ")


def test_buffered_and_unbuffered_output_arrive_in_their_own_order(
    remote: Remote, tmp_path: Path
) -> None:
    """A fork must keep what a process keeps in its buffer when it is killed."""
    source = "import os, sys; sys.stdout.write('in the buffer'); os.kill(os.getpid(), 9)"
    found = []
    for env in ({}, {"PYTHONUNBUFFERED": "1"}):
        asked = python(tmp_path, source, env=env)
        settings = Settings(str(tmp_path), timeout_s=20, supervise=False, fork=True)
        found.append(remote.run(asked, settings).stdout)
    assert found == [b"", b"in the buffer"]


def test_a_module_runs_as_under_minus_m(remote: Remote, tmp_path: Path) -> None:
    package = tmp_path / "trainer"
    package.mkdir()
    (package / "__init__.py").write_text("print('package', __name__)\n")
    (package / "__main__.py").write_text(
        "import sys\nfrom . import part\n"
        "print(__name__, __package__, __file__, __spec__.name, sys.argv, sys.path[0], part.x)\n"
        "print(sorted(globals()), sys.orig_argv[1:])\n1 / 0\n"
    )
    (package / "part.py").write_text("x = __name__\n")
    for words in (("trainer", "a"), ("trainer.part",), ("nowhere",)):
        asked = command(sys.executable, "-m", *words, cwd=tmp_path)
        own, forked = (
            remote.run(asked, Settings(str(tmp_path), timeout_s=20, supervise=False, fork=fork))
            for fork in (False, True)
        )
        assert shown(forked) == shown(own), words
        assert own.exit_code == (0 if words[0] == "trainer.part" else 1)


def test_a_link_and_a_relative_name_find_their_own_directory(
    remote: Remote, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    script(tmp_path / "real", "import sys; print(sys.argv, sys.path[0], __file__)")
    (tmp_path / "link.py").symlink_to("real/program.py")
    for name in ("real/program.py", "link.py", "./real/../link.py"):
        asked = command(sys.executable, name, cwd=tmp_path)
        own, forked = (
            remote.run(asked, Settings(str(tmp_path), timeout_s=20, supervise=False, fork=fork))
            for fork in (False, True)
        )
        assert own.exit_code == 0
        assert shown(forked) == shown(own), name


def test_each_fork_draws_its_own_random_numbers_as_each_process_does(
    remote: Remote, tmp_path: Path
) -> None:
    source = "import random, numpy.random as n; print(random.random(), n.rand(), n.rand())"
    asked = python(tmp_path, source)
    settings = Settings(str(tmp_path), timeout_s=20, supervise=False, fork=True)
    first, second = (remote.run(asked, settings).stdout.split() for _ in range(2))
    assert not set(first) & set(second)
    assert len(first) == 3


def test_a_fork_changes_nothing_in_the_process_that_forked(remote: Remote, tmp_path: Path) -> None:
    asked = python(
        tmp_path,
        """
        import os, sys, signal, random
        print(os.environ.get("LEFT"), "left" in sys.modules, signal.getsignal(signal.SIGUSR1))
        os.environ["LEFT"] = "1"; sys.modules["left"] = sys
        signal.signal(signal.SIGUSR1, signal.SIG_IGN); os.umask(0o77); os.chdir("/")
        """,
    )
    settings = Settings(str(tmp_path), timeout_s=20, supervise=False, fork=True)
    outputs = [remote.run(asked, settings).stdout for _ in range(2)]
    assert outputs == [b"None False 0\n"] * 2


def test_a_module_written_by_the_program_is_found_although_the_parent_looked_before(
    tmp_path: Path,
) -> None:
    """The parent has listed the directory; its time of change says that nothing has changed."""
    source = """
        import os
        before = os.stat(".")
        open("fresh_module.py", "w").close()
        os.utime(".", ns=(before.st_atime_ns, before.st_mtime_ns))
        import fresh_module
        """
    asked = replace(python(tmp_path, source), env=tuple(sorted(os.environ.items())))
    assert importlib.machinery.PathFinder.find_spec("absent", [str(tmp_path)]) is None
    attempt = run_attempt(asked, Settings(str(tmp_path), 20, supervise=False, fork=True))
    assert (attempt.exit_code, attempt.stderr) == (0, b"")


def test_what_the_parent_removes_at_its_end_is_not_removed_by_a_fork(tmp_path: Path) -> None:
    program = python(tmp_path, "print('ended')")
    asked = replace(program, env=tuple(sorted(os.environ.items())))
    with tempfile.TemporaryDirectory() as ours:
        attempt = run_attempt(asked, Settings(str(tmp_path), 20, supervise=False, fork=True))
        assert attempt.stdout == b"ended\n"
        assert os.path.isdir(ours)


REFUSED = {
    "the command does not start the Python that runs this process": ["/bin/sh", "x.sh"],
    "option -c of Python needs a process of its own": [sys.executable, "-c", "pass"],
    "option -i of Python needs a process of its own": [sys.executable, "-i", "x.py"],
    "no script and no module is named": [sys.executable],
    "'-' is not a script or a module": [sys.executable, "-"],
    "'--version' is not a script or a module": [sys.executable, "--version"],
    "{cwd}/absent.py is not a file": [sys.executable, "absent.py"],
    "{cwd}/. is not a file": [sys.executable, "."],
    "{cwd}/broken.py does not compile": [sys.executable, "broken.py"],
    "{cwd}/null.py does not compile": [sys.executable, "null.py"],
    "{cwd}/archive.py is not a Python source file": [sys.executable, "archive.py"],
    "{cwd}/x.pyc is not a Python source file": [sys.executable, "x.pyc"],
}


@pytest.mark.parametrize("reason", sorted(REFUSED))
def test_what_cannot_be_forked_is_refused_with_the_reason(tmp_path: Path, reason: str) -> None:
    (tmp_path / "broken.py").write_text("if True print(1)\n")
    (tmp_path / "null.py").write_bytes(b"x = 1\n\0")
    (tmp_path / "archive.py").write_bytes(b"PK\x03\x04")
    (tmp_path / "x.pyc").write_bytes(b"")
    found = is_forkable(tuple(REFUSED[reason]), env={**os.environ}, cwd=str(tmp_path))
    assert found == reason.format(cwd=tmp_path)


def test_an_environment_that_a_fork_cannot_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = script(tmp_path, "pass")
    for name in ("PYTHONHASHSEED", "PYTHONOPTIMIZE", "OMP_NUM_THREADS", "PYTHONWARNINGS"):
        monkeypatch.delenv(name, raising=False)
    here = {**os.environ}
    asked = (sys.executable, path)
    assert is_forkable(asked, env=here, cwd="/") is None
    for name, value, words in (
        ("PYTHONHASHSEED", "7", "started differently: hash"),
        ("PYTHONOPTIMIZE", "1", "started differently: flags"),
        ("PYTHONWARNINGS", "error", "started differently: warnings"),
        ("OMP_NUM_THREADS", "2", "OMP_NUM_THREADS is read when libraries are loaded"),
    ):
        found = is_forkable(asked, env={**here, name: value}, cwd="/")
        assert found is not None
        assert words in found


def test_a_module_beside_the_script_that_hides_a_loaded_one_is_refused(tmp_path: Path) -> None:
    """A process would import the program's own ``dataclasses``; a fork has the library's."""
    path = script(tmp_path, "import dataclasses; print(dataclasses.mine)")
    here = {**os.environ}
    assert is_forkable((sys.executable, path), env=here) is None
    (tmp_path / "dataclasses").mkdir()
    assert is_forkable((sys.executable, path), env=here) is None  # not a package: does not hide
    (tmp_path / "dataclasses" / "__init__.py").touch()
    found = is_forkable((sys.executable, path), env=here)
    assert found == f"{tmp_path}/dataclasses has the name of a module that is loaded already"


def test_a_module_that_a_process_would_find_elsewhere_is_refused(tmp_path: Path) -> None:
    """With another checkout first on the path a process would run that one's modules."""
    path = script(tmp_path, "import fault_injection")
    other = tmp_path / "other" / "fault_injection"
    other.mkdir(parents=True)
    here = {**os.environ, "PYTHONPATH": str(tmp_path / "other")}
    assert is_forkable((sys.executable, path), env=here) is None
    (other / "__init__.py").touch()
    found = is_forkable((sys.executable, path), env={**here, "PYTHONPATH": f"{other.parent}:"})
    assert found is not None
    assert found.startswith("fault_injection is loaded from ")
    assert found.endswith(f"a fresh interpreter would take {other}/__init__.py")


def test_what_cannot_be_forked_is_an_error_of_the_start(tmp_path: Path) -> None:
    asked = command("/bin/true", cwd=tmp_path)
    settings = Settings(str(tmp_path), timeout_s=20, supervise=False, fork=True)
    attempt = run_attempt(asked, settings)
    assert attempt.start_error.startswith("cannot be forked: the command does not start")
    assert not attempt.started_ok
