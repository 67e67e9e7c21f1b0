"""Answers as browsers and proxies get them: compressed, for HEAD, and for the icon that browsers look for."""

import re
from pathlib import Path

from fastapi.testclient import TestClient
from sqlalchemy import Engine

from tests.support import site
from tests.support.dashboard import dashboard, fragment
from tests.support.factory import make_run

UID = "20260101-100000-abcd"
OURS = {"Sec-Fetch-Site": "same-origin"}


def fill(engine: Engine) -> None:
    make_run(engine, uid=UID, steps=3)


def test_pages_are_compressed_for_browsers_that_can_and_for_no_other(client: TestClient) -> None:
    plain = client.get(f"/runs/{UID}", headers={"Accept-Encoding": "identity"})
    small = client.get(f"/runs/{UID}", headers={"Accept-Encoding": "gzip"})
    assert small.headers["content-encoding"] == "gzip"
    assert int(small.headers["content-length"]) < len(plain.content) / 3
    assert len(small.text) == len(plain.text)
    assert "content-encoding" not in plain.headers
    assert "Accept-Encoding" in small.headers["vary"]
    assert "HX-Target" in small.headers["vary"]
    assert "content-security-policy" in small.headers


def test_a_fragment_is_compressed_and_a_poll_without_news_has_no_body(client: TestClient) -> None:
    headers = fragment("listed") | {"Accept-Encoding": "gzip"}
    assert client.get("/", headers=headers).headers["content-encoding"] == "gzip"
    page = client.get("/", headers={**headers, "HX-Target": "div#runs"}).text
    assert 'id="runs"' in page


def test_an_exported_file_comes_with_its_size_and_uncompressed(client: TestClient) -> None:
    begun = client.post(f"/runs/{UID}/exports?format=csv", headers=OURS, follow_redirects=False).headers["location"]
    address, _, query = begun.partition("?")
    assert address.endswith("/file"), "a small file is waited for"
    file = client.get(f"{address}?{query}", headers={"Accept-Encoding": "gzip"})
    assert file.headers["content-encoding"] == "identity"
    assert int(file.headers["content-length"]) == len(file.content) > 1_000


def test_every_page_answers_head_like_get(client: TestClient, path: Path) -> None:
    for name, address in site.pages(path).items():
        head = client.head(address)
        assert (head.status_code, head.headers["content-type"]) == (200, "text/html; charset=utf-8"), name
    for address in ("/favicon.ico", "/healthz", "/no-such-page"):
        got, head = client.get(address), client.head(address)
        assert (head.status_code, head.headers["content-type"]) == (got.status_code, got.headers["content-type"])


def test_browsers_find_the_icon(client: TestClient, path: Path) -> None:
    assert client.get("/favicon.ico").headers["content-type"].startswith("image/svg+xml")
    with dashboard(path, token=UID) as locked:
        assert locked.get("/favicon.ico").status_code == 200


def test_htmx_begins_once_our_script_has_run(client: TestClient) -> None:
    """What is not deferred waits for what is: app.js gives htmx the type that the page's policy asks for."""
    scripts = re.findall(r'<script src="[^"]*?([\w.]+\.js)[^"]*"( defer)?>', client.get("/").text)
    assert [it for it in scripts if it[0] in {"htmx.min.js", "app.js"}] == [("htmx.min.js", ""), ("app.js", " defer")]
