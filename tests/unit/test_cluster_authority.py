"""The authority of a cluster: who can shake hands with whom, and who can read its files."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from repertory.errors import UsageError
from services.clusters.authority import CERTIFICATE, KEY, Authority, Issued

SECONDS = 10.0


def chain(context: ssl.SSLContext, issued: Issued, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(issued.certificate)
    key.write_bytes(issued.key)
    context.load_cert_chain(certificate, key)


def server_context(authority: Authority, shown: Issued, folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(
        ssl.Purpose.CLIENT_AUTH, cadata=authority.certificate.decode()
    )
    context.verify_mode = ssl.CERT_REQUIRED
    chain(context, shown, folder)
    return context


def client_context(authority: Authority, shown: Issued | None, folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    if shown is not None:
        chain(context, shown, folder)
    return context


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> list[Exception]:
    """What went wrong on the server's side, then on the client's."""
    ours, theirs = socket.socketpair()
    errors: list[Exception] = []

    def serve() -> None:
        theirs.settimeout(SECONDS)
        try:
            with server.wrap_socket(theirs, server_side=True) as stream:
                stream.sendall(stream.recv(5))
        except OSError as error:
            errors.insert(0, error)
        finally:
            theirs.close()

    serving = threading.Thread(target=serve)
    serving.start()
    ours.settimeout(SECONDS)
    try:
        with client.wrap_socket(ours, server_hostname=name) as stream:
            stream.sendall(b"hello")
            # With TLS 1.3 a client hears only after the handshake that it is refused.
            if stream.recv(5) != b"hello":
                raise ConnectionError("hung up")
    except OSError as error:
        errors.append(error)
    finally:
        ours.close()
        serving.join()
    return errors


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "lab")


@pytest.mark.parametrize("name", ["beta", "10.0.0.2", "beta.lan", "fd00::2", "127.0.0.1"])
def test_both_sides_trust_each_other_under_every_name(
    tmp_path: Path, authority: Authority, name: str
) -> None:
    issued = authority.issue(["beta", "10.0.0.2", "beta.lan", "fd00::2"])
    server = server_context(authority, issued, tmp_path / "server")
    client = client_context(authority, authority.issue(["gamma"]), tmp_path / "client")
    assert shake_hands(server, client, name) == []


@pytest.mark.parametrize("name", ["gamma", "10.0.0.3", "eta"])
def test_a_certificate_is_not_good_for_other_names(
    tmp_path: Path, authority: Authority, name: str
) -> None:
    server = server_context(authority, authority.issue(["beta", "10.0.0.2"]), tmp_path / "server")
    client = client_context(authority, authority.issue(["gamma"]), tmp_path / "client")
    errors = shake_hands(server, client, name)
    assert isinstance(errors[-1], ssl.SSLCertVerificationError)


def test_a_server_of_another_authority_is_refused(tmp_path: Path, authority: Authority) -> None:
    other = Authority(tmp_path / "other")
    server = server_context(authority, other.issue(["beta"]), tmp_path / "server")
    client = client_context(authority, authority.issue(["gamma"]), tmp_path / "client")
    errors = shake_hands(server, client, "beta")
    assert isinstance(errors[-1], ssl.SSLCertVerificationError)


def test_a_client_of_another_authority_is_refused(tmp_path: Path, authority: Authority) -> None:
    other = Authority(tmp_path / "other")
    server = server_context(authority, authority.issue(["beta"]), tmp_path / "server")
    client = client_context(authority, other.issue(["gamma"]), tmp_path / "client")
    errors = shake_hands(server, client, "beta")
    assert isinstance(errors[0], ssl.SSLCertVerificationError)
    assert len(errors) == 2


def test_a_client_that_shows_nothing_is_refused(tmp_path: Path, authority: Authority) -> None:
    server = server_context(authority, authority.issue(["beta"]), tmp_path / "server")
    errors = shake_hands(server, client_context(authority, None, tmp_path / "client"), "beta")
    assert "peer did not return a certificate" in str(errors[0])


def test_what_is_issued_cannot_issue(tmp_path: Path, authority: Authority) -> None:
    """A machine's own key signs nobody in."""
    issued = authority.issue(["beta"])
    false = tmp_path / "false"
    false.mkdir()
    (false / CERTIFICATE).write_bytes(issued.certificate)
    (false / KEY).write_bytes(issued.key)
    signed = Authority(false).issue(["beta"])
    whole = Issued(signed.certificate + issued.certificate, signed.key)
    server = server_context(authority, whole, tmp_path / "server")
    client = client_context(authority, authority.issue(["gamma"]), tmp_path / "client")
    errors = shake_hands(server, client, "beta")
    assert isinstance(errors[-1], ssl.SSLCertVerificationError)


def test_certificates_hold_where_rfc_5280_is_taken_at_its_word(
    tmp_path: Path, authority: Authority
) -> None:
    # Once: no key identifiers, no key usage. From Python 3.13 this flag is on in
    # `create_default_context`, so in the control gate too; pyproject.toml allows 3.13.
    server = server_context(authority, authority.issue(["beta"]), tmp_path / "server")
    client = client_context(authority, authority.issue(["gamma"]), tmp_path / "client")
    for context in (server, client):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    assert shake_hands(server, client, "beta") == []


def test_each_machine_gets_a_key_of_its_own(authority: Authority) -> None:
    assert authority.issue(["beta"]).key != authority.issue(["beta"]).key


def test_a_long_name_is_no_harm(tmp_path: Path) -> None:
    name = ".".join(["a" * 60] * 4)
    authority = Authority(tmp_path / ("b" * 100))
    server = server_context(authority, authority.issue([name]), tmp_path / "server")
    client = client_context(authority, authority.issue(["gamma"]), tmp_path / "client")
    assert shake_hands(server, client, name) == []


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "clusters" / "lab"
    Authority(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / KEY).stat().st_mode) == 0o600
    assert sorted(path.name for path in folder.iterdir()) == [KEY, CERTIFICATE]


def test_it_is_the_same_when_loaded_again(tmp_path: Path, authority: Authority) -> None:
    again = Authority(tmp_path / "lab")
    assert again.certificate == authority.certificate
    server = server_context(authority, again.issue(["beta"]), tmp_path / "server")
    client = client_context(again, authority.issue(["gamma"]), tmp_path / "client")
    assert shake_hands(server, client, "beta") == []


def test_several_that_begin_at_once_make_one(tmp_path: Path) -> None:
    # Once: the key is there before the certificate is, and whoever comes between finds none.
    together = threading.Barrier(8)

    def make(folder: Path) -> bytes:
        together.wait(SECONDS)
        return Authority(folder).certificate

    with ThreadPoolExecutor(8) as pool:
        for place in range(10):
            made = list(pool.map(make, [tmp_path / str(place)] * 8))
            assert len(set(made)) == 1


def test_a_certificate_that_is_lost_is_made_again_for_the_same_key(
    tmp_path: Path, authority: Authority
) -> None:
    key = (tmp_path / "lab" / KEY).read_bytes()
    (tmp_path / "lab" / CERTIFICATE).unlink()
    with pytest.raises(UsageError, match="lab has no certificate authority"):
        Authority(tmp_path / "lab", make=False)
    Authority(tmp_path / "lab")
    assert (tmp_path / "lab" / KEY).read_bytes() == key


@pytest.mark.parametrize("name", [CERTIFICATE, KEY])
def test_a_broken_file_is_told(tmp_path: Path, authority: Authority, name: str) -> None:
    (tmp_path / "lab" / name).write_bytes(b"nothing of that kind")
    with pytest.raises(UsageError, match="lab has no certificate authority"):
        Authority(tmp_path / "lab")


def test_a_place_where_no_folder_can_be_is_told(tmp_path: Path) -> None:
    # Once: NotADirectoryError, a traceback on the command line.
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file"):
        Authority(tmp_path / "file" / "lab")
