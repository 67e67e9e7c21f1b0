"""Fetches what the dashboard serves of other people's work, as `app/static/vendor/manifest.json` lists it.

python tests/vendor.py          fetch with npm, refuse anything that differs from the manifest
python tests/vendor.py --pin    after a version or the list of icons changed: write down the new hashes
"""

import argparse
import base64
import hashlib
import json
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

VENDOR = Path(__file__).parent.parent / "app" / "static" / "vendor"
MANIFEST = VENDOR / "manifest.json"
_SHAPES = re.compile(r"<svg[^>]*>(.*)</svg>", re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pin", action="store_true", help="take what npm gives, and write its hashes to the manifest")
    pin = parser.parse_args().pin
    manifest = json.loads(MANIFEST.read_text())
    for package in manifest["packages"]:
        fetch(package, pin=pin)
        print(f"{package['name']} {package['version']}: {len(package['files'])} files")
    if pin:
        MANIFEST.write_text(json.dumps(manifest, indent=2) + "\n")


def fetch(package: dict[str, Any], *, pin: bool) -> None:
    """Puts one package's files in their place."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", f"{package['name']}@{package['version']}"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        (tarball,) = Path(folder).glob("*.tgz")
        digest = base64.b64encode(hashlib.sha512(tarball.read_bytes()).digest()).decode()
        _agree(package, "integrity", f"sha512-{digest}", pin=pin)
        with tarfile.open(tarball) as archive:
            for name, file in package["files"].items():
                data = sprite(archive, file["icons"]) if "icons" in file else member(archive, file["from"])
                _agree(file, "sha256", hashlib.sha256(data).hexdigest(), pin=pin)
                (VENDOR / name).write_bytes(data)


def member(archive: tarfile.TarFile, name: str) -> bytes:
    opened = archive.extractfile(f"package/{name}")
    assert opened, name
    return opened.read()


def sprite(archive: tarfile.TarFile, icons: list[str]) -> bytes:
    """One file of symbols: `<use href="icons.svg#check">` draws one."""
    symbols = []
    for icon in sorted(icons):
        shapes = _SHAPES.search(member(archive, f"icons/{icon}.svg").decode())
        assert shapes, icon
        drawn = re.sub(r"\s+", " ", shapes[1]).replace("> <", "><").replace(" />", "/>").strip()
        symbols.append(f'<symbol id="{icon}" viewBox="0 0 24 24">{drawn}</symbol>')
    lines = "\n".join(symbols)
    return f'<svg xmlns="http://www.w3.org/2000/svg">\n{lines}\n</svg>\n'.encode()


def _agree(entry: dict[str, Any], key: str, found: str, *, pin: bool) -> None:
    if pin:
        entry[key] = found
    elif entry[key] != found:
        raise SystemExit(f"{key} is {found}, but the manifest says {entry[key]}")


if __name__ == "__main__":
    main()
