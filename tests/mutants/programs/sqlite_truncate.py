"""Correct: SQLite with journal_mode=TRUNCATE and synchronous=FULL: the truncation is synced."""

import os
import sqlite3
import sys

import toy


def connect(root: str) -> sqlite3.Connection:
    database = sqlite3.connect(os.path.join(root, "state.sqlite3"))
    database.execute("PRAGMA journal_mode = TRUNCATE")
    database.execute("PRAGMA synchronous = FULL")
    with database:
        database.execute("CREATE TABLE IF NOT EXISTS value (name TEXT PRIMARY KEY, number)")
    return database


def save(database: sqlite3.Connection, state: dict) -> None:
    flat = {k: v for k, v in state.items() if not isinstance(v, list)}
    for key in ("weights", "momentum"):
        flat |= {f"{key}.{i}": number for i, number in enumerate(state[key])}
    with database:
        database.executemany("INSERT OR REPLACE INTO value VALUES (?, ?)", flat.items())


def load(database: sqlite3.Connection) -> dict:
    stored = dict(database.execute("SELECT name, number FROM value"))
    state = toy.fresh()
    for key, number in stored.items():
        name, _, index = key.partition(".")
        if index:
            state[name][int(index)] = number
        else:
            state[name] = number
    return state


database = connect(sys.argv[1])
state = load(database)
while state["step"] < 6:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] % 3 == 0:
        save(database, state)
        print(f"saved step={state['step']}", flush=True)
database.close()
with open(os.path.join(sys.argv[1], "final.txt"), "w") as file:
    file.write(repr(state["weights"]))
