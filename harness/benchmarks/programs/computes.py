"""A program to be recorded that makes no call under its root for a while: it computes and reads.

python computes.py DIRECTORY ROUNDS
"""

import os
import sys


def main() -> None:
    directory, rounds = sys.argv[1], int(sys.argv[2])
    zeros = os.open("/dev/zero", os.O_RDONLY)
    total = 0
    for _ in range(rounds):
        total += sum(os.read(zeros, 4096)) + sum(range(2000))
    with open(os.path.join(directory, "result"), "w", encoding="utf-8") as file:
        file.write(f"{total}\n")


if __name__ == "__main__":
    main()
