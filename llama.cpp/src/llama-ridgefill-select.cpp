#include "llama-ridgefill-select.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

namespace {

// The chunk of the published rule: class and random rows are chosen per window of positions.
constexpr llama_pos WINDOW = 2048;

// A retrieved fact is a run of rows, so the question's maxima spread over neighbours.
constexpr size_t SPAN_RADIUS = 8;

// This part of the rows follows the question's spans, the rest the whole tail's top rows (measured: docs/decisions.md).
// A fact is a run of rows however short the prompt, so a few spans fit always.
constexpr double SPAN_PART = 0.25;
constexpr size_t SPAN_ROWS = 6 * (2 * SPAN_RADIUS + 1);

// half to even, as the published selection
size_t rounded(double x) {
    return (size_t) std::nearbyint(x);
}

// The k best of `rows` by key, ties to the lower row.
template <typename Key>
std::vector<uint32_t> best(std::vector<uint32_t> rows, size_t k, const Key & key) {
    k = std::min(k, rows.size());
    const auto before = [&](uint32_t a, uint32_t b) {
        const auto ka = key(a), kb = key(b);
        return ka != kb ? ka > kb : a < b;
    };
    std::partial_sort(rows.begin(), rows.begin() + (ptrdiff_t) k, rows.end(), before);
    rows.resize(k);
    return rows;
}

std::vector<float> spread(const std::vector<float> & v) {
    std::vector<float> res(v.size());
    for (size_t i = 0; i < v.size(); ++i) {
        const size_t b = i < SPAN_RADIUS ? 0 : i - SPAN_RADIUS;
        const size_t e = std::min(v.size(), i + SPAN_RADIUS + 1);
        res[i] = *std::max_element(v.begin() + (ptrdiff_t) b, v.begin() + (ptrdiff_t) e);
    }
    return res;
}

// lowbias32, the finaliser that the published random control uses
uint32_t mix(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7feb352dU;
    x ^= x >> 15;
    x *= 0x846ca68bU;
    x ^= x >> 16;
    return x;
}

uint32_t random_key(llama_pos pos) { // seed 0
    return mix(mix(mix(0)) ^ ((uint32_t) pos * 0x9E3779B9U + 0x7F4A7C15U));
}

std::vector<uint32_t> by_attention(llama_ridgefill_select select, size_t k, const ridgefill_scores & scores, size_t n) {
    std::vector<uint32_t> all(n);
    std::iota(all.begin(), all.end(), 0u);

    const size_t k_spans = select == LLAMA_RIDGEFILL_SELECT_SPANS ? k
                           : select == LLAMA_RIDGEFILL_SELECT_ROWS
                               ? 0
                               : std::max(rounded(SPAN_PART * (double) k), std::min(k, SPAN_ROWS));
    // no scores (no layer below the split attends): all rows weigh alike
    const auto maxima = [&](ridgefill_scores::query q) {
        std::vector<float> v = scores.maxima(q);
        v.resize(n, 0.0f);
        return v;
    };
    std::vector<uint32_t> res;
    if (k_spans > 0) {
        const std::vector<float> spans = spread(maxima(ridgefill_scores::QUESTION));
        res = best(all, k_spans, [&](uint32_t r) { return spans[r]; });
    }
    if (res.size() < k) {
        std::vector<uint8_t> taken(n, 0);
        for (const uint32_t r : res) {
            taken[r] = 1;
        }
        all.erase(std::remove_if(all.begin(), all.end(), [&](uint32_t r) { return taken[r]; }), all.end());
        const std::vector<float> tail = maxima(ridgefill_scores::TAIL);
        const std::vector<uint32_t> rows = best(all, k - res.size(), [&](uint32_t r) { return tail[r]; });
        res.insert(res.end(), rows.begin(), rows.end());
    }
    return res;
}

// As many rows in whole blocks of positions: those blocks that hold most of the rows.
std::vector<uint32_t>
whole_blocks(const std::vector<uint32_t> & rows, const std::vector<llama_pos> & pos, llama_pos block) {
    std::map<llama_pos, size_t> hits, size; // by block
    for (const uint32_t r : rows) {
        hits[pos[r] / block]++;
    }
    for (const llama_pos p : pos) {
        size[p / block]++;
    }
    std::vector<std::pair<size_t, llama_pos>> order;
    for (const auto & [b, n] : hits) {
        order.push_back({n, -b}); // most rows first, then the lower block
    }
    std::sort(order.rbegin(), order.rend());
    std::set<llama_pos> taken;
    size_t n_rows = 0;
    for (const auto & [n, b] : order) {
        if (n_rows + size[-b] / 2 > rows.size()) {
            break; // the next block would leave the share by more than it fills
        }
        taken.insert(-b);
        n_rows += size[-b];
    }
    std::vector<uint32_t> res;
    for (uint32_t r = 0; r < pos.size(); ++r) {
        if (taken.count(pos[r] / block)) {
            res.push_back(r);
        }
    }
    return res;
}

} // namespace

void ridgefill_scores::start(size_t n) {
    n_rows = n;
    sums.clear();
}

void ridgefill_scores::add(
    size_t layer, const float * attention, size_t n_kv, size_t n_head, const std::vector<uint32_t> & cell
) {
    sums.resize(std::max(sums.size(), layer + 1));
    sums[layer].resize(n_head * N_QUERIES * n_rows, 0.0f);
    for (size_t hq = 0; hq < n_head * N_QUERIES; ++hq) { // heads outside, queries inside: the tensor's order
        const float * from = attention + hq * n_kv;
        float * to = sums[layer].data() + hq * n_rows;
        for (size_t r = 0; r < n_rows; ++r) {
            to[r] += from[cell[r]];
        }
    }
}

std::vector<float> ridgefill_scores::maxima(query q) const {
    std::vector<float> res(n_rows, 0.0f);
    for (const auto & layer : sums) {
        for (size_t at = q * n_rows; at < layer.size(); at += N_QUERIES * n_rows) {
            const float * v = layer.data() + at;
            const double total = std::accumulate(v, v + n_rows, 0.0);
            if (!(total > 0.0)) {
                continue;
            }
            for (size_t r = 0; r < n_rows; ++r) {
                res[r] = std::max(res[r], (float) (v[r] / total));
            }
        }
    }
    return res;
}

std::vector<uint32_t> ridgefill_select(
    llama_ridgefill_select select, float share, const std::vector<llama_pos> & pos,
    const std::vector<llama_token> & token, const ridgefill_scores & scores, const std::vector<float> * table,
    llama_pos block
) {
    std::vector<uint32_t> res;

    switch (select) {
    case LLAMA_RIDGEFILL_SELECT_ALL:
        res.resize(pos.size());
        std::iota(res.begin(), res.end(), 0u);
        return res;
    case LLAMA_RIDGEFILL_SELECT_ATTENTION:
    case LLAMA_RIDGEFILL_SELECT_SPANS:
    case LLAMA_RIDGEFILL_SELECT_ROWS:
        res = by_attention(select, rounded((double) share * (double) pos.size()), scores, pos.size());
        if (block > 1) {
            res = whole_blocks(res, pos, block);
        }
        break;
    case LLAMA_RIDGEFILL_SELECT_CLASS:
    case LLAMA_RIDGEFILL_SELECT_RANDOM: {
        const auto matches = [&](uint32_t r) {
            return table && token[r] >= 0 && (size_t) token[r] < table->size()
                   && std::isfinite((*table)[(size_t) token[r]]);
        };
        for (uint32_t b = 0, e = 0; b < pos.size(); b = e) {
            std::vector<uint32_t> window, kept;
            for (; e < pos.size() && pos[e] / WINDOW == pos[b] / WINDOW; ++e) {
                window.push_back(e);
                if (matches(e)) {
                    kept.push_back(e);
                }
            }
            // random is the control of class: as many rows, from all of them
            const size_t k = rounded((double) share * (double) (table ? kept.size() : window.size()));
            const std::vector<uint32_t> rows =
                select == LLAMA_RIDGEFILL_SELECT_CLASS
                    ? best(kept, k, [&](uint32_t r) { return (*table)[(size_t) token[r]]; })
                    : best(window, k, [&](uint32_t r) { return ~random_key(pos[r]); });
            res.insert(res.end(), rows.begin(), rows.end());
        }
    } break;
    }

    std::sort(res.begin(), res.end());
    return res;
}
