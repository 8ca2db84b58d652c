"""The deployed Serve config, running on this machine: prefill and decode as two engines with a real KV transfer.

Nothing here imports Ray or vLLM: they live in an environment of their own (``requirements-serve.txt``), and what has to
run there lies in ``serve_side``.
"""
