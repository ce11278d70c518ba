"""The words of the pages: layers and invariants in one sentence each, and counts in English."""

from harness.cases import LAYERS
from harness.results import FAIL, INCONCLUSIVE, PASS, Result

_MODELS = ("posix", "ext4", "xfs", "btrfs")

LAYER_SENTENCES = {
    "point": "SIGKILL at each named failpoint",
    "kill": "SIGKILL before each file-system call under the root",
    "double": "a second and third kill while it resumes",
    "power": "every state that a power loss may leave under this model",
    "realfs": "a real file system, cut for real, mounted again",
    "error": "a call that fails: disk full, I/O error, short write",
    "corrupt": "damage to what lies on disk between two attempts",
    "signal": "SIGTERM, SIGINT, a pause, a second trainer",
}

INVARIANT_SENTENCES = {
    "pointer-complete": "LATEST is absent or names a directory whose manifest verifies",
    "resumable": "the resumed attempt ends with success, within its time",
    "no-lost-ack": "no crash makes it resume from before an acknowledged checkpoint",
    "no-silent-restart": "it does not start from nothing when a complete checkpoint exists",
    "never-mixed": "what it resumed from is one checkpoint, all files of one step",
    "same-losses": "every loss has the bits of the uninterrupted run's",
    "same-final": "the final artifacts are those of the uninterrupted run, byte for byte",
    "ack-after-durable": "an acknowledgement is not visible before its checkpoint would survive",
    "progress-readable": "the progress file is whole JSON lines, no step missing",
    "retention": "neither too many checkpoints remain nor too few, nothing temporary is left",
    "error-is-clear": "a fault that it cannot mend is named by file, nothing complete destroyed",
}

VERDICT_WORDS = {PASS: "PASS", FAIL: "FAIL", INCONCLUSIVE: "INCONCLUSIVE"}


def count(number: int, noun: str, plural: str = "") -> str:
    """``1 case``, ``3,110 cases``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def duration(seconds: float) -> str:
    """``0.4 s``, ``61.2 s``, ``4 min 05 s``, ``2 h 03 min``."""
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def layer_key(layer: str) -> tuple[int, int, str]:
    """Sorts layers in the order of the table of layers, then models in theirs."""
    family, _, model = layer.partition("/")
    return (
        LAYERS.index(family) if family in LAYERS else len(LAYERS),
        _MODELS.index(model) if model in _MODELS else len(_MODELS),
        layer,
    )


def layer_sentence(layer: str) -> str:
    """What a layer does, or nothing for one that this page does not know."""
    return LAYER_SENTENCES.get(layer.partition("/")[0], "")


def shown_verdict(result: Result) -> str:
    """``pass``, ``fail`` or ``inconclusive`` as it is to be shown: a violation always wins."""
    return FAIL if result.violations else result.verdict


def sentence(result: Result, *, signatures: int) -> str:
    """The whole run in one sentence, without its verdict."""
    cases = sum(layer.cases for layer in result.layers.values())
    if result.violations:
        told = len({(v.config, v.case) for v in result.violations})
        # Of the crash states that failed alike only some are told one by one.
        failing = max(told, sum(layer.failed for layer in result.layers.values()))
        invariants = len({v.invariant for v in result.violations})
        said = (
            f"{failing:,} of {count(cases, 'case')} broke {count(invariants, 'invariant')}; "
            f"{count(signatures, 'signature')}"
        )
    elif shown_verdict(result) == PASS:
        held = count(len(result.invariants), "invariant")
        said = f"{count(cases, 'case')}, {held} held in every one"
    else:
        said = f"{count(cases, 'case')} ran, and the harness cannot say that all is well"
    if result.skipped:
        said += f"; {count(len(result.skipped), 'layer')} skipped"
    if result.interrupted:
        said += "; interrupted"
    return said
