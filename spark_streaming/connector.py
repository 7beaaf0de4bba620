"""Spark's Kafka connector: the jars of exactly this pyspark if Maven Central has them, else a pinned, link-checked set.

The pinned sets are `connector.lock` beside this module, with SHA-256; an exact set is checked against the SHA-1 that
the repository publishes. Jars are fetched once into a per-user cache and enter it only after they were checked.
HEADWATER_MAVEN_URL or a mirror of `central` in ~/.m2/settings.xml stands in for Maven Central; the proxy variables of
urllib and the usual CA variables are honoured.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import tempfile
import time
import urllib.error
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_streaming.errors import JarsUnavailable, PysparkMissing

MAVEN_CENTRAL = "https://repo1.maven.org/maven2"
ATTEMPTS = 3  # per file; one lost connection must not end a first start
_READ_TIMEOUT_S = 60.0
_PROBE_TIMEOUT_S = 10.0
_ABSENT_FOR_S = 24 * 3600.0  # how long "no exact connector" is believed without asking again
_RESPONSE_BYTES_MAX = 64 << 20  # the largest of the jars has 10 MB
_CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
_CONNECTOR = "spark-sql-kafka-0-10_2.13"
_COMPANIONS = ("spark-token-provider-kafka-0-10_2.13", "kafka-clients", "commons-pool2")


@dataclass(frozen=True)
class Jar:
    """One jar: its path below a Maven repository and a checksum of it."""

    path: str
    algorithm: str
    digest: str

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Resolved:
    """The jars on disk, and in words which set they are and why."""

    jars: tuple[Path, ...]
    why: str


def pyspark_version() -> str:
    """The installed pyspark's version. Raises PysparkMissing."""
    try:
        from pyspark.version import __version__ as version
    except ImportError:
        raise PysparkMissing("pyspark is not installed: pip install 'headwater[spark]'") from None
    return str(version)


def resolve_jars(environ: Mapping[str, str] | None = None) -> list[Path]:
    """The jars for spark-submit, downloaded where the cache lacks them. Raises JarsUnavailable, PysparkMissing."""
    return list(resolve(environ).jars)


def resolve(environ: Mapping[str, str] | None = None) -> Resolved:
    """As `resolve_jars`, and which set was chosen."""
    variables = os.environ if environ is None else environ
    version = pyspark_version()
    folder = cache_folder(variables) / version
    folder.mkdir(parents=True, exist_ok=True)
    pinned = locked_jars().get(version)
    if exact := _exact_jars(version, folder, variables):
        paths = tuple(_ensure(jar, folder, variables) for jar in exact)
        return Resolved(paths, f"Kafka connector {version}, the same as pyspark {version}")
    if pinned is None:
        known = ", ".join(sorted(locked_jars()))
        raise JarsUnavailable(
            f"no Kafka connector is known for pyspark {version}: install a pyspark that has one (pinned: {known})"
        )
    paths = tuple(_ensure(jar, folder, variables) for jar in pinned)
    return Resolved(paths, f"the set pinned for pyspark {version}: {', '.join(jar.name for jar in pinned)}")


def locked_jars() -> dict[str, tuple[Jar, ...]]:
    """The pinned sets by pyspark version."""
    found: dict[str, tuple[Jar, ...]] = {}
    for line in (Path(__file__).parent / "connector.lock").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            version, sha256, _size, path = line.split()
            found[version] = (*found.get(version, ()), Jar(path, "sha256", sha256))
    return found


def cache_folder(environ: Mapping[str, str]) -> Path:
    """`$XDG_CACHE_HOME/headwater/spark-connector`, or below `~/.cache`."""
    root = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".cache")
    return Path(root) / "headwater" / "spark-connector"


def repository_url(environ: Mapping[str, str]) -> str:
    """HEADWATER_MAVEN_URL, else the mirror of central in ~/.m2/settings.xml, else Maven Central."""
    if url := environ.get("HEADWATER_MAVEN_URL"):
        return url.rstrip("/")
    settings = Path(environ.get("HOME") or Path.home()) / ".m2" / "settings.xml"
    try:
        root = ElementTree.parse(settings).getroot()  # noqa: S314 (the user's own file)
    except (OSError, ElementTree.ParseError):
        return MAVEN_CENTRAL
    for mirror in root.iterfind(".//{*}mirror"):
        mirror_of = (mirror.findtext("{*}mirrorOf") or "").split(",")
        url = (mirror.findtext("{*}url") or "").strip()
        if url and not {"*", "central", "external:*"}.isdisjoint(name.strip() for name in mirror_of):
            return url.rstrip("/")
    return MAVEN_CENTRAL


def _exact_jars(version: str, folder: Path, environ: Mapping[str, str]) -> tuple[Jar, ...]:
    """The connector of exactly this version with its companions, or nothing when the repository lacks one of them."""
    absent = folder / "no-exact-connector"
    if absent.exists() and time.time() - absent.stat().st_mtime < _ABSENT_FOR_S:
        return ()
    base = f"org/apache/spark/{_CONNECTOR}/{version}/{_CONNECTOR}-{version}"
    try:
        pom = ElementTree.fromstring(_get(f"{base}.pom", environ, _PROBE_TIMEOUT_S))  # noqa: S314 (Maven Central)
        paths = [f"{base}.jar", *_companion_paths(pom)]
        return tuple(Jar(path, "sha1", _published_sha1(path, environ)) for path in paths)
    except FileNotFoundError:
        absent.touch()
    except (OSError, ElementTree.ParseError, LookupError):
        pass  # no network, or a pom that does not say its versions: the pinned set serves
    return ()


def _companion_paths(pom: ElementTree.Element) -> list[str]:
    paths: dict[str, str] = {}
    for dependency in pom.iterfind("{*}dependencies/{*}dependency"):
        group, artifact, version = (
            (dependency.findtext(f"{{*}}{name}") or "").strip() for name in ("groupId", "artifactId", "version")
        )
        if artifact in _COMPANIONS and dependency.findtext("{*}type", "jar") == "jar":
            if not version or "$" in version:
                raise LookupError(artifact)
            paths[artifact] = f"{group.replace('.', '/')}/{artifact}/{version}/{artifact}-{version}.jar"
    return [paths[artifact] for artifact in _COMPANIONS]


def _published_sha1(path: str, environ: Mapping[str, str]) -> str:
    return _get(f"{path}.sha1", environ, _PROBE_TIMEOUT_S).decode("ascii", "replace").split()[0]


def _ensure(jar: Jar, folder: Path, environ: Mapping[str, str]) -> Path:
    target = folder / jar.name
    if target.exists() and _digest(jar, target.read_bytes()) == jar.digest:
        return target
    fault = ""
    for _ in range(ATTEMPTS):
        try:
            content = _get(jar.path, environ, _READ_TIMEOUT_S)
        except OSError as error:
            fault = str(error)
            continue
        if _digest(jar, content) == jar.digest:
            return _place(content, target)
        fault = f"its {jar.algorithm} is not {jar.digest}"
    raise JarsUnavailable(
        f"cannot download {jar.name} from {repository_url(environ)}: {fault}. Check the network and proxy variables, "
        f"name a mirror in HEADWATER_MAVEN_URL, or put the file into {folder}"
    )


def _place(content: bytes, target: Path) -> Path:
    """Write under a name of its own, then rename: another process never sees half a jar."""
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as part:
        part.write(content)
    Path(part.name).replace(target)
    return target


def _digest(jar: Jar, content: bytes) -> str:
    return hashlib.new(jar.algorithm, content).hexdigest()


def _get(path: str, environ: Mapping[str, str], timeout_s: float) -> bytes:
    """One file of the repository. Raises FileNotFoundError for 404, another OSError for everything else."""
    url = f"{repository_url(environ)}/{path}"
    if not url.startswith(("https://", "http://")):
        raise JarsUnavailable(f"HEADWATER_MAVEN_URL {url!r} is no http or https address")
    bundle = next((environ[name] for name in _CA_VARIABLES if environ.get(name)), None)
    context = ssl.create_default_context(cafile=bundle)
    try:
        with urllib.request.urlopen(url, timeout=timeout_s, context=context) as response:  # noqa: S310 (checked above)
            content: bytes = response.read(_RESPONSE_BYTES_MAX)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            raise FileNotFoundError(url) from None
        raise
    return content
