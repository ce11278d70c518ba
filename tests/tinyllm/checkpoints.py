"""Small checkpoints for tests: made, saved, killed while being saved, damaged, looked at."""

import hashlib
import json
import os
import signal
import stat
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from fault_injection import points
from tinyllm import retention, writer
from tinyllm.durable import make_durable_directories
from tinyllm.manifest import FileEntry, checkpoint_manifest, encode_manifest
from tinyllm.paths import MANIFEST, ckpt_dir, run_dir, step_name
from tinyllm.reader import Found, find_checkpoint
from tinyllm.retention import Line, line_from
from tinyllm.state import Cursor, GeneratorState, TrainerState
from tinyllm.writer import Snapshot, save_checkpoint

FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "optimizer.safetensors",
    "tokenizer.json",
    "trainer_state.json",
)


def silent(name: str, reason: str) -> None:
    """A report that nobody reads."""
    del name, reason


def make_ckpt(artifacts: Path, run_id: str = "r") -> Path:
    """An empty ckpt directory."""
    ckpt = ckpt_dir(run_dir(artifacts, run_id))
    make_durable_directories(str(ckpt), unsupported=silent)
    return ckpt


def state(step: int) -> TrainerState:
    """A state that fits any step."""
    return TrainerState(
        step=step,
        tokens_seen=step * 64,
        cursor=Cursor(epoch=step // 6, next_window=step % 6),
        generator=GeneratorState(state=str(2**64 - 1 - step), increment="109"),
        lr=0.001,
        spec_sha256="ab" * 32,
        git_sha=None,
    )


def snapshot(step: int, *, line: int = 0) -> Snapshot:
    """A checkpoint of ``step``; its tensors depend on ``step`` and on the ``line`` of training."""
    generator = torch.Generator().manual_seed(1000 * line + step)
    parameters = [
        ("wte", torch.randn(12, 8, generator=generator)),
        ("head", torch.randn(8, 12, generator=generator).t()),
        ("scale", torch.randn((), generator=generator)),
    ]
    return Snapshot(
        step=step,
        parameters=parameters,
        optimizer=[
            (f"{name}.{slot}", tensor * factor)
            for name, tensor in parameters
            for slot, factor in (("exp_avg", 2.0), ("exp_avg_sq", 3.0))
        ],
        optimizer_name="adamw",
        config=b'{"tl_tokenizer": "file", "n_embd": 8}',
        tokenizer=b'{"model": {}}',
        generation_config=b'{"top_k": 5}',
        state=state(step),
    )


def save(
    ckpt: Path, *steps: int, keep: int | None = None, line: Line | None = None, of_line: int = 0
) -> list[int]:
    """Save ``steps`` in one process; returns what was announced."""
    announced: list[int] = []
    known = line or resumed_line(ckpt)
    for step in steps:
        save_checkpoint(
            ckpt,
            snapshot(step, line=of_line),
            keep_ckpts=keep,
            announce=announced.append,
            line=known,
        )
    return announced


def resumed_line(ckpt: Path, explicit: Path | None = None) -> Line:
    """What a process that resumes now knows."""
    found = find(ckpt, explicit)
    return line_from(found, tell=silent)


def find(ckpt: Path, explicit: Path | None = None) -> Found:
    """What is found, its files closed again."""
    found = find_checkpoint(ckpt, explicit)
    if found.checkpoint is not None:
        found.checkpoint.close()
    return found


def found_step(ckpt: Path) -> int | None:
    """The step that resume would take."""
    checkpoint = find(ckpt).checkpoint
    return None if checkpoint is None else checkpoint.step


def tree(directory: Path) -> dict[str, str]:
    """Everything below ``directory``: type, and content or target, by relative path."""
    result = {}
    for path in sorted(directory.rglob("*")):
        kind = stat.S_IFMT(os.lstat(path).st_mode)
        if kind == stat.S_IFREG:
            what = "file " + hashlib.sha256(path.read_bytes()).hexdigest()
        elif kind == stat.S_IFLNK:
            what = "link " + os.readlink(path)
        else:
            what = "directory" if kind == stat.S_IFDIR else "other"
        result[str(path.relative_to(directory))] = what
    return result


def names(ckpt: Path) -> list[str]:
    """The entries of the ckpt directory."""
    return sorted(os.listdir(ckpt))


def rehash(step_dir: Path) -> None:
    """Make the manifest agree with whatever stands in the files now."""
    manifest = json.loads((step_dir / MANIFEST).read_text())
    files = {
        path.name: FileEntry(
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(), size=path.stat().st_size
        )
        for path in step_dir.iterdir()
        if path.name != MANIFEST
    }
    data = encode_manifest(checkpoint_manifest(step=manifest["step"], files=files))
    (step_dir / MANIFEST).write_bytes(data)


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


def in_child(work: Callable[[], None], place: tuple[str, int] | None = None) -> int:
    """Do ``work`` in a fork, killed at ``place``. Returns the exit code, or minus the signal."""
    with warnings.catch_warnings():
        # pytest-timeout's timer thread makes newer Pythons warn about every fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setpgid(0, 0)  # an armed point kills the process group
            points.arm(chosen=place)
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed(work: Callable[[], None], place: tuple[str, int]) -> bool:
    """Do ``work`` in a fork that is killed at ``place``; False when it never came there."""
    code = in_child(work, place)
    assert code in (0, -signal.SIGKILL), f"the child failed with {code}"
    return code == -signal.SIGKILL


def places(work: Callable[[], None]) -> list[tuple[str, int]]:
    """Every hit of every point that ``work`` comes by (it is done in a fork)."""
    read_end, write_end = os.pipe()

    def reporting() -> None:
        points.arm(report=True, control_fd=write_end)
        work()

    assert in_child(reporting) == 0
    os.close(write_end)
    with open(read_end, encoding="ascii") as lines:
        hits = [line.split() for line in lines]
    return [(name, int(hit)) for _, name, hit in hits]


def killed_at_number(work: Callable[[], None], number: int) -> str | None:
    """Do ``work`` in a fork that is killed at the ``number``-th point (from 1) that it comes by.

    Returns the name of that point, None when there are fewer.
    """
    read_end, write_end = os.pipe()

    def counted() -> None:
        seen = 0

        def count(name: str) -> None:
            nonlocal seen
            seen += 1
            if seen == number:
                os.write(write_end, name.encode())
                os.kill(os.getpid(), signal.SIGKILL)

        for module in (retention, writer):
            module.point = count  # type: ignore[attr-defined]
        work()

    code = in_child(counted)
    os.close(write_end)
    with open(read_end, encoding="ascii") as pipe:
        name = pipe.read()
    assert code == (-signal.SIGKILL if name else 0), f"the child failed with {code}"
    return name or None


def latest(ckpt: Path) -> str:
    """What LATEST holds, "" when it is absent."""
    path = ckpt / "LATEST"
    return path.read_text().strip() if path.exists() else ""


def write_latest(ckpt: Path, step: int) -> None:
    """Make LATEST name ``step``."""
    (ckpt / "LATEST").write_text(step_name(step) + "\n")
