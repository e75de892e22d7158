"""A Slurm of two nodes on this machine: munge, a controller and two slurmd, each with separate files."""

import json
import os
import shutil
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path

from tests.waiting import wait_for

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")
NODES = ("node1", "node2")
# Each node has a separate process namespace: all that it runs ends with it.
ALONE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")

# A requeued job waits as long as a credential is valid: two minutes by default.
CONFIG = """\
ClusterName=study
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=2,default_queue_depth=1000
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdTimeout=10
SlurmctldTimeout=10
MessageTimeout=10
KillWait=5
JobRequeue=1
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def obstacle() -> str:
    """Return the reason why no cluster can start here; empty if one can."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    if missing := [program for program in PROGRAMS if shutil.which(program, path=path) is None]:
        return f"Slurm is not installed: no {', '.join(missing)}"
    return "only root can start nodes" if subprocess.run([*ALONE, "true"], capture_output=True).returncode else ""


class Cluster:
    """Slurm's daemons, running until :meth:`stop`, in an empty folder with a short path: sockets lie in it."""

    def __init__(self, folder: Path):
        self.folder = folder
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        self.client = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": path}
        self._daemons: dict[str, subprocess.Popen] = {}
        host, ports = socket.gethostname().partition(".")[0], _free_ports(len(NODES) + 1)
        of_node = "NodeName={} NodeHostname={} NodeAddr=127.0.0.1 Port={} CPUs=1 RealMemory=1000 State=UNKNOWN"
        nodes = "\n".join(of_node.format(name, host, port) for name, port in zip(NODES, ports[1:], strict=True))
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (folder / name).mkdir()
        config = CONFIG.format(host=host, port=ports[0], folder=folder, nodes=nodes)
        (folder / "slurm.conf").write_text(config)
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o400)

    def start(self) -> None:
        """Start everything, and wait until the nodes are idle."""
        files = {"socket": "munge.socket", "key-file": "munge.key", "log-file": "munged.log", "pid-file": "munged.pid"}
        flags = [f"--{flag}={self.folder / file}" for flag, file in (files | {"seed-file": "munge.seed"}).items()]
        self._start("munged", "munged", "-F", "--force", *flags)
        wait_for((self.folder / "munge.socket").exists)
        self._start("slurmctld", "slurmctld", "-D", "-i")
        for node in NODES:
            self._start(node, *ALONE, "slurmd", "-D", "-N", node)
        wait_for(lambda: self.ask("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * len(NODES))

    def lose_node_of(self, root: Path, unit: str) -> None:
        """Cut the power of the node that runs a unit of a study: all its processes die at once."""
        jobs = {path.stem: json.loads(path.read_text())["units"] for path in (root / "slurm").glob("*.json")}
        (job,) = [f"{number}_{units.index(unit)}" for number, units in jobs.items() if unit in units]
        self._kill(self.ask("squeue", "-h", "-r", "-o", "%N", "-j", job).strip())

    def is_idle(self) -> bool:
        """Return whether the queue is empty."""
        return not self.ask("squeue", "-h", "-r").strip()

    def ask(self, *command: str) -> str:
        """Ask the controller. One without time does not answer."""
        done = subprocess.run(command, env=os.environ | self.client, capture_output=True, text=True, timeout=60)
        return done.stdout if done.returncode == 0 else f"{command[0]} failed: {done.stderr}"

    def stop(self) -> None:
        """Stop everything that this cluster started, the nodes first."""
        for name in reversed(list(self._daemons)):
            self._kill(name)

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                command, env=os.environ | self.client, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
            )

    def _kill(self, name: str) -> None:
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [opened.getsockname()[1] for opened in sockets]
