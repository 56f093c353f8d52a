"""What an interpreter needs to see of the file system."""

from __future__ import annotations

import glob
import os
import sys
import sysconfig
from dataclasses import dataclass

from sctom.sandbox.limits import SandboxUnavailable

_SYSTEM = (
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/etc/ld.so.cache",
    "/etc/alternatives",  # where Debian's BLAS is chosen
    "/usr/share/zoneinfo",
)
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")

FLAGS = ("-B", "-P", "-s", "-S", "-X", "utf8")
"""As `-I`, which is `-E -P -s`, but the environment, which is ours, may fix the hash seed."""

ENVIRONMENT = {"PYTHONHASHSEED": "0"}


@dataclass(frozen=True)
class Interpreter:
    """The Python that runs this, without its virtual environment.

    Args:
        executable: the program itself, not a link to it.
        visible: files and directories it needs for reading.
        path: directories of installed packages, to be appended to `sys.path`.
    """

    executable: str
    visible: tuple[str, ...]
    path: tuple[str, ...]


def interpreter(*, libraries: bool) -> Interpreter:
    """Find what belongs to the running interpreter.

    Args:
        libraries: whether installed packages are visible. Packages only: no `.pth` file is read, so
            that what is installed in editable form is not.

    Raises:
        SandboxUnavailable: the running interpreter does not know its own program.
    """
    if not sys.executable:
        raise SandboxUnavailable(
            "this Python is embedded in another program and has no executable to run inside the "
            "sandbox; start from an ordinary python"
        )
    executable = os.path.realpath(sys.executable)
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    base |= {"installed_base": sys.base_prefix, "installed_platbase": sys.base_exec_prefix}
    visible = [executable, *_SYSTEM]
    visible += [sysconfig.get_path(name, vars=base) for name in ("stdlib", "platstdlib")]
    if executable.startswith("/nix/store/"):
        visible.append("/nix/store")
    elif sys.base_prefix != "/usr":
        visible += glob.glob(f"{glob.escape(sys.base_prefix)}/lib/*.so*")
        visible += glob.glob(f"{glob.escape(sys.base_prefix)}/lib/*.dylib")
    packages = [p for p in sys.path if os.path.basename(p) in ("site-packages", "dist-packages")]
    if libraries:
        visible += packages
    seen = dict.fromkeys(path for path in visible if os.path.exists(path))
    return Interpreter(executable, tuple(seen), tuple(packages) if libraries else ())
