"""Where attacks are run: canaries outside of the sandbox, and what became of them."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from types import TracebackType

from sctom.sandbox import Limits
from tests.sandbox.watch import marked, signals_received

PREFIX = "canary-"
SECRET = PREFIX + secrets.token_hex(16)
VARIABLE = "SCTOM_CANARY"
PROJECT = Path(__file__).parents[2]
_LIBC = ctypes.CDLL(None, use_errno=True)


def free_mib() -> int:
    """Memory that the machine could give at once."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) // 1024
    raise RuntimeError("/proc/meminfo does not say what is available")


class Arena:
    """Canaries for one attack; `breaches` tells which of them were touched."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.mark = "sctom" + secrets.token_hex(4)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Arena:
        with self._stack:
            self.root = Path(tempfile.mkdtemp(prefix="arena-", dir="/tmp"))
            self._stack.callback(shutil.rmtree, self.root, ignore_errors=True)
            self.root.chmod(0o755)
            self.folder = self.root / "outside"
            self.file, self.empty = self.folder / "secret.txt", self.folder / "empty"
            self.empty.mkdir(parents=True)
            self.file.write_text(SECRET)
            for path in (self.folder, self.empty):
                path.chmod(0o777)
            self.file.chmod(0o666)
            self._listen()
            self._share()
            self._victimise()
            self._before = _state(self.folder)
            self._signals = signals_received()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _listen(self) -> None:
        self.listeners: dict[str, socket.socket] = {}
        unix = str(self.root / "socket")
        places = {
            "tcp": (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            "tcp6": (socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0)),
            "udp": (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            "unix": (socket.AF_UNIX, socket.SOCK_STREAM, unix),
            "unix_datagram": (socket.AF_UNIX, socket.SOCK_DGRAM, unix + "-datagram"),
            "abstract": (socket.AF_UNIX, socket.SOCK_STREAM, "\0" + self.mark),
        }
        for name, (family, kind, address) in places.items():
            try:
                listener = self._stack.enter_context(socket.socket(family, kind))
                listener.bind(address)
            except OSError:
                if name == "tcp6":  # a machine without IPv6
                    continue
                raise
            if kind == socket.SOCK_STREAM:
                listener.listen()
            listener.setblocking(False)
            self.listeners[name] = listener
        for path in (unix, unix + "-datagram"):
            os.chmod(path, 0o777)

    def _share(self) -> None:
        self.shared_key = 0x5C000000 + secrets.randbelow(1 << 20) * 2
        segment = _LIBC.shmget(self.shared_key, 4096, 0o1666)
        if segment < 0:
            raise OSError(ctypes.get_errno(), "cannot make a shared segment for the attacks")
        self._stack.callback(_LIBC.shmctl, segment, 0, None)
        _LIBC.shmat.restype, _LIBC.shmdt.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        address = _LIBC.shmat(segment, None, 0)
        ctypes.memmove(address, SECRET.encode(), len(SECRET))
        _LIBC.shmdt(address)
        self.shared = Path("/dev/shm") / f"secret-{self.mark}"
        self.shared.write_text(SECRET)
        self._stack.callback(self.shared.unlink, missing_ok=True)

    def _victimise(self) -> None:
        self.victim = subprocess.Popen(["sleep", "600"], env={VARIABLE: SECRET})
        self._stack.callback(self.victim.wait)
        self._stack.callback(self.victim.kill)
        environment = Path(f"/proc/{self.victim.pid}/environ")
        while SECRET not in environment.read_text():  # it is becoming `sleep`
            time.sleep(0.001)
        self._victim_before = self._victim_state()

    def _victim_state(self) -> list[str]:
        process = Path(f"/proc/{self.victim.pid}")
        status = process.joinpath("status").read_text()
        kept = ("TracerPid", "Cpus_allowed:", "Name")
        lines = [line for line in status.splitlines() if line.startswith(kept)]
        state = next(line for line in status.splitlines() if line.startswith("State"))
        fields = process.joinpath("stat").read_text().rsplit(")", 1)[1].split()
        return [
            *lines,
            "stopped" if state.split()[1] in "tTZX" else "alive",
            fields[16],  # nice value
            process.joinpath("limits").read_text(),
            process.joinpath("environ").read_text(),
        ]

    @property
    def target(self) -> dict[str, object]:
        """What an attack is told: places, and no secret."""
        fields = Path(f"/proc/{self.victim.pid}/stat").read_text().rsplit(")", 1)[1].split()
        start, end = int(fields[47]), int(fields[48])
        ports = {
            name: self.listeners[name].getsockname()[1] if name in self.listeners else 0
            for name in ("tcp", "tcp6", "udp")
        }
        limits = {
            "memory_mib": self.limits.memory_mib,
            "disk_mib": self.limits.disk_mib,
            "processes": self.limits.processes,
            "cap_mib": min(1500, free_mib() // 8),
        }
        passwd = Path("/etc/passwd")
        return {
            "mark": self.mark,
            "prefix": PREFIX,
            "folder": str(self.folder),
            "file": str(self.file),
            "empty": str(self.empty),
            "unix": str(self.root / "socket"),
            "abstract": self.mark,
            "victim": self.victim.pid,
            "victim_environment": [start, end - start],
            "parent": os.getpid(),
            "parent_fd": self.listeners["tcp"].fileno(),
            "home": str(Path.home()),
            "project": str(PROJECT),
            "tests": __file__,
            "module": sys.modules[Limits.__module__].__file__,
            "site": sysconfig.get_path("purelib"),
            "device": os.stat(tempfile.gettempdir()).st_dev,
            "key": self.shared_key + 1,
            "shared_key": self.shared_key,
            "shared_name": self.shared.name,
            "passwd": passwd.read_text() if passwd.is_file() else "",
            **ports,
            **limits,
        }

    @property
    def target_json(self) -> str:
        return json.dumps(self.target)

    def breaches(self, text: str) -> list[str]:
        """What happened that should not have.

        Args:
            text: everything that came out of the sandbox.
        """
        found = [f"{name} was reached" for name in self.listeners if self._reached(name)]
        if SECRET in text:
            found.append("the secret came back")
        if _state(self.folder) != self._before:
            found.append("the folder outside was changed")
        if self._victim_state() != self._victim_before:
            found.append("the process outside was changed")
        if signals_received() != self._signals:
            found.append("the trainer got a signal")
        if str(self.root) in Path("/proc/mounts").read_text():
            found.append("something was mounted outside")
        found += [f"{path} was made" for path in self._litter()]
        found += [f"process {process} is alive" for process in self._survivors()]
        segment = _LIBC.shmget(self.shared_key + 1, 0, 0)
        if segment >= 0:
            _LIBC.shmctl(segment, 0, None)
            found.append("a shared segment is left")
        return found

    def _reached(self, name: str) -> bool:
        listener = self.listeners[name]
        try:
            if listener.type == socket.SOCK_DGRAM:
                listener.recv(16)
            else:
                listener.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def _litter(self) -> list[Path]:
        libraries = Path(os.__file__).parent
        places = [
            Path(place) for place in ("/", "/tmp", "/var/tmp", "/dev", "/dev/shm", "/run", "/etc")
        ]
        places += [Path.home(), PROJECT, Path.cwd(), libraries, Path(sysconfig.get_path("purelib"))]
        places += [Path(sys.executable).parent, self.root, Path(tempfile.gettempdir())]
        found = {path.resolve() for place in places for path in place.glob(f"{self.mark}*")}
        for path in found:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        return sorted(found)

    def _survivors(self) -> list[int]:
        deadline = time.monotonic() + 3
        while (alive := marked(self.mark)) and time.monotonic() < deadline:
            time.sleep(0.02)
        for process in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return alive


def _state(folder: Path) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for path in sorted([folder, *folder.rglob("*")]):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        attributes = tuple(os.listxattr(path, follow_symlinks=False))
        owner = (status.st_uid, status.st_gid, status.st_nlink, status.st_mtime_ns)
        rows.append((str(path), status.st_mode, *owner, attributes, content))
    return rows
