"""System-call numbers of the two supported machines, by name.

The numbers are a kernel contract and never change. x86_64 has its own table; aarch64 uses the
kernel's generic one, which has no call that takes a path without a directory descriptor (``open``,
``rename``, ...): a name that the machine does not have is absent from :data:`NUMBERS`.

A test compares both tables with the kernel headers where these are installed.
"""

import platform

# name: (x86_64, aarch64); None where the machine does not have the call.
_TABLE: dict[str, tuple[int | None, int | None]] = {
    "open": (2, None),
    "openat": (257, 56),
    "openat2": (437, 437),
    "creat": (85, None),
    "open_by_handle_at": (304, 265),
    "write": (1, 64),
    "pwrite64": (18, 68),
    "writev": (20, 66),
    "pwritev": (296, 70),
    "pwritev2": (328, 287),
    "sendfile": (40, 71),
    "copy_file_range": (326, 285),
    "splice": (275, 76),
    "tee": (276, 77),
    "vmsplice": (278, 75),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "ioctl": (16, 29),
    "truncate": (76, 45),
    "ftruncate": (77, 46),
    "fallocate": (285, 47),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "link": (86, None),
    "linkat": (265, 37),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "bind": (49, 200),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "rmdir": (84, None),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
    "sync": (162, 81),
    "syncfs": (306, 267),
    "sync_file_range": (277, 84),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "pkey_mprotect": (329, 288),
    "io_uring_setup": (425, 425),
    "io_submit": (209, 2),
    "ptrace": (101, 117),
    "process_vm_writev": (311, 271),
    "mount": (165, 40),
    "move_mount": (429, 429),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "stat": (4, None),
    "lstat": (6, None),
    "fstat": (5, 80),
    "newfstatat": (262, 79),
    "statx": (332, 291),
    "access": (21, None),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "getdents": (78, None),
    "getdents64": (217, 61),
    "getxattr": (191, 8),
    "lgetxattr": (192, 9),
    "fgetxattr": (193, 10),
    "listxattr": (194, 11),
    "llistxattr": (195, 12),
    "flistxattr": (196, 13),
    "inotify_add_watch": (254, 27),
    "lseek": (8, 62),
    "read": (0, 63),
    "close": (3, 57),
    "chdir": (80, 49),
    "fchdir": (81, 50),
    "execve": (59, 221),
    "execveat": (322, 281),
    "exit": (60, 93),
    "exit_group": (231, 94),
    "clone": (56, 220),
    "fork": (57, None),
    "vfork": (58, None),
    "clone3": (435, 435),
    "seccomp": (317, 277),
    "process_vm_readv": (310, 270),
    "pidfd_getfd": (438, 438),
}

MACHINES = ("x86_64", "aarch64")


def numbers(machine: str) -> dict[str, int]:
    """Name to number for ``machine``; raises ValueError for a machine without a table."""
    if machine not in MACHINES:
        raise ValueError(f"no system-call table for {machine!r}: known are {', '.join(MACHINES)}")
    column = MACHINES.index(machine)
    return {name: row[column] for name, row in _TABLE.items() if row[column] is not None}  # type: ignore[misc]


MACHINE = platform.machine()
NUMBERS: dict[str, int] = numbers(MACHINE) if MACHINE in MACHINES else {}
NAMES: dict[int, str] = {number: name for name, number in NUMBERS.items()}
STARTS_TASK: frozenset[int] = frozenset(
    NUMBERS[name] for name in ("clone", "clone3", "fork", "vfork") if name in NUMBERS
)
