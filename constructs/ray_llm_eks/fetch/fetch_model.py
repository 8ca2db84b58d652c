"""Fetches a model's files into the model cache, once, before an engine starts.

Runs as an init container of every worker, in the serving image (Python 3.13 with huggingface_hub and boto3). The first
worker to come takes a lock on the shared file system and fetches; the others wait and then find all there. A broken
download is continued: finished files are kept. An unfinished one from S3 goes on where it stopped; one from the hub
does so while the program runs, and begins anew after a restart, since the hub's client keeps no parts. Delete a model's
folder to have it fetched again. Stands alone: the file is mounted into the container as it is.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import glob
import hashlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

GIB = 1 << 30
QUOTE = '"'
FULL = (errno.ENOSPC, errno.EDQUOT)
RESERVE = 2 * GIB
"""Space to leave free beside the model, for compile caches."""


class FetchError(Exception):
    """What went wrong, in one line for the pod's log."""


def main(argv: list[str] | None = None) -> int:
    """Fetches what the arguments name; returns the exit status."""
    parser = argparse.ArgumentParser(description="Fetches models into the model cache.")
    parser.add_argument("--cache", type=Path, required=True, help="mount path of the model cache")
    parser.add_argument("--hub", action="append", default=[], metavar="ID", help="model id on the Hugging Face Hub")
    parser.add_argument("--s3", metavar="URI", help="S3 prefix of a model's files")
    parser.add_argument("--into", type=Path, help="folder for the files of --s3")
    parser.add_argument("--token-secret", metavar="ID", help="Secrets Manager secret with a Hugging Face token")
    args = parser.parse_args(argv)
    if bool(args.s3) != bool(args.into):
        parser.error("--s3 and --into go together")
    try:
        hub = Path(os.environ.setdefault("HF_HOME", str(args.cache / "huggingface"))) / "hub"
        for model in args.hub:
            with once(args.cache, model, hub / f"models--{model.replace('/', '--')}") as needed:
                if needed:
                    fetch_from_hub(model, hub, token_from_secret(args.token_secret))
        if args.s3:
            with once(args.cache, f"{args.s3} {args.into}", args.into) as needed:
                if needed:
                    fetch_from_s3(args.s3, args.into)
    except FetchError as error:
        say(f"FAILED: {error}")
        return 1
    except OSError as error:
        if error.errno not in FULL:
            raise
        say(f"FAILED: the model cache {args.cache} is full: make it larger (setting cache.capacity_gib)")
        return 1
    return 0


def say(text: str) -> None:
    """Prints a line at once, for kubectl logs."""
    print(f"fetch-model: {text}", flush=True)


@contextlib.contextmanager
def once(cache: Path, what: str, folder: Path) -> Generator[bool, None, None]:
    """Holds the lock for a model; gives True if it is still to be fetched, and marks it as complete at the end.

    A model whose folder was deleted is fetched again, whatever the mark says.
    """
    state = cache / ".fetch"
    state.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(what.encode()).hexdigest()[:16]
    done = state / f"{name}.done"
    with (state / f"{name}.lock").open("a") as lock:
        _wait_for(lock.fileno(), what)
        if done.exists() and folder.is_dir():
            say(f"{what} is in the cache")
            yield False
            return
        start = time.monotonic()
        say(f"fetching {what}")
        yield True
        done.write_text(what + "\n")
        say(f"{what} complete after {time.monotonic() - start:.0f} s")


def _wait_for(lock: int, what: str) -> None:
    said = 0.0
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() - said > 60:
                say(f"another worker is fetching {what}; waiting")
                said = time.monotonic()
            time.sleep(1)


def require_space(folder: Path, needed: int) -> None:
    """Fails early, with both numbers, where a model cannot fit."""
    usage = shutil.disk_usage(folder)
    if needed + RESERVE > usage.free:
        raise FetchError(
            f"{needed / GIB:.1f} GiB to fetch and {RESERVE / GIB:.0f} GiB to keep free, but {folder} has "
            f"{usage.free / GIB:.1f} of {usage.total / GIB:.1f} GiB left: "
            "make the model cache larger (setting cache.capacity_gib) or remove models from it"
        )


def token_from_secret(secret: str | None) -> str | None:
    """The Hugging Face token from Secrets Manager, or None without a secret."""
    if secret is None:
        return None
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        region = secret.split(":")[3] if secret.startswith("arn:") else None
        client = boto3.client("secretsmanager", region_name=region)  # pyright: ignore[reportUnknownMemberType]
        value = client.get_secret_value(SecretId=secret).get("SecretString", "").strip()
    except (BotoCoreError, ClientError) as error:
        raise FetchError(
            f"cannot read the Hugging Face token from secret {secret}: {error} "
            "(setting serving.hugging_face_token_secret)"
        ) from None
    if not value or value.startswith("{"):
        raise FetchError(
            f"secret {secret} must hold the Hugging Face token itself as plain text, not "
            f"{'key/value pairs (JSON)' if value else 'nothing or binary data'} "
            "(setting serving.hugging_face_token_secret)"
        )
    return value


def fetch_from_hub(model: str, hub: Path, token: str | None) -> None:
    """Fetches a model's main branch into the hub cache, where vLLM looks for it offline."""
    from huggingface_hub import HfApi, snapshot_download  # pyright: ignore[reportUnknownVariableType]
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    blobs = hub / f"models--{model.replace('/', '--')}" / "blobs"
    # Parts of a killed process: nothing continues them. The lock is held, so none is being written.
    for part in blobs.glob("*.incomplete"):
        part.unlink(missing_ok=True)
    hub.mkdir(parents=True, exist_ok=True)
    try:
        files = HfApi(token=token).model_info(model, files_metadata=True).siblings or ()
        names = [(file.size or 0, file.lfs.sha256 if file.lfs else str(file.blob_id)) for file in files]
        require_space(hub, sum(size for size, name in names if not (blobs / name).exists()))
        # No revision: by a commit's hash the client would record no branch, and nothing be found by the model's name.
        snapshot_download(model, cache_dir=hub, token=token, max_workers=8)
    except FetchError:
        raise
    except GatedRepoError:
        raise FetchError(
            f"{model} is gated: accept its licence on the hub and give a token "
            "(setting serving.hugging_face_token_secret)"
        ) from None
    except RepositoryNotFoundError:
        raise FetchError(
            f"the hub has no model {model}, or only a token may see it (model_source in the Serve config)"
        ) from None
    except Exception as error:
        # The client lets errors of its HTTP library and of its Xet transport through; neither has a stable name.
        if isinstance(error, OSError) and error.errno in FULL:
            raise
        raise FetchError(f"cannot fetch {model} from the hub: {type(error).__name__}: {error}") from None


@dataclass(frozen=True)
class _Object:
    key: str
    size: int
    etag: str
    modified: int
    target: Path

    @property
    def part(self) -> Path:
        """The unfinished file; its name holds the ETag, so that a changed object is begun anew."""
        return self.target.with_name(f".{self.target.name}.{self.etag.strip(QUOTE)}.part")

    @property
    def finished(self) -> bool:
        """Whether the file is there, of this size and with the object's own time: another upload has another time."""
        if not self.target.is_file():
            return False
        there = self.target.stat()
        return (there.st_size, int(there.st_mtime)) == (self.size, self.modified)


def fetch_from_s3(uri: str, into: Path) -> None:
    """Copies all objects below an S3 prefix, eight at a time, each continued where it was broken off."""
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    prefix = prefix.rstrip("/") + "/"
    try:
        s3 = boto3.client("s3")  # pyright: ignore[reportUnknownMemberType]
        objects = _objects(s3, bucket, prefix, into)
        if not objects:
            raise FetchError(f"there is nothing below {uri} (setting serving.model_s3_uri)")
        into.mkdir(parents=True, exist_ok=True)
        missing = [o for o in objects if not o.finished]
        require_space(into, sum(o.size - (o.part.stat().st_size if o.part.exists() else 0) for o in missing))
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(partial(_copy, s3, bucket), missing))
    except (BotoCoreError, ClientError) as error:
        raise FetchError(f"cannot read {uri}: {error} (setting serving.model_s3_uri)") from None


def _objects(s3: S3Client, bucket: str, prefix: str, into: Path) -> list[_Object]:
    return [
        _Object(
            key=key,
            size=item.get("Size", 0),
            etag=item.get("ETag", ""),
            modified=int(item["LastModified"].timestamp()) if "LastModified" in item else 0,
            target=_inside(into, key.removeprefix(prefix)),
        )
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        for item in page.get("Contents", ())
        if (key := item.get("Key", "/")) and not key.endswith("/")
    ]


def _inside(folder: Path, name: str) -> Path:
    target = folder / name
    if not target.resolve().is_relative_to(folder.resolve()):
        raise FetchError(f"the object name {name!r} leads out of {folder}")
    return target


def _copy(s3: S3Client, bucket: str, source: _Object) -> None:
    part = source.part
    part.parent.mkdir(parents=True, exist_ok=True)
    start, end = f".{source.target.name}.", ".part"
    for old in part.parent.glob(f"{glob.escape(start)}*{end}"):
        # An ETag has no dot: the parts of NAME.json are not those of NAME.
        if old != part and "." not in old.name[len(start) : -len(end)]:
            old.unlink()
    with part.open("ab") as file:
        if (have := file.tell()) < source.size:
            body = s3.get_object(Bucket=bucket, Key=source.key, IfMatch=source.etag, Range=f"bytes={have}-")["Body"]
            shutil.copyfileobj(body, file, 8 << 20)
    if part.stat().st_size != source.size:
        raise FetchError(f"s3://{bucket}/{source.key} ended early; the next start continues it")
    os.utime(part, (source.modified, source.modified))
    part.replace(source.target)


def _stop(*_: object) -> None:
    # No waiting for the downloads under way: the next start continues them.
    os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    # As a container's first process it would ignore the signal otherwise, and hold up its pod's end.
    signal.signal(signal.SIGTERM, _stop)
    sys.exit(main())
