"""What people and machines are shown of a run.

``write`` makes the files (``result.json``, ``cases.jsonl``, ``junit.xml``, ``summary.md``,
``index.html``), ``text`` what the terminal says. Nothing is imported here, so that a command that
shows progress does not wait for the page's templates.
"""
