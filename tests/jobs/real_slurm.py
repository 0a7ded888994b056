"""A real Slurm on this machine: its daemons on the loopback, with their files in a folder, for as long as a test."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Slurm", "missing", "started_slurm"]

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo", "srun")
_STARTED_WITHIN_SECONDS = 30

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
KillWait=5
SchedulerParameters=sched_interval=1
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_NAMES = ("n0", "n1", "n2", "n3")
_NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cores}\n"


class Slurm:
    """A running Slurm; its commands find it by the environment."""

    def __init__(self, folder: Path) -> None:
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))},
            "SLURM_CONF": str(folder / "slurm.conf"),
        }

    def run(self, *command: str) -> str:
        """The output of one of Slurm's commands."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def job(self, number: str) -> dict[str, str]:
        """What Slurm knows of a job: ``JobState``, ``ExitCode``, ``Restarts``."""
        words = self.run("scontrol", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)


def missing() -> str:
    """Why there can be no Slurm here; empty where there can."""
    if os.geteuid() != 0:
        return "Slurm's daemons run as root"
    absent = [name for name in _PROGRAMS if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)} (Debian: slurm-wlm, munge)" if absent else ""


@contextmanager
def started_slurm(folder: Path, nodes: int) -> Iterator[Slurm | str]:
    """Slurm with so many nodes, all on this machine; or why it did not start.

    Args:
        folder: for its files; its path must be shorter than a socket's may be.
        nodes: each with all of this machine's cores.
    """
    names = _NAMES[:nodes]
    host, cores = socket.gethostname().split(".")[0], os.cpu_count() or 1
    ports = _free_ports(nodes + 1)
    for name in ("state", *(f"spool/{name}" for name in names)):
        (folder / name).mkdir(parents=True)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    lines = [
        _NODE.format(name=name, host=host, port=port, cores=cores) for name, port in zip(names, ports[1:], strict=True)
    ]
    text = _CONFIGURATION.format(host=host, folder=folder, port=ports[0])
    configuration = folder / "slurm.conf"
    configuration.write_text(text + "".join(lines))
    munge = [
        f"--{name}={folder}/munge.{name.split('-')[0]}" for name in ("key-file", "socket", "pid-file", "seed-file")
    ]
    commands = [
        ["munged", "--foreground", "--force", *munge, f"--log-file={folder}/munge.log"],
        ["slurmctld", "-D", "-f", str(configuration)],
        *(["slurmd", "-D", "-N", name, "-f", str(configuration)] for name in names),
    ]
    slurm = Slurm(folder)
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            with (folder / f"{command[0]}.out").open("ab") as out:
                daemons.append(subprocess.Popen(command, stdout=out, stderr=out, env=slurm.environment))
            time.sleep(0.5)
        yield slurm if _idle(slurm, nodes) else _last_words(folder)
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in reversed(daemons):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _idle(slurm: Slurm, nodes: int) -> bool:
    """Whether all nodes came to be idle in time."""
    until = time.monotonic() + _STARTED_WITHIN_SECONDS
    command = ["sinfo", "--noheader", "--Node", "--format=%T"]
    while time.monotonic() < until:
        done = subprocess.run(command, env=slurm.environment, capture_output=True, text=True, timeout=60, check=False)
        if done.stdout.split() == ["idle"] * nodes:
            return True
        time.sleep(0.5)
    return False


def _last_words(folder: Path) -> str:
    told = [line for path in sorted(folder.glob("*.out")) for line in path.read_text(errors="replace").splitlines()]
    return f"Slurm did not start: {' | '.join(told[-3:])}"


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
