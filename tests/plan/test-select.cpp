// Which bulk rows quality mode runs exactly: the published counts, ties, windows, and what the attention sums say.

#include "llama-ridgefill-select.h"

#include "check.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <vector>

namespace {

using rows = std::vector<uint32_t>;

std::vector<llama_pos> positions(size_t n, llama_pos first = 0) {
    std::vector<llama_pos> pos(n);
    std::iota(pos.begin(), pos.end(), first);
    return pos;
}

rows select(
    llama_ridgefill_select how, float share, const std::vector<llama_pos> & pos, const std::vector<llama_token> & token,
    const std::vector<float> * table, const ridgefill_scores & scores = {}
) {
    return ridgefill_select(how, share, pos, token, scores, table);
}

// nine windows of a published run at share 0.25: matching rows -> rows kept (578 gives 144.5, half to even)
void test_published_counts() {
    check::begin("published counts");
    const std::vector<std::pair<int, size_t>> cases = {
        {475, 119}, {404, 101}, {312, 78}, {507, 127}, {578, 144}, {559, 140}, {497, 124}, {376, 94}, {405, 101},
    };
    const std::vector<float> table = {-INFINITY, 1.0f};
    for (const auto & [matches, want] : cases) {
        std::vector<llama_token> token(2048, 0);
        std::fill(token.begin(), token.begin() + matches, 1);
        for (const auto how : {LLAMA_RIDGEFILL_SELECT_CLASS, LLAMA_RIDGEFILL_SELECT_RANDOM}) {
            const size_t found = select(how, 0.25f, positions(2048), token, &table).size();
            CHECK(found == want, "%d matches: found %zu, want %zu", matches, found, want);
        }
    }
}

void test_class() {
    check::begin("class");
    //                              0      1        2     3    4
    const std::vector<float> table = {5.0f, -INFINITY, 9.0f, NAN, INFINITY};
    const std::vector<llama_token> token = {0, 2, 1, 2, 3, 4, 0, 99, -1, 0};
    // matches are rows 0 1 3 6 9: the two nines first, then the fives by position
    CHECK(select(LLAMA_RIDGEFILL_SELECT_CLASS, 0.4f, positions(10), token, &table) == rows({1, 3}));
    CHECK(select(LLAMA_RIDGEFILL_SELECT_CLASS, 0.6f, positions(10), token, &table) == rows({0, 1, 3}));
    CHECK(select(LLAMA_RIDGEFILL_SELECT_CLASS, 1.0f, positions(10), token, &table) == rows({0, 1, 3, 6, 9}));
    CHECK(select(LLAMA_RIDGEFILL_SELECT_CLASS, 0.0f, positions(10), token, &table).empty());
    // a window ends where the position is a multiple of 2048, so each side gives its own half
    const std::vector<llama_token> same(8, 0);
    CHECK(select(LLAMA_RIDGEFILL_SELECT_CLASS, 0.5f, positions(8, 2044), same, &table) == rows({0, 1, 4, 5}));
}

void test_random() {
    check::begin("random");
    const std::vector<llama_token> token(4096, 0);
    const rows a = select(LLAMA_RIDGEFILL_SELECT_RANDOM, 0.25f, positions(4096), token, nullptr);
    CHECK(a.size() == 1024 && std::is_sorted(a.begin(), a.end()));
    CHECK(a == select(LLAMA_RIDGEFILL_SELECT_RANDOM, 0.25f, positions(4096), token, nullptr), "the same every time");
    // by absolute position: a window keeps other offsets than the one before it
    const rows first(a.begin(), std::find_if(a.begin(), a.end(), [](uint32_t r) { return r >= 2048; }));
    CHECK(first.size() == 512);
    rows second(a.begin() + 512, a.end());
    for (uint32_t & r : second) {
        r -= 2048;
    }
    CHECK(first != second);
    // evenly: every eighth of a window holds its share, 64 +- 5 standard deviations
    for (uint32_t part = 0; part < 8; ++part) {
        const auto n = std::count_if(first.begin(), first.end(), [&](uint32_t r) { return r / 256 == part; });
        CHECK(std::abs((int) n - 64) < 35, "part %u: %d", part, (int) n);
    }
}

// two layers, two heads, caches with the rows at other cells
void test_scores() {
    check::begin("scores");
    const size_t n = 4, n_kv = 6, n_head = 2;
    const std::vector<uint32_t> cell = {5, 0, 3, 2};
    const auto fill = [&](std::vector<float> by_hq) {    // [head][query][row]
        std::vector<float> t(n_kv * 2 * n_head, 100.0f); // other cells are not bulk rows
        for (size_t hq = 0; hq < 2 * n_head; ++hq) {
            for (size_t r = 0; r < n; ++r) {
                t[hq * n_kv + cell[r]] = by_hq[hq * n + r];
            }
        }
        return t;
    };
    ridgefill_scores s;
    CHECK(s.empty());
    s.start(n);
    //                    head 0 question   head 0 tail      head 1 question  head 1 tail
    const auto layer0 = fill({1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 4, 0, 8, 0, 0, 0});
    const auto layer1 = fill({0, 3, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0});
    s.add(0, layer0.data(), n_kv, n_head, cell);
    s.add(1, layer1.data(), n_kv, n_head, cell);
    s.add(1, layer1.data(), n_kv, n_head, cell); // a second ubatch of the tail: a head's shares stay
    CHECK(s.maxima(ridgefill_scores::QUESTION) == std::vector<float>({0.25f, 0.75f, 1.0f, 0.25f}));
    CHECK(s.maxima(ridgefill_scores::TAIL) == std::vector<float>({1.0f, 1.0f, 0.25f, 0.25f}));
}

void test_attention() {
    check::begin("spans and rows");
    const size_t n = 1000;
    ridgefill_scores s;
    s.start(n);
    std::vector<float> t(2 * n, 0.0f);
    t[500] = 1.0f; // the question looks at row 500
    for (size_t r : {3, 20, 800, 900}) {
        t[n + r] = 1.0f; // the tail at these
    }
    t[n + 500] = 0.5f;
    std::vector<uint32_t> cell(n);
    std::iota(cell.begin(), cell.end(), 0u);
    s.add(0, t.data(), n, 1, cell);
    const std::vector<llama_token> token(n, 0);

    const rows spans = select(LLAMA_RIDGEFILL_SELECT_SPANS, 0.017f, positions(n), token, nullptr, s);
    CHECK(spans.size() == 17 && spans.front() == 492 && spans.back() == 508, "a span around row 500");
    CHECK(select(LLAMA_RIDGEFILL_SELECT_ROWS, 0.005f, positions(n), token, nullptr, s) == rows({3, 20, 500, 800, 900}));

    const rows both = select(LLAMA_RIDGEFILL_SELECT_ATTENTION, 0.20f, positions(n), token, nullptr, s);
    CHECK(both.size() == 200 && std::adjacent_find(both.begin(), both.end()) == both.end(), "found %zu", both.size());
    for (const uint32_t r : {3u, 20u, 800u, 900u, 495u}) {
        CHECK(std::binary_search(both.begin(), both.end(), r), "row %u", r);
    }
    for (const auto how :
         {LLAMA_RIDGEFILL_SELECT_ATTENTION, LLAMA_RIDGEFILL_SELECT_SPANS, LLAMA_RIDGEFILL_SELECT_ROWS}) {
        CHECK(select(how, 1.0f, positions(n), token, nullptr, s).size() == n);
        CHECK(select(how, 0.0f, positions(n), token, nullptr, s).empty());
        CHECK(select(how, 0.5f, positions(n), token, nullptr).size() == 500, "without scores: still the share");
    }
    CHECK(select(LLAMA_RIDGEFILL_SELECT_ALL, 0.0f, positions(n), token, nullptr).size() == n);
}

} // namespace

int main() {
    test_published_counts();
    test_class();
    test_random();
    test_scores();
    test_attention();
    return check::finish();
}
