"""A study through Slurm: the scripts, and two real nodes on this machine, of which one is lost."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from flip_flop.paper.folder import StudyFolder
from flip_flop.paper.run import unit_commands
from flip_flop.paper.slurm import sbatch_options, submit
from tests.processes import wait_for
from tests.refused import refused
from tests.studies.small_studies import attempts, here, outcome, plan, tables, whole_checkpoints, write_study

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


# ---- tests ----


def test_options_of_sbatch_are_those_of_the_command_line():
    options = sbatch_options("gpu", "1-02:30:00", 2, None, None, ["--qos=low", "nice=1=2"])
    expected = {"partition": "gpu", "time": "1-02:30:00", "gpus-per-node": "2", "qos": "low", "nice": "1=2"}
    assert options == expected
    for more in ("qos", "=low", "array=1-2"):
        refused("E-STUDY-SLURM", sbatch_options, None, "90", 0, None, None, [more])


def write_program(folder, name, command):
    (folder / name).write_text(f"#!/bin/sh\n{command}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Slurm's programs as scripts: jobs get the numbers 7, 8, ...; ``queue`` holds those of squeue."""
    (tmp_path / "queue").touch()
    write_program(tmp_path, "sbatch", f"echo job >> {tmp_path}/count; echo $(($(wc -l < {tmp_path}/count) + 6))")
    write_program(tmp_path, "squeue", f"cat {tmp_path}/queue")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


@pytest.fixture
def submit_all(programs):
    """Submit all units of a plan, and return the numbers of the jobs."""
    made, folder = plan(), StudyFolder(programs / "out")
    commands = unit_commands(folder, made.units, ["py", "-m", "ff"], ["launch", "-n4"])
    return lambda: submit(folder, made, commands, ["py", "tables"], {"gpus-per-node": "4", "time": "9"}, 3)


def test_one_array_has_all_units_and_launches_those_that_train(programs, submit_all, monkeypatch):
    assert submit_all() == ["7", "8"]
    write_program(programs, "srun", 'echo "$@"; exit 3')
    jobs = programs / "out" / "slurm"
    lines = {"#SBATCH --array=0-1%3", "#SBATCH --gpus-per-node=4", "#SBATCH --requeue", "#SBATCH --signal=TERM@90"}
    assert lines < set((jobs / "small.sh").read_text().splitlines())
    for index, (unit, started) in enumerate(zip(plan().units, ("py -m ff", "launch -n4 -m ff"), strict=True)):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", str(index))
        job = subprocess.run(["bash", jobs / "small.sh"], capture_output=True, text=True)
        assert job.returncode == 3
        log = programs / "out" / "logs" / f"{unit.name}.log"
        assert job.stdout.endswith(f"exec {started} --unit {unit.name} >> {log} 2>&1\n")
    tables = (jobs / "small-tables.sh").read_text()
    assert "\n#SBATCH --dependency=afterany:7\n" in tables
    assert "gpus" not in tables
    assert tables.endswith("\nexec py tables\n")


def test_units_in_the_queue_are_not_submitted_again(programs, submit_all):
    for queue, numbers in (("", ["7", "8"]), ("7_1\n8\n", ["9", "10"]), ("7_1\n9_0\n", [])):
        (programs / "queue").write_text(queue)
        assert submit_all() == numbers
    script = (programs / "out" / "slurm" / "small.sh").read_text()
    assert [unit.name in script for unit in plan().units] == [True, False]


def test_the_script_requeues_a_running_job_once(programs, submit_all, monkeypatch):
    """Slurm itself requeues a pre-empted job, whose state is not RUNNING."""
    submit_all()
    write_program(programs, "srun", "exit 143")
    write_program(programs, "scontrol", f'echo "$2" >> {programs}/requeued; false')
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")
    for state, restarts, number in (("RUNNING", 0, 1), ("PREEMPTED", 0, 1), ("RUNNING", 100, 1), ("RUNNING", 99, 2)):
        (programs / "queue").write_text(f"{state}\n")
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
        assert subprocess.run(["bash", programs / "out" / "slurm" / "small.sh"]).returncode == 143
        assert (programs / "requeued").read_text() == "7_0\n" * number


@pytest.mark.parametrize(("has_slurm", "expected"), [(False, "there is no sbatch here"), (True, "invalid account")])
def test_missing_or_refusing_slurm_is_one_line(tmp_path, monkeypatch, has_slurm, expected):
    if has_slurm:
        write_program(tmp_path, "squeue", "true")
        write_program(tmp_path, "sbatch", "echo invalid account >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if has_slurm else str(tmp_path))
    refused(
        f"E-STUDY-SLURM: .*{expected}",
        here,
        "run",
        write_study(tmp_path),
        "--out",
        tmp_path / "out",
        "--executor",
        "slurm",
    )


@pytest.fixture
def cluster(monkeypatch):
    if reason := obstacle():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="slurm") as folder:  # sockets need a short path
        made = Cluster(Path(folder))
        for name, value in made.client.items():
            monkeypatch.setenv(name, value)
        try:
            made.start()
            yield made
        finally:
            made.stop()


@pytest.mark.slurm
def test_a_study_that_loses_a_node_has_the_results_of_a_local_run(cluster, whole, tmp_path):
    root, study = tmp_path / "out", write_study(tmp_path)
    here("run", study, "--out", root, "--executor", "slurm", "--device", "cpu", "--time", "30", "--cpus", "1")
    unit = wait_for(lambda: whole_checkpoints(root))[0].parents[2].name
    cluster.lose_node_of(root, unit)
    wait_for(cluster.is_idle, seconds=600)  # the last job has written the tables
    assert (root / "logs" / f"{unit}.log").read_text().count("resuming from checkpoint-") == 1
    assert sorted(attempts(root).values()) == [1, 2]
    assert (outcome(root), tables(root)) == whole[1:]
