"""Filters that are too long for an address: their long terms are stored as sets, under a name that any page takes."""

import re
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from logs_ui.app.main import create_app
from logs_ui.recorder import FilterError, load_run
from logs_ui.recorder.queries.filters import language as filter_language
from logs_ui.recorder.storage.address import Address, as_text
from logs_ui.recorder.upkeep import prune
from logs_ui.recorder.vocabulary import RunState
from tests.support.factory import make_run_at
from tests.support.postgres import DATABASES, fresh_database

RUN = "main-run-1234"
OURS = {"Origin": "http://127.0.0.1"}
ODD = "id:" + ",".join(str(number) for number in range(1, 8_001, 2))


def site(address: Address, **options: bool | str) -> TestClient:
    app = create_app(address, **options)  # type: ignore[arg-type]
    return TestClient(app, base_url="http://127.0.0.1", headers=OURS, follow_redirects=False)


@pytest.fixture(scope="module", params=DATABASES)
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with fresh_database(request.param, tmp_path_factory.mktemp("sets")) as address:
        make_run_at(address, uid=RUN, steps=2, state=RunState.FINISHED)
        yield address


@pytest.fixture(scope="module")
def client(address: Address) -> Iterator[TestClient]:
    with site(address) as client:
        yield client


def apply(client: TestClient, where: str, page: str = "", **form: str) -> str:
    answer = client.post(f"/runs/{RUN}{page}", data={"where": where, **form})
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


def forget_sets() -> None:
    """As in a process that has just begun."""
    filter_language._sets.clear()
    filter_language._term_of_set.cache_clear()


@pytest.mark.parametrize("place", ["", "/groups"])
def test_a_long_list_becomes_a_set_in_all_addresses(client: TestClient, place: str) -> None:
    address = apply(client, f"{ODD} step:1", place, sort="oldest" if not place else "dead-first")
    assert re.fullmatch(rf"/runs/{RUN}{place}\?where=step:1%20set:[0-9a-f]{{12}}&sort=[a-z-]+", address)
    forget_sets()
    response = client.get(address)
    assert response.status_code == 200
    assert "id: 4,000 values and ranges, set:" in response.text
    assert len(response.text) < 200_000
    assert not re.search(r'(href|value|hx-get)="[^"]{1000}', response.text)


def test_every_page_of_a_set_opens_by_its_address(client: TestClient) -> None:
    name = apply(client, ODD).partition("where=")[2]
    pages = ("/live", "/groups", "/groups/live", "/rollouts/3", "/groups/1", "/compare?a=1&b=3", "/suggestions")
    for page in (*pages, "?view=pivot"):
        forget_sets()
        address = f"/runs/{RUN}{page}{'&' if '?' in page else '?'}where={name}"
        assert client.get(address).status_code in {200, 204}, address


def test_a_set_selects_and_excludes_in_python_too(client: TestClient, address: Address) -> None:
    name, db = apply(client, ODD).partition("where=")[2], as_text(address)
    forget_sets()
    whole = set(load_run(RUN, db, columns=["id"])["id"])
    assert set(load_run(RUN, db, where=name, columns=["id"])["id"]) == {row_id for row_id in whole if row_id % 2}
    forget_sets()
    assert set(load_run(RUN, db, where=f"-{name}", columns=["id"])["id"]) == {
        row_id for row_id in whole if not row_id % 2
    }
    forget_sets()
    assert prune(db, where=name, dry_run=True).rollouts == len([row_id for row_id in whole if row_id % 2])


def test_a_saved_view_keeps_a_set_and_lists_none(client: TestClient) -> None:
    address = apply(client, ODD)
    client.post(f"/runs/{RUN}/views", data={"query": address.partition("?")[2], "name": "odd"})
    menu = client.get(address).text.partition('id="views"')[2].partition("</details>")[0]
    assert re.findall(r'aria-current="true"><bdi>(.*?)</bdi>', menu) == ["odd"]
    assert menu.count("<li>") == 1


def test_neighbours_need_no_set(client: TestClient) -> None:
    assert apply(client, "id:" + ",".join(map(str, range(1, 20_001)))) == f"/runs/{RUN}?where=id:1..20000"
    assert apply(client, "stat:error") == f"/runs/{RUN}?where=stat:error"  # whose page shows the mistake


def test_an_unknown_set_is_one_line(client: TestClient, address: Address) -> None:
    message = (
        "set:0123456789ab: the database has no set '0123456789ab': its run was deleted, or it is of another database."
    )
    response = client.get(f"/runs/{RUN}?where=set:0123456789ab")
    assert (response.status_code, message.replace("'", "&#39;") in response.text) == (422, True)
    with pytest.raises(FilterError, match=message):
        load_run(RUN, as_text(address), where="set:0123456789ab")


def test_what_is_wrong_with_a_long_line_is_short(client: TestClient) -> None:
    for where in (f"{ODD},x", f"{ODD} OR {ODD}", f"{ODD} nothing:1", f"task:{ODD[3:]}"):
        answer = client.post(f"/runs/{RUN}", data={"where": where})
        assert answer.status_code == 422
        assert len(answer.text) < 10_000


def test_a_long_address_is_refused_and_its_line_kept(client: TestClient) -> None:
    for page in ("", "/groups"):
        response = client.get(f"/runs/{RUN}{page}?where={ODD[:12_000]}0")
        assert response.status_code == 422
        assert (
            "this filter has 12,001 characters, and an address at most 8,000: apply it in the filter" in response.text
        )
        assert f'value="{ODD[:12_000]}0"' in response.text
        assert len(response.text) < 150_000


def test_who_cannot_write_notes_is_told_so(client: TestClient, address: Address) -> None:
    with site(address, read_only=True) as reader:
        answer = reader.post(f"/runs/{RUN}", data={"where": ODD})
        assert (answer.status_code, "This dashboard is read-only" in answer.text) == (403, True)
        assert apply(reader, "id:1,3") == f"/runs/{RUN}?where=id:1,3"
        assert reader.get(f"/runs/{RUN}?where={ODD[:6_997]}").status_code == 200


def test_behind_a_proxy_a_long_filter_comes_back_under_its_path(client: TestClient, address: Address) -> None:
    with site(address, prefix="/proxy/7070") as proxied:
        answer = proxied.post(f"/proxy/7070/runs/{RUN}", data={"where": ODD})
        assert answer.headers["location"].startswith(f"/proxy/7070/runs/{RUN}?where=set:")
        assert proxied.get(answer.headers["location"]).status_code == 200
