"""Images in observations: from an environment's answer to the dashboard, and what is hostile in between."""

import base64
import gc
import hashlib
import io
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest
from numpy.typing import NDArray
from PIL import Image
from sqlmodel import Session, func, select
from starlette.testclient import TestClient

from logs_ui.app.main import create_app
from logs_ui.app.web.security import PLAIN_TEXT_POLICY
from logs_ui.recorder import ImageNotFoundError, load_image, load_run, start_run, trace_env
from logs_ui.recorder.capture import observed_images
from logs_ui.recorder.snapshot import snapshot
from logs_ui.recorder.storage import tables
from logs_ui.recorder.storage.changes import StoredImage
from logs_ui.recorder.storage.database import reading_engine, writing_engine

QUESTION = [{"role": "user", "content": "Click the button."}]


def screenshot(shade: int = 0, height: int = 48, width: int = 64, channels: int = 3) -> NDArray[np.uint8]:
    """A page with a gradient, so that no two lines are alike."""
    pixels = np.zeros((height, width, channels), np.uint8)
    pixels[:, :, 0] = np.arange(height)[:, None] + np.arange(width)[None, :]
    pixels[:, :, -1] = 255 - shade
    return pixels


def packed(kind: str, **how: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(screenshot()).save(file, kind, **how)
    return file.getvalue()


def told(value: Any) -> tuple[Any, dict[str, StoredImage]]:
    """An observation as it is stored, and its images by hash."""
    observation, found = observed_images.observed(value)
    if found is None:
        return orjson.loads(observation), {}
    written = found.json(observation)
    return orjson.loads(written), {image.hash: image for image in found.within(written)}


def pixels_of(data: bytes) -> NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(data)))


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_pixels_are_packed_without_loss(channels: int) -> None:
    pixels = screenshot(channels=channels)
    assert (pixels_of(observed_images.png(pixels)) == pixels.squeeze()).all()


EXACT: list[Callable[[NDArray[np.uint8]], Any]] = [
    lambda pixels: pixels,
    lambda pixels: pixels[::-1][::-1],
    lambda pixels: pixels.tolist(),
    Image.fromarray,
    lambda pixels: Image.fromarray(pixels).convert("P", palette=Image.Palette.ADAPTIVE).convert("RGB"),
    observed_images.png,
    lambda pixels: base64.b64encode(observed_images.png(pixels)).decode(),
    lambda pixels: "data:image/png;base64," + base64.b64encode(observed_images.png(pixels)).decode(),
]


@pytest.mark.parametrize("given", EXACT)
def test_an_image_of_any_make_becomes_a_reference_and_a_file(given: Callable[[NDArray[np.uint8]], Any]) -> None:
    seen, stored = told({"text": "a page", "screenshot": given(screenshot()), "n": [1, 2]})
    ((name, image),) = stored.items()
    reference = {"$image": name, "width": 64, "height": 48, "media_type": "image/png"}
    assert seen == {"text": "a page", "screenshot": reference, "n": [1, 2]}
    assert name == hashlib.sha256(image.data).hexdigest()
    assert np.abs(pixels_of(image.data).astype(int) - screenshot()).max() <= 8


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (packed("JPEG"), "image/jpeg"),
        (packed("JPEG", progressive=True), "image/jpeg"),
        (packed("WEBP"), "image/webp"),
        (packed("WEBP", lossless=True), "image/webp"),
        (packed("WEBP", exif=b"Exif\0\0"), "image/webp"),
        (packed("PNG"), "image/png"),
    ],
)
def test_files_are_kept_as_they_are(data: bytes, media_type: str) -> None:
    for value in (data, bytearray(data), base64.b64encode(data).decode()):
        seen, stored = told([value])
        assert (seen[0]["width"], seen[0]["height"], seen[0]["media_type"]) == (64, 48, media_type)
        assert stored[seen[0]["$image"]].data == data


@pytest.mark.parametrize(
    "value",
    [
        "iVBORw0KGgo is how a picture begins, " * 9,
        base64.b64encode(observed_images._PNG + b"no header" * 20).decode(),
        base64.b64encode(b"\xff\xd8\xff" + bytes(90)).decode(),
        base64.b64encode(b"RIFF....WEBP" + b"?" * 80).decode(),
        "data:image/svg+xml;base64," + base64.b64encode(b"<svg onload='alert(1)'/>" * 9).decode(),
        "data:image/png;base64,",
        [[[1, 2, 3]] * 8] * 8,
        [[[1, 2, 300]] * 20] * 20,
        [[[0.5, 0.1, 0.2]] * 20] * 20,
        [[[1, 2, 3]] * 20] * 19 + [[[1, 2, 3]]],
        [[["a", "b", "c"]] * 20] * 20,
        [[[]]], [[]], [],
        {"$image": "0" * 64, "width": 1, "height": 1},
        {"$image": ":0"}, {"$image": 5},
    ],
)  # fmt: skip
def test_what_only_looks_like_an_image_stays_what_it_is(value: Any) -> None:
    assert told({"seen": value}) == ({"seen": value}, {})


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((7, 7, 3), np.uint8),
        np.zeros((20, 20), np.uint8),
        np.zeros((20, 20, 3), np.float32),
        np.arange(6, dtype=np.int64).reshape(2, 3).T,
        np.array(["a", "b"]),
        np.float64(0.5),
        np.int8(3),
        np.array(None),
    ],
)
def test_other_arrays_are_written_as_ever(array: Any) -> None:
    observation, found = observed_images.observed({"a": array})
    assert observation == snapshot({"a": array})
    assert found is None or orjson.loads(found.json(observation)) == orjson.loads(observation)


def test_an_environment_cannot_point_at_an_image_that_it_did_not_send() -> None:
    observation, found = observed_images.observed([screenshot(), {"$image": "x:0"}])
    assert found is not None
    name = orjson.loads(observation)[0]["$image"].partition(":")[0]
    first, second = orjson.loads(found.json(observation))
    assert len(first["$image"]) == 64
    assert second == {"$image": "x:0"}
    assert name not in found.json(observation).decode()


def test_what_is_too_large_is_dropped_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed_images, "MAX_PIXELS", 64 * 48 - 1)
    told_of = {"$image": None, "width": 64, "height": 48, "note": "not kept: it is larger than 16 megapixels"}
    for given in EXACT:
        assert told({"s": given(screenshot())}) == ({"s": told_of}, {})
    monkeypatch.undo()
    monkeypatch.setattr(observed_images, "MAX_BYTES", 50)
    for given in EXACT:
        seen, stored = told({"s": given(screenshot())})
        assert (seen["s"]["note"], stored) == ("not kept: it is larger than 8 MiB", {})


def test_images_in_memory_are_bounded_and_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    before = observed_images._budget.used
    kept = [observed_images.observed(screenshot(shade)) for shade in range(4)]
    for (observation, found), shade in zip(kept, range(4), strict=True):
        assert found is not None
        found.json(observation)
        assert observed_images._budget.used > before, shade
    monkeypatch.setattr(observed_images, "_MEMORY_BYTES", observed_images._budget.used)
    assert told(screenshot())[0]["note"] == "not kept: there were too many at once"
    kept.clear()
    del observation, found
    end = time.monotonic() + 60  # threads of other tests may hold one at this moment
    while observed_images._budget.used != before and time.monotonic() < end:
        gc.collect()
        time.sleep(0.05)
    assert observed_images._budget.used == before


def test_a_snapshot_is_of_the_moment() -> None:
    pixels, picture = screenshot(), Image.fromarray(screenshot())
    observation, found = observed_images.observed([pixels, picture])
    pixels[:] = 0
    picture.paste((0, 0, 0), (0, 0, 64, 48))
    assert found is not None
    for reference in orjson.loads(found.json(observation)):
        assert (pixels_of(found._found[reference["$image"]].data) == screenshot()).all()


class Browser:
    """Shows the same page twice, then another."""

    def __init__(self) -> None:
        self.steps = 0

    def reset(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"url": "http://a", "screenshot": screenshot()}, {}

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        shade = 0 if self.steps == 1 else 90
        return {"url": "http://a", "screenshot": screenshot(shade).tolist()}, 0.5, self.steps == 2, False, {}


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One rollout of two steps, with two different images in three observations."""
    path = tmp_path_factory.mktemp("images") / "a.db"
    env = trace_env(Browser())
    with start_run("clicks", db=path) as run, run.rollout(QUESTION) as row:
        env.reset()
        for action in ("click(1)", "click(2)"):
            row.turn(action)
            env.step(action)
    return path


def observations(db: Path) -> list[Any]:
    return [action["observation"] for action in load_run(db=db).actions[0]]


def test_an_image_is_stored_once_and_read_back(db: Path) -> None:
    seen = [observation["screenshot"] for observation in observations(db)]
    assert seen[0] == seen[1] != seen[2]
    assert [(one["width"], one["height"], one["media_type"]) for one in seen] == [(64, 48, "image/png")] * 3
    assert (pixels_of(load_image(seen[0]["$image"], db)) == screenshot()).all()
    assert (pixels_of(load_image(seen[2]["$image"], db)) == screenshot(90)).all()
    with Session(reading_engine(db)) as session:
        assert session.scalar(select(func.count()).select_from(tables.Image)) == 2
    with pytest.raises(ImageNotFoundError, match="There is no image"):
        load_image("0" * 64, db)


def test_messages_hold_no_pixels(db: Path) -> None:
    (messages,) = load_run(db=db).messages
    assert len(orjson.dumps(messages)) < 2_000


def test_what_an_edit_leaves_out_is_not_stored(tmp_path: Path) -> None:
    def without_screens(row: dict[str, Any]) -> dict[str, Any]:
        for action in row["actions"]:
            action["observation"].pop("screenshot", None)
        return row | {"messages": []}

    path = tmp_path / "b.db"
    env = trace_env(Browser())
    with start_run("clicks", db=path, edit=without_screens) as run, run.rollout(QUESTION):
        env.reset()
    assert observations(path) == [{"url": "http://a"}]
    with Session(reading_engine(path)) as session:
        assert session.scalar(select(func.count()).select_from(tables.Image)) == 0


def test_the_trainers_thread_only_copies() -> None:
    """Encoding a screenshot takes some 25 ms; handing it over, next to nothing."""
    large = screenshot(height=720, width=1280)
    took = []
    for _ in range(5):
        began = time.thread_time()
        observed_images.observed({"screenshot": large})
        took.append(time.thread_time() - began)
    assert min(took) < 0.01


def test_the_dashboard_shows_a_thumbnail_that_opens_large(db: Path) -> None:
    name = observations(db)[0]["screenshot"]["$image"]
    with TestClient(create_app(db), base_url="http://127.0.0.1") as client:
        page = client.get(f"/runs/{load_run(db=db).run[0]}/rollouts/1").text
        assert page.count(f'<img src="/images/{name}"') == 2
        assert f'<a href="/images/{name}" target="_blank" rel="noopener"' in page
        assert 'width="64" height="48"' in page
        answer = client.get(f"/images/{name}")
        missing = client.get("/images/" + "0" * 64), client.get("/images/..%2F..%2Fetc")
    assert (pixels_of(answer.content) == screenshot()).all()
    assert {
        "content-type": "image/png",
        "cache-control": "private, max-age=31536000, immutable",
        "content-security-policy": PLAIN_TEXT_POLICY,
        "x-content-type-options": "nosniff",
        "cross-origin-resource-policy": "same-origin",
    }.items() <= answer.headers.items()
    assert [one.status_code for one in missing] == [404, 404]


def test_a_kind_that_can_hold_scripts_is_never_served(db: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    with writing_engine(copy).begin() as connection:
        row = {"hash": "f" * 64, "media_type": "image/svg+xml", "width": 1, "height": 1, "data": b"<svg/>"}
        connection.execute(tables.Image.__table__.insert(), row)  # type: ignore[attr-defined]
    with TestClient(create_app(copy), base_url="http://127.0.0.1") as client:
        assert client.get("/images/" + "f" * 64).status_code == 404


def test_hostile_references_are_shown_as_text(tmp_path: Path) -> None:
    references: list[dict[str, Any]] = [
        {"$image": '"><script>alert(1)</script>', "width": '"><b>', "height": -1, "note": "<i>"},
        {"$image": None, "width": 10**30, "height": True, "note": {"a": 1}},
        {"$image": ["x"]},
    ]
    path, env = tmp_path / "c.db", trace_env(SimpleNamespace(step=lambda seen: seen))
    with start_run("hostile", db=path) as run:
        for reference in references:
            with run.rollout(QUESTION):
                env.step({"shot": reference, "url": "http://a"})
    with TestClient(create_app(path), base_url="http://127.0.0.1") as client:
        for number in range(1, len(references) + 1):
            page = client.get(f"/runs/{run.id}/rollouts/{number}")
            assert page.status_code == 200
            assert "<img" not in page.text
            assert "<figcaption" in page.text
            assert not any(raw in page.text for raw in ("<script>alert", "<b>", "<i>"))
