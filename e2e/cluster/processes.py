"""Daemons of one cluster: started apart from their starter, recorded in files, and found again by whoever comes next.

A record holds the process's number, its start time and the boot, so that a number that the kernel has given to somebody
else's process is never signalled.
"""

import json
import os
import select
import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class _Record:
    pid: int
    start: str  # clock ticks after boot, as in /proc/<pid>/stat
    boot: str


class Processes:
    """The daemons whose records are in <folder>/run and whose output is in <folder>/logs."""

    def __init__(self, folder: Path) -> None:
        self._run = folder / "run"
        self._logs = folder / "logs"

    def start(self, name: str, command: Sequence[str | Path]) -> None:
        """Start a daemon in a session of its own, so that neither Ctrl-C nor the end of this process reaches it."""
        self._run.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        arguments = [str(argument) for argument in command]
        log = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self.log(name)), log, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        pid = os.posix_spawnp(arguments[0], arguments, os.environ, file_actions=files, setsid=True)
        record = _Record(pid, _start_time(pid) or "", _BOOT.read_text())
        self._record_file(name).write_text(json.dumps(asdict(record)))

    def stop(self, name: str, grace_s: float = 0) -> None:
        """Stop a daemon: SIGTERM and a time to heed it, if any is given, then SIGKILL. Returns when it is gone."""
        record = self._record(name)
        handle = _open(record) if record else None
        if record and handle is not None:
            try:
                for number, patience in ((signal.SIGTERM, grace_s), (signal.SIGKILL, None)):
                    if patience == 0:
                        continue
                    signal.pidfd_send_signal(handle, number)
                    if select.select([handle], [], [], patience)[0]:
                        break
            finally:
                os.close(handle)
            _collect(record.pid)
        self._record_file(name).unlink(missing_ok=True)

    def names(self) -> list[str]:
        """All daemons that were started and not stopped, alive or not."""
        return sorted(file.stem for file in self._run.glob("*.json"))

    def pid(self, name: str) -> int | None:
        """The daemon's process, or None if it is not running."""
        record = self._record(name)
        if record is None:
            return None
        _collect(record.pid)
        return record.pid if _is(record) else None

    def logs(self) -> list[Path]:
        """The log of every daemon there has been."""
        return sorted(self._logs.glob("*.log"))

    def log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def tail(self, name: str, lines: int = 15) -> str:
        """The end of a daemon's log."""
        if not self.log(name).exists():
            return "(no output)"
        return "\n".join(self.log(name).read_text(errors="replace").splitlines()[-lines:])

    def _record_file(self, name: str) -> Path:
        return self._run / f"{name}.json"

    def _record(self, name: str) -> _Record | None:
        try:
            return _Record(**json.loads(self._record_file(name).read_text()))
        except (FileNotFoundError, ValueError, TypeError):  # absent, or cut off when its writer was killed
            return None


def _start_time(pid: int) -> str | None:
    """When the process started, or None if there is none or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else fields[19]


def _is(record: _Record) -> bool:
    return record.boot == _BOOT.read_text() and record.start == _start_time(record.pid)


def _open(record: _Record) -> int | None:
    """A handle on the very process that was recorded, or None if it is gone."""
    try:
        handle = os.pidfd_open(record.pid)
    except ProcessLookupError:
        return None
    if _is(record):
        return handle
    os.close(handle)
    return None


def _collect(pid: int) -> None:
    """Reap the process if it is a child of ours that has ended."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
