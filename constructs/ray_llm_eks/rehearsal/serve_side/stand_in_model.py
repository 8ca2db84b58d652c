"""Make a stand-in language model on the spot: seeded random weights, a byte-level BPE tokenizer, a chat template.

Runs in the serve environment, but imports neither torch nor transformers there: under a second, about 4 MB.

The architecture is a real one, at a small size: ``hybrid`` is the Qwen3.5 kind (three Gated DeltaNet layers for each
attention layer, so that attention KV and recurrent state both have to be transferred), ``dense`` the Qwen3 kind.

Two properties matter for a rehearsal, and the weights are made so that they hold:

* the answer depends on every part of the prompt: what comes from other positions weighs more than the token itself,
  attention is sharp and the recurrent state forgets slowly, so a KV cache that arrived late, partly or in the wrong
  place changes the answer (plain random weights average over the prompt, and would hide half of it missing);
* the answer is printable: output rows of the special tokens, of bytes that are no printable ASCII and of unused ids are
  zero, so greedy decoding never picks them (and, as ``<|im_end|>`` is one of them, every answer has ``max_tokens``).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

ARCHITECTURES = ("hybrid", "dense")
VOCABULARY = 512
HIDDEN = 128
FFN = 256
LAYERS = 4
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 64
LINEAR_KEY_HEADS = 2
LINEAR_VALUE_HEADS = 4
LINEAR_DIM = 64
CONVOLUTION = 4
CONTEXT = 32768
MIXING = 6.0
"""What comes from other positions outweighs what comes from the token itself."""
SHARPNESS = 2.0
"""Attention picks some positions instead of averaging over all."""
FORGETTING = 0.001
"""Decay of the recurrent state a token: it remembers a prompt of 1,000 tokens."""
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (PAD, START, END)

# One entry a line for tools, so that tool calls can be asked for; content may be text or a list of parts.
CHAT_TEMPLATE = """\
{%- if tools %}<|im_start|>system
You may call these functions. Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call>.
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}
{%- elif message.content %}{% for part in message.content %}{{ part.text if part.text is defined else '' }}{% endfor %}
{%- endif %}
{%- for call in message.tool_calls or [] %}<tool_call>{{ \
{"name": call.function.name, "arguments": call.function.arguments} | tojson }}</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

# What the tokenizer's merges are learned from. Own text, so that every machine gets the same tokenizer.
CORPUS = """\
The prefill engine reads the whole prompt once and writes a key and a value for each token into its cache. The decode
engine asks for those blocks, waits until they have arrived, and goes on from there, one token after the other. Neither
of them needs to know how the other was started, as long as both agree on the layout of the cache and on the model.
When the network is slow, the first token is late; when the decode engine is busy, the tokens after it are late.
A request that is longer than the context is refused at the door. A client that goes away leaves its blocks behind, and
they have to be given back. An engine that dies takes its answers with it, and the others have to notice.
What is the capital of France? Tell me a story about a small river, a bridge and the people who live there.
import json and print the answer; for each line in the file, return the number of words that start with a capital.
"""


def make(folder: Path, architecture: str, seed: int = 0) -> None:
    """Writes the model to ``folder``, which is created if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    printable = _write_tokenizer(folder)
    _write_json(folder / "config.json", _config(architecture))
    _write_json(folder / "generation_config.json", {"eos_token_id": SPECIAL.index(END)})
    save_file(_weights(architecture, seed, printable), folder / "model.safetensors", metadata={"format": "pt"})


def _write_tokenizer(folder: Path) -> list[int]:
    """Saves the tokenizer; returns the ids that a greedy answer may contain."""
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS.splitlines(keepends=True),
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            min_frequency=2,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
            show_progress=False,
        ),
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, "utf-8")
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "pad_token": PAD,
            "additional_special_tokens": [START],
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
        },
    )
    texts = {i: tokenizer.decode([i]) for i in range(len(SPECIAL), tokenizer.get_vocab_size())}
    return [i for i, text in texts.items() if text and text.isascii() and text.isprintable()]


def _config(architecture: str) -> dict[str, object]:
    common: dict[str, object] = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": SPECIAL.index(END),
        "pad_token_id": SPECIAL.index(PAD),
    }
    if architecture == "dense":
        return {
            **common,
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "dtype": "float32",
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        }
    return {
        **common,
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        # vLLM's CPU kernels for Gated DeltaNet exist in bfloat16 only.
        "dtype": "bfloat16",
        "layer_types": ["linear_attention"] * (LAYERS - 1) + ["full_attention"],
        # As in the real checkpoints; without it the recurrent state gets a type that the CPU kernel refuses.
        "mamba_ssm_dtype": "float32",
        "linear_conv_kernel_dim": CONVOLUTION,
        "linear_key_head_dim": LINEAR_DIM,
        "linear_value_head_dim": LINEAR_DIM,
        "linear_num_key_heads": LINEAR_KEY_HEADS,
        "linear_num_value_heads": LINEAR_VALUE_HEADS,
        "partial_rotary_factor": 0.25,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    }


def _weights(architecture: str, seed: int, printable: list[int]) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, scale: float | None = None) -> np.ndarray:
        values = random.standard_normal((rows, columns), dtype=np.float32)
        return values * np.float32(columns**-0.5 if scale is None else scale)

    hybrid = architecture == "hybrid"
    # Qwen3.5 multiplies by one plus the weight of a norm, Qwen3 by the weight.
    norm = np.zeros if hybrid else np.ones
    head = matrix(VOCABULARY, HIDDEN)
    head[np.setdiff1d(np.arange(VOCABULARY), printable)] = 0
    weights = {
        "lm_head.weight": head,
        "model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN, 1.0),
        "model.norm.weight": norm(HIDDEN, dtype=np.float32),
    }
    keys, values = LINEAR_KEY_HEADS * LINEAR_DIM, LINEAR_VALUE_HEADS * LINEAR_DIM
    for layer in range(LAYERS):
        parts = {
            "input_layernorm": norm(HIDDEN, dtype=np.float32),
            "post_attention_layernorm": norm(HIDDEN, dtype=np.float32),
            "mlp.gate_proj": matrix(FFN, HIDDEN),
            "mlp.up_proj": matrix(FFN, HIDDEN),
            "mlp.down_proj": matrix(HIDDEN, FFN),
        }
        if hybrid and layer < LAYERS - 1:
            parts |= {
                "linear_attn.in_proj_qkv": matrix(2 * keys + values, HIDDEN),
                "linear_attn.in_proj_z": matrix(values, HIDDEN),
                "linear_attn.in_proj_b": matrix(LINEAR_VALUE_HEADS, HIDDEN),
                "linear_attn.in_proj_a": matrix(LINEAR_VALUE_HEADS, HIDDEN),
                "linear_attn.out_proj": matrix(HIDDEN, values) * np.float32(MIXING),
                "linear_attn.norm": np.ones(LINEAR_DIM, dtype=np.float32),
                "linear_attn.conv1d": matrix(2 * keys + values, CONVOLUTION)[:, None, :],
            }
            weights |= {
                f"model.layers.{layer}.linear_attn.A_log": np.full(
                    LINEAR_VALUE_HEADS, np.log(FORGETTING), dtype=np.float32
                ),
                f"model.layers.{layer}.linear_attn.dt_bias": np.zeros(LINEAR_VALUE_HEADS, dtype=np.float32),
            }
        else:
            queries = HEADS * HEAD_DIM
            parts |= {
                # Qwen3.5's attention has an output gate: twice as many rows.
                "self_attn.q_proj": matrix(queries * (2 if hybrid else 1), HIDDEN),
                "self_attn.k_proj": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
                "self_attn.v_proj": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
                "self_attn.o_proj": matrix(HIDDEN, queries) * np.float32(MIXING),
                "self_attn.q_norm": norm(HEAD_DIM, dtype=np.float32) + np.float32(SHARPNESS),
                "self_attn.k_norm": norm(HEAD_DIM, dtype=np.float32) + np.float32(SHARPNESS),
            }
        weights |= {f"model.layers.{layer}.{name}.weight": value for name, value in parts.items()}
    return {name: np.ascontiguousarray(value) for name, value in weights.items()}


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def main() -> None:
    """Command line: folder and architecture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--architecture", choices=ARCHITECTURES, default="hybrid")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    make(arguments.folder, arguments.architecture, arguments.seed)


if __name__ == "__main__":
    main()
