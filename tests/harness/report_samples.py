"""A result as a real run would give it, for the tests of everything that shows one.

Run as a program it writes the sample's files: ``python -m tests.harness.report_samples DIR``.
"""

import math
import sys
from pathlib import Path

import msgspec

from fault_injection.faults import ActionKind, Fault, TriggerKind
from harness.bundles import BundledAttempt, bundle_name, write_bundle
from harness.cases import Case, kill_case
from harness.report.timeline import Read, Step, Timeline
from harness.report.write import write_all
from harness.results import Baseline, CaseRecord, LayerCount, Lint, Result, Violation

FILES = (
    "model.safetensors",
    "optimizer.safetensors",
    "config.json",
    "trainer_state.json",
    "MANIFEST.json",
    "step-000040",
    "LATEST",
)
CALLS = ("create", "write", "fsync", "rename", "unlink")
PHASES = ("start.locked", "resume.found", "step.backward-done", "save.renamed", "retention.moved")
HOSTILE = "</style><script>alert(1)</script>\"'><img src=x onerror=y>|`*_\x00\x1b[2J\r\n# \udcff"
CONFIGS = ("adamw", "sgd", "muon", "adamw-bf16", "file-tokenizer")


def power_case(place: str, lost: str) -> Case:
    """A power case whose state lacks one operation."""
    return Case("my-trainer", "power/posix", place=place, state=(("lost", lost),))


ACK_CASE = power_case("after-output-stdout#4", "17")


def timeline() -> Timeline:
    """The timeline of the case in which an acknowledged checkpoint was lost."""
    quiet = [
        Step(index=n, text=f"write shard-{n}.bin 0..65536", status="durable", site="train.py:31")
        for n in range(3, 14)
    ]
    return Timeline(
        title=f"{ACK_CASE.id}: power loss under posix",
        steps=(
            Step(index=1, text="mkdir step-000040", status="durable", site="writer.py:702 save()"),
            Step(index=2, text="create step-000040/.metadata.tmp", status="durable"),
            *quiet,
            Step(
                index=14,
                text="write step-000040/.metadata.tmp 0..8192",
                status="partial",
                note="4,096 of 8,192 bytes",
                site="writer.py:761 _write()",
            ),
            Step(index=15, text="fsync step-000040/.metadata.tmp", status="durable"),
            Step(index=16, text="unlink step-000020/.metadata", status="durable"),
            Step(
                index=17,
                text="rename step-000040/.metadata.tmp -> .metadata",
                status="lost",
                site="writer.py:790 save()",
            ),
            Step(index=18, text='stdout "saved step=40"', status="seen", site="train.py:57"),
            Step(index=19, text="unlink step-000030/.metadata", status="after"),
            Step(index=20, text="rmdir step-000030", status="after"),
        ),
        crash="after #18, the acknowledgement; no fsync of the directory follows",
        reads=(
            Read(path="step-000040/.metadata", answer="no such file"),
            Read(path="step-000030/.metadata", answer="8,192 bytes, whole"),
        ),
        outcome="step 40 was acknowledged as saved; training resumed from step 30",
    )


def ack_violations() -> list[Violation]:
    """Twelve cases of one signature."""
    cases = [ACK_CASE, *(power_case(f"before-create-f{n}#1", "17") for n in range(11))]
    first = Violation(
        case=ACK_CASE.id,
        layer="power/posix",
        invariant="no-lost-ack",
        message="step 40 was acknowledged as saved; after the crash training resumed from step 30",
        bundle=f"failures/{bundle_name(ACK_CASE)}",
        config="my-trainer",
        signature="no-lost-ack: fsync(step-N) before acknowledgement at writer.py:790 save()",
        needs="fsync(step-000040's directory)  before  the acknowledgement      "
        "writer.py:790 save()",
        lost="#17 rename .metadata.tmp -> .metadata      not durable at the crash",
        crash="after #18, the acknowledgement; no fsync of the directory follows",
        holds_if="#17 is durable: my-trainer/power-posix@ack#4-10c2e4d7",
        evidence="the resumed attempt printed step=31 loss=2.30129 as its first loss\n"
        "stdout: resuming from step-000030\nexit 0 after 0.41 s",
        reproduce=f"durability reproduce {ACK_CASE.digest}",
    )
    rest = [msgspec.structs.replace(first, case=c.id, bundle="", reproduce="") for c in cases[1:]]
    return [first, *rest]


def loss_violations() -> list[Violation]:
    """Two cases in which the optimizer's momentum was not restored."""
    return [
        Violation(
            case=kill_case("sgd", "kill", TriggerKind.CALL, f"rename-LATEST#{hit}").id,
            layer="kill",
            invariant="same-losses",
            message=f"the loss of step {10 * hit + 1} is not the uninterrupted run's",
            config="sgd",
            signature="same-losses: the loss of step N is not the uninterrupted run's",
            crash=f"SIGKILL before rename-LATEST#{hit}",
            expected="2.3012986 (40134880)",
            found="2.3013101 (401348d9)",
            reproduce="durability reproduce --config sgd 5c1d",
        )
        for hit in (2, 3)
    ]


def records() -> list[CaseRecord]:
    """The cases of all layers; nothing struck config.json's fsync, so one cell stays empty."""
    found = []
    for config in CONFIGS:
        for phase in PHASES:
            for hit in (1, 2, 3):
                case = kill_case(config, "point", TriggerKind.POINT, f"{phase}#{hit}")
                found.append(_passed(case, config, f"SIGKILL seen at {phase}#{hit}"))
        for call in CALLS:
            for file in FILES:
                for hit in (1, 2, 3):
                    case = kill_case(config, "kill", TriggerKind.CALL, f"{call}-{file}#{hit}")
                    found.append(_passed(case, config, f"before {call}-{file}#{hit}"))
    for errno in ("EIO", "ENOSPC"):
        for file in FILES[: 6 if errno == "EIO" else 5]:
            fault = Fault(TriggerKind.CALL, f"write-{file}#1", ActionKind.ERRNO, errno)
            record = _passed(Case("adamw", "error", (fault,)), "adamw", f"{errno} answered")
            found.append(msgspec.structs.replace(record, fault=errno))
    for number in range(300):
        case = power_case(f"before-write-shard-{number}.bin#1", str(number))
        found.append(_passed(case, "my-trainer", ""))
    late = kill_case("muon", "point", TriggerKind.POINT, "release.renamed#9")
    record = _passed(late, "muon", "")
    message = "the process ended before release.renamed#9 was reached"
    found.append(msgspec.structs.replace(record, verdict="inconclusive", message=message))
    broken = {v.case: v for v in [*ack_violations(), *loss_violations()]}
    found = [r for r in found if r.case not in broken]
    for violation in broken.values():
        found.append(
            CaseRecord(
                case=violation.case,
                layer=violation.layer,
                verdict="fail",
                config=violation.config,
                evidence=violation.crash,
                seconds=0.31,
                message=violation.message,
            )
        )
    return found


def _passed(case: Case, config: str, evidence: str) -> CaseRecord:
    return CaseRecord(
        case=case.id,
        layer=case.layer,
        verdict="pass",
        config=config,
        evidence=evidence,
        seconds=0.125,
    )


def result() -> Result:
    """A failing gate: two signatures, a skipped layer, lints, five baselines."""
    of = records()
    counts = {layer: [r for r in of if r.layer == layer] for layer in sorted({r.layer for r in of})}
    layers = {
        layer: LayerCount(
            cases=len(members),
            failed=sum(r.verdict == "fail" for r in members),
            inconclusive=sum(r.verdict == "inconclusive" for r in members),
            seconds=round(sum(r.seconds for r in members), 3),
        )
        for layer, members in counts.items()
    }
    layers["power/posix"] = msgspec.structs.replace(
        layers["power/posix"], states=914, judged=402, equal_reads=512, sampled=True
    )
    return Result(
        command="gate",
        subject="my-trainer, adamw, sgd, muon, adamw-bf16, file-tokenizer",
        verdict="fail",
        reasons=["the fault of 1 case was not seen to happen"],
        configs={
            name: Baseline(
                steps=20,
                seconds=1.9,
                operations=212,
                losses=[
                    (s, f"{4.2 * math.exp(-s / 7) + 2.1 + 0.09 * ((s * k) % 3):.7g}")
                    for s in range(1, 21)
                ],
            )
            for k, name in enumerate(CONFIGS, start=1)
        },
        layers=layers,
        skipped={
            "realfs/xfs": "mkfs.xfs not found: apt-get install xfsprogs",
            "realfs/btrfs": "mkfs.btrfs not found: apt-get install btrfs-progs",
        },
        violations=[*ack_violations(), *loss_violations()],
        lints=[
            Lint(
                name="no-directory-fsync",
                place="rename-.metadata#4",
                file="step-000040/.metadata",
                message="renamed and acknowledged; the directory is never fsynced",
                site="writer.py:790 save()",
            ),
            Lint(
                name="rename-before-fsync",
                place="rename-LATEST#1",
                file="LATEST",
                message="renamed before its bytes were fsynced",
                site="train.py:88 point_to()",
                config="sgd",
            ),
        ],
        canary="caught: no-lost-ack, pointer-complete",
        notes=["power/posix: a place with 9,314 sets was sampled (seed 7)"],
        invariants=[
            "pointer-complete",
            "resumable",
            "no-lost-ack",
            "no-silent-restart",
            "never-mixed",
            "same-losses",
            "same-final",
            "ack-after-durable",
            "progress-readable",
            "retention",
            "error-is-clear",
        ],
        versions={"python": "3.11.7", "torch": "2.13.0+cpu", "kernel": "6.18.5", "durability": "1"},
        seed=7,
        seconds=61.24,
        started="2026-01-31T02:15:00+00:00",
        arguments=["gate", "--seed", "7"],
    )


def passing() -> Result:
    """The same run without its violations and without the case that proved nothing."""
    good = {
        n: msgspec.structs.replace(layer, failed=0, inconclusive=0)
        for n, layer in result().layers.items()
    }
    return msgspec.structs.replace(
        result(), verdict="pass", reasons=[], violations=[], lints=[], layers=good
    )


def hostile() -> tuple[Result, list[CaseRecord]]:
    """A result whose every text tries to be markup, or to drive a terminal."""
    bad = HOSTILE
    violation = Violation(
        case=bad,
        layer=bad,
        invariant=bad,
        message=bad,
        bundle="javascript:alert(1)",
        config=bad,
        needs=bad,
        lost=bad,
        crash=bad,
        holds_if=bad,
        expected=bad,
        found=bad,
        evidence=bad,
        reproduce=bad,
    )
    of = msgspec.structs.replace(
        result(),
        command=bad,
        subject=bad,
        reasons=[bad],
        layers={bad: LayerCount(cases=1, failed=1)},
        skipped={bad + "2": bad},
        violations=[violation, *ack_violations()],
        lints=[Lint(name=bad, place=bad, file=bad, message=bad, site=bad, config=bad)],
        canary=bad,
        notes=[bad],
        invariants=[bad],
        versions={bad: bad},
        started=bad,
        arguments=[bad],
        loss_digits=bad,
    )
    return of, [
        CaseRecord(case=bad, layer=bad, verdict="inconclusive", fault=bad, message=bad),
        CaseRecord(case=bad + "2", layer=bad, verdict="fail", target=bad, config=bad, evidence=bad),
    ]


def write_sample_bundle(out: Path, *, tree: Path | None = None) -> Path:
    """The bundle of the acknowledged checkpoint that was lost."""
    return write_bundle(
        out / "failures" / bundle_name(ACK_CASE),
        ACK_CASE,
        subject={"name": "my-trainer", "train": ["python", "train.py", "--out", "{root}"]},
        config="my-trainer",
        attempts=[
            BundledAttempt(command=["python", "train.py"], signal=9, stdout=b"saved step=40\n"),
            BundledAttempt(command=["python", "train.py"], exit_code=0, stderr=b"resuming\n"),
        ],
        verdict="fail",
        violations=ack_violations()[:1],
        versions={"python": "3.11.7"},
        tree=tree,
        timeline=timeline(),
    )


def main() -> None:
    """Write the sample's files to the directory of the command line."""
    out = Path(sys.argv[1])
    write_sample_bundle(out)
    write_all(out, result(), records())


if __name__ == "__main__":
    main()
