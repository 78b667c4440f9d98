"""The hosts that other tests run on (`tests/lan.py`): are they machines, and do they go away?"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lan import Host, Lan, Listener, why_not

TESTS = Path(__file__).parents[1]

pytestmark = pytest.mark.timeout(120)

PORT = 5000
ECHO = f"""
import socket, threading
def serve(connection):
    while received := connection.recv(65536):
        connection.sendall(received)
door = socket.create_server(("", {PORT}))
while True:
    connection, _ = door.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    threading.Thread(target=serve, args=(connection,)).start()
"""
# Says in how many seconds all came, from the first byte on.
SINK = f"""
import socket, time
door = socket.create_server(("", {PORT}))
while True:
    connection, _ = door.accept()
    connection.recv(65536)
    start = time.monotonic()
    while connection.recv(65536):
        pass
    connection.sendall(repr(time.monotonic() - start).encode())
    connection.close()
"""
CALL = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20)
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
"""
ROUND_TRIP = f"""{CALL}
seconds = []
for _ in range(10):
    start = time.monotonic()
    connection.sendall(b"?")
    connection.recv(1)
    seconds.append(time.monotonic() - start)
print(min(seconds))
"""
SEND = f"""{CALL}
connection.sendall(bytes(int(sys.argv[3])))
connection.shutdown(socket.SHUT_WR)
print(connection.recv(100).decode())
"""


@pytest.fixture(scope="module", autouse=True)
def _possible() -> None:
    if reason := why_not(shaped=True):
        pytest.skip(f"*** NO HOSTS FOR THE TESTS: {reason} ***")


@pytest.fixture
def lan(tmp_path: Path) -> Iterator[Lan]:
    with Lan(tmp_path, hosts=2) as lan:
        yield lan


@pytest.fixture(params=["bridge", "slow link"])
def either_lan(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lan]:
    """For what depends on the cable."""
    with Lan(tmp_path, hosts=2, shaped=request.param == "slow link") as lan:
        yield lan


@pytest.fixture
def slow_lan(tmp_path: Path) -> Iterator[Lan]:
    with Lan(tmp_path, hosts=2, shaped=True) as lan:
        yield lan


def ssh(lan: Lan, host: Host, command: str) -> str:
    return subprocess.run(
        ["ssh", "-F", lan.ssh_config, host.name, command],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=30,
    ).stdout.strip()


def python(host: Host, program: str, *arguments: str) -> str:
    return host.run(sys.executable, "-c", program, *arguments).stdout.strip()


def serve(host: Host, program: str) -> None:
    """Returns when it listens."""
    host.run("sh", "-c", '"$@" &', "sh", sys.executable, "-c", program)
    until(lambda: any(listener.port == PORT for listener in host.listeners()))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def reachable(address: str) -> bool:
    try:
        socket.create_connection((address, 22), timeout=0.5).close()
    except OSError:
        return False
    return True


def test_ssh_leads_to_each_host_by_its_name(tmp_path: Path) -> None:
    with Lan(tmp_path) as lan:
        assert [ssh(lan, host, "hostname") for host in lan.hosts] == ["alpha", "beta", "gamma"]


def test_the_projects_python_runs_over_ssh(lan: Lan) -> None:
    program = "import repertory; print(repertory.__file__)"
    said = ssh(lan, lan.hosts[0], f"{sys.executable} -c '{program}'")

    assert said == str(TESTS.parent / "repertory/__init__.py")


def test_hosts_reach_each_other_and_the_laptop_by_name(either_lan: Lan) -> None:
    alpha, beta = either_lan.hosts
    program = f"{CALL}print(connection.getpeername()[0])"

    assert python(alpha, program, "beta", "22") == beta.address
    assert python(beta, program, "alpha", "22") == alpha.address
    with socket.create_server((either_lan.laptop_address, 0)) as door:
        port = door.getsockname()[1]
        assert python(alpha, program, "laptop", str(port)) == either_lan.laptop_address


def test_a_host_finds_its_own_address_by_the_route_to_outside(lan: Lan) -> None:
    program = """
import socket
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
probe.connect(("8.8.8.8", 80))
print(probe.getsockname()[0])
"""
    assert [python(host, program) for host in lan.hosts] == [host.address for host in lan.hosts]


def test_folders_of_its_own(lan: Lan) -> None:
    alpha, beta = lan.hosts
    for folder in ("/root", "/tmp", "/dev/shm", "/run", "/var/tmp"):
        file = f"{folder}/lan-test-{os.getpid()}"

        alpha.run("touch", file)

        assert alpha.run("ls", file).stdout.strip() == file
        assert beta.run("ls", file, check=False).returncode != 0
        assert not Path(file).exists()


def test_what_is_sent_while_the_cable_is_out_arrives_after_it_is_mended(either_lan: Lan) -> None:
    alpha, beta = either_lan.hosts
    serve(beta, ECHO)
    with socket.create_connection((beta.address, PORT), timeout=0.5) as connection:
        beta.cut()
        connection.sendall(b"?")

        with pytest.raises(TimeoutError):
            connection.recv(1)
        assert not reachable(beta.address)
        assert reachable(alpha.address)

        beta.mend()
        connection.settimeout(20)  # TCP tries again after ever longer times
        assert connection.recv(1) == b"?"
    assert float(python(alpha, ROUND_TRIP, "beta", str(PORT))) < 1


def test_a_crash_kills_everything_and_tells_nobody(either_lan: Lan) -> None:
    _, beta = either_lan.hosts
    serve(beta, ECHO)
    beta.run("sh", "-c", f"exec setsid sleep 4711 & touch /tmp/lost ~/kept-{os.getpid()}")
    until(lambda: "sleep 4711" in beta.processes().values())
    outside = processes_in(beta)
    with socket.create_connection((beta.address, PORT), timeout=0.5) as connection:
        beta.crash()

        assert not any(Path(f"/proc/{pid}").exists() for pid in outside)
        with pytest.raises(TimeoutError):
            connection.recv(1)

        beta.boot()
        seen = ssh(either_lan, beta, "hostname; ls ~; ls /tmp | grep -cx lost || true")
        assert seen == f"beta\nkept-{os.getpid()}\n0"
        connection.settimeout(20)
        connection.sendall(b"?")
        with pytest.raises(ConnectionResetError):  # as of a machine that knows nothing of it
            connection.recv(1)
    assert beta.processes() == {}


def test_processes_are_those_that_somebody_started(lan: Lan) -> None:
    alpha, beta = lan.hosts
    assert alpha.processes() == {}

    alpha.run("sh", "-c", "sleep 4711 & echo $! > pid")
    pid = int(alpha.run("cat", "pid").stdout)
    until(lambda: alpha.processes() == {pid: "sleep 4711"})
    assert beta.processes() == {}

    ssh(lan, alpha, f"kill {pid}")
    until(lambda: alpha.processes() == {})  # its init has buried it


def test_commands_over_ssh_are_processes_and_their_sshd_is_not(lan: Lan) -> None:
    alpha = lan.hosts[0]
    command = ["ssh", "-F", str(lan.ssh_config), "alpha", "exec sleep 4711"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as session:
        until(lambda: list(alpha.processes().values()) == ["sleep 4711"])
        session.kill()


def test_listeners_are_all_but_sshd(lan: Lan) -> None:
    alpha, beta = lan.hosts
    assert alpha.listeners() == []
    server = f"{sys.executable} -m http.server 8000 --bind 127.0.0.1 2>/dev/null"

    alpha.run("sh", "-c", f"{server} &")

    name = Path(sys.executable).name
    until(lambda: alpha.listeners() == [Listener("127.0.0.1", 8000, name)])
    assert beta.listeners() == []


def test_a_command_in_a_host_has_a_deadline(lan: Lan) -> None:
    alpha = lan.hosts[0]

    with pytest.raises(subprocess.TimeoutExpired):
        alpha.run("sleep", "4711", timeout=0.3)

    until(lambda: alpha.processes() == {})


def test_nothing_is_left_in_the_end(either_lan: Lan, tmp_path: Path) -> None:
    for host in either_lan.hosts:
        host.run("sh", "-c", "sleep 4711 &")
    either_lan.hosts[0].crash()
    outside = processes_in(either_lan.hosts[1])
    kinds = ("net", "mnt", "pid", "uts", "ipc")
    namespaces = {os.readlink(f"/proc/{either_lan.hosts[1].pid}/ns/{kind}") for kind in kinds}
    assert namespaces <= namespaces_in_use()

    either_lan.close()
    either_lan.close()  # again is fine

    assert left(either_lan.device, tmp_path) == []
    assert not namespaces & namespaces_in_use()
    assert not any(Path(f"/proc/{pid}").exists() for pid in outside)


@pytest.mark.parametrize("shaped", [False, True])
def test_nothing_is_left_of_a_test_that_was_killed(tmp_path: Path, shaped: bool) -> None:
    program = f"""
import time
from pathlib import Path
from lan import Lan
lan = Lan(Path({str(tmp_path)!r}), hosts=2, shaped={shaped})
lan.hosts[0].run("sh", "-c", "sleep 4711 &")
print(lan.device, flush=True)
time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=TESTS, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        device = owner.stdout.readline().strip()
        assert device in left(device, tmp_path)

        owner.kill()

    until(lambda: left(device, tmp_path) == [])


def test_two_networks_at_once(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with Lan(tmp_path, hosts=1) as lan, Lan(tmp_path / "other", hosts=1) as other:
        assert lan.hosts[0].address != other.hosts[0].address
        assert ssh(lan, lan.hosts[0], "cat /etc/machine-id") != ssh(
            other, other.hosts[0], "cat /etc/machine-id"
        )


def test_the_delay_is_that_of_a_round_trip(slow_lan: Lan) -> None:
    alpha, beta = slow_lan.hosts
    serve(beta, ECHO)
    undelayed = float(python(alpha, ROUND_TRIP, "beta", str(PORT)))

    slow_lan.shape(100e6, 0.020)

    assert undelayed < 0.01
    assert 0.018 <= float(python(alpha, ROUND_TRIP, "beta", str(PORT))) < 0.040  # others run too


def test_the_rate_is_that_of_a_link(slow_lan: Lan) -> None:
    alpha, beta = slow_lan.hosts
    serve(beta, SINK)
    slow_lan.shape(100e6, 0.020)
    shaped = megabits_per_second(alpha, "beta", transfer_bytes=12_000_000)
    slow_lan.shape(0, 0)
    unlimited = megabits_per_second(alpha, "beta", transfer_bytes=50_000_000)

    assert 50 < shaped < 110
    assert unlimited > 2 * shaped


def megabits_per_second(sender: Host, receiver: str, transfer_bytes: int) -> float:
    """The best of three: other tests have their share of the machine."""
    seconds = [
        float(python(sender, SEND, receiver, str(PORT), str(transfer_bytes))) for _ in range(3)
    ]
    return transfer_bytes * 8 / min(seconds) / 1e6


def processes_in(host: Host) -> list[int]:
    """All of them, by their process id outside."""
    namespace = os.readlink(f"/proc/{host.pid}/ns/pid")
    return [pid for pid, namespaces in namespaces_by_process().items() if namespace in namespaces]


def namespaces_in_use() -> set[str]:
    return set().union(*namespaces_by_process().values())


def namespaces_by_process() -> dict[int, set[str]]:
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found[int(process.name)] = {os.readlink(kind) for kind in (process / "ns").iterdir()}
        except OSError:  # it has ended, or is none of ours
            continue
    return found


def left(device: str, folder: Path) -> list[str]:
    """What is still there of a network: its device, and mounts and processes with its folder."""
    found = [device] if Path(f"/sys/class/net/{device}").exists() else []
    found += [line for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line]
    listed = subprocess.run(["ip", "netns"], check=True, capture_output=True, text=True).stdout
    found += [line for line in listed.splitlines() if device in line]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if b"\0init\0" in command and str(folder).encode() in command:
            found.append(command.decode())
    return found
