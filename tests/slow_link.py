"""A network with a rate and a delay, in user space: for kernels without `netem`.

    python tests/slow_link.py      # commands on stdin and answers on stdout, as lines of JSON

`SlowSwitch` starts that program in a network namespace of its own and speaks with it. The program
holds one TAP device for each machine and passes Ethernet frames between them. `lan.Lan` moves the
other ends into the machines. A frame from one machine to another meets, in this order,

1. the sender's link: frames leave it one by one at the rate, and wait for that in a queue;
2. the delay: half of the round trip;
3. the receiver's link: as the first, so that two senders share what one receiver can take.

A queue that already holds `QUEUE_BYTES` drops what comes. On the wire a frame is longer than what
is sent by `OVERHEAD_BYTES`, so that TCP gets 94 of 100 Mbit/s, as over a cable.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import select
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from typing import Any

QUEUE_BYTES = 2**20
IN_FLIGHT_BYTES = 2**26  # a bound also where there is no rate, only a delay
OVERHEAD_BYTES = 24  # preamble, checksum, and the gap before the next frame
FRAME_BYTES = 2**16
FRAMES_AT_ONCE = 64  # of one machine, before the others have their turn
SHORTEST_WAIT_SECONDS = 0.0002  # frames due sooner after each other are passed on together
ANSWER_SECONDS = 20.0

TUNSETIFF = 0x400454CA
TUNSETCARRIER = 0x400454E2
IFF_TAP = 0x0002
IFF_NO_PI = 0x1000
IFF_TUN_EXCL = 0x8000


class SlowSwitch:
    """The program and its TAP devices. They are gone when it is closed, or its owner dies.

    Safe to share between threads.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["unshare", "--net", sys.executable, "-E", "-s", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # an interrupt at the terminal is for the tests alone
        )
        self._asking = threading.Lock()
        self._ask()  # until it is in its namespace

    @property
    def pid(self) -> int:
        return self._process.pid

    def plug(self, port: str, mac: str, namespace_pid: int, device: str) -> str | None:
        """A device of that name for whoever owns the namespace; or why there is none."""
        self._ask(plug=port, mac=mac)
        inside = ("nsenter", "--target", str(self.pid), "--net")
        set_mac = ["ip", "link", "set", port, "address", mac]
        subprocess.run([*inside, *set_mac], check=True, timeout=ANSWER_SECONDS)
        moved = subprocess.run(
            [*inside, "ip", "link", "set", port, "netns", str(namespace_pid), "name", device],
            check=False,
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
        )
        if moved.returncode == 0:
            return None
        self.unplug(port)
        return moved.stderr.strip()

    def unplug(self, port: str) -> None:
        self._ask(unplug=port)

    def set_carrier(self, port: str, up: bool) -> None:
        self._ask(carrier=port, up=up)

    def shape(self, rate_bits_per_second: float, delay_seconds: float) -> None:
        self._ask(rate_bits_per_second=rate_bits_per_second, delay_seconds=delay_seconds)

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        try:
            self._process.wait(ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(ANSWER_SECONDS)

    def _ask(self, **command: object) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with self._asking:
            stdin.write(json.dumps(command).encode() + b"\n")
            stdin.flush()
            answered, _, _ = select.select([stdout], [], [], ANSWER_SECONDS)
            answer = stdout.readline() if answered else b""
        if not answer:
            raise RuntimeError(f"the slow link did not answer to {command}")
        error = json.loads(answer)
        if error:
            raise RuntimeError(f"the slow link: {error}")


class Lane:
    """One direction of one link. Frames are in the order in which they are due."""

    def __init__(self) -> None:
        self.frames: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._free_at = 0.0

    def enter(self, frame: bytes, now: float, seconds_per_byte: float, delay: float) -> None:
        start = max(now, self._free_at)
        if start - now > QUEUE_BYTES * seconds_per_byte or self._bytes > IN_FLIGHT_BYTES:
            return
        self._free_at = start + (len(frame) + OVERHEAD_BYTES) * seconds_per_byte
        self._bytes += len(frame)
        self.frames.append((self._free_at + delay, frame))

    def leave(self) -> tuple[float, bytes]:
        due, frame = self.frames.popleft()
        self._bytes -= len(frame)
        return due, frame


class Port:
    """Where one machine is plugged in."""

    def __init__(self, name: str, mac: str) -> None:
        self.mac = bytes.fromhex(mac.replace(":", ""))
        self.up, self.down = Lane(), Lane()
        self.carrier = True
        self.tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        flags = IFF_TAP | IFF_NO_PI | IFF_TUN_EXCL
        fcntl.ioctl(self.tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))

    def set_carrier(self, up: bool) -> None:
        fcntl.ioctl(self.tap, TUNSETCARRIER, struct.pack("i", up))
        self.carrier = up
        if not up:  # what is in the cable is lost with it
            self.up, self.down = Lane(), Lane()


class Switch:
    """All ports, and the times at which frames are due. Lives until stdin is closed."""

    def __init__(self) -> None:
        self._ports: dict[str, Port] = {}
        self._by_tap: dict[int, Port] = {}
        self._by_mac: dict[bytes, Port] = {}
        self._seconds_per_byte = 0.0
        self._delay_seconds = 0.0

    def run(self) -> None:
        stdin = sys.stdin.fileno()
        commands = b""
        while True:
            due = self._pass_on(time.monotonic())
            wait = None
            if due is not None:
                wait = max(due - time.monotonic(), SHORTEST_WAIT_SECONDS)
            # Not epoll: it counts in milliseconds.
            ready, _, _ = select.select([stdin, *self._by_tap], [], [], wait)
            for file in ready:
                if file != stdin:
                    self._take(self._by_tap[file])
            if stdin in ready:
                received = os.read(stdin, FRAME_BYTES)
                if not received:
                    return
                *lines, commands = (commands + received).split(b"\n")
                for line in lines:
                    self._answer(json.loads(line))

    def _take(self, port: Port) -> None:
        """Everything that a machine has sent."""
        now = time.monotonic()
        enter, tap = port.up.enter, port.tap
        seconds_per_byte, delay = self._seconds_per_byte, self._delay_seconds
        try:
            for _ in range(FRAMES_AT_ONCE):
                frame = os.read(tap, FRAME_BYTES)
                if port.carrier:
                    enter(frame, now, seconds_per_byte, delay)
        except BlockingIOError:
            return
        except OSError:  # its namespace has gone and took the device along
            self._by_tap.pop(tap, None)

    def _pass_on(self, now: float) -> float | None:
        """All frames that are due by now. Returns when the next one will be."""
        next_due = None
        for port in self._ports.values():
            up = port.up
            while up.frames and up.frames[0][0] <= now:
                due, frame = up.leave()
                if receiver := self._by_mac.get(frame[:6]):
                    self._deliver(receiver, frame, due)
                elif frame[0] & 1:  # to everybody
                    for other in self._ports.values():
                        if other is not port:
                            self._deliver(other, frame, due)
            if up.frames and (next_due is None or up.frames[0][0] < next_due):
                next_due = up.frames[0][0]
        for port in self._ports.values():
            down = port.down
            while down.frames and down.frames[0][0] <= now:
                _, frame = down.leave()
                with contextlib.suppress(OSError):  # a device that is down or gone: as for a cable
                    os.write(port.tap, frame)
            if down.frames and (next_due is None or down.frames[0][0] < next_due):
                next_due = down.frames[0][0]
        return next_due

    def _deliver(self, receiver: Port, frame: bytes, arrival: float) -> None:
        if receiver.carrier:
            receiver.down.enter(frame, arrival, self._seconds_per_byte, 0.0)

    def _answer(self, command: dict[str, Any]) -> None:
        error = None
        try:
            self._obey(command)
        except (OSError, KeyError, ValueError) as problem:
            error = repr(problem)
        sys.stdout.write(json.dumps(error) + "\n")
        sys.stdout.flush()

    def _obey(self, command: dict[str, Any]) -> None:
        if name := command.get("plug"):
            port = Port(name, command["mac"])
            self._ports[name] = self._by_tap[port.tap] = self._by_mac[port.mac] = port
        elif name := command.get("unplug"):
            port = self._ports.pop(name)
            self._by_tap.pop(port.tap, None)
            del self._by_mac[port.mac]
            os.close(port.tap)  # which removes the device
        elif name := command.get("carrier"):
            self._ports[name].set_carrier(command["up"])
        elif "rate_bits_per_second" in command:
            rate = command["rate_bits_per_second"]
            self._seconds_per_byte = 8 / rate if rate else 0.0
            self._delay_seconds = command["delay_seconds"] / 2


if __name__ == "__main__":
    gc.disable()  # nothing here is in a cycle, and each frame would be looked at again and again
    Switch().run()
