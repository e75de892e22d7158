"""A Slurm of two nodes on this machine: munge, a controller and two slurmd, each with separate files."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")

CONFIG = """\
ClusterName=study
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
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


def missing_programs() -> list[str]:
    """What Slurm's packages (slurmctld, slurmd, munge, slurm-client) would install."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return [program for program in PROGRAMS if shutil.which(program, path=path) is None]


class Cluster:
    """Slurm's daemons, running until :meth:`stop`, in an empty folder with a short path: sockets lie in it."""

    def __init__(self, folder: Path):
        self.folder, self.nodes = folder, ["node1", "node2"]
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self.environment["PATH"] = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        self._daemons: dict[str, subprocess.Popen] = {}
        self._write_config()

    def _write_config(self) -> None:
        host, ports = socket.gethostname().partition(".")[0], _free_ports(len(self.nodes) + 1)
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1 RealMemory=1000 State=UNKNOWN"
            for name, port in zip(self.nodes, ports[1:], strict=True)
        )
        for name in ("state", *(f"spool-{node}" for node in self.nodes)):
            (self.folder / name).mkdir()
        user = os.environ.get("USER") if os.getuid() else "root"
        config = CONFIG.format(host=host, port=ports[0], user=user, folder=self.folder, nodes=nodes)
        (self.folder / "slurm.conf").write_text(config)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)

    def start(self) -> None:
        """Start everything, and wait until the nodes are idle."""
        files = {"socket": "munge.socket", "key-file": "munge.key", "log-file": "munged.log", "pid-file": "munged.pid"}
        flags = [f"--{flag}={self.folder / file}" for flag, file in (files | {"seed-file": "munge.seed"}).items()]
        self._start("munged", "-F", "--force", *flags)
        self._wait(lambda: (self.folder / "munge.socket").exists(), "munged")
        self._start("slurmctld", "-D", "-i", "-f", str(self.folder / "slurm.conf"))
        for node in self.nodes:
            self._start("slurmd", "-D", "-N", node, "-f", str(self.folder / "slurm.conf"), name=node)
        self._wait(lambda: self.states() == ["idle"] * len(self.nodes), "the nodes")

    @property
    def client(self) -> dict[str, str]:
        return {name: self.environment[name] for name in ("SLURM_CONF", "PATH")}

    def job_of(self, root: Path, unit: str) -> str:
        for path in (root / "slurm").glob("*.json"):
            units = json.loads(path.read_text())["units"]
            if unit in units:
                return f"{path.stem}_{units.index(unit)}"
        raise AssertionError(f"{unit} is not submitted")

    def kill_node_of(self, job: str) -> None:
        self.kill_node(self.ask("squeue", "-h", "-r", "-o", "%N", "-j", job).strip())

    def requeued(self) -> list[str]:
        """Jobs that were queued again. Slurm lets them wait for two minutes, which they need not."""
        lines = self.ask("squeue", "-h", "-r", "-t", "PD", "-o", "%i %r").splitlines()
        reasons = dict(line.split(maxsplit=1) for line in lines)
        jobs = [job for job, reason in reasons.items() if "BeginTime" in reason or "Requeue" in reason]
        for job in jobs:
            self.ask("scontrol", "update", f"JobId={job}", "StartTime=now")
        return jobs

    def is_idle(self) -> bool:
        """Return whether the queue is empty. A controller without time does not answer."""
        command = ["squeue", "-h", "-r"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        return done.returncode == 0 and not done.stdout.strip()

    def states(self) -> list[str]:
        return self.ask("sinfo", "-h", "-N", "--partition=main", "-o", "%T").split()

    def ask(self, *command: str) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        return done.stdout

    def kill_node(self, node: str) -> None:
        """The node loses power: its daemon and all that it started die at once."""
        daemon = self._daemons.pop(node)
        daemon.kill()
        daemon.wait()
        tasks = [process for process in psutil.process_iter() if self._runs_on(node, process)]
        # The daemons of steps die first: they would tell the controller. Their parent is not the daemon of the node.
        steps = {parent for task in tasks for parent in task.parents() if parent.name().startswith("slurmstepd")}
        for process in [*steps, *tasks]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _runs_on(self, node: str, process: psutil.Process) -> bool:
        try:
            variables = process.environ()
        except psutil.Error:
            return False
        return (variables.get("SLURMD_NODENAME"), variables.get("SLURM_CONF")) == (node, self.environment["SLURM_CONF"])

    def stop(self) -> None:
        """Stop everything that this cluster started."""
        for name in list(self._daemons):
            if name in self.nodes:
                self.kill_node(name)
        for daemon in self._daemons.values():
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _start(self, *command: str, name: str | None = None) -> None:
        name = name or command[0]
        with (self.folder / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
            )

    def _wait(self, condition, what: str, seconds: float = 60) -> None:
        over = time.monotonic() + seconds
        while not condition():
            logs = "\n".join(path.read_text(errors="replace")[-800:] for path in self.folder.glob("*.[lo][ou][gt]"))
            assert time.monotonic() < over, f"{what} did not come up:\n{logs}"
            time.sleep(0.5)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [opened.getsockname()[1] for opened in sockets]
