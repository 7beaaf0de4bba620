"""Kafka's jars: a pinned list with checksums, fetched once from Maven Central into a per-user cache.

The list is `jars.lock` beside this module. A jar enters the cache under its final name only after its SHA-256 was
checked, so an interrupted download leaves nothing half, and the next call goes on with what is missing. Several
processes may call `ensure_jars` at once: a file lock lets one download and the others wait for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import ssl
import time
import urllib.error
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bridge.embedded_kafka.errors import JarsUnavailable

KAFKA_VERSION = "4.3.1"
MAVEN_CENTRAL = "https://repo1.maven.org/maven2"
PARALLEL_DOWNLOADS = 6  # Maven's own default is 5; more gains nothing on 46 jars
ATTEMPTS = 3  # per jar; one lost connection must not end a first start
_READ_TIMEOUT_S = 60.0
_LOCK_TIMEOUT_S = 600.0  # another process downloads 45 MB on a slow line
_CHUNK_BYTES = 1 << 18
_CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Jar:
    """One line of the lock file."""

    sha256: str
    size_bytes: int
    path: str

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]


def locked_jars() -> tuple[Jar, ...]:
    """Kafka's runtime closure and its log binding, as pinned in `jars.lock`."""
    lines = (Path(__file__).parent / "jars.lock").read_text(encoding="utf-8").splitlines()
    fields = (line.split() for line in lines if line and not line.startswith("#"))
    return tuple(Jar(sha256, int(size), path) for sha256, size, path in fields)


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """`$XDG_CACHE_HOME/headwater/kafka-<version>`, or below `~/.cache`."""
    variables = os.environ if environ is None else environ
    root = variables.get("XDG_CACHE_HOME") or str(Path(variables.get("HOME") or Path.home()) / ".cache")
    return Path(root) / "headwater" / f"kafka-{KAFKA_VERSION}"


def missing_jars(folder: Path) -> tuple[Jar, ...]:
    """The pinned jars that the folder lacks or holds with another content."""
    jars = locked_jars()
    with ThreadPoolExecutor(PARALLEL_DOWNLOADS) as pool:
        intact = pool.map(lambda jar: _is_intact(folder / jar.name, jar), jars)
        return tuple(jar for jar, is_intact in zip(jars, intact, strict=True) if not is_intact)


def ensure_jars(
    folder: Path | None = None,
    environ: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Path:
    """The folder with every pinned jar in it, downloading what is missing.

    Args:
        folder: where the jars go; the per-user cache by default.
        progress: called with (bytes done, bytes to do) from this thread.

    Raises:
        JarsUnavailable: a jar cannot be downloaded, or arrives with another checksum.
    """
    variables = os.environ if environ is None else environ
    target = cache_folder(variables) if folder is None else folder
    if not missing_jars(target):
        return target
    try:
        target.mkdir(parents=True, exist_ok=True)
        with _locked(target / ".lock"):
            _download_all(missing_jars(target), target, variables, progress)
    except OSError as error:
        raise JarsUnavailable(f"cannot write Kafka's jars to {target}: {error}. Set XDG_CACHE_HOME") from error
    return target


def maven_base_url(environ: Mapping[str, str]) -> str:
    """HEADWATER_MAVEN_URL, else the mirror of Maven Central in ~/.m2/settings.xml, else Maven Central itself."""
    if url := environ.get("HEADWATER_MAVEN_URL"):
        return url.rstrip("/")
    settings = Path(environ.get("HOME") or Path.home()) / ".m2" / "settings.xml"
    return (_mirror_of_central(settings) or MAVEN_CENTRAL).rstrip("/")


def _mirror_of_central(settings: Path) -> str | None:
    try:
        root = ElementTree.parse(settings).getroot()  # noqa: S314 (the user's own file)
    except (OSError, ElementTree.ParseError):
        return None
    for mirror in root.iterfind(".//{*}mirror"):
        mirrored = {part.strip() for part in (mirror.findtext("{*}mirrorOf") or "").split(",")}
        url = (mirror.findtext("{*}url") or "").strip()
        if mirrored & {"*", "central", "external:*"} and "!central" not in mirrored and url.startswith("http"):
            return url
    return None


def _download_all(jars: tuple[Jar, ...], folder: Path, environ: Mapping[str, str], progress: Progress | None) -> None:
    base_url = maven_base_url(environ)
    opener = _opener(environ)
    total_bytes, done_bytes = sum(jar.size_bytes for jar in jars), 0
    with ThreadPoolExecutor(PARALLEL_DOWNLOADS) as pool:
        downloads = [pool.submit(_obtain, jar, folder, base_url, opener, environ) for jar in jars]
        try:
            for download in as_completed(downloads):
                done_bytes += download.result().size_bytes
                if progress is not None:
                    progress(done_bytes, total_bytes)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _obtain(
    jar: Jar, folder: Path, base_url: str, opener: urllib.request.OpenerDirector, environ: Mapping[str, str]
) -> Jar:
    part = folder / f"{jar.name}.part"
    local = Path(environ.get("HOME") or Path.home()) / ".m2" / "repository" / jar.path
    if _is_intact(local, jar):
        shutil.copyfile(local, part)
    else:
        _download(jar, part, f"{base_url}/{jar.path}", opener)
    if not _is_intact(part, jar):
        part.unlink()
        raise JarsUnavailable(
            f"{base_url}/{jar.path} does not have the pinned SHA-256. Nothing was installed from it: try again, "
            "or name a Maven repository that you trust in HEADWATER_MAVEN_URL"
        )
    part.replace(folder / jar.name)
    return jar


def _download(jar: Jar, part: Path, url: str, opener: urllib.request.OpenerDirector) -> None:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with opener.open(url, timeout=_READ_TIMEOUT_S) as response, part.open("wb") as file:
                shutil.copyfileobj(response, file, _CHUNK_BYTES)
            return
        except (OSError, urllib.error.URLError) as error:
            is_final = isinstance(error, urllib.error.HTTPError) and error.code in (401, 403, 404, 407)
            if isinstance(error, urllib.error.HTTPError):
                error.close()  # it is the answer, too
            if is_final or attempt == ATTEMPTS:
                raise JarsUnavailable(
                    f"cannot download {url}: {error}. Kafka's jars are needed once: connect to the network, set "
                    "HTTPS_PROXY or SSL_CERT_FILE where one is needed, name a reachable Maven repository in "
                    f"HEADWATER_MAVEN_URL, or copy {part.parent} from another machine"
                ) from error
            time.sleep(0.5 * attempt)


def _opener(environ: Mapping[str, str]) -> urllib.request.OpenerDirector:
    """Proxies come from the environment by urllib itself; the CA bundle from the variables that curl and pip read."""
    bundle = next((environ[name] for name in _CA_VARIABLES if Path(environ.get(name, "")).is_file()), None)
    context = ssl.create_default_context(cafile=bundle)
    return urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))


def _is_intact(file: Path, jar: Jar) -> bool:
    try:
        if file.stat().st_size != jar.size_bytes:
            return False
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest() == jar.sha256
    except OSError:
        return False


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an advisory lock that the kernel gives back when this process ends, however it ends."""
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise JarsUnavailable(f"another process has held {path} for {_LOCK_TIMEOUT_S:.0f} s") from None
                time.sleep(0.1)
        yield
