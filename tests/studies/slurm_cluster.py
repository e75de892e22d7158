"""A Slurm of two nodes on this machine: munge, a controller and two slurmd, each with separate files."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

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
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO PriorityTier=1 GraceTime=20
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP OverSubscribe=NO PriorityTier=10 PreemptMode=OFF
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
        paths = {"socket": "munge.socket", "key-file": "munge.key", "log-file": "munged.log", "pid-file": "munged.pid"}
        self._start(
            "munged",
            "munged",
            "-F",
            "--force",
            *(f"--{flag}={self.folder / file}" for flag, file in paths.items()),
            f"--seed-file={self.folder / 'munge.seed'}",
        )
        self._wait(lambda: (self.folder / "munge.socket").exists(), "munged")
        self._start("slurmctld", "slurmctld", "-D", "-i", "-f", str(self.folder / "slurm.conf"))
        for node in self.nodes:
            self.start_node(node)
        self._wait(lambda: self.states().count("idle") == len(self.nodes), "the nodes")

    def start_node(self, node: str) -> None:
        self._start(node, "slurmd", "-D", "-N", node, "-f", str(self.folder / "slurm.conf"))

    @property
    def client(self) -> dict[str, str]:
        return {name: self.environment[name] for name in ("SLURM_CONF", "PATH")}

    def revive(self) -> None:
        """Start the daemons that were killed again, and wait for all nodes."""
        for node in self.nodes:
            if node not in self._daemons:
                self.start_node(node)
        self._wait(lambda: self.states().count("idle") == len(self.nodes), "the nodes")

    def job_of(self, root: Path, unit: str) -> str:
        for path in (root / "slurm").glob("*.json"):
            units = json.loads(path.read_text())["units"]
            if unit in units:
                return f"{path.stem}_{units.index(unit)}"
        raise AssertionError(f"{unit} is not submitted")

    def node_of(self, root: Path, unit: str) -> str:
        return self.ask("squeue", "-h", "-r", "-o", "%N", "-j", self.job_of(root, unit)).strip()

    def requeued(self) -> list[str]:
        """Jobs that were queued again. Slurm lets them wait for two minutes, which they need not."""
        lines = self.ask("squeue", "-h", "-r", "-t", "PD", "-o", "%i %r").splitlines()
        reasons = dict(line.split(maxsplit=1) for line in lines)
        found = [job for job, reason in reasons.items() if "BeginTime" in reason or "Requeue" in reason]
        for job in found:
            self.ask("scontrol", "update", f"JobId={job}", "StartTime=now")
        return found

    def is_idle(self) -> bool:
        """Return whether the queue is empty. A controller without time does not answer."""
        command = ["squeue", "-h", "-r"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        return done.returncode == 0 and not done.stdout.strip()

    def states(self) -> list[str]:
        found = self.ask("sinfo", "-h", "-N", "--partition=main", "-o", "%T")
        return [line.strip() for line in found.splitlines()]

    def ask(self, *command: str) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        return done.stdout

    def kill_node(self, node: str) -> None:
        """The node loses power: its daemon and all that it started die at once."""
        daemon = self._daemons.pop(node)
        daemon.kill()
        daemon.wait()
        tasks = _with_environment(f"SLURMD_NODENAME={node}", str(self.folder))
        for process in [*_step_daemons(tasks), *tasks]:  # first those who would tell the controller
            _kill(process)

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

    def _start(self, name: str, *command: str) -> None:
        log = (self.folder / f"{name}.out").open("ab")
        with log:
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
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _step_daemons(tasks: list[int]) -> set[int]:
    """The slurmstepd that each of these processes descends from: their parent is not the daemon of the node."""
    found = set()
    for task in tasks:
        process = task
        while process > 1:
            try:
                name, fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[::2]
            except OSError:
                break
            if "slurmstepd" in name:
                found.add(process)
            process = int(fields.split()[1])
    return found


def _with_environment(*words: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if all(word in environment for word in words):
                found.append(int(entry.name))
    return found


def _kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
