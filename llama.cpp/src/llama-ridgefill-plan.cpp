#include "llama-ridgefill-plan.h"

#include <algorithm>

const char * ridgefill_params_check(const llama_ridgefill_params & params) {
    switch (params.mode) {
    case LLAMA_RIDGEFILL_MODE_OFF:
    case LLAMA_RIDGEFILL_MODE_PLUMB:
    case LLAMA_RIDGEFILL_MODE_SPEED:
    case LLAMA_RIDGEFILL_MODE_QUALITY:
        break;
    default:
        return "unknown mode, allowed: off, plumb, speed, quality";
    }
    if (params.select < LLAMA_RIDGEFILL_SELECT_ATTENTION || params.select > LLAMA_RIDGEFILL_SELECT_ALL) {
        return "unknown select, allowed: attention, spans, rows, class, random, all";
    }
    if (!(params.share >= 0.0f && params.share <= 1.0f)) {
        return "share outside 0 .. 1";
    }
    if (params.n_tail < 1) {
        return "tail below 1: the last prompt row must be exact";
    }
    if (params.n_head < 0) {
        return "head below 0";
    }
    if (params.n_min_bulk < 0) {
        return "min_bulk below 0";
    }
    return nullptr;
}

llama_ridgefill_plan
ridgefill_plan_make(llama_pos pos_begin, llama_pos pos_end, const llama_ridgefill_params & params, int32_t tile) {
    llama_ridgefill_plan res = {params.mode, LLAMA_RIDGEFILL_REASON_NONE, 0, 0};

    if (params.mode == LLAMA_RIDGEFILL_MODE_OFF) {
        res.reason = LLAMA_RIDGEFILL_REASON_OFF;
        return res;
    }

    const int64_t begin = std::max<int64_t>(pos_begin, params.n_head);
    const int64_t last = (int64_t) pos_end - params.n_tail;
    const int64_t end = last - (last > 0 ? last % tile : 0);

    if (end - begin < std::max(1, params.n_min_bulk)) {
        res.reason = LLAMA_RIDGEFILL_REASON_SHORT;
        return res;
    }

    res.bulk_begin = (llama_pos) begin;
    res.bulk_end = (llama_pos) end;
    return res;
}

llama_pos llama_ridgefill_reusable(
    llama_ridgefill_interval filled, llama_ridgefill_params params, llama_pos n_match, llama_pos n_prompt
) {
    if (filled.begin >= filled.end || n_match <= filled.begin) {
        return n_match;
    }

    const bool same = params.mode == LLAMA_RIDGEFILL_MODE_SPEED && filled.mode == LLAMA_RIDGEFILL_MODE_SPEED;
    if (!same || filled.begin < params.n_head) {
        return filled.begin;
    }

    // rows of the new exact tail must be exact; when the tail reaches into the filled rows, stop where it begins
    const llama_pos tail_begin = (llama_pos) std::max<int64_t>(0, (int64_t) n_prompt - params.n_tail);
    if (std::min(filled.end, n_match) > tail_begin) {
        return std::min(n_match, std::max(filled.begin, tail_begin));
    }
    return n_match;
}

void ridgefill_cursor::start(const llama_ridgefill_plan & p, llama_pos begin, llama_pos end) {
    plan = p;
    pos_next = begin;
    pos_end = end;
    active = true;
}

bool ridgefill_cursor::take(llama_pos pos) {
    if (!active) {
        return false;
    }
    if (pos != pos_next || pos >= pos_end) {
        active = false;
        return false;
    }
    pos_next++;
    return true;
}

bool ridgefill_cursor::is_tail(llama_pos pos) const {
    return plan.reason == LLAMA_RIDGEFILL_REASON_NONE && pos >= plan.bulk_end && pos < pos_end;
}

bool ridgefill_cursor::is_bulk(llama_pos pos) const {
    return plan.reason == LLAMA_RIDGEFILL_REASON_NONE && pos >= plan.bulk_begin && pos < plan.bulk_end;
}
