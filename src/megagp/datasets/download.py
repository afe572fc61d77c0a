"""Files of the collection uci_datasets on GitHub, in the user's cache."""

from __future__ import annotations

from pathlib import Path

import pooch

from megagp.datasets.collection import SHA256

UPSTREAM = "https://raw.githubusercontent.com/treforevans/uci_datasets/master/uci_datasets"
TIMEOUT = 60  # seconds without a byte
GZIP = b"\x1f\x8b"


def address(name: str, part: str) -> str:
    """Where the collection publishes a file."""
    return f"{UPSTREAM}/{name}/{part}"


def cache() -> Path:
    """The user's cache folder for megagp, as the system has it."""
    return Path(pooch.os_cache("megagp"))


def download_part(name: str, part: str) -> Path:
    """A file of a set, from the cache or else from the collection.

    It gets its name in the cache once its sha256 is right, or, of a file whose sum is not known,
    once it is complete and a gzip file at all.
    """
    url, home = address(name, part), cache() / name
    known = SHA256.get(f"{name}/{part}")
    remedy = f"fetch it yourself, save it as <folder>/{name}/{part} and set MEGAGP_DATA=<folder>"
    try:
        found = pooch.retrieve(
            url,
            known_hash=None if known is None else f"sha256:{known}",
            fname=part,
            path=home,
            downloader=pooch.HTTPDownloader(timeout=TIMEOUT),
        )
    except ValueError as error:
        raise ValueError(f"{url}: expected sha256 {known}, got another file; {remedy}") from error
    except OSError as error:
        reason = _cause(error)
        raise OSError(f"{url}: expected a download, got {reason}; {remedy}") from None
    file = Path(found)
    with file.open("rb") as stream:
        start = stream.read(40)
    if not start.startswith(GZIP):
        file.unlink()
        raise ValueError(f"{url}: expected a gzip file, got {start!r}; {remedy}")
    return file


def _cause(error: BaseException) -> str:
    """What requests was told at the bottom: the rest repeats the address."""
    while error.__context__ is not None:
        error = error.__context__
    return " ".join(str(error).split())
