"""Fetches a model's files into the model cache, once, before an engine starts.

Runs as an init container of every worker, in the serving image (Python 3.13 with huggingface_hub and boto3). The first
worker to come takes a lock on the shared file system and fetches; the others wait and then find all there. A broken
download is continued: finished files are kept, an unfinished one goes on where it stopped. Stands alone: the file is
mounted into the container as it is.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import hashlib
import shutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

GIB = 1 << 30
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
    try:
        for model in args.hub:
            with once(args.cache, model) as needed:
                if needed:
                    fetch_from_hub(model, args.cache, token_from_secret(args.token_secret))
        if args.s3:
            with once(args.cache, f"{args.s3} {args.into}") as needed:
                if needed:
                    fetch_from_s3(args.s3, args.into)
    except FetchError as error:
        say(f"FAILED: {error}")
        return 1
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        say(f"FAILED: the model cache {args.cache} is full: make it larger (setting cache.capacity_gib)")
        return 1
    return 0


def say(text: str) -> None:
    """Prints a line at once, for kubectl logs."""
    print(f"fetch-model: {text}", flush=True)


@contextlib.contextmanager
def once(cache: Path, what: str) -> Iterator[bool]:
    """Holds the lock for a model; gives True if it is still to be fetched, and marks it as complete at the end."""
    state = cache / ".fetch"
    state.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(what.encode()).hexdigest()[:16]
    done = state / f"{name}.done"
    with (state / f"{name}.lock").open("a") as lock:
        _wait_for(lock.fileno(), what)
        if done.exists():
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
        value: str = boto3.client("secretsmanager").get_secret_value(SecretId=secret)["SecretString"]
    except (BotoCoreError, ClientError, KeyError) as error:
        raise FetchError(
            f"cannot read the Hugging Face token from secret {secret}: {error} "
            "(setting serving.hugging_face_token_secret)"
        ) from None
    return value.strip()


def fetch_from_hub(model: str, cache: Path, token: str | None) -> None:
    """Fetches a model into the hub cache below HF_HOME, where vLLM looks for it."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    try:
        info = HfApi(token=token).model_info(model, files_metadata=True)
        missing = sum(file.size or 0 for file in info.siblings or ()) - _bytes_below(cache / "huggingface")
        require_space(cache, max(0, missing))
        snapshot_download(model, revision=info.sha, token=token, max_workers=8)
    except GatedRepoError:
        raise FetchError(
            f"{model} is gated: accept its licence on the hub and give a token "
            "(setting serving.hugging_face_token_secret)"
        ) from None
    except RepositoryNotFoundError:
        raise FetchError(
            f"the hub has no model {model}, or only a token may see it (model_source in the Serve config)"
        ) from None
    except HfHubHTTPError as error:
        raise FetchError(f"the hub refused {model}: {error}") from None


def _bytes_below(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink())


def fetch_from_s3(uri: str, into: Path) -> None:
    """Copies all objects below an S3 prefix, eight at a time, each continued where it was broken off."""
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    prefix = prefix.rstrip("/") + "/"
    s3: Any = boto3.client("s3")
    try:
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        objects = [o for page in pages for o in page.get("Contents", ()) if not o["Key"].endswith("/")]
        if not objects:
            raise FetchError(f"there is nothing below {uri} (setting serving.model_s3_uri)")
        into.mkdir(parents=True, exist_ok=True)
        targets = [(o, _inside(into, o["Key"].removeprefix(prefix))) for o in objects]
        todo = [(o, t) for o, t in targets if not (t.exists() and t.stat().st_size == o["Size"])]
        require_space(into, sum(o["Size"] for o, _ in todo))
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda item: _copy(s3, bucket, *item), todo))
    except (BotoCoreError, ClientError) as error:
        raise FetchError(f"cannot read {uri}: {error} (setting serving.model_s3_uri)") from None


def _inside(folder: Path, name: str) -> Path:
    target = folder / name
    if not target.resolve().is_relative_to(folder.resolve()):
        raise FetchError(f"the object name {name!r} leads out of {folder}")
    return target


def _copy(s3: Any, bucket: str, source: dict[str, Any], target: Path) -> None:
    # The name of the unfinished file holds the object's ETag: a changed object is begun anew.
    etag = source["ETag"].strip('"')
    part = target.with_name(f".{target.name}.{etag}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    have = part.stat().st_size if part.exists() else 0
    if have < source["Size"] or not part.exists():
        extra = {"Range": f"bytes={have}-"} if have else {}
        body = s3.get_object(Bucket=bucket, Key=source["Key"], IfMatch=source["ETag"], **extra)["Body"]
        with part.open("ab") as file:
            shutil.copyfileobj(body, file, 8 << 20)
    if part.stat().st_size != source["Size"]:
        raise FetchError(f"s3://{bucket}/{source['Key']} ended early; the next start continues it")
    part.replace(target)


if __name__ == "__main__":
    sys.exit(main())
