#include "llama-ridgefill-marks.h"

#include <algorithm>
#include <utility>

llama_ridgefill_interval ridgefill_marks::hull() const {
    const auto is_filled = [](const ridgefill_part & p) { return p.begin < p.end; };
    const auto first = std::find_if(parts.begin(), parts.end(), is_filled);
    const auto last = std::find_if(parts.rbegin(), parts.rend(), is_filled);
    if (first == parts.end()) {
        return {};
    }
    llama_ridgefill_interval res = {first->begin, last->end, LLAMA_RIDGEFILL_MODE_OFF};
    for (const ridgefill_part & p : parts) {
        res.mode = p.begin < p.end ? std::max(res.mode, p.mode) : res.mode; // quality is the stricter word
    }
    return res;
}

void ridgefill_marks::cut(llama_pos pos) {
    while (!parts.empty() && parts.back().begin >= pos) {
        parts.pop_back();
    }
    if (!parts.empty() && parts.back().end >= pos) {
        parts.back().end = pos;
        parts.back().applied = 0.0f; // it is added behind the part, before the row at pos
        parts.back().share.reset();
    }
}

void ridgefill_marks::add(llama_pos pos, llama_ridgefill_mode mode) {
    const bool open = !parts.empty() && parts.back().end == pos && parts.back().applied == 0.0f;
    if (open && (parts.back().mode == mode || parts.back().begin == pos)) {
        parts.back().end++;
        parts.back().mode = mode;
    } else {
        parts.push_back({pos, pos + 1, mode, 0.0f});
    }
}

void ridgefill_marks::undone(llama_pos pos) {
    parts.push_back({pos, pos, LLAMA_RIDGEFILL_MODE_OFF, 0.0f});
}

bool ridgefill_marks::open_at(llama_pos pos) const {
    return !parts.empty() && parts.back().begin < parts.back().end && parts.back().end == pos
           && parts.back().applied == 0.0f;
}

void ridgefill_marks::apply(float scale, std::shared_ptr<const ridgefill_shares> share) {
    parts.back().applied = scale;
    parts.back().share = std::move(share);
}

void ridgefill_marks::set(const llama_ridgefill_interval * list, size_t n, float assumed) {
    parts.clear();
    for (size_t i = 0; i < n; ++i) {
        const llama_pos begin = parts.empty() ? list[i].begin : std::max(list[i].begin, parts.back().end);
        if (begin < list[i].end) {
            parts.push_back({begin, list[i].end, list[i].mode, assumed});
        }
    }
}

void ridgefill_marks::forget_applied() {
    for (ridgefill_part & p : parts) {
        p.applied = 0.0f;
        p.share.reset();
    }
}
