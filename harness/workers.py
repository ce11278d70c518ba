"""Workers: processes that run tasks, as a ``concurrent.futures.Executor``.

An executor is the seam for many machines too: whatever implements it can run a campaign. This one
starts processes below a guardian, which kills all that hangs below it and removes the run
directory when the harness is gone, SIGKILL included. Each worker does one task at a time, since it
forks the programs under test; a thread of the harness waits for each.
"""

import contextlib
import os
import pickle
import queue
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

from fault_injection.guardian import Worker, guarded
from fault_injection.leftovers import ENV_HOME
from harness.scratch import ENV_TEMPORARY
from harness.tasks import ENV_SCRATCH

P = ParamSpec("P")
T = TypeVar("T")
_Item = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...], dict[str, Any]]

MEMORY_FILE_SYSTEM = "/dev/shm"
MEMORY_NEEDED_BYTES = 512 << 20


class InlineExecutor(Executor):
    """Runs each task at once in this process: for tests, and for looking into one case."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """The finished future of ``fn(*args, **kwargs)``."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class WorkerPool(Executor):
    """An executor over started workers: first come, first served."""

    def __init__(self, workers: list[Worker]) -> None:
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._feed, args=(worker,), daemon=True) for worker in workers
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue ``fn(*args, **kwargs)``, which must be picklable, for the next free worker."""
        future: Future[T] = Future()
        self._queue.put((future, fn, args, kwargs))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads end once the queue is empty; ``cancel_futures`` empties it now."""
        while cancel_futures:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                break
            if item is not None:
                item[0].cancel()
        for _ in self._threads:
            self._queue.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _feed(self, worker: Worker) -> None:
        while (item := self._queue.get()) is not None:
            future, function, args, kwargs = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                worker.connection.send_bytes(pickle.dumps((function, args, kwargs)))
                ok, value = pickle.loads(worker.connection.recv_bytes())
            except (EOFError, OSError) as error:
                # A dead worker fails what it is given, so that nobody waits for ever.
                future.set_exception(RuntimeError(f"worker {worker.pid} died: {error!r}"))
                continue
            except Exception as error:
                future.set_exception(error)
                continue
            if ok:
                future.set_result(value)
            else:
                future.set_exception(value)


def memory_parent() -> str | None:
    """A file system in memory with room for scratch trees, or None."""
    with contextlib.suppress(OSError):
        room = os.statvfs(MEMORY_FILE_SYSTEM)
        if room.f_bavail * room.f_frsize >= MEMORY_NEEDED_BYTES and os.access(
            MEMORY_FILE_SYSTEM, os.W_OK
        ):
            return MEMORY_FILE_SYSTEM
    return None


@contextlib.contextmanager
def worker_pool(
    count: int, *, env: Mapping[str, str] | None = None, scratch: str | None = None
) -> Iterator[tuple[Executor, str]]:
    """``count`` workers and the run's temporary directory; on leaving nothing is left of either.

    ``env`` is added to this process's environment in the workers: a fork can only pass for a
    process of the environment in which its modules were imported. ``scratch`` is where the
    temporary directory is made (default: DURABILITY_RUNTIME_DIR; in memory where there is room;
    the system's).

    What the programs under test put into ``TMPDIR`` lies in a directory of their worker's, where
    the system's temporary directory is: on another file system than the scratch trees, if that is.
    """
    system = tempfile.gettempdir()
    parent = scratch or os.environ.get(ENV_HOME) or memory_parent()
    with guarded(temp_parent=parent, other_parent=system) as guard:
        workers: list[Worker] = []
        for number in range(count):
            temporary = os.path.join(guard.other_dir, f"{number}")
            os.mkdir(temporary, 0o700)
            complete = {
                **os.environ,
                "TMPDIR": temporary,
                **(env or {}),
                ENV_SCRATCH: guard.temp_dir,
                ENV_TEMPORARY: temporary,
            }
            workers += guard.start_workers("harness.worker:serve", 1, env=complete)
        pool = WorkerPool(workers)
        try:
            yield pool, guard.temp_dir
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
