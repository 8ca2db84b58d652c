"""Estimates the GPU memory of a vLLM engine: what is taken, what is left for the KV cache, how many requests fit.

It follows vLLM 0.26's own accounting (``gpu_worker.determine_available_memory``, ``kv_cache_utils``, hybrid block sizes
in ``platforms/interface.py``): the cache gets what ``gpu_memory_utilization`` allows less weights, the peak of one
profiling run, memory outside torch, and CUDA graphs.

Calibration: engines of Qwen3.5-9B and Qwen3-8B on one H200 (``docs/measured.md``); every part is within 10 % of what
vLLM reported (``tests/unit/test_measured_memory.py``). Not measured: several GPUs, LoRA, experts, the vision tower's
own activations, quantized weights.

A first start, with an empty compile cache, peaks higher than all later ones: while torch.compile works it holds one
more copy of the token embedding, vLLM takes that for activations, and the cache gets so much less (``first_start``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .model_facts import ModelFacts

MIB = 1 << 20
GIB = 1 << 30

USABLE = 0.985
"""Share of a GPU's listed memory that CUDA can hand out: 22.03 GiB of an L4's 22,888 MiB; the driver keeps the rest."""

DEFAULT_UTILIZATION = 0.92
"""vLLM 0.26's default ``gpu_memory_utilization``."""
DEFAULT_BLOCK_SIZE = 16

NON_TORCH = int(0.23 * GIB)
"""Measured on an H200 (0.225 to 0.236): CUDA context, cuBLAS and kernel modules that torch does not count."""
COLLECTIVES = int(0.4 * GIB)
"""NCCL and all-reduce buffers of an engine on several GPUs. Not measured."""

LARGE_GPU = 70 * GIB
"""From here on (A100 aside) vLLM takes 8,192 tokens and 1,024 sequences a batch by default, below 2,048 and 256."""

SAMPLER_BYTES = 14
"""Bytes of logits a sequence and vocabulary entry: bf16, float32, probabilities, random numbers (vLLM's sampler)."""
SAMPLER_PROGRAMS = 132
"""Rows of the top-k/top-p kernel's scratch buffer: one a multiprocessor (132 on an H200, 58 on an L4)."""
MATMUL_WORKSPACE = 32 * MIB
"""What torch keeps for cuBLAS on Hopper, once, and twice for a compiled model; 8 MiB on other GPUs."""
GRAPH_BYTES = int(6.2 * MIB)
"""A captured CUDA graph beside the pool that graphs share: 88 MiB for 14 of them, 240 MiB for 38."""
VISION_TOKENS = 16384
"""Patches of the largest image that vLLM profiles the vision tower with."""

WEIGHT_BYTES = {
    "fp8": 1.0,
    "fbgemm_fp8": 1.0,
    "compressed-tensors-fp8": 1.0,
    "modelopt": 1.0,
    "fp8_per_tensor": 1.0,
    "fp8_per_block": 1.01,
    "int8_per_channel_weight_only": 1.0,
    "gptq-int8": 1.04,
    "awq-int8": 1.04,
    "experts_int8": 1.0,
    "bitsandbytes": 0.53,
    "awq": 0.53,
    "awq_marlin": 0.53,
    "gptq": 0.53,
    "gptq_marlin": 0.53,
    "compressed-tensors-w4a16": 0.53,
    "auto-round": 0.53,
    "inc": 0.53,
    "gguf": 0.60,
    "modelopt_fp4": 0.57,
    "petit_nvfp4": 0.57,
    "mxfp4": 0.54,
}
"""Bytes a weight by quantization method, with scales (4 bit in groups of 128: 0.5 + 2.5/128); bf16 is 2."""


@dataclass(frozen=True, kw_only=True)
class EngineSize:
    """The engine arguments that change how much memory an engine takes; None where the engine decides."""

    utilization: float = DEFAULT_UTILIZATION
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    quantization: str | None = None
    dtype_bytes: int = 2
    kv_cache_dtype: str = "auto"
    block_size: int = DEFAULT_BLOCK_SIZE
    state_bytes: int = 4
    """Bytes an element of the recurrent state (``mamba_ssm_cache_dtype``); Qwen3.5 keeps it in float32."""
    language_model_only: bool = False
    enforce_eager: bool = False
    prefix_caching: bool = False
    speculative_tokens: int = 0
    loras: int = 0
    lora_rank: int = 16
    kv_cache_memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Memory of one GPU of an engine, in bytes."""

    budget: int
    """What the engine may take: usable memory times ``gpu_memory_utilization``."""
    weights: int
    vision: int
    lora: int
    activations: int
    first_start: int
    """Activations as vLLM counts them when the compile cache is empty."""
    non_torch: int
    cuda_graphs: int
    cache: int
    """What is left for the KV cache and recurrent state; negative if nothing is."""
    block_bytes: int
    block_tokens: int
    blocks_per_request: int
    state_per_request: int
    """Recurrent state of one request, 0 for a dense model."""
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    kv_bytes_per_token: int

    @property
    def blocks(self) -> int:
        """Cache blocks there are room for."""
        return max(self.cache, 0) // self.block_bytes

    @property
    def request_bytes(self) -> int:
        """Cache of one request of ``max_model_len`` tokens."""
        return self.blocks_per_request * self.block_bytes

    @property
    def requests(self) -> float:
        """Requests of ``max_model_len`` tokens that fit at once."""
        return self.blocks / self.blocks_per_request

    @property
    def cache_tokens(self) -> int:
        """Tokens that fit, as vLLM prints them: requests times ``max_model_len``."""
        return int(self.requests * self.max_model_len)

    @property
    def longest_request(self) -> int:
        """Longest single request that would fit, in tokens, in whole blocks; 0 if none."""
        attention = (self.blocks_per_request - self._state_blocks) or 1
        per_block = math.ceil(self.max_model_len / attention / self.block_tokens) or 1
        return max(self.blocks - self._state_blocks, 0) // per_block * self.block_tokens

    @property
    def first_start_cache(self) -> int:
        """What is left for the cache on a first start, with an empty compile cache; negative if nothing is."""
        return self.cache - (self.first_start - self.activations)

    @property
    def first_start_requests(self) -> float:
        """Requests of ``max_model_len`` tokens that fit at once after a first start."""
        return max(self.first_start_cache, 0) // self.block_bytes / self.blocks_per_request

    @property
    def _state_blocks(self) -> int:
        return -(-self.state_per_request // self.block_bytes) if self.state_per_request else 0

    def parts(self) -> list[tuple[str, int]]:
        """What takes memory, largest first as vLLM loads it; parts of no size are left out."""
        named = [
            ("weights", self.weights),
            ("vision tower", self.vision),
            ("LoRA", self.lora),
            ("activations", self.activations),
            ("outside torch", self.non_torch),
            ("CUDA graphs", self.cuda_graphs),
        ]
        return [(name, size) for name, size in named if size]

    def text(self) -> str:
        """One line: the budget, its parts and what fits."""
        parts = " + ".join(f"{gib(size)} {name}" for name, size in self.parts())
        state = f", {mib(self.state_per_request)} of it recurrent state" if self.state_per_request else ""
        first = ""
        if self.first_start > self.activations:
            first = f", {self.first_start_requests:.1f} after a first start (compile cache empty)"
        return (
            f"{gib(self.budget)} GiB = {parts} + {gib(self.cache)} cache; a request of {self.max_model_len} tokens "
            "takes "
            f"{mib(self.request_bytes)}{state}; {self.requests:.1f} fit{first}"
        )


def gib(size: int) -> str:
    """Bytes as GiB with two decimals, without the unit."""
    return f"{size / GIB:.2f}"


def mib(size: int) -> str:
    """Bytes in MiB, or GiB from one GiB on, with the unit."""
    return f"{size / GIB:.2f} GiB" if size >= GIB else f"{size / MIB:.0f} MiB"


def estimate(model: ModelFacts, engine: EngineSize, *, gpu_memory_mib: int, a100: bool = False) -> MemoryEstimate:
    """Estimates one GPU of an engine.

    Args:
        model: the model's shape.
        engine: the engine arguments.
        gpu_memory_mib: memory of one GPU as EC2 lists it.
        a100: vLLM takes the smaller default batch on an A100, whatever its memory.
    """
    usable = int(gpu_memory_mib * MIB * USABLE)
    batch_tokens, sequences = _batch(engine, large=usable >= LARGE_GPU and not a100)
    length = engine.max_model_len or model.max_positions or batch_tokens
    weights = _weights(model, engine)
    vision = 0 if engine.language_model_only or model.vision is None else model.vision.parameters * engine.dtype_bytes
    lora = _lora(model, engine)
    activations = _activations(model, engine, batch_tokens, min(sequences, batch_tokens))
    compiling = 0 if engine.enforce_eager else _compiling(model, engine, batch_tokens)
    non_torch = NON_TORCH + (COLLECTIVES if engine.tensor_parallel * engine.pipeline_parallel > 1 else 0)
    graphs = 0 if engine.enforce_eager else _cuda_graphs(model, engine, sequences)
    budget = int(usable * engine.utilization)
    cache = budget - weights - vision - lora - activations - non_torch - graphs
    blocks = _blocks(model, engine, length)
    return MemoryEstimate(
        budget=budget,
        weights=weights,
        vision=vision,
        lora=lora,
        activations=activations,
        first_start=activations if engine.kv_cache_memory_bytes is not None else max(activations, compiling),
        non_torch=non_torch,
        cuda_graphs=graphs,
        cache=cache if engine.kv_cache_memory_bytes is None else engine.kv_cache_memory_bytes,
        block_bytes=blocks.bytes,
        block_tokens=blocks.tokens,
        blocks_per_request=blocks.per_request,
        state_per_request=blocks.state_per_request,
        max_model_len=length,
        max_num_batched_tokens=batch_tokens,
        max_num_seqs=sequences,
        kv_bytes_per_token=_kv_bytes_per_token(model, engine),
    )


def _batch(engine: EngineSize, *, large: bool) -> tuple[int, int]:
    tokens = engine.max_num_batched_tokens or (8192 if large else 2048)
    return tokens, engine.max_num_seqs or (1024 if large else 256)


def _weights(model: ModelFacts, engine: EngineSize) -> int:
    gpus = engine.tensor_parallel * engine.pipeline_parallel
    method = engine.quantization or model.quantization
    per_weight = WEIGHT_BYTES.get(method, 2.0) if method else float(engine.dtype_bytes)
    embedding = model.embedding_parameters * engine.dtype_bytes
    norms = (2 * model.layers + 1) * model.hidden * engine.dtype_bytes
    # The first and the last stage of a pipeline each hold one half of the embeddings, so a stage has at most that.
    stages = 2 if engine.pipeline_parallel > 1 and not model.tied_embeddings else 1
    matrices = int(model.matrix_parameters * per_weight / gpus + embedding / stages / engine.tensor_parallel)
    return matrices + norms + model.rotary_elements * engine.dtype_bytes


def _lora(model: ModelFacts, engine: EngineSize) -> int:
    if not engine.loras:
        return 0
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    attention = 3 * model.hidden + (2 if model.gated_attention else 1) * queries + 2 * keys + queries + model.hidden
    ffn = 3 * (model.hidden + model.ffn)
    widths = (model.layers - model.linear_layers) * attention + model.layers * ffn
    if model.linear:
        linear = 2 * model.hidden + 2 * model.linear.key_width + 3 * model.linear.value_width + model.hidden
        widths += model.linear_layers * linear
    return engine.loras * engine.lora_rank * widths * engine.dtype_bytes // engine.tensor_parallel


def _activations(model: ModelFacts, engine: EngineSize, tokens: int, sequences: int) -> int:
    """Peak of vLLM's profiling run: a forward pass of a full batch, then one sampling step; hidden states stay."""
    held = 2 * tokens * model.hidden * engine.dtype_bytes
    workspace = MATMUL_WORKSPACE * (1 if engine.enforce_eager else 2)
    forward = tokens * _forward_bytes_per_token(model, engine) + workspace
    sampler = (sequences * SAMPLER_BYTES + SAMPLER_PROGRAMS * 4) * model.vocabulary
    vision = 0
    if model.vision and not engine.language_model_only:
        widest = 4 * model.vision.hidden + max(3 * model.vision.hidden, model.vision.ffn)
        vision = VISION_TOKENS * widest * engine.dtype_bytes
    return held + max(forward, sampler, vision)


def _compiling(model: ModelFacts, engine: EngineSize, tokens: int) -> int:
    """Peak of a profiling run that compiles: a copy of the token embedding, hidden states, workspace."""
    workspace = MATMUL_WORKSPACE * (2 if model.hybrid else 1)
    embedding = model.vocabulary * model.hidden * engine.dtype_bytes // engine.tensor_parallel
    return embedding + 2 * tokens * model.hidden * engine.dtype_bytes + workspace


def _forward_bytes_per_token(model: ModelFacts, engine: EngineSize) -> int:
    """Bytes a token of the widest layer: inputs and outputs of its matrices that live at the same time."""
    size, gpus = engine.dtype_bytes, engine.tensor_parallel
    active_ffn = model.ffn
    if model.experts:
        active_ffn = model.experts.per_token * model.experts.ffn + model.experts.shared_ffn
    ffn = 3 * active_ffn * size // gpus
    queries = model.heads * model.head_dim * (2 if model.gated_attention else 1)
    attention = 2 * (queries + 2 * model.kv_heads * model.head_dim) * size // gpus
    linear = 0
    if model.linear:
        keys, values = model.linear.key_width, model.linear.value_width
        projections = (2 * keys + 2 * values) + (2 * keys + values) + 5 * values
        linear = projections * size // gpus
    return 2 * model.hidden * size + max(ffn, attention, linear)


def _cuda_graphs(model: ModelFacts, engine: EngineSize, sequences: int) -> int:
    largest = min(2 * sequences, 512)
    sizes = [1, 2, 4, *range(8, min(largest, 255) + 1, 8), *range(256, largest + 1, 16)]
    captured = sum(size <= largest for size in sizes)
    # Each size twice: pieces for mixed batches, whole graphs for decode.
    return 2 * captured * GRAPH_BYTES + largest * _forward_bytes_per_token(model, engine)


@dataclass(frozen=True, kw_only=True)
class _Blocks:
    bytes: int
    tokens: int
    per_request: int
    state_per_request: int


def _kv_bytes(engine: EngineSize) -> float:
    kind = engine.kv_cache_dtype
    if kind.startswith(("fp8", "int8")):
        return 1.0
    if kind.startswith("nvfp4"):
        return 0.5625
    return 4.0 if kind in ("float32", "float") else float(engine.dtype_bytes)


def _kv_bytes_per_layer(model: ModelFacts, engine: EngineSize) -> int:
    """Keys and values of one token in one layer on one GPU; heads are copied when there are fewer than GPUs."""
    heads = max(model.kv_heads // engine.tensor_parallel, 1)
    return int(2 * heads * model.head_dim * _kv_bytes(engine))


def _kv_bytes_per_token(model: ModelFacts, engine: EngineSize) -> int:
    layers = (model.full_attention_layers + model.sliding_layers) // engine.pipeline_parallel
    return layers * _kv_bytes_per_layer(model, engine)


def _blocks(model: ModelFacts, engine: EngineSize, length: int) -> _Blocks:
    layer = _kv_bytes_per_layer(model, engine)
    stages = engine.pipeline_parallel
    counts = [model.full_attention_layers, model.sliding_layers, model.linear_layers]
    full, sliding, linear = (math.ceil(count / stages) for count in counts)
    if model.linear is None:
        return _dense_blocks(model, engine, length, layer, full, sliding)
    state = _state_bytes(model, engine)
    # vLLM widens attention blocks until one holds a state, then lets layers of all kinds share one pool of pages.
    alignment = max(16, engine.block_size)
    tokens = alignment * math.ceil(state / (alignment * layer))
    group = min(count for count in (full, sliding, linear) if count)
    states = math.ceil(linear / group) * ((2 if engine.prefix_caching else 1) + engine.speculative_tokens)
    attention = math.ceil(full / group) * math.ceil(length / tokens)
    if sliding:
        attention += math.ceil(sliding / group) * (math.ceil(min(length, model.sliding_window) / tokens) + 1)
    page = tokens * layer * group
    return _Blocks(bytes=page, tokens=tokens, per_request=states + attention, state_per_request=states * page)


def _dense_blocks(model: ModelFacts, engine: EngineSize, length: int, layer: int, full: int, sliding: int) -> _Blocks:
    tokens = engine.block_size
    kinds = [count for count in (full, sliding) if count]
    group = min(kinds)
    attention = math.ceil(full / group) * math.ceil(length / tokens)
    if sliding:
        window = min(length, (model.sliding_window or length) + tokens)
        attention += math.ceil(sliding / group) * math.ceil(window / tokens)
    return _Blocks(bytes=tokens * layer * group, tokens=tokens, per_request=attention, state_per_request=0)


def _state_bytes(model: ModelFacts, engine: EngineSize) -> int:
    """Recurrent state and convolution window of one Gated DeltaNet layer on one GPU."""
    linear = model.linear
    if linear is None:
        return 0
    window = linear.conv_kernel - 1 + engine.speculative_tokens
    convolution = (2 * linear.key_width + linear.value_width) * window * engine.dtype_bytes
    recurrent = linear.value_heads * linear.key_dim * linear.value_dim * engine.state_bytes
    return (convolution + recurrent) // engine.tensor_parallel
