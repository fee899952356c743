"""What to_gguf.py writes is what upstream's own converter writes, tensor by tensor and key by key.

The converter needs torch and transformers, which nothing else here does; without them this file is skipped.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import to_gguf
from nets import Shape, random_weights
from test_reference import SHAPES

torch = pytest.importorskip("torch", reason="upstream's converter needs torch")
pytest.importorskip("transformers", reason="upstream's converter needs transformers")

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM", "qwen35": "Qwen3_5ForCausalLM"}


def config(shape: Shape) -> dict[str, object]:
    rope: dict[str, object] = {"rope_theta": shape.theta, "rope_type": "default"}
    found: dict[str, object] = {
        "architectures": [ARCHITECTURES[shape.kind]],
        "model_type": shape.kind,
        "hidden_size": shape.width,
        "intermediate_size": shape.inter,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.theta,
        "max_position_embeddings": 1024,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    if shape.kind == "qwen35":
        rope |= {"partial_rotary_factor": shape.rotary, "mrope_section": [2, 1, 1]}
        kinds = ["linear_attention" if shape.is_linear(layer) else "full_attention" for layer in range(shape.layers)]
        found |= {
            "model_type": "qwen3_5_text",
            "layer_types": kinds,
            "full_attention_interval": shape.every,
            "partial_rotary_factor": shape.rotary,
            "linear_conv_kernel_dim": shape.kernel,
            "linear_key_head_dim": shape.linear_dim,
            "linear_value_head_dim": shape.linear_dim,
            "linear_num_key_heads": shape.key_heads,
            "linear_num_value_heads": shape.value_heads,
        }
        found.pop("rope_theta")
        found["rope_parameters"] = rope
    return found


def convert(folder: Path, shape: Shape, upstream: Path) -> Path:
    from safetensors.numpy import save_file

    sys.path[:0] = [path for path in (str(upstream), str(upstream / "gguf-py")) if path not in sys.path]
    import gguf
    from conversion import ModelBase, get_model_class

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config(shape)))
    weights = {name: value.astype(np.float32) for name, value in random_weights(shape, 1).items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})

    converter = get_model_class(ARCHITECTURES[shape.kind])

    class Bare(converter):  # type: ignore[misc, valid-type]
        """Without a tokenizer: these models have none."""

        model_arch = converter.model_arch
        no_mtp = True  # no next-token layers either

        def set_vocab(self) -> None:
            self.gguf_writer.add_tokenizer_model("no_vocab")

    hparams = ModelBase.load_hparams(folder, False)
    output = folder / "model.gguf"
    with torch.inference_mode():
        Bare(folder, gguf.LlamaFileType.ALL_F32, output, eager=True, hparams=hparams).write()
    return output


@pytest.mark.parametrize("kind", SHAPES)
def test_same_file(kind: str, build: Path, tmp_path: Path) -> None:
    from ridgefill_cpp.gguf_reader import read_gguf

    shape, upstream = SHAPES[kind], build / "upstream" / "llama.cpp"
    theirs = read_gguf(convert(tmp_path / kind, shape, upstream), model=True)
    ours = read_gguf(
        to_gguf.write(tmp_path / "ours.gguf", shape, random_weights(shape, 1), upstream / "gguf-py"), model=True
    )
    assert sorted(theirs.tensors) == sorted(ours.tensors)
    for name, info in ours.tensors.items():
        wanted = theirs.read(name).view(np.float32)
        found = ours.read(name).view(np.float32)
        assert theirs.tensors[name].ne == info.ne and np.allclose(wanted, found, rtol=1e-6, atol=0), name
    for name, value in ours.keys.items():
        if name.startswith(f"{kind}.") and name in theirs.keys:
            other = theirs.keys[name]
            same = np.allclose(np.asarray(other.data, float), np.asarray(value.data, float), rtol=1e-6)
            assert same, f"{name}: {other.data} there, {value.data} here"
    assert f"{kind}.block_count" in theirs.keys
