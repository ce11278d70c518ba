"""Starting a Python program as a fork of this process, so that heavy imports are paid for once.

:func:`plan` decides, in the parent, whether a command may be forked and prepares what is needed;
:func:`run` turns the forked child into the program and never returns. The program is run as the
interpreter itself runs it (the script's code in a new ``__main__``; ``runpy`` for ``-m``), and
ended as the interpreter ends: threads joined, exit handlers, streams flushed, module globals
cleared so that open files are flushed too, then ``os._exit``.

What a program can still see: the frames of the forking process below its first one, modules that
are loaded already, the hash seed of the forking process (each real process draws its own), and
that C++ destructors of libraries do not run at the end. A program that ends while daemon threads
run is finalized by the interpreter itself, as in a real process; that is slow but exact.
"""

import contextlib
import ctypes
import functools
import gc
import itertools
import linecache
import os
import runpy
import signal
import sys
import threading
import time
import traceback
import types
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.machinery import SourceFileLoader
from typing import Any, NoReturn

from fault_injection import forkimports, freshpython, hugepages, processes
from fault_injection.freshpython import Look

_SCRIPT_LIMIT_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """A command that may be forked. ``script`` or ``module`` is empty; ``argv`` is complete.

    The last fields say what the child has to change. The parent finds out, because every page that
    a child touches is copied first: looking is several times as dear there.
    """

    argv: tuple[str, ...]
    script: str
    module: str
    words: tuple[str, ...]
    first_path: str  # the entry of sys.path that the interpreter puts first
    look: Look
    code: types.CodeType | None  # of a script
    changes_environment: bool
    unusual_signals: tuple[int, ...]
    modules: frozenset[str] = frozenset()  # those that are loaded, of which the last is
    last_module: str = ""


def is_forkable(
    argv: tuple[str, ...], *, env: Mapping[str, str] | None = None, cwd: str | None = None
) -> str | None:
    """Why ``argv`` cannot be run in a fork of this process, or None when it can.

    ``env`` and ``cwd`` are those of the program (default: this process's own). The first question
    about an environment costs the start of one Python process.
    """
    found = plan(argv, env=dict(os.environ) if env is None else env, cwd=cwd or os.getcwd())
    return found if isinstance(found, str) else None


def plan(argv: tuple[str, ...], *, env: Mapping[str, str], cwd: str) -> Plan | str | None:
    """What :func:`run` needs, or why the command cannot be forked.

    None: it could be, but for modules that this process has loaded for the sake of another program
    (:mod:`fault_injection.forkimports`). It is to be started as a process then.
    """
    forkimports.load_told()
    if not hasattr(os, "fork"):
        return "this system has no fork"
    if not argv or not freshpython.is_this_python(argv[0], env, cwd):
        return "the command does not start the Python that runs this process"
    command = freshpython.parse(argv)
    if isinstance(command, str):
        return command
    script = os.path.join(cwd, command.script) if command.script else ""
    if script and not os.path.isfile(script):
        return f"{script} is not a file"
    if script.endswith((".pyc", ".pyz")) or (script and _is_archive(script)):
        return f"{script} is not a Python source file"
    look = freshpython.look_of(command, env, cwd)
    if isinstance(look, str):
        return look
    first_path = os.path.dirname(os.path.realpath(script)) if script else cwd
    why_not = freshpython.differs_from(look, env)
    if why_not is not None:
        return why_not
    if freshpython.shadowed(first_path, look) or freshpython.moved(look):
        for_another = forkimports.loaded()
        return freshpython.shadowed(first_path, look, but=for_another) or freshpython.moved(
            look, but=for_another
        )
    code = _compiled(script, cwd) if script else None
    if script and code is None:
        return f"{script} does not compile"  # the interpreter says it best itself
    return Plan(
        argv=argv,
        script=command.script,
        module=command.module,
        words=command.words,
        first_path=first_path,
        look=look,
        code=code,
        changes_environment=os.environ != env,
        unusual_signals=tuple(processes.unusual_signals(ignored=_IGNORED, handled=_HANDLED)),
    )


def _is_archive(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"PK"


def _compiled(script: str, cwd: str) -> types.CodeType | None:
    """The script's code, kept while the file is unchanged; None when it does not compile."""
    found = os.stat(script)
    if found.st_size > _SCRIPT_LIMIT_BYTES:
        return None
    key = (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
    try:
        return _compile(_main_file(script, cwd), script, key)
    except (SyntaxError, ValueError, OSError):
        return None


@functools.lru_cache(maxsize=16)
def _compile(name: str, script: str, _key: tuple[int, ...]) -> types.CodeType:
    with open(script, "rb") as file:
        code = compile(file.read(), name, "exec", dont_inherit=True)
    assert isinstance(code, types.CodeType)
    return code


def _main_file(script: str, cwd: str) -> str:
    """``__file__`` of a script: joined to the working directory, but not made simpler."""
    return os.path.join(cwd, script)


# As the interpreter sets them when it starts.
_IGNORED = frozenset({signal.SIGPIPE, getattr(signal, "SIGXFSZ", signal.SIGPIPE)})
_HANDLED = frozenset({signal.SIGINT})

# To lay memory together takes as long as some twenty forks save by it.
_FORKS_BEFORE_HUGE_PAGES = 6

_forks = 0
_frozen = False
_modules: frozenset[str] = frozenset()
_modules_of: tuple[int, str] = (0, "")


def freeze() -> None:
    """Once, before the first fork: keep the collector off what is loaded."""
    global _frozen
    if not _frozen:
        gc.collect()
        gc.freeze()
        _frozen = True


def ready(chosen: Plan) -> Plan:
    """The plan at the moment of the fork, after which every page that the child touches is copied.

    What was made since :func:`freeze` the child freezes (:func:`run`): frozen here, its cycles
    would never be freed.
    """
    global _modules, _modules_of, _forks
    freeze()
    _forks += 1
    if _forks == _FORKS_BEFORE_HUGE_PAGES:
        hugepages.collapse()
    forkimports.share()
    linecache.clearcache()
    now = freshpython.loaded()
    if _modules_of != now:
        _modules, _modules_of = frozenset(sys.modules), now
    return replace(chosen, modules=_modules, last_module=now[1])


def run(chosen: Plan, *, env: Mapping[str, str], cwd: str) -> NoReturn:
    """Be the program of ``chosen`` in this forked child, to its end.

    Descriptors 0 to 2, working directory, session and the supervisor's filter are the caller's
    part and in place already.
    """
    try:
        gc.freeze()
        _forget_the_parent(chosen, env)
        _set_up(chosen)
        status = _run_program(chosen, cwd)
        forkimports.tell(_new_modules(chosen))
        _end(status, chosen)
    except BaseException:
        # A failure of this module itself must neither return into the parent's frames nor be
        # taken for the program's.
        sys.__excepthook__(*sys.exc_info())
    os._exit(70)


def _forget_the_parent(chosen: Plan, env: Mapping[str, str]) -> None:
    """Undo what a new process would not have: handlers, hooks, generators, caches, exit work."""
    if chosen.changes_environment:
        os.environ.clear()
        os.environ.update(env)
        time.tzset()
    _reset_signals(chosen.unusual_signals)
    sys.settrace(None)
    sys.setprofile(None)
    sys.excepthook = sys.__excepthook__
    sys.displayhook = sys.__displayhook__
    sys.unraisablehook = sys.__unraisablehook__
    threading.excepthook = threading.__excepthook__
    loaded = sys.modules.get
    if (faulthandler := loaded("faulthandler")) is not None and not sys.flags.dev_mode:
        faulthandler.disable()
    if (tempfile := loaded("tempfile")) is not None:
        tempfile.tempdir = tempfile._name_sequence = None  # type: ignore[attr-defined]
    if (numpy_random := loaded("numpy.random")) is not None:
        # Its own way of drawing a seed takes three times as long as all else that is done here.
        numpy_random.seed(int.from_bytes(os.urandom(4)))
    if (tracker := loaded("multiprocessing.resource_tracker")) is not None:
        # A tracker of the parent is no child of ours, and its descriptor is closed.
        tracker._resource_tracker._fd = tracker._resource_tracker._pid = None
    if hasattr(threading, "_counter"):
        threading._counter = itertools.count(1).__next__
    # What the parent wants removed at its own end (temporary directories) is not ours to remove.
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        finalizer.atexit = False


def _reset_signals(unusual: tuple[int, ...]) -> None:
    """Handlers as the interpreter sets them when it starts, and no signal blocked."""
    signal.set_wakeup_fd(-1)
    for number in unusual:
        # The handlers of the C library's own signals cannot be set.
        with contextlib.suppress(OSError):
            signal.signal(number, signal.SIG_IGN if number in _IGNORED else signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if unusual:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())


_parents_streams: list[object] = []


def _set_up(chosen: Plan) -> None:
    look = chosen.look
    # Destroyed, they would flush into descriptors that are the program's now.
    _parents_streams.extend([sys.stdin, sys.stdout, sys.stderr])
    _parents_streams.extend([sys.__stdin__, sys.__stdout__, sys.__stderr__])
    sys.stdin = sys.__stdin__ = freshpython.open_stream(0, "<stdin>", look.stdin)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = freshpython.open_stream(1, "<stdout>", look.stdout)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = freshpython.open_stream(2, "<stderr>", look.stderr)  # type: ignore[misc]
    sys.orig_argv = list(chosen.argv)
    sys.argv = [chosen.script or "-m", *chosen.words]
    sys.path[:] = [chosen.first_path, *look.path] if not sys.flags.safe_path else look.path
    # What the parent has listed of this directory may be older than what is in it now.
    sys.path_importer_cache.pop(chosen.first_path, None)
    gc.enable()


def _run_program(chosen: Plan, cwd: str) -> int:
    """Run it; return the exit status, or minus a signal that the process must end by."""
    main = types.ModuleType("__main__")
    scope = main.__dict__
    scope["__annotations__"] = {}
    scope["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = main
    del main
    try:
        if chosen.module:
            scope["__loader__"] = type(sys.modules["builtins"].__spec__.loader)  # type: ignore[union-attr]
            runpy._run_module_as_main(chosen.module)  # type: ignore[attr-defined]
        else:
            file = _main_file(chosen.script, cwd)
            scope["__loader__"] = SourceFileLoader("__main__", file)
            scope["__file__"] = file
            scope["__cached__"] = None
            assert chosen.code is not None
            exec(chosen.code, scope)
    except SystemExit as error:
        return _status_of(error.code)
    except BaseException as error:
        _report(error)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _status_of(code: object) -> int:
    """The exit status that ``SystemExit(code)`` asks for; text is printed, as at a real end."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if -(1 << 63) <= code < 1 << 63 else 0xFF
    if sys.stderr is not None:
        print(code, file=sys.stderr, flush=True)
    return 1


def _report(error: BaseException) -> None:
    """Print an uncaught exception through ``sys.excepthook``, without the frames of this module."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error = error.with_traceback(trace)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    try:
        sys.excepthook(type(error), error, trace)
    except SystemExit as of_the_hook:
        raise of_the_hook from None
    except BaseException as of_the_hook:
        print("Error in sys.excepthook:", file=sys.stderr, flush=True)
        sys.__excepthook__(type(of_the_hook), of_the_hook, of_the_hook.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr, flush=True)
        sys.__excepthook__(type(error), error, trace)


def _end(status: int, chosen: Plan) -> NoReturn:
    """End as the interpreter does: threads, exit handlers, streams, globals, C streams."""
    import atexit

    try:
        threading._shutdown()  # type: ignore[attr-defined]
    except BaseException as error:
        # The interpreter reports this and goes on ending.
        _ignored(error, threading, "threading shutdown")
    if threading.active_count() > 1:
        # Daemon threads: only the interpreter's own end stops them where it would.
        if status < 0:
            _flush()
            _die_by(-status)
        ctypes.pythonapi.Py_Exit(status)
    atexit._run_exitfuncs()
    flushed = _flush()
    _end_resource_tracker()
    if gc.isenabled():
        # The interpreter does so here, and it matters: what is reachable comes into the order of
        # its references, by which a text file is destroyed before the raw file below it.
        gc.collect()
    _clear_globals(chosen)
    flushed = flushed and _flush()
    if not flushed:
        status = 120 if status >= 0 else status
    ctypes.CDLL(None).fflush(None)
    if status < 0:
        _die_by(-status)
    os._exit(status)


def _die_by(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _end_resource_tracker() -> None:
    """From Python 3.12 the interpreter ends it by a destructor, which here is a loaded module's."""
    module = sys.modules.get("multiprocessing.resource_tracker")
    tracker = getattr(module, "_resource_tracker", None)
    destructor = getattr(tracker, "__del__", None)
    if destructor is not None:
        with contextlib.suppress(OSError, ChildProcessError):
            destructor()


def _ignored(error: BaseException, where: object, doing: str) -> None:
    """Report what the interpreter reports and then passes over at its end, in its words."""
    words = f"on {doing}:" if sys.version_info >= (3, 13) else f"in: {where!r}"
    print(f"Exception ignored {words}", file=sys.stderr)
    traceback.print_exception(error)


def _flush() -> bool:
    good = True
    for stream in (sys.stdout, sys.stderr):
        if stream is None or getattr(stream, "closed", False):
            continue
        try:
            stream.flush()
        except BaseException as error:
            good = False
            if stream is sys.stdout:
                _ignored(error.with_traceback(None), stream, "flushing sys.stdout")
    return good


def _clear_globals(chosen: Plan) -> None:
    """Drop what the program's modules hold, in the interpreter's order (``finalize_modules``).

    An open file in a global variable is flushed by this, as at the end of a real process.
    """
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        setattr(sys, name, None)
    names = _new_modules(chosen)
    alive = []
    for name in names:
        module = sys.modules.pop(name)
        if isinstance(module, types.ModuleType):
            alive.append(weakref.ref(module))
        del module
    gc.collect()
    for reference in reversed(alive):
        found = reference()
        if found is not None:
            scope = vars(found)
            del found
            _clear(scope)
            del scope
    gc.collect()


def _new_modules(chosen: Plan) -> list[str]:
    """``__main__`` and the modules that the program loaded, in the order of their loading."""
    names = []
    # From the end, and no further than needed: each name that is looked at is a page copied.
    for name in reversed(sys.modules):
        if name == chosen.last_module:
            break
        if name not in chosen.modules and name != "__main__":
            names.append(name)
    if "__main__" in sys.modules:
        names.append("__main__")
    return names[::-1]


def _clear(scope: dict[str, Any]) -> None:
    def private(name: str) -> bool:
        return name.startswith("_") and not name.startswith("__")

    for name in [name for name in scope if private(name)]:
        scope[name] = None
    for name in [name for name in scope if not private(name) and name != "__builtins__"]:
        scope[name] = None
