"""Does the operations of a built trace for real, in a directory."""

import ctypes
import os

from fault_injection.trace import Kind, Operation, Trace

_RENAME_EXCHANGE = 2


def lay_down(trace: Trace, root: str) -> None:
    """The starting tree, for the caller to make durable."""
    todo = [(root, 0)]
    while todo:
        above, directory = todo.pop()
        for name, inode in trace.start[directory].entries.items():
            path = f"{above}/{name.decode()}"
            if inode in trace.start and trace.start[inode].entries:
                os.mkdir(path)
                todo.append((path, inode))
            elif trace.start[inode].blob:
                with open(path, "wb") as file:
                    file.write(trace.blobs.read(trace.start[inode].blob))
            else:
                os.mkdir(path)


class Doer:
    """Keeps one open descriptor an inode, so that unlinked files can go on being used."""

    def __init__(self, trace: Trace, root: str) -> None:
        self.trace, self.root = trace, root
        self.open: dict[int, int] = {0: os.open(root, os.O_RDONLY)}
        for inode in sorted(trace.start):
            self._open_below(inode)

    def _open_below(self, directory: int) -> None:
        if directory not in self.open:
            return
        for name, inode in self.trace.start[directory].entries.items():
            is_directory = not self.trace.start[inode].blob
            flags = os.O_RDONLY if is_directory else os.O_RDWR
            self.open[inode] = os.open(name, flags, dir_fd=self.open[directory])

    def close(self) -> None:
        for descriptor in self.open.values():
            os.close(descriptor)

    def do(self, op: Operation) -> None:
        fds = self.open
        match op.kind:
            case Kind.CREATE:
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
                fds[op.inode] = os.open(op.name, flags, 0o644, dir_fd=fds[op.parent])
            case Kind.MKDIR:
                os.mkdir(op.name, dir_fd=fds[op.parent])
                fds[op.inode] = os.open(op.name, os.O_RDONLY, dir_fd=fds[op.parent])
            case Kind.WRITE:
                data = self.trace.blobs.read(op.blob)
                if not op.synced:
                    os.pwrite(fds[op.inode], data, op.offset)
                    return
                flag = os.RWF_DSYNC if op.synced == "data" else os.RWF_SYNC
                os.pwritev(fds[op.inode], [data], op.offset, flag)
            case Kind.TRUNCATE:
                os.ftruncate(fds[op.inode], op.size)
            case Kind.RENAME:
                old, new = fds[op.parent], fds[op.new_parent]
                os.rename(op.name, op.new_name, src_dir_fd=old, dst_dir_fd=new)
            case Kind.EXCHANGE:
                libc = ctypes.CDLL(None, use_errno=True)
                old, new = fds[op.parent], fds[op.new_parent]
                if libc.renameat2(old, op.name, new, op.new_name, _RENAME_EXCHANGE) != 0:
                    raise OSError(ctypes.get_errno(), "renameat2")
            case Kind.LINK:
                source = f"/proc/self/fd/{fds[op.inode]}"
                os.link(source, op.name, dst_dir_fd=fds[op.parent], follow_symlinks=True)
            case Kind.UNLINK:
                os.unlink(op.name, dir_fd=fds[op.parent])
            case Kind.FSYNC:
                os.fsync(fds[op.inode])
            case Kind.FDATASYNC:
                os.fdatasync(fds[op.inode])
            case Kind.SYNC:
                if ctypes.CDLL(None, use_errno=True).syncfs(fds[0]) != 0:
                    raise OSError(ctypes.get_errno(), "syncfs")
            case Kind.OUTPUT:
                pass
            case _:
                raise NotImplementedError(op.kind)
