#include "server-ridgefill.h"

#include "server-task.h"

#include "common-ridgefill.h"
#include "log.h"

#include <algorithm>
#include <stdexcept>

//
// request field
//

static const char * const FIELD_ALLOWED =
    R"(allowed: "off", "plumb", "speed", "quality" or {"mode": one of these, "tail": 1 to 2147483647, "share": 0 to 1})";

[[noreturn]] static void field_error(const std::string & where, const json & found) {
    throw std::invalid_argument(where + "found " + safe_json_to_str(found) + ", " + FIELD_ALLOWED);
}

static void parse_mode(const std::string & where, const json & value, llama_ridgefill_params & params) {
    if (!value.is_string() || !llama_ridgefill_mode_parse(value.get<std::string>().c_str(), &params.mode)) {
        field_error(where, value);
    }
}

void server_ridgefill_parse(const json & field, llama_ridgefill_params & params) {
    if (!field.is_object()) {
        parse_mode("", field, params);
        return;
    }
    for (const auto & [key, value] : field.items()) {
        if (key != "mode" && key != "tail" && key != "share") {
            field_error("", field);
        }
        if (value.is_null()) {
            continue;
        }
        if (key == "mode") {
            parse_mode("mode: ", value, params);
            continue;
        }
        if (key == "share") {
            if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() <= 1)) {
                field_error("share: ", value);
            }
            params.share = value.get<float>();
            continue;
        }
        if (!value.is_number_integer() || value.get<double>() < 1 || value.get<double>() > INT32_MAX) {
            field_error("tail: ", value);
        }
        params.n_tail = value.get<int32_t>();
    }
}

//
// policy
//

static bool is_empty(llama_ridgefill_interval interval) {
    return interval.begin >= interval.end;
}

// Drafters that read hidden states of prompt rows; filled rows have none (honesty rule R3).
static bool reads_prompt_features(const common_params_speculative & speculative) {
    for (const auto type : speculative.types) {
        switch (type) {
        case COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3:
        case COMMON_SPECULATIVE_TYPE_DRAFT_MTP:
        case COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH:
        case COMMON_SPECULATIVE_TYPE_DRAFT_DSPARK:
            return true;
        default:
            break;
        }
    }
    return false;
}

static const char * must_be_exact(const server_task & task, const std::vector<common_adapter_lora_info> & lora) {
    if (task.need_embd() || reads_prompt_features(task.params.speculative)) {
        return llama_ridgefill_reason_name(LLAMA_RIDGEFILL_REASON_OUTPUTS);
    }
    const auto is_active = [](const common_adapter_lora_info & la) { return la.scale != 0.0f; };
    if (std::any_of(lora.begin(), lora.end(), is_active)) {
        return llama_ridgefill_reason_name(LLAMA_RIDGEFILL_REASON_ADAPTER);
    }
    for (size_t i = 0; task.tokens.has_mtmd && i < task.tokens.size(); i++) {
        if (task.tokens[i] == LLAMA_TOKEN_NULL) {
            return "media";
        }
    }
    return nullptr;
}

server_ridgefill_policy::server_ridgefill_policy(
    const llama_context * ctx, const server_task & task, const std::vector<common_adapter_lora_info> & lora
)
    : params(task.params.ridgefill), exact(must_be_exact(task, lora)), n_prompt(task.n_tokens()) {
    fills =
        exact == nullptr && llama_ridgefill_plan_for(ctx, 0, n_prompt, &params).reason == LLAMA_RIDGEFILL_REASON_NONE;
}

size_t server_ridgefill_policy::reusable(const server_ridgefill_marks & filled, size_t n_match) const {
    llama_ridgefill_params effective = params;
    if (!fills) {
        effective.mode = LLAMA_RIDGEFILL_MODE_OFF;
    }
    return llama_ridgefill_reusable(filled.hull(), effective, n_match, n_prompt);
}

size_t server_ridgefill_policy::reusable(const llama_context * ctx, llama_seq_id seq_id, size_t n_match) const {
    return reusable(server_ridgefill_marks(ctx, seq_id), n_match);
}

//
// stats
//

void server_ridgefill_stats::announce(
    llama_context * ctx, llama_seq_id seq_id, const server_task & task,
    const std::vector<common_adapter_lora_info> & lora, int32_t n_past
) {
    const server_ridgefill_policy policy(ctx, task, lora);

    llama_ridgefill_cut(ctx, seq_id, n_past);
    const auto filled = llama_ridgefill_filled(ctx, seq_id);

    auto params = policy.params;
    if (policy.exact != nullptr) {
        params.mode = LLAMA_RIDGEFILL_MODE_OFF;
    }
    const auto plan = llama_ridgefill_prompt(ctx, seq_id, n_past, policy.n_prompt, &params);

    mode = policy.params.mode;
    reason = llama_ridgefill_reason_name(plan.reason);
    fixed_reason = true;
    if (policy.exact != nullptr) {
        reason = policy.exact;
    } else if (plan.mode == LLAMA_RIDGEFILL_MODE_PLUMB && plan.reason == LLAMA_RIDGEFILL_REASON_NONE) {
        reason = llama_ridgefill_mode_name(plan.mode);
    } else if (policy.fills && plan.reason == LLAMA_RIDGEFILL_REASON_SHORT) {
        reason = "cached"; // too few rows are left to fill because earlier requests left the others in memory
    } else {
        fixed_reason = false;
    }

    n_filled = 0;
    n_selected = 0;
    n_filled_cached = filled.end - filled.begin;
    this->seq_id = seq_id;
    n_todo = policy.n_prompt - n_past;
    n_counted = 0;
}

void server_ridgefill_stats::update(
    const llama_context * ctx, const server_task * task, uint64_t n_processed, server_ridgefill_metrics & sum
) {
    if (seq_id < 0) {
        return;
    }

    const auto counts = llama_ridgefill_get_counts(ctx, seq_id);
    // quality mode moves the rows it selects from the filled to the exact ones
    const int64_t filled = (int64_t) counts.n_filled - n_filled;
    const int64_t processed = (int64_t) n_processed - (int64_t) n_counted;
    sum.n_filled += filled;
    sum.n_exact += processed - std::min(processed, filled);

    n_filled = counts.n_filled;
    n_selected = counts.n_selected;
    n_counted = n_processed;
    if (!fixed_reason) {
        reason = llama_ridgefill_reason_name(counts.reason);
    }

    if (n_processed < n_todo) {
        return;
    }
    if (n_filled > 0) {
        const struct {
            int id;
            const server_task * task;
        } slot = {seq_id, task}; // all that the slot's log lines show
        SLT_INF(
            slot, "prompt filled, mode = %s, n_filled = %d, n_exact = %d\n", llama_ridgefill_mode_name(mode), n_filled,
            (int) n_processed - n_filled
        );
    }
    seq_id = -1;
}

json server_ridgefill_stats::to_json(uint64_t n_processed) const {
    json res = {
        {"mode", llama_ridgefill_mode_name(mode)},
        {"n_filled", n_filled},
        {"n_exact", (int64_t) n_processed - n_filled},
        {"n_filled_cached", n_filled_cached},
    };
    if (n_filled == 0 && n_selected == 0) {
        res["reason"] = reason;
    }
    if (mode == LLAMA_RIDGEFILL_MODE_QUALITY) {
        res["n_selected"] = n_selected;
    }
    return res;
}

std::string server_ridgefill_metrics::to_prometheus() const {
    const auto counter = [](const char * name, const char * help, uint64_t value) {
        return string_format(
            "# HELP llamacpp:%s %s\n# TYPE llamacpp:%s counter\nllamacpp:%s %llu\n", name, help, name, name,
            (unsigned long long) value
        );
    };
    return counter("ridgefill_rows_filled_total", "RidgeFill: Prompt rows filled", n_filled)
           + counter("ridgefill_rows_exact_total", "RidgeFill: Prompt rows processed exactly", n_exact);
}

//
// marks
//

server_ridgefill_marks::server_ridgefill_marks(const llama_context * ctx, llama_seq_id seq_id)
    : parts(llama_ridgefill_parts(ctx, seq_id, nullptr, 0)) {
    llama_ridgefill_parts(ctx, seq_id, parts.data(), parts.size());
}

llama_ridgefill_interval server_ridgefill_marks::hull() const {
    llama_ridgefill_interval res = {};
    if (!parts.empty()) {
        res = {parts.front().begin, parts.back().end, LLAMA_RIDGEFILL_MODE_OFF};
        for (const auto & part : parts) {
            res.mode = std::max(res.mode, part.mode);
        }
    }
    return res;
}

void server_ridgefill_marks::restore(llama_context * ctx, llama_seq_id seq_id) const {
    llama_ridgefill_set_parts(ctx, seq_id, parts.data(), parts.size());
}

void server_ridgefill_clear(llama_context * ctx, llama_seq_id seq_id) {
    llama_ridgefill_set_filled(ctx, seq_id, {});
}

void server_ridgefill_copy(llama_context * ctx, llama_seq_id src, llama_seq_id dst) {
    server_ridgefill_marks(ctx, src).restore(ctx, dst);
}

void server_ridgefill_shifted(llama_context * ctx, llama_seq_id seq_id) {
    if (!is_empty(llama_ridgefill_filled(ctx, seq_id))) {
        // of no mode: no request reuses them
        llama_ridgefill_set_filled(ctx, seq_id, {0, INT32_MAX, LLAMA_RIDGEFILL_MODE_OFF});
    }
}

void server_ridgefill_require_exact(const llama_context * ctx, llama_seq_id seq_id) {
    const auto filled = llama_ridgefill_filled(ctx, seq_id);
    if (!is_empty(filled)) {
        throw std::runtime_error(string_format(
            "slot %d holds rows filled by RidgeFill (within rows %d to %d) and a slot file cannot mark them; process "
            "the prompt with \"ridgefill\": \"off\" before saving",
            seq_id, filled.begin, filled.end
        ));
    }
}

std::string server_ridgefill_compute_error(const llama_context * ctx) {
    char device[128];
    if (!llama_ridgefill_lost(ctx, device, sizeof(device))) {
        return "Compute error.";
    }
    return string_format("Compute error: %s is gone; start that rpc-server again, then llama-server", device);
}

int32_t server_ridgefill_cache_reuse(const llama_context * ctx, llama_seq_id seq_id, int32_t n_cache_reuse) {
    return is_empty(llama_ridgefill_filled(ctx, seq_id)) ? n_cache_reuse : 0;
}

bool server_ridgefill_covers(const server_ridgefill_marks & stored, const server_ridgefill_marks & other, size_t n) {
    const auto n_exact = [n](const server_ridgefill_marks & marks) {
        return marks.parts.empty() ? n : std::min<size_t>(n, marks.parts.front().begin);
    };
    return n_exact(stored) >= n_exact(other);
}

//
// props
//

json server_ridgefill_props(const llama_context * ctx) {
    const auto * projector = llama_ridgefill_attached(ctx);
    if (projector == nullptr) {
        const std::string & why = common_ridgefill_refusal();
        return why.empty() ? json(nullptr) : json{{"refused", why}};
    }
    const auto params = llama_ridgefill_get_params(ctx);
    json warnings = json::array();
    for (size_t i = 0; const char * text = llama_ridgefill_warning(projector, i); i++) {
        warnings.push_back(text);
    }
    return {
        {"identity", llama_ridgefill_identity(projector)},
        {"name", llama_ridgefill_name(projector)},
        {"split", llama_ridgefill_split(projector)},
        {"native", llama_ridgefill_native(projector)},
        {"mode", llama_ridgefill_mode_name(params.mode)},
        {"select", llama_ridgefill_select_name(params.select)},
        {"share", params.share},
        {"tail", params.n_tail},
        {"head", params.n_head},
        {"min_bulk", params.n_min_bulk},
        {"warnings", warnings},
    };
}
