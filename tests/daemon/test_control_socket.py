"""The socket of the control API: its mode, its peers, and the one that a service manager passes."""

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cleanerd.daemon.api.control_socket import Peer, SocketUnusable, bind, listen, may_change, peer_of


@pytest.mark.parametrize(
    ("peer", "socket_gid", "allowed"),
    [
        (Peer(1, uid=0, gid=0), 500, True),
        (Peer(1, uid=100, gid=1), None, True),
        (Peer(1, uid=7, gid=500), 500, True),
        (Peer(1, uid=7, gid=1, groups=frozenset({2, 500})), 500, True),
        (Peer(1, uid=7, gid=1, groups=frozenset({2})), 500, False),
        (Peer(1, uid=7, gid=500), None, False),
    ],
)
def test_who_may_change(peer: Peer, socket_gid: int | None, allowed: bool) -> None:
    """Root, the daemon's user (100), members of the socket's group; nobody else."""
    assert may_change(peer, own_uid=100, socket_gid=socket_gid) == allowed


def test_groups_of_a_peer_come_from_the_kernel(tmp_path: Path) -> None:
    """SO_PEERCRED and SO_PEERGROUPS of a real connection."""
    me = Peer(os.getpid(), os.geteuid(), os.getegid(), frozenset(os.getgroups()))
    with bind(str(tmp_path / "s")) as listening, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "s"))
        with listening.accept()[0] as server_side:
            assert peer_of(server_side) == me


def test_mode_is_0660_whatever_the_umask(tmp_path: Path) -> None:
    """The socket is born with its mode: the umask is set for the bind, and put back."""
    for umask in (0o000, 0o077):
        before = os.umask(umask)
        try:
            listening = bind(str(tmp_path / f"s{umask}"))
            assert os.umask(umask) == umask
        finally:
            os.umask(before)
        assert stat.S_IMODE(os.stat(tmp_path / f"s{umask}").st_mode) == 0o660
        listening.close()


def test_what_is_not_a_socket_is_left_alone(tmp_path: Path) -> None:
    """A file in the way is an error, as is a path that no socket can have."""
    (tmp_path / "file").write_text("precious")
    with pytest.raises(SocketUnusable, match="not a socket"):
        bind(str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "precious"
    with pytest.raises(SocketUnusable):
        bind(str(tmp_path / ("x" * 120)))


_ACTIVATED = """
import os, sys
for fd, target in zip(sys.argv[3:], (103, 104)):
    os.dup2(int(fd), target)
os.dup2(103, 3), os.dup2(104, 4)  # as a service manager does it
from cleanerd.daemon.api.control_socket import listen
os.environ["LISTEN_PID"] = str(os.getpid() + int(sys.argv[1]))
os.environ["LISTEN_FDS"] = "2"
got = listen(sys.argv[2], os.environ)
print(got.socket.getsockname(), got.inode is None, sorted(n for n in os.environ if n.startswith("LISTEN")),
      os.get_inheritable(got.socket.fileno()), flush=True)
if got.inode is None:
    peer, _ = got.socket.accept()
    peer.sendall(b"hello")
got.close()
"""


@pytest.mark.parametrize("is_meant", [True, False])
def test_socket_activation(tmp_path: Path, is_meant: bool) -> None:
    """The first unix socket among the passed descriptors is used, if they are meant for this process, and not removed."""
    passed_path, own_path = str(tmp_path / "passed"), str(tmp_path / "own")
    with bind(passed_path) as passed, socket.socket() as other:
        # descriptors 3 and 4 of the child: an internet socket, then the one that it has to find
        fds = other.fileno(), passed.fileno()
        child = subprocess.Popen(
            [sys.executable, "-c", _ACTIVATED, "0" if is_meant else "1", own_path, *map(str, fds)],
            pass_fds=fds,
            stdout=subprocess.PIPE,
            text=True,
        )
        if is_meant:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(20)
                client.connect(passed_path)
                assert client.recv(10) == b"hello"
        out, _ = child.communicate(timeout=30)
    expected = passed_path if is_meant else own_path
    assert (child.returncode, out) == (0, f"{expected} {is_meant} [] False\n")
    assert Path(passed_path).exists()
    assert not Path(own_path).exists()


def test_activation_without_descriptors(tmp_path: Path) -> None:
    """Nothing passed, or nonsense: a socket of our own, and the variables are gone."""
    for count in ("", "x", "0"):
        environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": count, "OTHER": "1"}
        listening = listen(str(tmp_path / "s"), environ)
        assert environ == {"OTHER": "1"}
        assert listening.inode is not None
        listening.close()
