"""Correct: SQLite's WAL with locking_mode=EXCLUSIVE, where its index is ordinary memory."""

import json
import os
import sqlite3
import sys

import toy

root = sys.argv[1]
database = sqlite3.connect(os.path.join(root, "run.db"), isolation_level=None)
database.execute("PRAGMA locking_mode = EXCLUSIVE")
database.execute("PRAGMA journal_mode = WAL")
database.execute("PRAGMA synchronous = FULL")
database.execute("CREATE TABLE IF NOT EXISTS checkpoint (step INTEGER PRIMARY KEY, state TEXT)")
row = database.execute("SELECT state FROM checkpoint ORDER BY step DESC LIMIT 1").fetchone()
state = json.loads(row[0]) if row else toy.fresh()
while state["step"] < 6:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] % 3 == 0:
        database.execute("INSERT INTO checkpoint VALUES (?, ?)", (state["step"], json.dumps(state)))
        print(f"saved step={state['step']}", flush=True)
database.close()
with open(os.path.join(root, "final.json"), "w") as file:
    json.dump(state["weights"], file)
