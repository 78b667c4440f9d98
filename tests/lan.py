"""Several machines on this one, with a network between them and sshd on each.

    python tests/lan.py                # installs what is missing, where that is allowed

    with Lan(folder, hosts=2) as lan:  # root only: see `why_not`
        subprocess.run(["ssh", "-F", lan.ssh_config, "alpha", "hostname"])
        lan.hosts[0].cut()

A host has namespaces of its own for its network, mounts, processes, IPC and name. Its own are
`/root`, `/etc/ssh` and `/var/tmp`, on a disk that outlives a crash, and `/tmp`, `/dev/shm` and
`/run`, which do not. It shares the rest of the file system with the machine that runs the test,
"the laptop". What Python needs is shared also where it lies below `/root` or `/tmp`.

The hosts' cables end in a switch, in a namespace of its own: a bridge, or the program of
`slow_link`, which has a rate and a delay. On the laptop all that is to be seen of this is one
network device. Hosts and switch end when a pipe to them is closed, be it because their owner was
killed, and everything they have goes with them: nothing is left for the next test to clean up.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol

from slow_link import SlowSwitch

NAMES = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")
LAPTOP = "laptop"
DEVICE_PREFIX = "rlan"
NETWORKS = 2**14  # 10.64.0.0/24 to 10.127.255.0/24
PACKAGES = {
    "/usr/sbin/sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "ip": "iproute2",
    "ss": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
}
INSTALL_SECONDS = 600
COMMAND_SECONDS = 20.0
BOOT_SECONDS = 60.0  # only something broken takes this long, on a busy machine too
SSH_PORT = 22
NAMESPACES = ("--mount", "--uts", "--ipc", "--net", "--pid")
# As after a login, and nothing of the laptop's.
ENVIRONMENT = {
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "LOGNAME": "root",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "SHELL": "/bin/bash",
    "USER": "root",
}
SSHD_CONFIG = """\
AuthenticationMethods publickey
PermitRootLogin prohibit-password
PidFile none
UsePAM no
Subsystem sftp internal-sftp
"""
# In the folder that is a host's disk: what its own is put over.
DISK_FOLDERS = {"root": "/root", "etc_ssh": "/etc/ssh", "var_tmp": "/var/tmp"}
DISK_FILES = {
    "hosts": "/etc/hosts",
    "resolv.conf": "/etc/resolv.conf",
    "machine-id": "/etc/machine-id",
    "shadow": "/etc/shadow",
}


def missing_packages() -> set[str]:
    return {package for program, package in PACKAGES.items() if not shutil.which(program)}


def why_not(*, shaped: bool = False) -> str | None:
    """Why no hosts can be made here, in words; None where they can."""
    if sys.platform != "linux":
        return "the hosts of the tests are made of namespaces, which only Linux has"
    if os.geteuid() != 0:
        return "making hosts out of namespaces needs root"
    if missing := missing_packages():
        return f"not installed: {', '.join(sorted(missing))}; `python tests/lan.py` installs it"
    if shaped and not os.path.exists("/dev/net/tun"):
        return "there is no /dev/net/tun"
    attempt = (
        "mount -t tmpfs tmpfs /tmp && ip link add name switch0 type bridge"
        " && ip link add name cable0 type veth"
    )
    tried = subprocess.run(
        ["unshare", *NAMESPACES, "--fork", "--mount-proc", "sh", "-c", attempt],
        check=False,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
    )
    return f"namespaces: {tried.stderr.strip()}" if tried.returncode else None


class Switch(Protocol):
    """What the cables end in. `SlowSwitch` is the other one."""

    @property
    def pid(self) -> int: ...
    def plug(self, port: str, mac: str, namespace_pid: int, device: str) -> str | None: ...
    def unplug(self, port: str) -> None: ...
    def set_carrier(self, port: str, up: bool) -> None: ...
    def close(self) -> None: ...


class BridgeSwitch:
    """The kernel's own, in a namespace where no firewall of the laptop looks at it."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "--net", "cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.write(b"\n")
        self._holder.stdin.flush()
        _read_line(self._holder)  # its echo: the namespace is there
        _configure(self.pid, "link add switch type bridge mcast_snooping 0", "link set switch up")

    @property
    def pid(self) -> int:
        return self._holder.pid

    def plug(self, port: str, mac: str, namespace_pid: int, device: str) -> str | None:
        """A device of that name for whoever owns the namespace; or why there is none."""
        peer = f"peer name {device} address {mac} netns {namespace_pid}"
        try:
            _configure(self.pid, f"link add {port} type veth {peer}")
        except subprocess.CalledProcessError as error:
            return str(error.stderr)
        _configure(self.pid, f"link set {port} master switch up")
        return None

    def unplug(self, port: str) -> None:
        """Whose owner's namespace may have gone already, and its device with it."""
        try:
            _configure(self.pid, f"link del {port}")
        except subprocess.CalledProcessError as error:
            if "Cannot find device" not in error.stderr:
                raise

    def set_carrier(self, port: str, up: bool) -> None:
        _configure(self.pid, f"link set {port} {'up' if up else 'down'}")

    def close(self) -> None:
        _end(self._holder)


class Listener(NamedTuple):
    address: str  # as `ss` writes it: 0.0.0.0, or * for IPv4 and IPv6 at once
    port: int
    process: str


class Host:
    """One machine, off until it is booted. `Lan` makes them and boots them."""

    def __init__(self, name: str, address: str, mac: str, disk: Path, switch: Switch) -> None:
        self.name = name
        self.address = address
        self._mac = mac
        self._disk = disk
        self._switch = switch
        self._unshare: subprocess.Popen[bytes] | None = None
        self.pid = 0  # of its init, as seen from outside
        self._plugged = False

    @property
    def running(self) -> bool:
        return self._unshare is not None

    def boot(self) -> None:
        """Same keys, address and disk, and the cable is in. Returns when its sshd answers."""
        self.power_on()
        self.await_ssh()

    def power_on(self) -> None:
        """The first part of `boot`, so that several can do the second part at once."""
        assert not self.running, f"{self.name} is already running"
        init = [sys.executable, "-E", "-s", __file__, "init", self.name, str(self._disk)]
        with (self._disk / "sshd.log").open("ab") as log:
            self._unshare = subprocess.Popen(
                ["unshare", *NAMESPACES, "--fork", "--kill-child", *init],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=ENVIRONMENT,
                start_new_session=True,  # an interrupt at the terminal is for the tests alone
            )
        line = _read_line(self._unshare)
        if not line:
            raise RuntimeError(f"{self.name} did not start: {self.log()}")
        self.pid = int(line)
        problem = self._switch.plug(self.name, self._mac, self.pid, "eth0")
        if problem:
            raise RuntimeError(f"no network for {self.name}: {problem}")
        self._plugged = True
        network = self.address.rpartition(".")[0]
        _configure(
            self.pid,
            "link set lo up",
            f"address add {self.address}/24 dev eth0",
            "link set eth0 up",
            # To nowhere; but programs find out their address by asking for a route to outside.
            f"route add default via {network}.254",
        )

    def await_ssh(self) -> None:
        deadline = time.monotonic() + BOOT_SECONDS
        while True:
            with (
                contextlib.suppress(OSError),
                socket.create_connection((self.address, SSH_PORT), timeout=2) as connection,
            ):
                if connection.recv(4) == b"SSH-":
                    return
            if time.monotonic() > deadline:
                raise TimeoutError(f"sshd of {self.name} does not answer: {self.log()}")
            time.sleep(0.02)

    def log(self) -> str:
        return (self._disk / "sshd.log").read_text(errors="replace")

    def crash(self) -> None:
        """Power off: everything dies at once, and nobody is told, since the cable goes first."""
        if self._plugged:
            self._switch.set_carrier(self.name, up=False)
        if self._unshare is not None:
            with contextlib.suppress(ProcessLookupError):
                if self.pid:
                    os.kill(self.pid, signal.SIGKILL)
            _end(self._unshare)  # it waits for init, and init for all others
            self._unshare, self.pid = None, 0
        if self._plugged:
            self._switch.unplug(self.name)
            self._plugged = False

    def cut(self) -> None:
        """The cable is pulled out: what is sent is lost, and no connection hears of it."""
        self._switch.set_carrier(self.name, up=False)

    def mend(self) -> None:
        self._switch.set_carrier(self.name, up=True)

    def run(
        self, *command: str, timeout: float = 30, input: str = "", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """In the host's `/root`, by nsenter and not by ssh.

        Does not wait for what the command leaves in the background: output is collected in files.
        """
        assert self.running, f"{self.name} is off"
        enter = ["nsenter", "--target", str(self.pid), *NAMESPACES]
        with (
            tempfile.TemporaryFile("w+") as stdin,
            tempfile.TemporaryFile("w+") as stdout,
            tempfile.TemporaryFile("w+") as stderr,
        ):
            stdin.write(input)
            stdin.seek(0)
            with subprocess.Popen(
                [*enter, "sh", "-c", 'cd && exec "$@"', "sh", *command],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=ENVIRONMENT,
                start_new_session=True,
            ) as process:
                try:
                    process.wait(timeout)
                except BaseException:
                    _kill_entered(process)
                    raise
            stdout.seek(0)
            stderr.seek(0)
            result = subprocess.CompletedProcess(
                command, process.returncode, stdout.read(), stderr.read()
            )
        assert result.returncode == 0 or not check, f"{self.name}: {result}"
        return result

    def processes(self) -> dict[int, str]:
        """Their command lines by their process id inside. Neither init, nor any process of sshd.

        What is started through ssh is among them, and what `run` is waiting for.
        """
        assert self.running, f"{self.name} is off"
        namespace = os.readlink(f"/proc/{self.pid}/ns/pid")
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(process / "ns/pid") != namespace:
                    continue
                command = (process / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
                program = Path(os.readlink(process / "exe")).name
                pids = re.search(r"^NSpid:.*?(\d+)$", (process / "status").read_text(), re.M)
            except PermissionError:  # it may do more than root here: none of a host's
                continue
            except (FileNotFoundError, ProcessLookupError):  # it has ended
                continue
            assert pids is not None
            pid = int(pids[1])
            if pid != 1 and not program.startswith("sshd"):
                found[pid] = command.decode(errors="replace")
        return found

    def listeners(self) -> list[Listener]:
        """Every TCP socket that listens, but for sshd's own: a port it forwards is among them."""
        found = []
        for line in self.run("ss", "-Hltnp").stdout.splitlines():
            local = line.split()[3]
            address, _, port = local.rpartition(":")
            name = re.search(r'\(\("([^"]*)"', line)
            listener = Listener(address.strip("[]"), int(port), name[1] if name else "")
            if (listener.port, listener.process) != (SSH_PORT, "sshd"):
                found.append(listener)
        return found


class Lan:
    """The hosts, and the laptop on the same network. All are there when it is made.

    `folder` is for the hosts' disks and for the keys, and new. The hosts do not see it. With
    `shaped` the network can have a rate and a delay: it has none until `shape` is called.
    """

    def __init__(self, folder: Path, hosts: int = 3, *, shaped: bool = False) -> None:
        assert 1 <= hosts <= len(NAMES), f"{hosts} hosts, and there are names for {len(NAMES)}"
        self.hosts: list[Host] = []
        self.ssh_config = folder / "ssh_config"
        self._slow = SlowSwitch() if shaped else None
        self._switch: Switch = self._slow or BridgeSwitch()
        self._joined = False
        try:
            self.device, network = self._join()
            self.laptop_address = f"{network}.254"
            names = NAMES[:hosts]
            addresses = {name: f"{network}.{1 + index}" for index, name in enumerate(names)}
            _write_disks(folder, addresses, self.laptop_address)
            for index, (name, address) in enumerate(addresses.items()):
                disk = folder / name
                self.hosts.append(Host(name, address, _mac(index), disk, self._switch))
                self.hosts[-1].power_on()
            for host in self.hosts:
                host.await_ssh()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Lan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Everything goes. Again is fine."""
        with contextlib.ExitStack() as stack:  # the last first, and all of them whatever happens
            stack.callback(self._switch.close)
            if self._joined:  # else the kernel removes the device some time later
                stack.callback(self._switch.unplug, LAPTOP)
                self._joined = False
            for host in self.hosts:
                stack.callback(host.crash)
        self.hosts = []

    def shape(self, rate_bits_per_second: float, delay_seconds: float) -> None:
        """From now on, for all machines, the laptop too.

        The rate is of each machine's link, in each direction; 0 is unlimited. The delay is the
        round trip between any two machines: `shape(100e6, 0.020)` makes a ping of 20 ms.
        """
        assert self._slow is not None, "only Lan(..., shaped=True) can be shaped"
        self._slow.shape(rate_bits_per_second, delay_seconds)

    def _join(self) -> tuple[str, str]:
        """The laptop's device and the network's first three numbers, which nobody else has.

        The device's name is the claim to the network's number: only one can have it.
        """
        for attempt in range(NETWORKS):
            number = (os.getpid() + attempt) % NETWORKS
            network = f"10.{64 + number // 256}.{number % 256}"
            device = f"{DEVICE_PREFIX}{number}"
            if _ip("-4", "route", "show", "root", f"{network}.0/24"):
                continue
            problem = self._switch.plug(LAPTOP, _mac(len(NAMES)), os.getpid(), device)
            if problem and "File exists" in problem:
                continue
            if problem:
                raise RuntimeError(f"no network device for the laptop: {problem}")
            self._joined = True
            _ip("address", "add", f"{network}.254/24", "dev", device)
            _ip("link", "set", device, "up")
            return device, network
        raise RuntimeError(f"all {NETWORKS} networks are in use")


def _write_disks(folder: Path, addresses: dict[str, str], laptop_address: str) -> None:
    """Keys for all, and who knows which."""
    key = folder / "id_ed25519"
    _make_key(key)
    known_hosts = folder / "known_hosts"
    entries, known = [], []
    for name, address in addresses.items():
        disk = folder / name
        for own in DISK_FOLDERS:
            (disk / own).mkdir(parents=True, mode=0o700)
        (disk / "var_tmp").chmod(0o1777)
        (disk / "root/.ssh").mkdir(mode=0o700)
        authorized_keys = disk / "root/.ssh/authorized_keys"
        authorized_keys.write_text(key.with_suffix(".pub").read_text())
        authorized_keys.chmod(0o600)
        host_key = disk / "etc_ssh/ssh_host_ed25519_key"
        _make_key(host_key)
        (disk / "etc_ssh/sshd_config").write_text(SSHD_CONFIG)
        lines = ["127.0.0.1 localhost", "::1 localhost", f"{laptop_address} {LAPTOP}"]
        lines += [f"{there} {other}" for other, there in addresses.items()]
        (disk / "hosts").write_text("\n".join(lines) + "\n")
        (disk / "resolv.conf").write_text("")  # unknown names are refused at once
        (disk / "machine-id").write_text(secrets.token_hex(16) + "\n")
        # Without PAM, sshd turns root away where the laptop's root is locked ("!").
        (disk / "shadow").write_text("root:*:20000:0:99999:7:::\n")
        (disk / "shadow").chmod(0o600)
        known.append(f"{name},{address} {host_key.with_suffix('.pub').read_text()}")
        entries.append(f"""\
Host {name}
    HostName {address}
    Port {SSH_PORT}
    User root
    IdentityFile "{key}"
    IdentitiesOnly yes
    UserKnownHostsFile "{known_hosts}"
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    BatchMode yes
""")
    known_hosts.write_text("".join(known))
    (folder / "ssh_config").write_text("\n".join(entries))


def _make_key(path: Path) -> None:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)]
    subprocess.run(command, check=True, capture_output=True, input=b"", timeout=COMMAND_SECONDS)


def _mac(index: int) -> str:
    """The same in every `Lan`: they do not see each other."""
    return f"02:00:00:00:00:{1 + index:02x}"


def _ip(*arguments: str) -> str:
    """On the laptop."""
    return subprocess.run(
        ["ip", *arguments], check=True, capture_output=True, text=True, timeout=COMMAND_SECONDS
    ).stdout


def _configure(namespace_pid: int, *lines: str) -> None:
    """Commands of `ip`, in that process's network."""
    subprocess.run(
        ["nsenter", "--target", str(namespace_pid), "--net", "ip", "-batch", "-"],
        input="\n".join(lines) + "\n",
        check=True,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
    )


def _read_line(process: subprocess.Popen[bytes]) -> bytes:
    """Nothing if it ended before, or says nothing in time."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], BOOT_SECONDS)
    return process.stdout.readline() if ready else b""


def _kill_entered(nsenter: subprocess.Popen[bytes]) -> None:
    """The command, and nsenter only ends after it.

    If nsenter went first, the command's remains would be left to the laptop's init, and the host
    could not go away before that one looks after them.
    """
    for pid in Path(f"/proc/{nsenter.pid}/task/{nsenter.pid}/children").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        nsenter.wait(COMMAND_SECONDS)
    nsenter.kill()


def _end(process: subprocess.Popen[bytes]) -> None:
    """By closing its pipes, which is how it knows."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(COMMAND_SECONDS)


MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC = 1, 32, 4096, 16384


def _init(name: str, disk: Path) -> NoReturn:
    """The first process of a host: furnishes it, starts sshd, and buries the orphans."""
    pid_outside = os.readlink("/proc/self")
    socket.sethostname(name)
    _mount_own(disk)
    children, child_ended = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(child_ended)
    subprocess.Popen(["/usr/sbin/sshd", "-D", "-e"], stdin=subprocess.DEVNULL, stdout=2)
    sys.stdout.write(f"{pid_outside}\n")
    sys.stdout.flush()
    owner = sys.stdin.fileno()
    while owner not in select.select([children, owner], [], [])[0]:
        os.read(children, 4096)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    os._exit(0)  # and the kernel kills all others


def _mount_own(disk: Path) -> None:
    # Opened first: their paths may be below what is going to be covered.
    own = {disk / name: target for name, target in (DISK_FOLDERS | DISK_FILES).items()}
    opened = {target: os.open(source, os.O_PATH) for source, target in own.items()}
    shared = {path: os.open(path, os.O_PATH) for path in _shared_paths()}
    cgroups = Path("/sys/fs/cgroup")
    if cgroups.is_dir():
        opened[str(cgroups)] = os.open(cgroups, os.O_PATH)
    for folder in DISK_FOLDERS.values():
        _bind(opened[folder], folder)
    for folder, mode in (("/tmp", "1777"), ("/dev/shm", "1777"), ("/run", "755")):
        _mount("tmpfs", folder, "tmpfs", 0, f"mode={mode}")
    os.mkdir("/run/sshd", 0o755)
    for file in DISK_FILES.values():
        if os.path.exists(file):
            _bind(opened[file], file)
    for path, descriptor in shared.items():
        path.mkdir(parents=True, exist_ok=True)
        _bind(descriptor, str(path))
        if path == Path(sys.base_prefix):  # a host that cleans its home up must not take Python
            _mount("none", str(path), None, MS_REMOUNT | MS_BIND | MS_RDONLY, None)
    _mount("sysfs", "/sys", "sysfs", 0, None)  # shows this host's network devices
    if cgroups.is_dir():
        _bind(opened[str(cgroups)], str(cgroups))
    for descriptor in (*opened.values(), *shared.values()):
        os.close(descriptor)
    _mount("proc", "/proc", "proc", 0, None)


def _shared_paths() -> list[Path]:
    """Of what Python needs, that which the host's own folders would cover."""
    wanted = {Path(__file__).resolve().parents[1], Path(sys.prefix), Path(sys.base_prefix)}
    covered = [
        path
        for path in sorted(wanted)
        if any(path.is_relative_to(own) for own in ("/root", "/tmp", "/var/tmp"))
    ]
    return [p for p in covered if not any(o != p and p.is_relative_to(o) for o in covered)]


def _bind(descriptor: int, target: str) -> None:
    _mount(f"/proc/self/fd/{descriptor}", target, None, MS_BIND | MS_REC, None)


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None) -> None:
    """The system call: the program would look for paths that are covered by now."""
    libc = ctypes.CDLL(None, use_errno=True)
    words = [word.encode() if word is not None else None for word in (source, target, kind, data)]
    if libc.mount(*words[:3], ctypes.c_ulong(flags), words[3]):
        error = ctypes.get_errno()
        raise OSError(error, f"mount {source}: {os.strerror(error)}", target)


def install() -> None:
    """Where that is allowed; whether it went well is seen by looking again."""
    if not shutil.which("apt-get") or os.geteuid() != 0:
        return
    packages = " ".join(sorted(missing_packages()))
    sys.stdout.write(f"no hosts for the tests without {packages}: installing Debian's\n")
    sys.stdout.flush()
    command = f"apt-get update && apt-get install -y --no-install-recommends {packages}"
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            ["sh", "-c", command], timeout=INSTALL_SECONDS, check=False, capture_output=True
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["init"]:
        _init(sys.argv[2], Path(sys.argv[3]))
    if missing_packages():
        install()
    if reason := why_not(shaped=True):
        sys.stderr.write(
            f"\n*** The tests with several hosts WILL BE SKIPPED: {reason}. "
            "They need Debian's openssh-server, openssh-client and iproute2, and root. ***\n\n"
        )
