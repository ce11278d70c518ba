"""Chat templates: ``tokenizer_config.json``, as engines read it.

The template is Jinja, rendered with ``messages`` (each with ``role`` and ``content``) and
``add_generation_prompt``, in a sandbox and with the settings that the common engines use, so that
the same template gives the same text here and there. It comes with a model, so it is not trusted.
"""

import contextlib
import resource
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from tinyllm.documents import decode_strictly
from tinyllm.state import canonical_json

TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
TEMPLATE_LIMIT_BYTES = 1 << 20
TEMPLATE_LIMIT_S = 2.0
_MEMORY_BYTES = 256 << 20

_SAMPLE = ({"role": "user", "content": "Hello"},)


class TokenizerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What is used of ``tokenizer_config.json``; engines have more keys."""

    chat_template: str
    model_max_length: int


def encode_tokenizer_config(template: str, *, context: int) -> bytes:
    """The file's bytes for a model that sees at most ``context`` tokens."""
    return canonical_json(TokenizerConfig(chat_template=template, model_max_length=context))


def decode_tokenizer_config(data: bytes) -> TokenizerConfig:
    """Read it; ValueError says what is wrong."""
    return decode_strictly(data, TokenizerConfig)


def template_problems(data: bytes) -> list[str]:
    """Everything that keeps ``data`` from being a chat template."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return [f"is not UTF-8 at byte {error.start}"]
    try:
        with _bounded():
            rendered = render(text, _SAMPLE)
    except ValueError as error:
        return [str(error)]
    except (_TooLong, MemoryError):
        return [f"takes more than {TEMPLATE_LIMIT_S:g} s or {_MEMORY_BYTES >> 20} MiB for one word"]
    if _SAMPLE[0]["content"] not in rendered:
        return ["leaves out the message of a user"]
    return []


class _TooLong(BaseException):
    """Past whatever the template engine catches."""


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    """A limit of computing time (in the main thread) and of memory: a loop in a loop is enough."""

    def stop(_number: int, _frame: object) -> NoReturn:
        raise _TooLong

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _address_space_bytes() + _MEMORY_BYTES
    timed = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGVTALRM, stop) if timed else None
    try:
        if soft == resource.RLIM_INFINITY or limit < soft:
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
        if timed:
            signal.setitimer(signal.ITIMER_VIRTUAL, TEMPLATE_LIMIT_S)
        yield
    finally:
        if timed:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def render(template: str, messages: Sequence[Mapping[str, str]]) -> str:
    """The text that the model is to continue; ValueError says what is wrong with the template."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _refuse
    values: dict[str, Any] = {
        "messages": [dict(message) for message in messages],
        "add_generation_prompt": True,
        "bos_token": "",
        "eos_token": "",
    }
    try:
        return environment.from_string(template).render(values)
    except TemplateError as error:
        raise ValueError(f"is not a chat template: {error}") from error
    except Exception as error:  # whatever a stranger's template comes upon
        raise ValueError(f"cannot be rendered: {type(error).__name__}: {error}") from error


def _refuse(message: str) -> NoReturn:
    """What a template calls for a conversation that it cannot show."""
    raise ValueError(message)
