"""What the class accepts, refuses and reports about itself."""

from __future__ import annotations

import pickle

import pytest


@pytest.mark.parametrize(
    "keyword, hint",
    [("ridge_fill", "ridgefill"), ("ridgefill_path", "ridgefill"), ("n_context", ""), ("rope_freq", "")],
)
def test_unknown_keyword_is_a_type_error(smollm2, keyword, hint):
    from ridgefill_cpp import Llama

    with pytest.raises(TypeError, match=f"unexpected keyword argument '{keyword}'.*{hint}"):
        Llama(str(smollm2), **{keyword: 1})


def test_unknown_keyword_of_a_call_is_a_type_error(llm):
    for call in (llm, llm.create_completion, llm.generate, llm.eval):
        with pytest.raises(TypeError):
            call([1, 2], ridgefil_mode="off")
    with pytest.raises(TypeError):
        llm.create_chat_completion([{"role": "user", "content": "hi"}], ridgefil_mode="off")


def test_missing_side_file(smollm2, tmp_path):
    from ridgefill_cpp import Llama

    with pytest.raises(FileNotFoundError, match=r"none\.gguf"):
        Llama(str(smollm2), ridgefill=tmp_path / "none.gguf", verbose=False)


def test_refused_side_file_names_file_and_reason(make_llama, smollm2, tmp_path):
    page = tmp_path / "page.gguf"
    page.write_text("<!doctype html><title>404</title>")
    with pytest.raises(ValueError, match=r"page\.gguf"):
        make_llama(ridgefill=page)
    with pytest.raises(ValueError, match=r"general\.architecture"):
        make_llama(ridgefill=smollm2)


def test_refused_side_file_without_strict_serves_exactly(make_llama, tmp_path):
    empty = tmp_path / "empty.gguf"
    empty.write_bytes(b"")
    with pytest.warns(RuntimeWarning, match=r"empty\.gguf"):
        llm = make_llama(ridgefill=empty, ridgefill_strict=False, n_ctx=128)
    assert (llm.ridgefill.mode, llm.ridgefill.identity) == ("off", None)
    assert llm.ridgefill.refused.startswith(f"not-gguf: {empty}")
    llm.eval([1, 2, 3])
    assert llm.ridgefill.last.reason == "no_projector"
    llm.close()


@pytest.mark.parametrize(
    "bad",
    [
        {"ridgefill_mode": "fast"},
        {"ridgefill_mode": "Speed"},
        {"ridgefill_mode": None},
        {"ridgefill_mode": True},
        {"ridgefill_tail": 0},
        {"ridgefill_tail": -1},
        {"ridgefill_tail": True},
        {"ridgefill_tail": 1.5},
        {"ridgefill_tail": "512"},
        {"ridgefill_tail": 2**31},
        {"ridgefill_head": -1},
        {"ridgefill_min_bulk": -1},
        {"ridgefill_alpha": 1.5},
        {"ridgefill_alpha": -0.1},
        {"ridgefill_alpha": True},
        {"ridgefill_alpha": "1"},
        {"ridgefill_placement": "gpu"},
    ],
)
def test_bad_values_name_found_and_allowed(smollm2, bad):
    from ridgefill_cpp import Llama

    ((name, value),) = bad.items()
    with pytest.raises(ValueError) as error:
        Llama(str(smollm2), **bad)
    assert name in str(error.value) and f"found {value!r}, allowed" in str(error.value)


def test_bad_values_of_a_call(llm):
    messages = [{"role": "user", "content": "hi"}]
    for bad in ({"ridgefill_mode": "fast"}, {"ridgefill_tail": 0}):
        for call in (llm, llm.create_completion, llm.generate, llm.eval):
            with pytest.raises(ValueError, match="allowed"):
                call([1, 2], **bad)
        with pytest.raises(ValueError, match="allowed"):
            llm.create_completion([1, 2], stream=True, **bad)
        with pytest.raises(ValueError, match="allowed"):
            llm.create_chat_completion(messages, stream=True, **bad)


def test_status_names_the_side_file(llm, identity):
    import hashlib

    status = llm.ridgefill
    assert status.identity == hashlib.sha256(identity(20).read_bytes()).hexdigest()
    assert (status.name, status.split, status.n_maps, status.target) == ("identity, split 20", 20, 9, "layer_input")
    assert (status.mode, status.tail, status.head, status.min_bulk) == ("speed", 64, 16, 32)
    assert isinstance(status.native, bool) and status.refused is None
    # an identity file states dimensions and tokenizer, no norms or encodings: that is said, not passed over
    assert [text.split(":")[0] for text in status.warnings] == ["anchors-unchecked", "encodings-unchecked"]


def test_status_without_a_side_file(make_llama):
    llm = make_llama(ridgefill=None, n_ctx=64)
    assert (llm.ridgefill.mode, llm.ridgefill.identity, llm.ridgefill.native) == ("off", None, None)
    llm.close()


def test_pickle_keeps_our_arguments(make_llama):
    llm = make_llama(n_ctx=128, ridgefill_mode="off", ridgefill_tail=77)
    copy = pickle.loads(pickle.dumps(llm))
    assert (copy.ridgefill.mode, copy.ridgefill.tail, copy.ridgefill.identity) == ("off", 77, llm.ridgefill.identity)
    copy.close()
    llm.close()


def test_close_twice_and_after_a_refusal(make_llama, smollm2):
    from ridgefill_cpp import Llama

    llm = make_llama(n_ctx=64)
    llm.close()
    llm.close()
    half = Llama.__new__(Llama)
    half.close()


def test_modes_are_the_library_s():
    from ridgefill_cpp import _capi

    assert [_capi.llama_ridgefill_mode_name(i).decode() for i in range(4)] == list(_capi.MODES)
    assert [_capi.llama_ridgefill_select_name(i).decode() for i in range(6)] == list(_capi.SELECTS)
    defaults = _capi.llama_ridgefill_default_params()
    assert (_capi.SELECTS[defaults.select], defaults.share) == ("attention", pytest.approx(0.13))  # a C float
    assert (defaults.mode, defaults.n_tail, defaults.n_head, defaults.n_min_bulk) == (2, 2048, 16, 1024)


def test_a_library_without_our_calls_is_an_import_error():
    import ctypes

    from ridgefill_cpp import _capi

    with pytest.raises(ImportError, match="without RidgeFill calls"):
        _capi.check_abi(ctypes.CDLL(None))


def test_another_abi_is_an_import_error(monkeypatch):
    from ridgefill_cpp import _capi

    monkeypatch.setattr(_capi, "ABI", 99)
    with pytest.raises(ImportError, match="found RidgeFill ABI 3, allowed 99"):
        _capi.check_abi(_capi._lib)
