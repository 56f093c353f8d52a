"""Any way to talk to anyone. Every listener is the test's own, on this machine."""

from __future__ import annotations

from tests.sandbox.attacks.base import Attack

_REACHED = "the listener outside hears of it"

NETWORK = [
    Attack(
        "TCP",
        _REACHED,
        """
def attack(target):
    for family, host, port in (
        (socket.AF_INET, "127.0.0.1", target["tcp"]), (socket.AF_INET6, "::1", target["tcp6"]),
        (socket.AF_INET, "0.0.0.0", target["tcp"]),
    ):
        if port:
            works(lambda: socket.create_connection((host, port), 0.5).sendall(b"hello"))
""",
    ),
    Attack(
        "UDP",
        _REACHED,
        """
def attack(target):
    works(lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", target["udp"])))
""",
    ),
    Attack(
        "unix socket in a folder",
        _REACHED,
        """
def attack(target):
    works(lambda: socket.socket(socket.AF_UNIX).connect(target["unix"]))
    datagram = lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    works(lambda: datagram().sendto(b"x", target["unix"]))
""",
    ),
    Attack(
        "abstract unix socket",
        _REACHED,
        """
def attack(target):
    works(lambda: socket.socket(socket.AF_UNIX).connect("\\0" + target["abstract"]))
""",
    ),
    Attack(
        "name lookup and HTTP",
        "a name is resolved or a page is read",
        """
import urllib.request
def attack(target):
    address = f"http://127.0.0.1:{target['tcp']}/"
    return works(urllib.request.urlopen, address, timeout=0.5) or works(
        socket.getaddrinfo, "example.com", 80)
""",
    ),
    Attack(
        "raw, packet, netlink, vsock, Bluetooth and crypto sockets",
        "a socket that reaches the kernel or the wire is granted",
        """
def attack(target):
    granted = []
    for family, kind, protocol in (
        ("AF_INET", 3, 1), ("AF_INET", 3, 255), ("AF_PACKET", 3, 3), ("AF_VSOCK", 1, 0),
        ("AF_BLUETOOTH", 3, 1), ("AF_ALG", 5, 0), ("AF_CAN", 3, 1), ("AF_TIPC", 1, 0),
    ):
        number = getattr(socket, family, None)
        if number is not None and works(socket.socket, number, kind, protocol):
            granted.append((family, protocol))
    if works(socket.socket, socket.AF_NETLINK, 3, 0):
        devices = [name for _, name in socket.if_nameindex()]
        if devices != ["lo"]:
            granted.append(devices)
    return granted
""",
    ),
    Attack(
        "sockets by the 32-bit system calls",
        "a socket is granted, or the 32-bit table is open",
        """
def attack(target):
    if not X86:
        return None
    def run(code):   # machine code, for what the C library would not do
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(code)
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        return ctypes.CFUNCTYPE(ctypes.c_int)(address)()
    LIBC.syscall.restype = ctypes.c_long
    x32 = LIBC.syscall(ctypes.c_long(0x40000000 + 41), 2, 1, 0)
    if x32 >= 0:
        return "x32"
    call = lambda number, *registers: (
        b"\\x53" + b"\\xb8" + struct.pack("<I", number)
        + b"\\xbb" + struct.pack("<I", registers[0]) + b"\\xb9" + struct.pack("<I", registers[1])
        + b"\\xba" + struct.pack("<I", 0) + b"\\xcd\\x80" + b"\\x5b\\xc3")
    return run(call(359, 2, 1)) >= 0 and "int 0x80"
""",
    ),
    Attack(
        "descriptors it was born with",
        "one of them is a socket that reaches someone, or a folder that leads outside",
        """
import stat
def attack(target):
    found = []
    for fd in range(256):
        try:
            kind = os.fstat(fd).st_mode
        except OSError:
            continue
        if stat.S_ISDIR(kind):
            found.append(works(os.open, "../" * 32 + target["file"], os.O_RDONLY, dir_fd=fd))
            found.append(works(os.listdir, fd))
        if stat.S_ISSOCK(kind):
            borrowed = None
            try:
                borrowed = socket.socket(fileno=os.dup(fd))
                found.append(borrowed.family in (socket.AF_INET, socket.AF_INET6))
            except OSError:
                pass
    return any(found)
""",
    ),
]
