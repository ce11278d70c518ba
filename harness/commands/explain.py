"""``durability explain``: why power loss breaks a program, and which fsync would mend it."""

import argparse
import shlex
import sys
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from harness import reproduction, tasks
from harness.campaign import REPORTS
from harness.cases import Case, at_state
from harness.commands.common import MODELS, duration, list_of
from harness.errors import CannotJudge, UsageError
from harness.explaining import Explained, Why
from harness.mending import Mending, Sparing, Sync
from harness.power.reasons import lost_words
from harness.report.clean import one_line
from harness.report.words import duration as duration_words
from harness.reproduction import Prepared
from harness.subjects import Subject, discover
from harness.workers import worker_pool

EXPLAINED, NOT_FOUND_OUT = 0, 3
MAX_SYNCS = 20


def add_parser(subparsers: Any) -> None:
    """Add ``explain``."""
    parser = subparsers.add_parser(
        "explain",
        help="why, and which fsync would mend it",
        description="Of a failing case (a bundle, an id, its hex digits): which order was needed, "
        "and the smallest set of fsyncs after which no explored crash state fails. Of a program (a "
        "subject file or a train spec): the same where it fails, and where it does not, which of "
        "its fsyncs no explored crash state needs. For each persistence model.",
    )
    parser.add_argument("target", metavar="BUNDLE | CASE_ID | SUBJECT")
    parser.add_argument(
        "--models",
        type=list_of(MODELS, "persistence model"),
        default=None,
        metavar="MODEL,...",
        help="only these (default: all, that of the case first)",
    )
    parser.add_argument(
        "--subject", type=Path, metavar="SUBJECT", help="where the case does not name its own"
    )
    parser.add_argument(
        "--reports",
        type=Path,
        default=REPORTS,
        metavar="DIR",
        help="where earlier runs are looked for (default: reports)",
    )
    parser.add_argument(
        "--budget",
        type=duration,
        default=300.0,
        metavar="TIME",
        help="for each model, before it says what it could not find out (default: 5m)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of samples (default: 0)")
    parser.add_argument("--no-fork", action="store_true", help="every attempt a process of its own")
    parser.set_defaults(run=run_explain)


def run_explain(arguments: argparse.Namespace) -> int:
    """Print the explanation; 0, or 3 when a bound was met before there was one."""
    name: str = arguments.target
    is_case = not _is_subject(name)
    subject = _subject_of(name, arguments, is_case=is_case)
    with worker_pool(1, env=dict(subject.env)) as (executor, temp_dir):
        prepared = reproduction.prepare(
            subject, executor=executor, temp_dir=Path(temp_dir), fork=not arguments.no_fork
        )
        if prepared.baseline.untraceable:
            raise CannotJudge(f"{subject.name} cannot be traced: {prepared.baseline.untraceable}")
        case = None
        if is_case:
            case = reproduction.find(name, prepared, reports=arguments.reports).case
            _print(_of_case(case, prepared, executor, again=_again(arguments)))
            if not case.layer.startswith("power/"):
                return EXPLAINED
        stopped = False
        for model in _models(arguments.models, case):
            for exploration in reproduction.explorations(
                prepared, model, case=case, seed=arguments.seed
            ):
                said = executor.submit(
                    tasks.explain_model_task, exploration, arguments.budget
                ).result()
                if said.failed:
                    break  # another order of the threads is worth a word when this one is mended
            _print(model_lines(said, with_why=case is None, budget_s=arguments.budget))
            stopped = stopped or bool(said.stopped)
    return NOT_FOUND_OUT if stopped else EXPLAINED


def _is_subject(name: str) -> bool:
    return name.endswith((".toml", ".json")) and not reproduction.is_bundle(name)


def _subject_of(name: str, arguments: argparse.Namespace, *, is_case: bool) -> Subject:
    if is_case:
        return reproduction.subject_of(name, subject=arguments.subject, reports=arguments.reports)
    if arguments.subject is not None:
        raise UsageError(f"{name} is a subject itself; --subject goes with a case")
    [subject] = discover([Path(name)])
    return subject


def _models(wanted: tuple[str, ...] | None, case: Case | None) -> tuple[str, ...]:
    if wanted is not None:
        return wanted
    own = case.layer.partition("/")[2] if case is not None else ""
    return tuple(sorted(MODELS, key=lambda model: model != own))


def _print(lines: Iterator[str]) -> None:
    for line in lines:
        print(one_line(line, limit=1000) if line else "")
    sys.stdout.flush()


def _again(arguments: argparse.Namespace) -> str:
    """The command that runs the case step by step: named as it was named to us."""
    words = ["durability", "reproduce", arguments.target]
    if arguments.subject is not None:
        words += ["--subject", str(arguments.subject)]
    if arguments.reports != REPORTS:
        words += ["--reports", str(arguments.reports)]
    return shlex.join(words)


def _of_case(case: Case, prepared: Prepared, executor: Executor, *, again: str) -> Iterator[str]:
    model = case.layer.partition("/")[2]
    [exploration] = reproduction.explorations(prepared, model or "kill", case=case)
    yield f"why  {case.id}"
    if model:
        why = executor.submit(tasks.explain_state_task, exploration, case).result()
        if why is None:
            yield "  this crash state breaks no invariant now"
        else:
            yield from why_lines(why, holds=_holds(why, case))
        yield ""
        return
    yield f"  a fault of the layer {case.layer} loses nothing that was written: no fsync mends it"
    if case.layer == "kill" and len(case.faults) == 1 and not case.rewind:
        place = case.faults[0].place
        harmful = executor.submit(tasks.explain_kill_task, exploration, place).result()
        if harmful:
            yield f"  harmful since  {harmful}; a kill right before that did no harm"
    yield f"  step by step   {again}"


def _holds(why: Why, case: Case) -> str:
    if not why.reason.holds_if:
        return ""
    return at_state(case, why.reason.holds_if).id


def why_lines(why: Why, *, holds: str = "") -> Iterator[str]:
    """A crash state: what it breaks, the order that was needed, what was lost."""
    reason = why.reason
    site = f"      {reason.site}" if reason.site else ""
    for finding in why.findings:
        yield f"  {finding.invariant}: {finding.message}"
    if reason.needs:
        yield f"  needs   {reason.needs}{site}"
    elif reason.lost:
        yield "  needs   no order of what was lost: the state is bad with everything durable, too"
    if reason.lost:
        yield f"  lost    {lost_words(reason.lost)}"
    yield f"  crash   {reason.crash}"
    if holds:
        yield f"  holds if {holds}"


def model_lines(said: Explained, *, with_why: bool, budget_s: float) -> Iterator[str]:
    """What there is to say of one model."""
    sampled = ", sampled" if said.sampled else ""
    if said.failed:
        first = "" if said.all_judged else "the first "
        failed = f"{said.failed:,} of {first}{said.states:,} crash states fail"
        yield f"power/{said.model}   {failed}{sampled}"
    else:
        yield f"power/{said.model}   none of {said.states:,} crash states fails{sampled}"
    if said.why is not None and with_why:
        yield from why_lines(said.why)
    if said.mending is not None:
        yield from _mending_lines(said.mending, sampled=said.sampled)
    if said.sparing is not None:
        yield from _sparing_lines(said.sparing, said.model)
    if said.stopped:
        yield f"  stopped after {duration_words(budget_s)}: {said.stopped} (--budget gives it more)"
    yield ""


def _mending_lines(mending: Mending, *, sampled: bool) -> Iterator[str]:
    if not mending.complete:
        yield f"  no fsync mends all: {mending.beyond}; the order of the operations has to change"
        return
    yield from (_sync_line("add", sync) for sync in mending.add)
    explored = "explored state (they are a sample)" if sampled else "state"
    proof = "no smaller set does" if mending.smallest else "a smaller set may do"
    yield f"  then    no {explored} fails; {proof}"


def _sparing_lines(sparing: Sparing, model: str) -> Iterator[str]:
    for label, syncs in (("spare", sparing.spare), ("needed", sparing.needed)):
        yield from (_sync_line(label, sync) for sync in syncs[:MAX_SYNCS])
        if len(syncs) > MAX_SYNCS:
            yield f"  {label:<7} and {len(syncs) - MAX_SYNCS} more"
    if len(sparing.spare) == 1:
        yield f"  without the spare one no explored state fails under {model}"
    elif sparing.all_spare:
        yield f"  without all the spare ones no explored state fails under {model}"
    elif sparing.spare:
        yield "  spare each by itself: without all of them some state fails"
    elif sparing.needed:
        yield "  each of its syncs is needed"
    else:
        yield "  it makes no syncs"


def _sync_line(label: str, sync: Sync) -> str:
    site = f"      {sync.site}" if sync.site else ""
    times = f"   ({sync.times} times in this run)" if sync.times > 1 else ""
    return f"  {label:<7} {sync.words}{site}{times}"
