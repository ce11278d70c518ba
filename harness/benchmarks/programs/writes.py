"""A program to be recorded: it writes SIZE_BYTES under a directory and syncs them.

python writes.py DIRECTORY SIZE_BYTES
"""

import os
import sys

PIECE_BYTES = 8 << 20
FILES = 8


def main() -> None:
    directory, size_bytes = sys.argv[1], int(sys.argv[2])
    block = bytearray(os.urandom(PIECE_BYTES))
    part = size_bytes // FILES
    for number in range(FILES):
        fd = os.open(os.path.join(directory, f"part-{number}"), os.O_WRONLY | os.O_CREAT, 0o644)
        done = 0
        while done < part:
            block[:8] = (number * part + done).to_bytes(8, "little")  # no two pieces are alike
            done += os.write(fd, memoryview(block)[: min(PIECE_BYTES, part - done)])
        os.fsync(fd)
        os.close(fd)


if __name__ == "__main__":
    main()
