"""Each optimizer trains in a process of its own: peak memory then belongs to that run alone."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from .config import Config
from .errors import ExampleError, Interrupted
from .files import write_json
from .optimizers import title
from .progress import StopSignals, Waiting


def train_isolated(config: Config, label: str) -> dict[str, Any]:
    """Run ``train`` in a child process and hand back its result, its error or its interruption."""
    folder = config.run_dir(label)
    request, answer = folder / "request.json", folder / "result.json"
    write_json(request, {"label": label, "config": config.to_json()})
    answer.unlink(missing_ok=True)
    root = Path(__file__).resolve().parent.parent
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")])),
        "HF_HUB_OFFLINE": "1",  # the model has random weights: there is nothing to fetch
    }
    # glibc raises this limit by itself after the first large free, and then keeps tens of MiB of freed buffers, more
    # in one run than in the next. Held at 1 MiB, the peaks of equal runs agree to 1 MiB and the speed is the same.
    environment.setdefault("MALLOC_MMAP_THRESHOLD_", str(1 << 20))
    # Threads that spin while they wait take the core from the one they wait for once anything else runs: on a busy
    # machine a step took five times as long. The bits are the same either way.
    environment.setdefault("OMP_WAIT_POLICY", "passive")
    with StopSignals() as stop:
        # A group of its own: a Ctrl-C at the terminal reaches the child once, through this process, not twice.
        reading, writing = os.pipe()  # the child closes it when training begins
        child = subprocess.Popen([sys.executable, "-m", "llama.worker", str(request), str(writing)], env=environment,
                                 process_group=0, pass_fds=(writing,))  # fmt: skip
        os.close(writing)
        forwarded = 0
        try:
            with Waiting(f"{title(label, config)}: importing torch and transformers", config.quiet):
                while not (stop.signum or select.select([reading], [], [], 0.1)[0]):
                    pass
            while child.poll() is None:
                if stop.signum and not forwarded:
                    forwarded = stop.signum
                    child.send_signal(signal.SIGINT if forwarded == signal.SIGINT else signal.SIGTERM)
                try:
                    child.wait(0.1)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            os.close(reading)
            if child.poll() is None:
                child.kill()
                child.wait()
    if not answer.exists():
        if forwarded:
            raise Interrupted(f"stopped before the first step of {label}; nothing to save", forwarded)
        raise ExampleError(f"the process that trained {label} ended with code {child.returncode} and left no result; "
                           "a negative code is a signal: -9 often means that memory ran out")  # fmt: skip
    reply = json.loads(answer.read_text())
    if reply["status"] == "error":
        raise ExampleError(reply["message"])
    if reply["status"] == "interrupted":
        raise Interrupted(reply["message"], reply["signum"])
    return reply["result"]


def main(request: Path, ready: int) -> int:
    """The child: read the request, import what trains, close `ready`, train, write the answer."""
    wanted = json.loads(request.read_text())
    config, label = Config(**wanted["config"]), wanted["label"]
    reply: dict[str, Any]
    try:
        from . import tokens
        from .loop import prepare_libraries, train

        prepare_libraries()
        os.close(ready)
        reply = {"status": "done", "result": train(config, label, tokens.load(config))}
    except ExampleError as error:
        reply = {"status": "error", "message": str(error)}
    except Interrupted as stop:
        reply = {"status": "interrupted", "message": str(stop), "signum": stop.signum}
    write_json(request.with_name("result.json"), reply)
    return 0


if __name__ == "__main__":
    status = main(Path(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.flush()
    os._exit(status)  # the answer is on disk; taking torch's modules apart one by one would take seconds of silence
