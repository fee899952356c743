"""The FLOP ideal against numbers worked out by hand."""

import pytest
from ridgefill_cpp.flops import Dims, Layer, dims_of, fill_flops, ratio_ideal, stock_flops

# three layers of 100 multiply-adds a row, 10 of them K and V, 2 per row of context; width 4, output 50
TINY = Dims((Layer(100, 10, 2),) * 3, 4, 50)


def test_stock_by_hand():
    # rows 0..3 see 1 + 2 + 3 + 4 = 10 rows: (4 * 100 + 2 * 10) * 3 + 50
    assert stock_flops(TINY, 4) == 2 * (3 * 420 + 50)


def test_fill_by_hand():
    # prompt 6, head 1, tail 2: bulk rows 1, 2, 3; contexts 21 in all, 2 + 3 + 4 = 9 in the bulk
    early = 6 * 100 + 2 * 21
    split = 3 * 100 + 2 * 12 + 3 * 10
    late = 3 * 100 + 2 * 12 + 3 * (10 + 4 * 4)
    assert fill_flops(TINY, 6, tail=2, head=1, split=1) == 2 * (early + split + late + 50)
    assert fill_flops(TINY, 6, 2, 1, 1, n_in=8, n_out=5) == 2 * (early + split + late + 50 + 3 * (40 - 16))


def test_a_window_limits_the_context():
    dims = Dims((Layer(0, 0, 1, window=2),), 4, 0)
    assert stock_flops(dims, 4) == 2 * (1 + 2 + 2 + 2)
    # bulk rows 1 and 2 are filled in the only layer, so rows 0 and 3 remain
    assert fill_flops(dims, 4, tail=1, head=1, split=0, n_in=1, n_out=1) == 2 * (1 + 2)


def test_a_scan_runs_for_every_row():
    dims = Dims((Layer(100, 10, 0, scan=7),) * 2, 4, 0)
    assert stock_flops(dims, 4) == 2 * 2 * 4 * 107
    # layer 0 in full; layer 1 in full for two rows, its cache alone for the other two (it is the split: no map)
    assert fill_flops(dims, 4, tail=1, head=1, split=1) == 2 * (4 * 107 + 2 * 107 + 2 * 17)


def test_nothing_to_fill_is_stock():
    assert ratio_ideal(TINY, 6, tail=5, head=1, split=1) == 1
    assert ratio_ideal(TINY, 3, tail=5, head=16, split=1) == 1


def test_smollm2_is_counted_from_its_tensors(smollm2):
    dims = dims_of(smollm2)
    width, ffn, kv = 576, 1536, 192
    linear = 2 * width * width + 2 * width * kv + 3 * width * ffn
    assert dims.layers == (Layer(linear, 2 * width * kv, 9 * 128),) * 30
    assert (dims.n_embd, dims.output) == (width, width * 49152)
    assert ratio_ideal(dims, 2048, 512, 16, 10) == pytest.approx(1.69, abs=0.01)


def test_gemma3_has_windows_in_five_of_six_layers(gemma3):
    dims = dims_of(gemma3)
    assert [layer.window for layer in dims.layers] == [512, 512, 512, 512, 512, None] * 3
    assert dims.layers[0].kv == 640 * 256 * 2
    assert dims.layers[0].score == 4 * 512


def test_a_side_file_or_text_is_no_model(tmp_path):
    path = tmp_path / "text.gguf"
    path.write_text("hello")
    with pytest.raises(ValueError, match="not-gguf"):
        dims_of(path)
