"""A user turn in a model's own chat template."""

from __future__ import annotations

from typing import Any

from ..errors import RidgefillError


def render(model: Any, text: str) -> str:
    """`text` as the only user turn, with the start of the answer. RidgefillError when the model has no template."""
    from .._llama_cpp import llama_cpp
    from .._llama_cpp.llama_chat_format import Jinja2ChatFormatter

    template = llama_cpp.llama_model_chat_template(model, None)
    if not template:
        hint = "leave out --chat-share to fit on plain text"
        raise RidgefillError(
            "chat-template", "model", "tokenizer.chat_template", "no such key", "a chat template", hint
        )
    vocab = llama_cpp.llama_model_get_vocab(model)
    bos, eos = (_piece(vocab, token(vocab)) for token in (llama_cpp.llama_vocab_bos, llama_cpp.llama_vocab_eos))
    formatter = Jinja2ChatFormatter(template.decode("utf-8", "replace"), eos_token=eos, bos_token=bos)
    prompt: str = formatter(messages=[{"role": "user", "content": text}]).prompt
    return prompt


def _piece(vocab: Any, token: int) -> str:
    from .._llama_cpp import llama_cpp

    text = llama_cpp.llama_vocab_get_text(vocab, token) if token >= 0 else b""
    return (text or b"").decode("utf-8", "replace")
