"""Correct: a log of every step's change, replayed on a resume; each line has its own checksum.

A lock that the kernel drops with its holder (flock) keeps a second trainer out; the file stays.
"""

import fcntl
import os
import sys
import zlib

root = sys.argv[1]
lock = open(os.path.join(root, ".lock"), "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit("another trainer is running here")

log = open(os.path.join(root, "steps.log"), "a+b", buffering=0)
directory = os.open(root, os.O_RDONLY)
os.fsync(directory)

position, velocity, step, whole = 3.0, 0.0, 0, 0
log.seek(0)
for line in log.readlines():
    body, _, check = line.rpartition(b" ")
    if not line.endswith(b"\n") or check.strip() != b"%08x" % zlib.crc32(body):
        break
    number, kick = body.split()
    velocity = 0.9 * velocity + float.fromhex(kick.decode())
    position -= velocity
    step, whole = int(number), whole + len(line)
log.truncate(whole)

while step < 10:
    kick = 0.1 * (position - 1.0)
    loss = (position - 1.0) ** 2
    velocity = 0.9 * velocity + kick
    position -= velocity
    step += 1
    body = b"%d %s" % (step, kick.hex().encode())
    log.write(b"%s %08x\n" % (body, zlib.crc32(body)))
    print(f"step={step} loss={loss.hex()}", flush=True)
    if step % 5 == 0:
        os.fsync(log.fileno())
        print(f"saved step={step}", flush=True)
with open(os.path.join(root, "final"), "w") as file:
    file.write(position.hex())
