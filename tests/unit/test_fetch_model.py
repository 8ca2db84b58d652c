"""fetch_model.py for real: a mock of S3 and Secrets Manager, a small hub, real processes, real full disks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import urllib.request
from collections.abc import Generator, Mapping
from pathlib import Path
from random import Random
from typing import Any, cast

import boto3
import pytest
from moto.server import ThreadedMotoServer

from ray_llm_eks.fetch import fetch_model
from tests.loopback import COMMIT, Hub, Proxy, running

MIB = 1 << 20
SCRIPT = Path(fetch_model.__file__)
BUCKET = "models"
URI = f"s3://{BUCKET}/tiny"
NOWHERE = "http://127.0.0.1:9"
"""The discard port: nothing listens there."""

DUMMY_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
REGION = {"AWS_REGION": "us-west-2", "AWS_DEFAULT_REGION": "us-west-2"}
"""Both, as EKS Pod Identity sets them."""
CONFIG = b'{"model_type": "tiny"}'
WEIGHTS = Random(7).randbytes(20 * MIB)


@pytest.fixture(scope="module")
def moto() -> Generator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    boto3.DEFAULT_SESSION = None
    host, port = server.get_host_and_port()
    yield f"{host}:{port}"
    server.stop()


@pytest.fixture
def aws(moto: str, monkeypatch: pytest.MonkeyPatch) -> Generator[Proxy]:
    """S3 and Secrets Manager, empty, in the environment of this process and its children."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "HF_")) or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    with running(Proxy(upstream=moto)) as proxy:
        urllib.request.urlopen(urllib.request.Request(f"http://{moto}/moto-api/reset", method="POST"))
        for name, value in {**DUMMY_CREDENTIALS, **REGION, "AWS_ENDPOINT_URL": proxy.url}.items():
            monkeypatch.setenv(name, value)
        # Credentials of the machine must not get into a test.
        monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        boto3.client("s3").create_bucket(  # pyright: ignore[reportUnknownMemberType]
            Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
        )
        proxy.requests.clear()
        yield proxy


@pytest.fixture
def hub(aws: Proxy, monkeypatch: pytest.MonkeyPatch) -> Generator[Hub]:
    """A hub with one small model, in the environment of child processes."""
    files = {"config.json": CONFIG, "weights/model.safetensors": WEIGHTS[: 3 * MIB], "empty.txt": b""}
    with running(Hub(files=files)) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        yield server


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    """A file system of 10 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=10m", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here (root only)")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def put(objects: Mapping[str, bytes], bucket: str = BUCKET) -> None:
    client = boto3.client("s3")  # pyright: ignore[reportUnknownMemberType]
    for key, body in objects.items():
        client.put_object(Bucket=bucket, Key=key, Body=body)


def files_below(folder: Path) -> dict[str, bytes]:
    """All files, hidden ones too, except the marks and locks of fetch_model."""
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and ".fetch" not in p.parts
    }


def from_s3(cache: Path, uri: str = URI, *more: str) -> int:
    """Runs the program in this process."""
    return fetch_model.main(["--cache", str(cache), "--s3", uri, "--into", str(cache / "models/tiny"), *more])


def s3_arguments(cache: Path) -> list[str]:
    return ["--cache", str(cache), "--s3", URI, "--into", str(cache / "models/tiny")]


def start(*arguments: str, before: str = "", prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Starts the program as a process of its own, as the init container does, or after some statements on it."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    program = [str(SCRIPT)]
    if before:
        text = "import sys\nfrom ray_llm_eks.fetch import fetch_model\n{}\nsys.exit(fetch_model.main(sys.argv[1:]))"
        program = ["-c", text.format(textwrap.dedent(before))]
    return subprocess.Popen(
        [*prefix, sys.executable, *program, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(*arguments: str, before: str = "") -> tuple[int, str]:
    """Runs it to the end; the status and all that it printed."""
    process = start(*arguments, before=before)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


def from_hub(cache: Path, *more: str, model: str = "acme/tiny", before: str = "") -> tuple[int, str]:
    return run("--cache", str(cache), "--hub", model, *more, before=before)


class TestS3:
    def test_files_nested_folders_and_empty_objects(self, aws: Proxy, tmp_path: Path) -> None:
        put({"tiny/config.json": CONFIG, "tiny/a/b/part.bin": b"xyz", "tiny/empty": b"", "tiny/a/": b""})
        put({"tiny2/other": b"not below the prefix"})
        assert from_s3(tmp_path) == 0
        assert files_below(tmp_path) == {
            "models/tiny/config.json": CONFIG,
            "models/tiny/a/b/part.bin": b"xyz",
            "models/tiny/empty": b"",
        }

    def test_a_slash_at_the_end_of_the_prefix_makes_no_difference(self, aws: Proxy, tmp_path: Path) -> None:
        put({"tiny/config.json": CONFIG})
        assert from_s3(tmp_path, URI + "/") == 0
        assert files_below(tmp_path) == {"models/tiny/config.json": CONFIG}

    def test_the_second_start_asks_nothing(
        self, aws: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        put({"tiny/config.json": CONFIG})
        assert from_s3(tmp_path) == 0
        aws.requests.clear()
        for name in DUMMY_CREDENTIALS:
            monkeypatch.delenv(name)
        monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
        assert from_s3(tmp_path, URI, "--token-secret", "hub/token") == 0
        assert aws.requests == []
        assert f"{URI} {tmp_path}/models/tiny is in the cache" in capsys.readouterr().out

    def test_another_prefix_is_another_model(self, aws: Proxy, tmp_path: Path) -> None:
        put({"tiny/config.json": CONFIG, "other/config.json": b"{}"})
        assert from_s3(tmp_path) == 0
        assert from_s3(tmp_path, f"s3://{BUCKET}/other") == 0
        assert files_below(tmp_path) == {"models/tiny/config.json": b"{}"}

    def test_a_deleted_model_is_fetched_again(self, aws: Proxy, tmp_path: Path) -> None:
        put({"tiny/config.json": CONFIG})
        assert from_s3(tmp_path) == 0
        shutil.rmtree(tmp_path / "models")
        assert from_s3(tmp_path) == 0
        assert files_below(tmp_path) == {"models/tiny/config.json": CONFIG}

    def test_two_processes_fetch_once(self, aws: Proxy, tmp_path: Path) -> None:
        put({"tiny/config.json": CONFIG, "tiny/model.safetensors": WEIGHTS})
        aws.requests.clear()
        aws.hold["model.safetensors"] = 9 * MIB
        first = start(*s3_arguments(tmp_path))
        assert aws.holding.wait(30)
        second = start(*s3_arguments(tmp_path))
        assert second.stdout is not None
        assert "another worker is fetching" in second.stdout.readline()
        aws.release.set()
        assert first.wait(30) == 0
        output, _ = second.communicate(timeout=20)
        assert second.returncode == 0
        assert output == f"fetch-model: {URI} {tmp_path}/models/tiny is in the cache\n"
        assert first.stdout is not None
        first.stdout.close()
        assert sorted(r.path for r in aws.requests) == [
            "/models",
            "/models/tiny/config.json",
            "/models/tiny/model.safetensors",
        ]
        assert files_below(tmp_path)["models/tiny/model.safetensors"] == WEIGHTS

    def test_a_broken_connection_is_said_and_the_next_start_goes_on(
        self, aws: Proxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        put({"tiny/model.safetensors": WEIGHTS, "tiny/model.safetensors.index.json": b"{}"})
        aws.cut["model.safetensors"] = 17 * MIB
        assert from_s3(tmp_path) == 1
        output = capsys.readouterr().out
        assert f"FAILED: cannot read {URI}" in output
        assert "complete" not in output
        assert not (tmp_path / "models/tiny/model.safetensors").exists()
        aws.requests.clear()
        assert from_s3(tmp_path) == 0
        assert [r.range for r in aws.got("model.safetensors")] == [f"bytes={17 * MIB}-"]
        assert aws.got("index.json") == []
        assert files_below(tmp_path) == {
            "models/tiny/model.safetensors": WEIGHTS,
            "models/tiny/model.safetensors.index.json": b"{}",
        }

    def test_a_killed_process_gives_up_the_lock_and_its_part_is_continued(self, aws: Proxy, tmp_path: Path) -> None:
        put({"tiny/model.safetensors": WEIGHTS})
        aws.hold["model.safetensors"] = 17 * MIB
        process = start(*s3_arguments(tmp_path))
        assert aws.holding.wait(30)
        part = wait_for_part(tmp_path, 16 * MIB)
        process.kill()
        process.communicate(timeout=20)
        assert part.stat().st_size == 16 * MIB
        aws.requests.clear()
        assert from_s3(tmp_path) == 0
        assert [r.range for r in aws.got("model.safetensors")] == [f"bytes={16 * MIB}-"]
        assert files_below(tmp_path) == {"models/tiny/model.safetensors": WEIGHTS}

    def test_the_first_process_of_a_container_ends_when_told_to(self, aws: Proxy, tmp_path: Path) -> None:
        unshare = ("unshare", "--fork", "--pid", "--kill-child")
        if not shutil.which("unshare") or subprocess.run([*unshare, "true"], capture_output=True).returncode:
            pytest.skip("no process namespace can be made here (root only)")
        put({"tiny/model.safetensors": WEIGHTS})
        aws.hold["model.safetensors"] = 9 * MIB
        process = start(*s3_arguments(tmp_path), prefix=unshare)
        assert aws.holding.wait(30)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGTERM)
        process.communicate(timeout=20)
        assert process.returncode == 128 + signal.SIGTERM

    def test_an_object_that_changed_is_begun_anew_and_no_old_part_stays(self, aws: Proxy, tmp_path: Path) -> None:
        put({"tiny/model.safetensors": WEIGHTS})
        aws.cut["model.safetensors"] = 17 * MIB
        assert from_s3(tmp_path) == 1
        changed = WEIGHTS[::-1]
        put({"tiny/model.safetensors": changed})
        aws.requests.clear()
        assert from_s3(tmp_path) == 0
        assert [r.range for r in aws.got("model.safetensors")] == ["bytes=0-"]
        assert files_below(tmp_path) == {"models/tiny/model.safetensors": changed}

    def test_a_finished_file_whose_object_changed_since_is_fetched_again(
        self, aws: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An upload of the same size between two starts: old and new weights must not be mixed."""
        put({"tiny/1.safetensors": b"old", "tiny/2.safetensors": b"old"})
        aws.status["2.safetensors"] = 403
        assert from_s3(tmp_path) == 1
        assert files_below(tmp_path) == {
            "models/tiny/1.safetensors": b"old",
            **{name: b"" for name in files_below(tmp_path) if name.endswith(".part")},
        }
        finished = tmp_path / "models/tiny/1.safetensors"
        os.utime(finished, (0, finished.stat().st_mtime - 60))
        put({"tiny/1.safetensors": b"new", "tiny/2.safetensors": b"new"})
        assert from_s3(tmp_path) == 0
        assert files_below(tmp_path) == {"models/tiny/1.safetensors": b"new", "models/tiny/2.safetensors": b"new"}

    @pytest.mark.parametrize("key", ["tiny/../../escaped", "tiny//etc/escaped", "tiny/a/../../../escaped"])
    def test_an_object_name_that_leads_out_is_refused(
        self, aws: Proxy, tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str
    ) -> None:
        (tmp_path / "models/tiny").mkdir(parents=True)
        with pytest.raises(fetch_model.FetchError, match="leads out of"):
            fetch_model._inside(tmp_path / "models/tiny", key.removeprefix("tiny/"))  # pyright: ignore
        assert files_below(tmp_path) == {}

    def test_nothing_is_fetched_where_one_name_leads_out(
        self, aws: Proxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        put({"tiny/config.json": CONFIG, "tiny//escaped": b"!"})
        assert from_s3(tmp_path) == 1
        assert "FAILED: the object name '/escaped' leads out of" in capsys.readouterr().out
        assert files_below(tmp_path) == {}

    def test_an_empty_prefix(self, aws: Proxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        put({"tiny2/config.json": CONFIG, "tiny/": b""})
        assert from_s3(tmp_path) == 1
        assert f"FAILED: there is nothing below {URI} (setting serving.model_s3_uri)" in capsys.readouterr().out

    def test_a_missing_bucket(self, aws: Proxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert from_s3(tmp_path, "s3://no-such-bucket/tiny") == 1
        output = capsys.readouterr().out
        assert "FAILED: cannot read s3://no-such-bucket/tiny" in output
        assert "NoSuchBucket" in output

    def test_access_denied(
        self,
        moto: str,
        aws: Proxy,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """With the mock's access control on, for a user who may do nothing."""
        put({"tiny/config.json": CONFIG})
        iam = cast(Any, boto3).client("iam")
        iam.create_user(UserName="nobody")
        key = iam.create_access_key(UserName="nobody")["AccessKey"]
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
        monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
        access_control_after(moto, "0")
        try:
            assert from_s3(tmp_path) == 1
        finally:
            access_control_after(moto, "inf")
        output = capsys.readouterr().out
        assert f"FAILED: cannot read {URI}: " in output
        assert "AccessDenied" in output

    def test_no_credentials(
        self, aws: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name in DUMMY_CREDENTIALS:
            monkeypatch.delenv(name)
        monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        assert from_s3(tmp_path) == 1
        assert "Unable to locate credentials" in capsys.readouterr().out

    def test_s3_without_a_folder(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit, match="2"):
            fetch_model.main(["--cache", str(tmp_path), "--s3", URI])
        assert "--s3 and --into go together" in capsys.readouterr().err


class TestFullDisk:
    def test_said_before_anything_is_fetched(
        self, aws: Proxy, small_disk: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        put({"tiny/model.safetensors": WEIGHTS})
        assert from_s3(small_disk) == 1
        output = capsys.readouterr().out
        assert "FAILED: 0.0 GiB to fetch and 2 GiB to keep free" in output
        assert "make the model cache larger (setting cache.capacity_gib)" in output
        assert aws.got("model.safetensors") == []

    def test_what_is_there_already_needs_no_more_space(
        self, aws: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put({"tiny/model.safetensors": WEIGHTS})
        aws.cut["model.safetensors"] = 17 * MIB
        assert from_s3(tmp_path) == 1

        def usage(_: Path) -> Any:
            return type("Usage", (), {"total": 0, "free": fetch_model.RESERVE + 4 * MIB})

        monkeypatch.setattr(shutil, "disk_usage", usage)
        assert from_s3(tmp_path) == 0

    def test_a_disk_that_others_fill_meanwhile(
        self, aws: Proxy, small_disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        put({"tiny/model.safetensors": WEIGHTS})

        def enough(folder: Path, needed: int) -> None:
            pass

        monkeypatch.setattr(fetch_model, "require_space", enough)
        assert from_s3(small_disk) == 1
        assert f"FAILED: the model cache {small_disk} is full" in capsys.readouterr().out
        assert not (small_disk / "models/tiny/model.safetensors").exists()

    def test_for_the_hub(self, hub: Hub, small_disk: Path) -> None:
        hub.files["weights/model.safetensors"] = WEIGHTS
        status, output = from_hub(small_disk, before="fetch_model.require_space = lambda *_: None")
        assert (status, output.splitlines()[-1]) == (
            1,
            f"fetch-model: FAILED: the model cache {small_disk} is full: make it larger (setting cache.capacity_gib)",
        )

    def test_other_models_in_the_cache_are_no_part_of_this_one(self, hub: Hub, tmp_path: Path) -> None:
        other = tmp_path / "huggingface/hub/models--acme--other/blobs/0123"
        other.parent.mkdir(parents=True)
        other.write_bytes(bytes(8 * MIB))
        free = "fetch_model.shutil.disk_usage = lambda _: type('U', (), {'total': 0, 'free': (2 << 30) + (1 << 20)})"
        status, output = from_hub(tmp_path, before=free)
        assert status == 1
        assert "FAILED: 0.0 GiB to fetch and 2 GiB to keep free" in output
        assert hub.got("model.safetensors") == []


class TestHub:
    def test_found_by_name_without_the_network(self, hub: Hub, tmp_path: Path) -> None:
        """As the engine looks for it: the same HF_HOME, HF_HUB_OFFLINE, and the model's name alone."""
        status, output = from_hub(tmp_path)
        assert status == 0, output
        assert "Traceback" not in output
        look = "from huggingface_hub import snapshot_download; print(snapshot_download('acme/tiny'))"
        environment = {
            **os.environ,
            "HF_HOME": str(tmp_path / "huggingface"),
            "HF_HUB_OFFLINE": "1",
            "HF_ENDPOINT": NOWHERE,
        }
        done = subprocess.run([sys.executable, "-c", look], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        snapshot = Path(done.stdout.strip())
        assert snapshot.name == COMMIT
        assert files_below(snapshot) == hub.files

    def test_the_second_start_asks_nothing(self, hub: Hub, tmp_path: Path) -> None:
        assert from_hub(tmp_path)[0] == 0
        hub.requests.clear()
        assert from_hub(tmp_path, "--token-secret", "no-such-secret") == (
            0,
            "fetch-model: acme/tiny is in the cache\n",
        )
        assert hub.requests == []

    def test_a_deleted_model_is_fetched_again(self, hub: Hub, tmp_path: Path) -> None:
        assert from_hub(tmp_path)[0] == 0
        shutil.rmtree(tmp_path / "huggingface/hub/models--acme--tiny")
        status, output = from_hub(tmp_path)
        assert (status, "complete after" in output) == (0, True)

    def test_a_broken_connection_goes_on_where_it_stopped(self, hub: Hub, tmp_path: Path) -> None:
        hub.files["weights/model.safetensors"] = WEIGHTS
        hub.cut["model.safetensors"] = 15 * MIB
        status, output = from_hub(tmp_path)
        assert status == 0, output
        first, second = (r.range for r in hub.got("model.safetensors"))
        assert first is None
        assert second is not None
        assert 0 < int(second.removeprefix("bytes=").rstrip("-")) <= 15 * MIB
        assert hub.files["weights/model.safetensors"] in files_below(tmp_path).values()

    def test_a_hub_that_fails_in_between_is_said_and_finished_files_are_kept(self, hub: Hub, tmp_path: Path) -> None:
        hub.status["model.safetensors"] = 500
        status, output = from_hub(tmp_path)
        assert (status, "FAILED: cannot fetch acme/tiny from the hub: " in output) == (1, True)
        assert "Traceback" not in output
        assert hub.got("config.json")
        hub.requests.clear()
        status, output = from_hub(tmp_path)
        assert status == 0, output
        assert not hub.got("config.json")
        assert len(hub.got("model.safetensors")) == 1

    def test_a_killed_process_gives_up_the_lock_and_leaves_no_parts(self, hub: Hub, tmp_path: Path) -> None:
        hub.hold["model.safetensors"] = 2 * MIB
        process = start("--cache", str(tmp_path), "--hub", "acme/tiny")
        assert hub.holding.wait(30)
        process.kill()
        process.communicate(timeout=20)
        assert list(tmp_path.rglob("*.incomplete"))
        status, output = from_hub(tmp_path)
        assert status == 0, output
        assert not list(tmp_path.rglob("*.incomplete"))

    def test_a_gated_model(self, hub: Hub, tmp_path: Path) -> None:
        hub.gated = True
        status, output = from_hub(tmp_path)
        assert status == 1
        assert output.endswith(
            "FAILED: acme/tiny is gated: accept its licence on the hub and give a token "
            "(setting serving.hugging_face_token_secret)\n"
        )

    def test_a_missing_model(self, hub: Hub, tmp_path: Path) -> None:
        status, output = from_hub(tmp_path, model="acme/tyni")
        assert status == 1
        assert output.endswith(
            "FAILED: the hub has no model acme/tyni, or only a token may see it (model_source in the Serve config)\n"
        )

    def test_an_unreachable_hub(self, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_ENDPOINT", NOWHERE)
        status, output = from_hub(tmp_path)
        assert status == 1
        assert "FAILED: cannot fetch acme/tiny from the hub: ConnectError" in output
        assert "Traceback" not in output


class TestToken:
    def secret(self, value: str | bytes) -> str:
        client = boto3.client("secretsmanager")  # pyright: ignore[reportUnknownMemberType]
        if isinstance(value, bytes):
            return client.create_secret(Name="hub/token", SecretBinary=value)["ARN"]
        return client.create_secret(Name="hub/token", SecretString=value)["ARN"]

    def test_from_the_secret_to_the_hub(self, hub: Hub, tmp_path: Path) -> None:
        self.secret("hf_abc\n")
        status, output = from_hub(tmp_path, "--token-secret", "hub/token")
        assert status == 0, output
        assert {r.authorization for r in hub.requests} == {"Bearer hf_abc"}
        assert "hf_abc" not in output

    def test_no_secret_no_token(self, hub: Hub, tmp_path: Path) -> None:
        assert from_hub(tmp_path)[0] == 0
        assert {r.authorization for r in hub.requests} == {None}

    def test_an_arn_is_asked_for_in_its_own_region(self, aws: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
        arn = self.secret("hf_abc")
        monkeypatch.setenv("AWS_REGION", "eu-central-1")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
        assert fetch_model.token_from_secret(arn) == "hf_abc"

    def test_a_missing_secret(self, hub: Hub, tmp_path: Path) -> None:
        status, output = from_hub(tmp_path, "--token-secret", "no/such")
        assert status == 1
        assert "FAILED: cannot read the Hugging Face token from secret no/such: " in output
        assert "ResourceNotFoundException" in output
        assert hub.requests == []

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (json.dumps({"HF_TOKEN": "hf_abc"}), r"not key/value pairs \(JSON\)"),
            (b"hf_abc", "not nothing or binary data"),
            (" \n", "not nothing or binary data"),
        ],
        ids=["json", "binary", "blank"],
    )
    def test_a_secret_in_another_form(self, aws: Proxy, value: str | bytes, message: str) -> None:
        """The console's own form for a new secret is key/value pairs; as a header that would only be refused."""
        self.secret(value)
        with pytest.raises(fetch_model.FetchError, match=message):
            fetch_model.token_from_secret("hub/token")


def wait_for_part(folder: Path, size: int) -> Path:
    """The unfinished file, once it has this size."""
    for _ in range(200):
        for part in folder.rglob(".*.part"):
            if part.stat().st_size >= size:
                return part
        threading.Event().wait(0.02)
    raise AssertionError(f"no part of {size} bytes below {folder}")


def access_control_after(moto: str, requests: str) -> None:
    """Turns the mock's access control on after so many requests."""
    body, headers = requests.encode(), {"Content-Type": "text/plain"}
    urllib.request.urlopen(urllib.request.Request(f"http://{moto}/moto-api/reset-auth", body, headers, method="POST"))
