# pyright: basic, reportMissingImports=false
"""Write a model of the true shape of Qwen3.5-9B or Qwen3-8B: config, byte-level tokenizer, seeded weights if asked.

    python make_model.py OUT hybrid                # no weights: for load_format dummy
    python make_model.py OUT dense --weights       # 16 GB of safetensors
    python make_model.py OUT hybrid --weights --tiny   # a few MB, to try the scripts without a GPU

The weights let every layer add as much as the embedding does, so that a KV cache which arrived late or in the wrong
place changes the answer. Output rows beyond the tokenizer's vocabulary are zero: greedy answers are always text.
"""

from __future__ import annotations

import argparse
import json
import pydoc
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SHARD = 2 << 30
SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def hybrid_config(tiny: bool) -> dict[str, Any]:
    """Qwen3.5-9B's config.json."""
    layers, hidden = (4, 128) if tiny else (32, 4096)
    text = {
        "model_type": "qwen3_5_text",
        "attention_bias": False,
        "attn_output_gate": True,
        "dtype": "bfloat16",
        "eos_token_id": 2 if tiny else 248044,
        "full_attention_interval": 4,
        "head_dim": 64 if tiny else 256,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": 3 * hidden,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * (layers // 4),
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 64 if tiny else 128,
        "linear_num_key_heads": 2 if tiny else 16,
        "linear_num_value_heads": 4 if tiny else 32,
        "linear_value_head_dim": 64 if tiny else 128,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144,
        "num_attention_heads": 4 if tiny else 16,
        "num_hidden_layers": layers,
        "num_key_value_heads": 2 if tiny else 4,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [3, 3, 2] if tiny else [11, 11, 10],
            "rope_type": "default",
            "rope_theta": 10000000,
            "partial_rotary_factor": 0.25,
        },
        "tie_word_embeddings": False,
        "vocab_size": 2048 if tiny else 248320,
    }
    vision = {
        "model_type": "qwen3_5",
        "deepstack_visual_indexes": [],
        "depth": 2 if tiny else 27,
        "hidden_size": 64 if tiny else 1152,
        "in_channels": 3,
        "intermediate_size": 128 if tiny else 4304,
        "num_heads": 4 if tiny else 16,
        "num_position_embeddings": 2304,
        "out_hidden_size": hidden,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    first = 3 if tiny else 248053
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "text_config": text,
        "vision_config": vision,
        "vision_start_token_id": first,
        "vision_end_token_id": first + 1,
        "image_token_id": 5 if tiny else 248056,
        "video_token_id": 6 if tiny else 248057,
    }


def dense_config(tiny: bool) -> dict[str, Any]:
    """Qwen3-8B's config.json."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "dtype": "bfloat16",
        "eos_token_id": 2 if tiny else 151645,
        "head_dim": 64 if tiny else 128,
        "hidden_act": "silu",
        "hidden_size": 128 if tiny else 4096,
        "initializer_range": 0.02,
        "intermediate_size": 384 if tiny else 12288,
        "max_position_embeddings": 40960,
        "num_attention_heads": 4 if tiny else 32,
        "num_hidden_layers": 4 if tiny else 36,
        "num_key_value_heads": 2 if tiny else 8,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "tie_word_embeddings": False,
        "vocab_size": 2048 if tiny else 151936,
    }


def write_tokenizer(out: Path) -> int:
    """Write a byte-level tokenizer of about 2,000 tokens; returns how many it has."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE(unk_token=None))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2000, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
    )
    core.train_from_iterator([Path(str(pydoc.__file__)).read_text("utf-8")] * 2, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=SPECIAL[2],
        pad_token=SPECIAL[0],
        additional_special_tokens=[name for name in SPECIAL if name not in (SPECIAL[0], SPECIAL[2])],
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(out)
    return len(tokenizer)


def write_processor(out: Path) -> None:
    """Write the settings of Qwen3.5's image and video processors."""
    common = {
        "processor_class": "Qwen3VLProcessor",
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    image = {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "size": {"longest_edge": 16777216, "shortest_edge": 65536},
    }
    video = {"video_processor_type": "Qwen3VLVideoProcessor", "size": {"longest_edge": 25165824, "shortest_edge": 4096}}
    (out / "preprocessor_config.json").write_text(json.dumps(common | image), "utf-8")
    (out / "video_preprocessor_config.json").write_text(json.dumps(common | video), "utf-8")


def shapes(out: Path) -> dict[str, Any]:
    """Names and shapes of the language model's tensors, from transformers, without making them."""
    import torch
    from transformers import AutoConfig, Qwen3_5ForConditionalGeneration, Qwen3ForCausalLM

    config = AutoConfig.from_pretrained(out)
    kind = Qwen3ForCausalLM if config.model_type == "qwen3" else Qwen3_5ForConditionalGeneration
    with torch.device("meta"):
        model = kind(config)
    return {name: tuple(value.shape) for name, value in model.state_dict().items() if "visual" not in name}


def tensor(name: str, shape: tuple[int, ...], pool: Any, known: int, dense: bool) -> Any:
    """One seeded tensor in bfloat16."""
    import torch

    if name.endswith("A_log"):
        return torch.linspace(1, 8, shape[0]).log().to(torch.bfloat16)
    if name.endswith("dt_bias"):
        return torch.ones(shape, dtype=torch.bfloat16)
    if len(shape) == 1:
        # Qwen3.5 scales by 1 + weight, except for the norm behind Gated DeltaNet.
        ones = dense or "linear_attn.norm" in name
        return torch.full(shape, 1.0 if ones else 0.0, dtype=torch.bfloat16)
    fan_in = 1
    for size in shape[1:]:
        fan_in *= size
    scale = 1.0 if "embed_tokens" in name else fan_in**-0.5
    flat = torch.empty(shape[0] * fan_in, dtype=torch.bfloat16)
    start = random.Random(name).randrange(len(pool))
    done = 0
    while done < len(flat):
        piece = pool[start : start + len(flat) - done]
        torch.mul(piece, scale, out=flat[done : done + len(piece)])
        done, start = done + len(piece), 0
    result = flat.view(shape)
    if name == "lm_head.weight":
        result[known:] = 0
    return result


def write_weights(out: Path, known: int, dense: bool) -> float:
    """Write safetensors in shards of 2 GB; returns GB written."""
    import torch
    from safetensors.torch import save_file

    names = shapes(out)
    tiny = "tiny" in (out / "KIND").read_text("utf-8")
    # A length that no row's length divides: no two rows of a matrix are alike.
    length = 100_003 if tiny else (1 << 26) + 12_347
    pool = torch.randn(length, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    shards: list[list[str]] = [[]]
    size = 0
    for name, shape in names.items():
        count = 2
        for dimension in shape:
            count *= dimension
        if size + count > SHARD and shards[-1]:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += count

    def write(index: int) -> int:
        file = f"model-{index + 1:05}-of-{len(shards):05}.safetensors"
        tensors = {name: tensor(name, names[name], pool, known, dense) for name in shards[index]}
        save_file(tensors, out / file, metadata={"format": "pt"})
        return sum(value.numel() * 2 for value in tensors.values())

    with ThreadPoolExecutor(4) as threads:
        total = sum(threads.map(write, range(len(shards))))
    where = {
        name: f"model-{index + 1:05}-of-{len(shards):05}.safetensors"
        for index, shard in enumerate(shards)
        for name in shard
    }
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (out / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    return total / 1e9


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("kind", choices=("hybrid", "dense"))
    parser.add_argument("--weights", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    start = time.time()
    out: Path = args.out
    out.mkdir(parents=True, exist_ok=True)
    config = hybrid_config(args.tiny) if args.kind == "hybrid" else dense_config(args.tiny)
    (out / "config.json").write_text(json.dumps(config, indent=1), "utf-8")
    (out / "KIND").write_text(f"{args.kind}{' tiny' if args.tiny else ''}\n", "utf-8")
    known = write_tokenizer(out)
    if args.kind == "hybrid":
        write_processor(out)
    (out / "generation_config.json").write_text(json.dumps({"temperature": 0.0}), "utf-8")
    size = write_weights(out, known, args.kind == "dense") if args.weights else 0.0
    print(f"{out}: {known} tokens, {size:.2f} GB of weights, {time.time() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
