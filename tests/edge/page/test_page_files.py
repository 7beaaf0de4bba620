"""The page holds to its Content-Security-Policy, refers only to itself, and its MQTT client to the standard."""

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from edge.page import PAGE_DIR, page_files


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def elements() -> list[tuple[str, dict[str, str | None]]]:
    parser = Elements()
    parser.feed((PAGE_DIR / "index.html").read_text(encoding="utf-8"))
    return parser.found


def test_every_file_is_served_with_its_type() -> None:
    files = page_files()
    assert set(files) == {"/", "/index.html", "/app.js", "/charts.js", "/mqtt.js", "/style.css", "/icon.svg"}
    assert files["/"][1] == "text/html; charset=utf-8"
    assert all(path.is_file() for path, _ in files.values())
    assert {path.suffix for path, _ in files.values()} >= {".js", ".css", ".svg"}


def test_nothing_is_inline_and_nothing_comes_from_elsewhere() -> None:
    for tag, attributes in elements():
        assert "style" not in attributes, (tag, attributes)
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        assert tag != "style"
        assert tag != "script" or attributes.get("src"), "a script without src is inline"
        for name in ("src", "href"):
            target = attributes.get(name)
            if target and not target.startswith("#"):
                assert "/" + target in page_files(), target
    for name in ("app.js", "charts.js", "mqtt.js", "style.css", "index.html"):
        text = (PAGE_DIR / name).read_text(encoding="utf-8")
        assert not re.search(r"https?://|@import|innerHTML|\beval\b|\.style\.", text), name


def test_every_element_that_the_script_asks_for_is_there() -> None:
    there = {attributes["id"] for _, attributes in elements() if attributes.get("id")}
    script = (PAGE_DIR / "app.js").read_text(encoding="utf-8")
    wanted = set(re.findall(r'(?:\$|text|figure)\("([a-z0-9-]+)"', script))
    assert wanted, "the pattern has lost its meaning"
    assert wanted <= there, wanted - there


def test_fields_have_labels_and_graphics_have_names() -> None:
    parser_text = (PAGE_DIR / "index.html").read_text(encoding="utf-8")
    for tag, attributes in elements():
        if tag in ("input", "select"):
            assert re.search(rf'<label[^>]*>[^<]+<{tag} id="{attributes["id"]}"', parser_text), attributes
        if tag == "canvas":
            assert attributes.get("aria-label") or attributes.get("aria-hidden") == "true", attributes


@pytest.mark.peers("node")
def test_the_mqtt_client_in_javascript() -> None:
    node = shutil.which("node")
    assert node, "the page's own tests need Node.js 18 or later: apt-get install nodejs"
    tests = Path(__file__).with_name("mqtt_client.test.mjs")
    done = subprocess.run(
        [node, "--test", str(tests)],
        env={"PAGE_DIR": str(PAGE_DIR)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
