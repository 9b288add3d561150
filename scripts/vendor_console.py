"""Gets the libraries of the web console through npm, one file each, and writes them beside the console with a manifest.

    python -m scripts.vendor_console            # writes src/anabranch/rest/console/vendor/*
    python -m scripts.vendor_console --tarballs DIR   # from tarballs that `npm pack` made before

npm checks the integrity of what it gets; the hash of each original file is compared with the one below, so a changed
package is refused. Bare import names become relative ones, because a page without inline script has no import map. The
manifest holds version, licence and both hashes; a test compares the files with it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "src" / "anabranch" / "rest" / "console" / "vendor"
IMPORTS = {"preact": "preact.js", "preact/hooks": "hooks.js", "@preact/signals-core": "signals-core.js"}
_IMPORT = re.compile(r"""((?:from|import)\s*)["']([^"'.][^"']*)["']""")
_SOURCE_MAP = re.compile(r"\n?//# sourceMappingURL=\S+\s*$")


@dataclass(frozen=True, slots=True)
class Library:
    name: str  # of the file here
    package: str
    version: str
    licence: str
    path: str  # in the package
    sha256: str  # of the original file


LIBRARIES = (
    Library(
        *("preact.js", "preact", "10.29.8", "MIT", "dist/preact.module.js"),
        "c30e721ebfdc6e2ad4c18c14d2dfb82667829c8aec27de1207774e3fc16858a8",
    ),
    Library(
        *("hooks.js", "preact", "10.29.8", "MIT", "hooks/dist/hooks.module.js"),
        "a6ee626f2d01570592dd569a792e3f050154aa02890eead8c223fa3ed5aa3d5a",
    ),
    Library(
        *("htm.js", "htm", "3.1.1", "Apache-2.0", "dist/htm.module.js"),
        "ab33dd3f38059b9be4d5f5350128eefb2356639c4e0bbe9d9e8b3ba75847e9e4",
    ),
    Library(
        *("signals-core.js", "@preact/signals-core", "1.14.5", "MIT", "dist/signals-core.mjs"),
        "0c80bc127d72ecb1496ef116ffddae75079829a3af01e7f417c8e5a6474c68b6",
    ),
    Library(
        *("signals.js", "@preact/signals", "2.11.4", "MIT", "dist/signals.mjs"),
        "ba8177597f45acaca4d05dcf3966b527d0a8264cfa2b0a87ace92dff324217f8",
    ),
)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def with_relative_imports(text: str) -> str:
    """Raises KeyError for an import of a library that is not here."""
    found = _IMPORT.sub(lambda match: f'{match[1]}"./{IMPORTS[match[2]]}"', text)
    return _SOURCE_MAP.sub("\n", found)


def tarball(library: Library, folder: Path) -> Path:
    path = folder / f"{library.package.lstrip('@').replace('/', '-')}-{library.version}.tgz"
    if not path.exists():
        wanted = f"{library.package}@{library.version}"
        subprocess.run(["npm", "pack", "--silent", wanted], cwd=folder, check=True, timeout=120, stdout=subprocess.PIPE)
    return path


def member(path: Path, name: str) -> bytes:
    with tarfile.open(path) as archive:
        found = archive.extractfile(f"package/{name}")
        assert found is not None, f"{path} has no {name}"
        return found.read()


def vendor(folder: Path) -> None:
    manifest, licences = {}, dict[str, str]()
    FOLDER.mkdir(exist_ok=True)
    for library in LIBRARIES:
        source = tarball(library, folder)
        original = member(source, library.path)
        if sha256(original) != library.sha256:
            raise SystemExit(f"{library.package}@{library.version}: {library.path} is not the file that was reviewed")
        data = with_relative_imports(original.decode()).encode()
        (FOLDER / library.name).write_bytes(data)
        licences[f"{library.package} {library.version}"] = member(source, "LICENSE").decode().strip()
        manifest[library.name] = {
            "package": library.package,
            "version": library.version,
            "licence": library.licence,
            "path": library.path,
            "sha256_original": library.sha256,
            "sha256": sha256(data),
        }
    (FOLDER / "MANIFEST.json").write_text(json.dumps(manifest, indent=2) + "\n")
    texts = [f"{name}\n{'=' * len(name)}\n\n{text}\n" for name, text in licences.items()]
    (FOLDER / "LICENSES.txt").write_text("\n\n".join(texts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tarballs", type=Path, help="directory with tarballs; others are got into it")
    given: Path | None = parser.parse_args().tarballs
    if given is not None:
        vendor(given)
        return
    with tempfile.TemporaryDirectory() as folder:
        vendor(Path(folder))


if __name__ == "__main__":
    main()
