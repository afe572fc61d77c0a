"""Results as lines of JSON, one for each run, that survive whatever ends the process."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

from megagp.experiments.run import Record, key_of


class Results:
    """<folder>/<suite>.jsonl. Of several lines on the same run the last counts."""

    def __init__(self, folder: Path, suite: str) -> None:
        self.path = folder / f"{suite}.jsonl"

    def append(self, record: Record) -> None:
        """One write of one line, on disk when this returns."""
        line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(file).st_size
            # A process that was killed in the middle of a line has left no end of it.
            torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"
            os.write(file, (b"\n" if torn else b"") + line.encode())
            os.fsync(file)
        finally:
            os.close(file)

    def read(self) -> dict[str, Record]:
        """The last line on each run, by the run's key, in the order of their first lines."""
        if not self.path.is_file():
            return {}
        found: dict[str, Record] = {}
        for number, line in enumerate(self.path.read_text().splitlines(), start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                found[key_of(record)] = record
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                warnings.warn(
                    f"{self.path}, line {number}: expected the JSON of a run, got {error}; "
                    "the line is left out, and its run will be made again",
                    stacklevel=2,
                )
        return found
