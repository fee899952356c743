// Which rows are bulk, which cached rows a prompt may reuse, how a cursor follows a prompt: tables, and brute force
// where a row-by-row definition exists.

#include "llama-ridgefill-plan.h"

#include "check.h"

#include <string>
#include <vector>

namespace {

constexpr auto OFF = LLAMA_RIDGEFILL_MODE_OFF;
constexpr auto PLUMB = LLAMA_RIDGEFILL_MODE_PLUMB;
constexpr auto SPEED = LLAMA_RIDGEFILL_MODE_SPEED;
constexpr auto QUALITY = LLAMA_RIDGEFILL_MODE_QUALITY;

llama_ridgefill_params params(llama_ridgefill_mode mode, int32_t tail, int32_t head, int32_t min_bulk) {
    return {mode, tail, head, min_bulk};
}

void test_defaults() {
    check::begin("defaults");
    const llama_ridgefill_params p = llama_ridgefill_default_params();
    CHECK(p.mode == SPEED && p.n_tail == 2048 && p.n_head == 16 && p.n_min_bulk == 1024);
    CHECK(ridgefill_params_check(p) == nullptr);
}

void test_params_check() {
    check::begin("parameter check");
    struct row {
        llama_ridgefill_params p;
        const char * want; // nullptr: allowed
    };
    const row rows[] = {
        {params(OFF, 1, 0, 0), nullptr},
        {params(PLUMB, 1, 0, 0), nullptr},
        {params(SPEED, 1, 0, 0), nullptr},
        {params(SPEED, 0, 0, 0), "tail"},
        {params(SPEED, -1, 0, 0), "tail"},
        {params(SPEED, 1, -1, 0), "head"},
        {params(SPEED, 1, 0, -1), "min_bulk"},
        {params((llama_ridgefill_mode) 4, 1, 0, 0), "mode"},
        {params((llama_ridgefill_mode) -1, 1, 0, 0), "mode"},
    };
    for (const row & r : rows) {
        const char * found = ridgefill_params_check(r.p);
        CHECK(
            (found == nullptr) == (r.want == nullptr), "mode %d tail %d: '%s'", r.p.mode, r.p.n_tail, found ? found : ""
        );
        CHECK(!r.want || !found || std::string(found).find(r.want) != std::string::npos, "'%s'", found);
    }
}

void test_plan_table() {
    check::begin("plan table");
    struct row {
        llama_pos begin, end;
        llama_ridgefill_params p;
        llama_ridgefill_reason reason;
        llama_pos bulk_begin, bulk_end;
    };
    const auto NONE = LLAMA_RIDGEFILL_REASON_NONE;
    const auto SHORT = LLAMA_RIDGEFILL_REASON_SHORT;
    const row rows[] = {
        // the whole prompt at once
        {0, 4096, params(SPEED, 2048, 16, 1024), NONE, 16, 2048},
        {0, 4096, params(PLUMB, 2048, 16, 1024), NONE, 16, 2048},
        {0, 4096, params(OFF, 2048, 16, 1024), LLAMA_RIDGEFILL_REASON_OFF, 0, 0},
        {0, 4096, params(SPEED, 2048, 0, 1024), NONE, 0, 2048},
        // min_bulk: as many bulk rows are enough, one fewer is not
        {0, 3088, params(SPEED, 2048, 16, 1024), NONE, 16, 1040},
        {0, 3087, params(SPEED, 2048, 16, 1024), SHORT, 0, 0},
        {0, 2064, params(SPEED, 2048, 16, 0), SHORT, 0, 0},
        {0, 2065, params(SPEED, 2048, 16, 0), NONE, 16, 17},
        {0, 2065, params(SPEED, 2048, 16, 1), NONE, 16, 17},
        // rows already in memory: the head counts from the sequence's beginning
        {10, 4096, params(SPEED, 2048, 16, 1024), NONE, 16, 2048},
        {16, 4096, params(SPEED, 2048, 16, 1024), NONE, 16, 2048},
        {17, 4096, params(SPEED, 2048, 16, 1024), NONE, 17, 2048},
        {1000, 4096, params(SPEED, 2048, 16, 1024), NONE, 1000, 2048},
        {1025, 4096, params(SPEED, 2048, 16, 1024), SHORT, 0, 0},
        {4096, 4096, params(SPEED, 2048, 16, 0), SHORT, 0, 0},
        // short, empty and odd prompts
        {0, 0, params(SPEED, 1, 0, 0), SHORT, 0, 0},
        {0, 1, params(SPEED, 1, 0, 0), SHORT, 0, 0},
        {0, 2, params(SPEED, 1, 0, 0), NONE, 0, 1},
        {5, 3, params(SPEED, 1, 0, 0), SHORT, 0, 0},
        {0, 100, params(SPEED, 2048, 16, 0), SHORT, 0, 0},
        // nothing overflows
        {0, INT32_MAX, params(SPEED, 1, 0, 0), NONE, 0, INT32_MAX - 1},
        {0, 100, params(SPEED, INT32_MAX, 0, 0), SHORT, 0, 0},
        {0, 100, params(SPEED, 1, INT32_MAX, 0), SHORT, 0, 0},
        {0, 100, params(SPEED, 1, 0, INT32_MAX), SHORT, 0, 0},
    };
    for (const row & r : rows) {
        const llama_ridgefill_plan p = ridgefill_plan_make(r.begin, r.end, r.p);
        CHECK(
            p.mode == r.p.mode && p.reason == r.reason && p.bulk_begin == r.bulk_begin && p.bulk_end == r.bulk_end,
            "[%d, %d) tail %d head %d: %s [%d, %d)", r.begin, r.end, r.p.n_tail, r.p.n_head,
            llama_ridgefill_reason_name(p.reason), p.bulk_begin, p.bulk_end
        );
    }
}

// A row is bulk when it is new, behind the head and before the tail; too few of them: none.
void test_plan_brute() {
    check::begin("plan, row by row");
    for (int end = 0; end < 24; ++end) {
        for (int begin = 0; begin <= end; ++begin) {
            for (int tail = 1; tail < 8; ++tail) {
                for (int head = 0; head < 8; ++head) {
                    for (int min_bulk = 0; min_bulk < 6; ++min_bulk) {
                        const auto p = ridgefill_plan_make(begin, end, params(SPEED, tail, head, min_bulk));
                        int n = 0;
                        for (int i = begin; i < end; ++i) {
                            n += i >= head && i < end - tail;
                        }
                        const bool fills = n > 0 && n >= min_bulk;
                        CHECK(fills == (p.reason == LLAMA_RIDGEFILL_REASON_NONE));
                        CHECK(p.bulk_end - p.bulk_begin == (fills ? n : 0));
                        ridgefill_cursor c;
                        c.start(p, begin, end);
                        for (int i = 0; i < end; ++i) {
                            CHECK(c.is_bulk(i) == (fills && i >= begin && i >= head && i < end - tail));
                        }
                    }
                }
            }
        }
    }
}

void test_reusable_table() {
    check::begin("reusable, table");
    struct row {
        llama_ridgefill_interval filled;
        llama_ridgefill_params p;
        llama_pos n_match, n_prompt, want;
    };
    const auto off = params(OFF, 512, 16, 0), plumb = params(PLUMB, 512, 16, 0), speed = params(SPEED, 512, 16, 0);
    const row rows[] = {
        // nothing filled: everything is reused in every mode
        {{0, 0}, off, 3000, 4000, 3000},
        {{0, 0}, speed, 3000, 4000, 3000},
        {{700, 700}, off, 3000, 4000, 3000},
        // exact requests stop where the fill begins
        {{16, 2000}, off, 3000, 4000, 16},
        {{16, 2000}, plumb, 3000, 4000, 16},
        {{16, 2000}, off, 10, 4000, 10},
        {{16, 2000}, off, 16, 4000, 16},
        {{16, 2000}, off, 17, 4000, 16},
        // speed: filled rows are fine before the new tail
        {{16, 2000}, speed, 3000, 4000, 3000},
        {{16, 2000}, speed, 1500, 4000, 1500},
        {{16, 2000}, speed, 2512, 2512, 2512}, // the tail begins exactly where the fill ends
        {{16, 2000}, speed, 2511, 2511, 1999}, // one row of the tail was filled
        {{16, 2000}, speed, 2400, 2400, 1888},
        {{16, 2000}, speed, 1500, 1600, 1088}, // the matching part reaches into the tail
        {{16, 2000}, speed, 1000, 1600, 1000},
        {{16, 2000}, speed, 600, 600, 88},
        {{16, 2000}, speed, 600, 520, 16}, // tail begins inside the head
        {{16, 2000}, speed, 300, 300, 16}, // prompt shorter than the tail
        {{100, 200}, speed, 300, 300, 100},
        {{100, 200}, speed, 90, 300, 90},
        // filled rows inside the new head are not reused
        {{16, 2000}, params(SPEED, 512, 32, 0), 3000, 4000, 16},
        {{32, 2000}, params(SPEED, 512, 32, 0), 3000, 4000, 3000},
        {{0, 2000}, params(SPEED, 512, 16, 0), 3000, 4000, 0},
        {{0, 2000}, params(SPEED, 512, 0, 0), 3000, 4000, 3000},
    };
    for (const row & r : rows) {
        llama_ridgefill_interval filled = r.filled;
        filled.mode = SPEED;
        const llama_pos found = llama_ridgefill_reusable(filled, r.p, r.n_match, r.n_prompt);
        CHECK(
            found == r.want, "filled [%d, %d) mode %s tail %d head %d match %d of %d: found %d, want %d",
            r.filled.begin, r.filled.end, llama_ridgefill_mode_name(r.p.mode), r.p.n_tail, r.p.n_head, r.n_match,
            r.n_prompt, found, r.want
        );
    }
}

// Which rows quality mode ran exactly was decided by another prompt's tail, so nobody reuses what it filled.
void test_reusable_quality() {
    check::begin("reusable, quality");
    for (const auto by : {SPEED, QUALITY}) {
        for (const auto mode : {OFF, PLUMB, SPEED, QUALITY}) {
            const llama_pos want = by == SPEED && mode == SPEED ? 3000 : 16;
            const llama_pos found = llama_ridgefill_reusable({16, 2000, by}, params(mode, 512, 16, 0), 3000, 4000);
            CHECK(
                found == want, "filled by %s, %s: found %d", llama_ridgefill_mode_name(by),
                llama_ridgefill_mode_name(mode), found
            );
        }
    }
}

// The promise row by row: no reused row that was filled may lie where the new request wants exact rows, and no fewer
// rows are reused than that allows (a prefix).
void test_reusable_brute() {
    check::begin("reusable, row by row");
    for (int begin = 0; begin < 10; ++begin) {
        for (int end = begin; end < 12; ++end) {
            for (int n_prompt = 0; n_prompt < 14; ++n_prompt) {
                for (int n_match = 0; n_match <= n_prompt; ++n_match) {
                    for (int tail = 1; tail < 6; ++tail) {
                        for (int head = 0; head < 5; ++head) {
                            for (const auto mode : {OFF, PLUMB, SPEED}) {
                                int want = n_match;
                                for (int i = 0; i < n_match; ++i) {
                                    const bool filled = i >= begin && i < end;
                                    const bool exact = mode != SPEED || i < head || i >= n_prompt - tail;
                                    if (filled && exact) {
                                        want = i;
                                        break;
                                    }
                                }
                                const int found = llama_ridgefill_reusable(
                                    {begin, end, SPEED}, params(mode, tail, head, 0), n_match, n_prompt
                                );
                                CHECK(
                                    found == want,
                                    "filled [%d, %d) %s tail %d head %d match %d of %d: found %d, want %d", begin, end,
                                    llama_ridgefill_mode_name(mode), tail, head, n_match, n_prompt, found, want
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}

void test_cursor() {
    check::begin("cursor");
    const auto plan = ridgefill_plan_make(0, 10, params(SPEED, 3, 2, 0));
    ridgefill_cursor c;
    CHECK(!c.take(0) && !c.is_bulk(5), "not started");
    c.start(plan, 0, 10);
    for (int i = 0; i < 10; ++i) {
        CHECK(c.take(i), "row %d", i);
        CHECK(c.is_bulk(i) == (i >= 2 && i < 7));
    }
    CHECK(!c.take(10) && !c.active, "decode steps are behind the prompt");
    CHECK(!c.take(5), "and it stays ended");

    c.start(plan, 0, 10); // a jump ends the plan
    CHECK(c.take(0) && c.take(1) && !c.take(3) && !c.active && !c.take(2));

    c.start(plan, 0, 10); // so does a rewind
    CHECK(c.take(0) && c.take(1) && c.take(2) && !c.take(1) && !c.active && !c.take(3));

    c.start(plan, 4, 10); // rows before pos_begin are in memory already
    CHECK(!c.take(0));
    c.start(plan, 4, 10);
    CHECK(c.take(4) && c.take(5));

    c.start(plan, 0, 10); // a new announcement replaces the old one
    CHECK(c.take(0));
    c.start(plan, 0, 10);
    CHECK(c.take(0) && c.take(1));

    ridgefill_cursor copy = c; // copies go on alone: a batch may still fail
    CHECK(copy.take(2) && copy.take(3) && c.pos_next == 2 && c.take(2));
}

void test_words() {
    check::begin("words");
    for (const auto mode : {OFF, PLUMB, SPEED}) {
        llama_ridgefill_mode found = mode == OFF ? SPEED : OFF;
        CHECK(llama_ridgefill_mode_parse(llama_ridgefill_mode_name(mode), &found) && found == mode);
    }
    for (const char * text : {"", "Speed", "speed ", "fast", "quality?", "2"}) {
        llama_ridgefill_mode found = PLUMB;
        CHECK(!llama_ridgefill_mode_parse(text, &found) && found == PLUMB, "'%s'", text);
    }
    std::vector<std::string> seen;
    for (int r = LLAMA_RIDGEFILL_REASON_NONE; r <= LLAMA_RIDGEFILL_REASON_NO_PLAN; ++r) {
        const std::string word = llama_ridgefill_reason_name((llama_ridgefill_reason) r);
        CHECK(word != "unknown");
        for (const std::string & s : seen) {
            CHECK(s != word);
        }
        seen.push_back(word);
    }
    CHECK(std::string(llama_ridgefill_reason_name((llama_ridgefill_reason) 99)) == "unknown");
}

} // namespace

int main() {
    test_defaults();
    test_params_check();
    test_plan_table();
    test_plan_brute();
    test_reusable_quality();
    test_reusable_table();
    test_reusable_brute();
    test_cursor();
    test_words();
    return check::finish();
}
