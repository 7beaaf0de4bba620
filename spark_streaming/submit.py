"""`headwater spark run <job> [options]`: the right spark-submit call, a child that ends with its parent.

The same is `python -m spark_streaming.submit <job> [options]`. A job is one of ours or the path of a file of your own.
SIGTERM or SIGINT stops the job gracefully; a second one, or 30 s without success, ends it by force. Results of the job
(`--json`, `--progress`) go to stdout, Spark's own log to stderr.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from schemas.errors import ConfigurationError, HeadwaterError
from spark_streaming.checkpoint import describe
from spark_streaming.connector import pyspark_version, resolve
from spark_streaming.control import CONTROL_VARIABLE, STOP_GRACE_S, ControlServer
from spark_streaming.java import Java, find_java
from spark_streaming.registry import check_options, descriptions, job_file, job_names

DRIVER_MEMORY = "1g"  # 0.6 to 1.4 GB resident; state is in RocksDB, outside the heap
EXIT_USAGE = 2
_ROOM = Path(__file__).resolve().parent
_FORCE_AFTER_S = STOP_GRACE_S + 10.0  # the job ends itself by force at STOP_GRACE_S
_POLL_S = 0.5
# C1 alone: ready in 22 s instead of 38 s on two busy cores, and no minute of half speed while C2 compiles. A job that
# runs for weeks near a core's limit is better off with `--jit full`.
_JIT = {"quick": "-XX:TieredStopAtLevel=1", "full": "-XX:+TieredCompilation"}
_SUBMIT_OPTIONS = ("--master", "--driver-memory", "--conf", "--jit")


@dataclass(frozen=True)
class SparkCall:
    """A command and its environment."""

    command: tuple[str, ...]
    environ: Mapping[str, str]


def spark_call(
    job: str, arguments: Sequence[str], jars: Sequence[Path], java: Java, environ: Mapping[str, str]
) -> SparkCall:
    """The spark-submit call for a job."""
    for_spark, for_job = _split(arguments)
    spark_home = _spark_home()
    settings = {"--master": "local[6]", "--driver-memory": DRIVER_MEMORY}  # the job raises the slots to what it needs
    jit = "quick"
    confs = ["spark.ui.enabled=false", "spark.sql.session.timeZone=UTC", "spark.log.level=WARN"]
    for name, value in for_spark:
        if name == "--conf":
            confs.append(value)
        elif name == "--jit":
            if value not in _JIT:
                raise ConfigurationError(f"--jit: {value!r} is neither {' nor '.join(_JIT)}")
            jit = value
        else:
            settings[name] = value
    log = f"-Dlog4j2.configurationFile={(_ROOM / 'log4j2.properties').as_uri()}"
    java_options = f"{log} -Duser.timezone=UTC -XX:+UseSerialGC {_JIT[jit]}"
    command = [str(spark_home / "bin" / "spark-submit")]
    for name, value in settings.items():
        command += [name, value]
    command += ["--jars", ",".join(str(jar) for jar in jars), "--driver-java-options", java_options]
    for conf in confs:
        command += ["--conf", conf]
    command += [str(job_file(job)), *for_job]
    return SparkCall(tuple(command), _environment(spark_home, java, environ))


def run(job: str, arguments: Sequence[str]) -> int:
    """Run a job to its end; its exit code. Raises HeadwaterError when it cannot be started."""
    job_file(job)
    pyspark_version()
    check_options(job, _split(arguments)[1])
    java = find_java()
    found = resolve()
    print(f"spark: {found.why}; Java {java.version} ({java.source})", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="headwater-spark-") as folder:
        control = ControlServer(Path(folder))
        call = spark_call(job, arguments, found.jars, java, os.environ)
        environ = {**call.environ, CONTROL_VARIABLE: str(control.path), "SPARK_LOCAL_DIRS": folder}
        # a session of its own: Ctrl-C in a terminal reaches us only, and we stop the job in order
        child = subprocess.Popen(call.command, env=environ, start_new_session=True, stdin=subprocess.DEVNULL)
        try:
            return _wait(child, control)
        finally:
            if error := control.error():
                print(f"error: {error}", file=sys.stderr, flush=True)
            control.close()


def main(arguments: Sequence[str]) -> int:
    """The command line."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: headwater spark run {{{','.join(job_names())}}} --kafka HOST:PORT [options]\n\n{__doc__}")
        return 0 if arguments else EXIT_USAGE
    if arguments[0] == "--list":
        print("\n".join(f"{name:<14} {text}" for name, text in descriptions().items()))
        return 0
    try:
        if arguments[0] == "--checkpoint-info":
            return _print_checkpoint(arguments[1:])
        return run(arguments[0], arguments[1:])
    except HeadwaterError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE


def _print_checkpoint(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        raise ConfigurationError("name one checkpoint folder: headwater spark checkpoint DIR")
    print(json.dumps(describe(Path(arguments[0]).absolute()), indent=2))
    return 0


def _wait(child: subprocess.Popen[bytes], control: ControlServer) -> int:
    asked_at: list[float] = []

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        asked_at.append(time.monotonic())
        control.stop()
        if len(asked_at) > 1:
            _kill(child)

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        while True:
            try:
                code = child.wait(timeout=_POLL_S)
                return code if code >= 0 else 128 - code
            except subprocess.TimeoutExpired:
                if asked_at and time.monotonic() - asked_at[0] > _FORCE_AFTER_S:
                    _kill(child)
    finally:
        _kill(child)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _kill(child: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def _split(arguments: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """spark-submit's options as pairs, and the job's."""
    for_spark: list[tuple[str, str]] = []
    for_job: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name not in _SUBMIT_OPTIONS:
            for_job.append(argument)
            continue
        given = value if equals else next(rest, None)
        if given is None:
            raise ConfigurationError(f"{name}: its value is missing")
        for_spark.append((name, given))
    return for_spark, for_job


def _spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).resolve().parent


def _environment(spark_home: Path, java: Java, environ: Mapping[str, str]) -> dict[str, str]:
    """Ours first: a SPARK_HOME of another Spark or another python3 on PATH must not get in between."""
    python_path = os.pathsep.join(part for part in (str(_ROOM.parent), environ.get("PYTHONPATH", "")) if part)
    return {
        **environ,
        "SPARK_HOME": str(spark_home),
        "JAVA_HOME": str(java.home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": python_path,
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": environ.get("PYTHONWARNINGS", "ignore::FutureWarning"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), environ.get("PATH", ""))),
        "TZ": "UTC",
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
