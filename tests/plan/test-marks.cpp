// Filled parts of a sequence and the correction in its state, against a model that replays every event.

#include "llama-ridgefill-marks.h"

#include "check.h"

#include <random>

namespace {

bool same(llama_ridgefill_interval a, llama_ridgefill_interval b) {
    return a.begin == b.begin && a.end == b.end;
}

void rows(ridgefill_marks & m, llama_pos begin, llama_pos end) {
    for (llama_pos pos = begin; pos < end; ++pos) {
        m.add(pos, LLAMA_RIDGEFILL_MODE_SPEED);
    }
}

void test_hull() {
    check::begin("hull");
    ridgefill_marks m;
    CHECK(same(m.hull(), {0, 0}) && m.all().empty());
    rows(m, 16, 100);
    CHECK(same(m.hull(), {16, 100}) && m.all().size() == 1);
    rows(m, 200, 300);
    CHECK(same(m.hull(), {16, 300}) && m.all().size() == 2);
    m.cut(400);
    CHECK(same(m.hull(), {16, 300}));
    m.cut(150);
    CHECK(same(m.hull(), {16, 100}), "the rows between are exact");
    m.cut(50);
    CHECK(same(m.hull(), {16, 50}));
    m.cut(16);
    CHECK(same(m.hull(), {0, 0}) && m.all().empty());

    check::begin("modes");
    rows(m, 16, 20);
    m.add(20, LLAMA_RIDGEFILL_MODE_QUALITY);
    CHECK(m.all().size() == 2 && same(m.hull(), {16, 21}) && m.hull().mode == LLAMA_RIDGEFILL_MODE_QUALITY);
    m.cut(20);
    CHECK(m.hull().mode == LLAMA_RIDGEFILL_MODE_SPEED);
}

void test_one_prompt() {
    check::begin("added once, behind the part");
    ridgefill_marks m;
    CHECK(!m.open_at(16) && m.applied() == 0.0f);
    rows(m, 16, 80);
    CHECK(m.open_at(80) && !m.open_at(79) && !m.open_at(81) && m.applied() == 0.0f);
    m.apply(1.0f);
    CHECK(!m.open_at(80) && m.applied() == 1.0f);
    m.cut(120);
    CHECK(m.applied() == 1.0f, "decode steps change nothing");
    m.undone(120);
    CHECK(m.applied() == 0.0f && same(m.hull(), {16, 80}));
    rows(m, 120, 160);
    CHECK(m.all().size() == 2 && m.open_at(160) && same(m.hull(), {16, 160}));
    m.apply(0.5f);
    CHECK(m.applied() == 0.5f);
}

void test_rewound() {
    check::begin("the state goes back");
    ridgefill_marks m;
    rows(m, 16, 80);
    m.apply(1.0f);
    m.undone(120);
    rows(m, 120, 160);
    m.apply(1.0f);

    ridgefill_marks a = m;
    a.cut(140);
    CHECK(a.applied() == 0.0f && a.open_at(140), "inside the second part");
    a = m;
    a.cut(160);
    CHECK(a.applied() == 0.0f && a.open_at(160), "its end, before the exact row");
    a = m;
    a.cut(161);
    CHECK(a.applied() == 1.0f);
    a = m;
    a.cut(120);
    CHECK(a.applied() == 1.0f && same(a.hull(), {16, 80}), "before the first one was taken off");
    a = m;
    a.cut(100);
    CHECK(a.applied() == 1.0f);
    a.cut(80);
    CHECK(a.applied() == 0.0f && a.open_at(80));
    a.cut(0);
    CHECK(a.applied() == 0.0f && a.all().empty());

    check::begin("a part that was begun and got no row");
    a = m;
    a.undone(200);
    CHECK(!a.open_at(200) && a.applied() == 0.0f && same(a.hull(), {16, 160}));
    a.cut(200);
    CHECK(a.applied() == 1.0f, "back to where it was not yet taken off");
}

void test_set() {
    check::begin("told by a caller");
    ridgefill_marks m;
    const llama_ridgefill_interval one = {16, 80}, empty = {9, 3};
    m.set(&one, 1, 0.25f);
    CHECK(m.applied() == 0.25f && same(m.hull(), {16, 80}));
    m.cut(80);
    CHECK(m.applied() == 0.0f && m.open_at(80), "the state stands where the part ends");
    m.set(&empty, 1, 1.0f);
    CHECK(m.all().empty());
    const llama_ridgefill_interval list[] = {{16, 80}, {70, 90}, {90, 90}, {120, 160}, {5, 6}};
    m.set(list, 5, 0.75f);
    CHECK(m.all().size() == 3 && m.all()[1].begin == 80 && m.all()[2].begin == 120, "clipped to be disjoint");
    CHECK(m.applied() == 0.75f && same(m.hull(), {16, 160}));
    m.forget_applied();
    CHECK(m.applied() == 0.0f && same(m.hull(), {16, 160}));
}

// A sequence of rows, each with what stood in the state before it, under random prompts, rewinds and decode steps.
void test_random() {
    check::begin("random histories");
    std::mt19937 rng(7);
    const auto below = [&](int n) { return (int) (rng() % (unsigned) n); };
    for (int round = 0; round < 300; ++round) {
        ridgefill_marks m;
        std::vector<float> before = {0.0f}; // before[pos]: the correction in the state that row pos begins from
        std::vector<char> filled;
        for (int turn = 0; turn < 12; ++turn) {
            if (below(3) == 0) { // a checkpoint is restored: the state is what it was at pos
                const int pos = below((int) filled.size() + 1);
                before.resize((size_t) pos + 1);
                filled.resize((size_t) pos);
                m.cut(pos);
            }
            const bool fill = below(2) == 0;
            const int n = 1 + below(5);
            const int pos = (int) filled.size();
            float state = before.back();
            m.cut(pos);
            if (fill) {
                if (m.applied() != 0.0f) {
                    state -= m.applied();
                    m.undone(pos);
                }
            } else if (m.open_at(pos)) {
                state += 1.0f;
                m.apply(1.0f);
            }
            CHECK(
                m.applied() == state, "round %d row %d: %g in the state, %g in the marks", round, pos, state,
                m.applied()
            );
            CHECK(state == (fill || filled.empty() || m.all().empty() ? 0.0f : 1.0f));
            for (int i = 0; i < n; ++i) {
                if (fill) {
                    m.add(pos + i, LLAMA_RIDGEFILL_MODE_SPEED);
                }
                filled.push_back(fill);
                before.push_back(state);
            }
            // the hull holds all filled rows and begins and ends with one
            int first = -1, last = -1;
            for (int i = 0; i < (int) filled.size(); ++i) {
                first = first < 0 && filled[(size_t) i] ? i : first;
                last = filled[(size_t) i] ? i : last;
            }
            CHECK(same(m.hull(), first < 0 ? llama_ridgefill_interval{0, 0} : llama_ridgefill_interval{first, last + 1})
            );
        }
    }
}

} // namespace

int main() {
    test_hull();
    test_one_prompt();
    test_rewound();
    test_set();
    test_random();
    return check::finish();
}
