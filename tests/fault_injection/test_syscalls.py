"""The tables of system-call numbers are the kernel's own."""

import re
from pathlib import Path

import pytest

from fault_injection import syscalls

HEADERS = {
    "x86_64": [
        Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        Path("/usr/include/asm/unistd_64.h"),
    ],
    "aarch64": [Path("/usr/include/asm-generic/unistd.h")],
}
# Newer than some headers; the same number on every machine.
NEW = {"fchmodat2": 452}


@pytest.mark.parametrize("machine", syscalls.MACHINES)
def test_the_table_is_that_of_the_kernel_headers(machine: str) -> None:
    header = next((path for path in HEADERS[machine] if path.exists()), None)
    if header is None:
        pytest.skip(f"no kernel headers of {machine} here")
    found = {
        name: int(number)
        for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text())
    }
    # The generic header calls newfstatat by what it is on each machine.
    found.setdefault("newfstatat", found.get("fstatat", -1))
    ours = syscalls.numbers(machine)
    assert {n: v for n, v in ours.items() if n not in NEW} == {
        name: found[name] for name in ours if name not in NEW
    }
    assert {name: ours[name] for name in NEW} == NEW


def test_a_machine_without_a_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="known are x86_64, aarch64"):
        syscalls.numbers("riscv64")
