// Row classes in the batch split: rows of different classes never share a ubatch, every row is used once, each sequence
// keeps its order, and without classes the split is what it was.
//
// usage: test-split [n_seeds]

#include "llama.h"

#include "llama-batch.h"
#include "llama-vocab.h"

#include "check.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace {

struct row {
    std::vector<llama_seq_id> seqs;
    llama_pos pos;
};

// one-float embeddings instead of tokens: no vocabulary is needed
struct batch {
    llama_vocab vocab;
    llama_batch_ext ext{/*n_tokens_max*/ 512,
                        /*n_embd_inp*/ 1,
                        /*n_embd_inp_enc*/ 1,
                        /*n_seq_max*/ 8,      nullptr, 0, 1};
    llama_batch_allocr alloc{1};
    std::vector<row> rows;

    explicit batch(std::vector<row> rows_in) : rows(std::move(rows_in)) {
        for (const row & r : rows) {
            const int32_t i = ext.add_token(r.seqs[0]);
            for (size_t s = 1; s < r.seqs.size(); ++s) {
                GGML_ASSERT(ext.add_seq(i, r.seqs[s]));
            }
            float value = (float) i;
            const llama_pos pos[4] = {r.pos, 0, 0, 0};
            GGML_ASSERT(ext.set_token_embd(i, {&value, 1, 1}));
            GGML_ASSERT(ext.set_token_pos(i, pos));
            GGML_ASSERT(ext.set_output(i, i + 1 == (int32_t) rows.size()));
        }
    }

    bool init(const std::vector<uint8_t> & classes) {
        if (!alloc.init(ext, vocab, false)) {
            return false;
        }
        CHECK(alloc.row_class.empty(), "init() forgets the last batch's classes");
        alloc.row_class = classes;
        alloc.split_reset();
        return true;
    }
};

using splitter = std::function<llama_ubatch(llama_batch_allocr &, uint32_t)>;

struct named_splitter {
    const char * name;
    splitter split;
    bool coupled; // works with rows of several sequences
};

const named_splitter SPLITTERS[] = {
    {"simple", [](llama_batch_allocr & a, uint32_t n) { return a.split_simple(n); }, true},
    {"equal", [](llama_batch_allocr & a, uint32_t n) { return a.split_equal(n, false, 0); }, true},
    {"equal, sequential", [](llama_batch_allocr & a, uint32_t n) { return a.split_equal(n, true, 0); }, false},
    {"seq", [](llama_batch_allocr & a, uint32_t n) { return a.split_seq(n); }, true},
};

// batch indices of each ubatch, and its class
struct partition {
    std::vector<std::vector<int32_t>> idxs;
    std::vector<uint8_t> classes;
    std::vector<uint32_t> n_seqs;

    bool operator==(const partition & o) const { return idxs == o.idxs && n_seqs == o.n_seqs; }

    std::string text() const {
        std::string res;
        for (size_t i = 0; i < idxs.size(); ++i) {
            res += res.empty() ? "" : " | ";
            for (size_t j = 0; j < idxs[i].size(); ++j) {
                res += (j ? "," : "") + std::to_string(idxs[i][j]);
            }
        }
        return res;
    }
};

partition split_all(batch & b, const std::vector<uint8_t> & classes, const splitter & split, uint32_t n_ubatch) {
    partition res;
    CHECK(b.init(classes));
    for (size_t guard = 0; guard <= b.rows.size(); ++guard) {
        const llama_ubatch ub = split(b.alloc, n_ubatch);
        if (ub.n_tokens == 0) {
            break;
        }
        res.idxs.push_back(ub.data->batch_idxs);
        res.classes.push_back(ub.data->row_class);
        res.n_seqs.push_back(ub.n_seqs);
        CHECK(ub.data->batch_idxs.size() == ub.n_tokens);
        for (uint32_t i = 0; i < ub.n_tokens; ++i) {
            CHECK(ub.embd[i] == (float) ub.data->batch_idxs[i], "the row carries its own contents");
        }
    }
    CHECK(b.alloc.get_n_used() == b.rows.size(), "%u of %zu rows used", b.alloc.get_n_used(), b.rows.size());
    return res;
}

// What holds for every splitter and every assignment of classes.
void check_partition(const batch & b, const std::vector<uint8_t> & classes, const partition & p, uint32_t n_ubatch) {
    std::vector<int> used(b.rows.size(), 0);
    std::map<llama_seq_id, llama_pos> last;
    for (size_t u = 0; u < p.idxs.size(); ++u) {
        CHECK(
            !p.idxs[u].empty() && p.idxs[u].size() <= std::max(n_ubatch, p.n_seqs[u])
        ); // one row of each sequence always fits
        CHECK(p.idxs[u].size() % p.n_seqs[u] == 0);
        const uint8_t want = classes.empty() ? 0 : classes[p.idxs[u][0]];
        CHECK(p.classes[u] == want, "ubatch %zu has class %d, want %d", u, p.classes[u], want);
        for (const int32_t i : p.idxs[u]) {
            used[i]++;
            CHECK(classes.empty() || classes[i] == want, "ubatch %zu mixes classes: %s", u, p.text().c_str());
            for (const llama_seq_id s : b.rows[i].seqs) {
                const auto it = last.find(s);
                CHECK(
                    it == last.end() || it->second < b.rows[i].pos, "sequence %d goes back to row %d: %s", s, i,
                    p.text().c_str()
                );
                last[s] = b.rows[i].pos;
            }
        }
    }
    for (size_t i = 0; i < used.size(); ++i) {
        CHECK(used[i] == 1, "row %zu used %d times", i, used[i]);
    }
}

std::vector<row> one_sequence(int n) {
    std::vector<row> rows;
    for (int i = 0; i < n; ++i) {
        rows.push_back({{0}, i});
    }
    return rows;
}

void test_tables() {
    struct entry {
        const char * name;
        std::vector<row> rows;
        std::vector<uint8_t> classes;
        int splitter;
        uint32_t n_ubatch;
        const char * want;
    };
    // two prompts, row by row: sequence 0 has the even rows, 1 the odd ones
    std::vector<row> pair;
    for (int i = 0; i < 4; ++i) {
        pair.push_back({{0}, i});
        pair.push_back({{1}, i});
    }
    // sequence 0 decodes one row, sequence 1 runs a prompt
    std::vector<row> mixed = {{{0}, 9}, {{1}, 0}, {{1}, 1}, {{1}, 2}, {{1}, 3}};

    const entry entries[] = {
        {"stock simple", one_sequence(5), {}, 0, 2, "0,1 | 2,3 | 4"},
        {"stock equal", pair, {}, 1, 8, "0,2,4,6,1,3,5,7"},
        {"stock equal, small", pair, {}, 1, 4, "0,2,1,3 | 4,6,5,7"},
        {"stock sequential", pair, {}, 2, 8, "0,2,4,6,1,3,5,7"},
        {"stock seq", pair, {}, 3, 8, "0,2,4,6 | 1,3,5,7"},
        {"head, bulk, tail", one_sequence(8), {0, 0, 1, 1, 1, 1, 0, 0}, 0, 8, "0,1 | 2,3,4,5 | 6,7"},
        {"bulk in ubatches", one_sequence(8), {0, 1, 1, 1, 1, 1, 0, 0}, 0, 3, "0 | 1,2,3 | 4,5 | 6,7"},
        {"three classes", one_sequence(6), {0, 0, 1, 1, 2, 2}, 0, 8, "0,1 | 2,3 | 4,5"},
        {"equal: both in the bulk", pair, {0, 0, 1, 1, 1, 1, 0, 0}, 1, 8, "0,1 | 2,4,3,5 | 6,7"},
        {"equal: one in its tail", pair, {1, 0, 1, 0, 1, 0, 1, 0}, 1, 8, "0,2,4,6 | 1,3,5,7"},
        {"equal: the second waits", pair, {0, 1, 0, 1, 0, 0, 0, 0}, 1, 8, "0,2,4,6 | 1,3 | 5,7"},
        {"sequential: the second waits", pair, {0, 1, 0, 1, 0, 0, 0, 0}, 2, 8, "0,2,4,6 | 1,3 | 5,7"},
        {"decode beside a bulk", mixed, {0, 1, 1, 1, 0}, 1, 8, "0 | 1,2,3 | 4"},
        {"decode beside a bulk, simple", mixed, {0, 1, 1, 1, 0}, 0, 8, "0 | 1,2,3 | 4"},
        {"seq stops at its class", pair, {1, 0, 1, 0, 0, 0, 0, 0}, 3, 8, "0,2 | 1,3,5,7 | 4,6"},
    };
    for (const entry & e : entries) {
        check::begin(e.name);
        batch b(e.rows);
        const partition p = split_all(b, e.classes, SPLITTERS[e.splitter].split, e.n_ubatch);
        check_partition(b, e.classes, p, e.n_ubatch);
        CHECK(p.text() == e.want, "found %s, want %s", p.text().c_str(), e.want);
    }
}

// the number of ubatches that runs of one class need
size_t n_runs(const std::vector<uint8_t> & classes, uint32_t n_ubatch) {
    size_t res = 0;
    for (size_t i = 0; i < classes.size();) {
        size_t j = i;
        while (j < classes.size() && classes[j] == classes[i]) {
            j++;
        }
        res += (j - i + n_ubatch - 1) / n_ubatch;
        i = j;
    }
    return res;
}

void test_random(uint32_t seed) {
    std::mt19937 rng(seed);
    const auto below = [&](int n) { return (int) (rng() % (uint32_t) n); };
    const int n_seqs = 1 + below(4);
    const int n_rows = 1 + below(60);
    const bool coupled = below(4) == 0;

    std::vector<row> rows;
    std::vector<llama_pos> next(n_seqs, 0);
    if (coupled) { // a shared prompt first, as common prefixes are
        const int n = 1 + below(10);
        for (int i = 0; i < n; ++i) {
            row r = {{}, i};
            for (int s = 0; s < n_seqs; ++s) {
                r.seqs.push_back(s);
            }
            rows.push_back(r);
        }
        std::fill(next.begin(), next.end(), n);
    }
    int s = 0;
    for (int i = 0; i < n_rows; ++i) {
        s = below(3) ? s : below(n_seqs); // runs, as a server's batch has them
        rows.push_back({{s}, next[s]++});
    }

    // classes by plan: [head, bulk, tail) of each sequence; or at random
    const int n_classes = 2 + below(2);
    const bool planned = below(2);
    std::vector<int> from(n_seqs), to(n_seqs);
    std::vector<uint8_t> classes;
    for (int k = 0; k < n_seqs; ++k) {
        from[k] = below(8);
        to[k] = from[k] + below(40);
    }
    for (const row & r : rows) {
        const int k = r.seqs[0];
        classes.push_back((uint8_t
        ) (!planned ? below(n_classes) : r.seqs.size() == 1 && r.pos >= from[k] && r.pos < to[k]));
    }

    batch b(rows);
    for (const named_splitter & sp : SPLITTERS) {
        if (coupled && n_seqs > 1 && !sp.coupled) {
            continue;
        }
        for (const uint32_t n_ubatch : {1u, 2u, 7u, 64u}) {
            check::begin("seed " + std::to_string(seed) + ", " + sp.name + ", n_ubatch " + std::to_string(n_ubatch));
            const partition p = split_all(b, classes, sp.split, n_ubatch);
            check_partition(b, classes, p, n_ubatch);
            if (&sp == &SPLITTERS[0]) {
                CHECK(p.idxs.size() == n_runs(classes, n_ubatch), "found %zu ubatches", p.idxs.size());
            }

            // one class for all is no class at all
            const partition none = split_all(b, {}, sp.split, n_ubatch);
            check_partition(b, {}, none, n_ubatch);
            for (const uint8_t c : {0, 1}) {
                CHECK(split_all(b, std::vector<uint8_t>(rows.size(), c), sp.split, n_ubatch) == none);
            }
        }
    }
}

// Recurrent memories ask that a sequence's last rows stay together; that wins, and a mixed ubatch has class 0: exact.
void test_keep_tail() {
    check::begin("keep tail");
    for (uint32_t n_keep = 2; n_keep < 5; ++n_keep) {
        for (int n_bulk = 1; n_bulk < 12; ++n_bulk) {
            for (int n_tail = 1; n_tail < 6; ++n_tail) {
                batch b(one_sequence(n_bulk + n_tail));
                std::vector<uint8_t> classes(n_bulk, 1);
                classes.resize(n_bulk + n_tail, 0);
                const partition p = split_all(
                    b, classes, [&](llama_batch_allocr & a, uint32_t n) { return a.split_equal(n, true, n_keep); }, 6
                );
                std::vector<int> seen;
                for (size_t u = 0; u < p.idxs.size(); ++u) {
                    bool mixed = false;
                    for (const int32_t i : p.idxs[u]) {
                        seen.push_back(i);
                        mixed = mixed || classes[i] != classes[p.idxs[u][0]];
                    }
                    CHECK(p.classes[u] == (mixed ? 0 : classes[p.idxs[u][0]]), "%s", p.text().c_str());
                }
                CHECK(std::is_sorted(seen.begin(), seen.end()) && (int) seen.size() == n_bulk + n_tail);
                const size_t n_last = p.idxs.back().size();
                CHECK(
                    n_last >= std::min<size_t>(n_keep, n_bulk + n_tail), "last ubatch has %zu rows: %s", n_last,
                    p.text().c_str()
                );
            }
        }
    }
}

} // namespace

int main(int argc, char ** argv) {
    const int n_seeds = argc > 1 ? atoi(argv[1]) : 300;
    test_tables();
    for (int i = 0; i < n_seeds; ++i) {
        test_random((uint32_t) i + 1);
    }
    test_keep_tail();
    return check::finish();
}
