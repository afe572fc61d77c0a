"""A worker whose behaviour the seed of the run decides; quick, since it imports no megagp.

Given a file, it notes its seed and process id there, and ends with its stdin as the real one does.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

order = json.loads(sys.stdin.readline())
run = order["run"]
if sys.argv[1:]:
    threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
    Path(sys.argv[1]).write_text(f"{run['seed']} {os.getpid()}")
if run["seed"] == 1:
    raise ValueError("seed 1 does not work")
if run["seed"] == 2:
    time.sleep(60)
if run["seed"] == 3:
    os.kill(os.getpid(), signal.SIGSEGV)
record = {**run, "status": "done", "reason": None}
Path(order["output"]).write_text(json.dumps(record))
