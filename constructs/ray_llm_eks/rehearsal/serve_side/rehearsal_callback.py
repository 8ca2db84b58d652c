"""Ray Serve LLM's engine callback for a rehearsal; and two repairs of this pair of versions, made on import."""

from ray.llm._internal.common.callbacks.base import CallbackBase


class LocalModel(CallbackBase):
    """The model lies on this machine: no task has to fetch it first (two processes less, 40 s on two cores)."""

    async def on_before_node_init(self) -> None:
        """Tells Ray Serve LLM to skip the download."""
        self.ctx.run_init_node = False


def _client_errors_are_value_errors() -> None:
    # Ray 2.58 answers 400 to ValueErrors of vLLM. vLLM 0.26, which is deployed, raises those; vLLM 0.27, which runs
    # here, has a class of its own that Ray would take for a crash (500).
    from vllm import exceptions

    base = getattr(exceptions, "VLLMClientError", None)
    if base is not None and not issubclass(base, ValueError):
        base.__bases__ = (*base.__bases__, ValueError)


def _no_usage_report() -> None:
    # Ray Serve LLM starts an actor for its usage report (250 MB, 5 to 10 s), whatever RAY_USAGE_STATS_ENABLED says.
    from ray.llm._internal.serve.core.server import llm_server

    llm_server.push_telemetry_report_for_all_models = lambda *_args, **_kwargs: None


_client_errors_are_value_errors()
_no_usage_report()
