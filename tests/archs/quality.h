#pragma once

// Quality mode of one architecture, with maps that answer zeros: every row selected gives an exact run's bits, none
// those of speed mode, and half of them the same whether a ubatch holds one row or many (filled and selected ones
// mixed).

#include "core/harness.h"

#include <string>

namespace archs {

struct quality_verdict {
    std::string status = "none"; // equal, differs, weak, declined
    std::string reason;
    double all = -1, none = -1, mixed = -1, rounding = -1; // the last: an exact run's, of the same two ubatch sizes
};

using open_fn = std::function<llama_context_ptr(const core::setup &)>;

inline quality_verdict run_quality(
    llama_model * model, const open_fn & open, const core::capture & widths, const core::prompt & p, double limit
) {
    using namespace core;
    quality_verdict v;
    setup s;
    llama_context_ptr many = open(s);
    s.n_ubatch = 1;
    llama_context_ptr one = open(s);
    if (!many || !one) {
        v.status = "declined";
        v.reason = "no context";
        return v;
    }
    oracle o(model, widths, 32);
    o.set_zero(1);
    const steps all = p.make(model);
    llama_ridgefill_counts counts = {};
    const auto run_mode = [&](llama_context * ctx, llama_ridgefill_mode mode, llama_ridgefill_select select,
                              float share) {
        char err[256] = "";
        llama_ridgefill_params params = p.params(mode);
        params.select = select;
        params.share = share;
        if (!llama_ridgefill_attach(ctx, &o.projector, params, err, sizeof(err))) {
            v.reason = err;
        }
        llama_ridgefill_set_filled(ctx, 0, {});
        llama_ridgefill_prompt(ctx, 0, 0, p.n_prompt(), nullptr);
        std::vector<float> logits = run(ctx, all);
        counts = llama_ridgefill_get_counts(ctx, 0);
        return logits;
    };
    constexpr auto ATTENTION = LLAMA_RIDGEFILL_SELECT_ATTENTION, RANDOM = LLAMA_RIDGEFILL_SELECT_RANDOM;
    const auto exact = run_mode(many.get(), LLAMA_RIDGEFILL_MODE_OFF, ATTENTION, 0);
    const auto speed = run_mode(many.get(), LLAMA_RIDGEFILL_MODE_SPEED, ATTENTION, 0);
    const auto none = run_mode(many.get(), LLAMA_RIDGEFILL_MODE_QUALITY, ATTENTION, 0);
    if (counts.n_filled != p.n_bulk) {
        v.status = "declined";
        v.reason = !v.reason.empty() ? v.reason : llama_ridgefill_reason_name(counts.reason);
        return v;
    }
    v.none = difference(speed, none);
    v.all = difference(exact, run_mode(many.get(), LLAMA_RIDGEFILL_MODE_QUALITY, LLAMA_RIDGEFILL_SELECT_ALL, 0));
    const auto some = run_mode(many.get(), LLAMA_RIDGEFILL_MODE_QUALITY, RANDOM, 0.5f);
    const bool half = counts.n_selected == p.n_bulk / 2;
    const auto singly = run_mode(one.get(), LLAMA_RIDGEFILL_MODE_QUALITY, RANDOM, 0.5f);
    v.mixed = difference(singly, some);
    v.rounding = difference(exact, run_mode(one.get(), LLAMA_RIDGEFILL_MODE_OFF, ATTENTION, 0));
    const double power = std::min(difference(exact, some), difference(speed, some));
    // Batch shapes round differently, in an exact run too; a router may then choose other experts. Behind maps of zeros
    // rounding weighs more than in an exact run: 1.6e-5 where that has 3e-7 (internlm2, xverse, ernie4_5).
    const double allowed = 5 * v.rounding + 10 * limit;
    v.status = v.all > limit || v.none > limit || v.mixed > allowed || !half ? "differs"
               : power <= 2 * v.mixed                                        ? "weak"
                                                                             : "equal";
    if (!std::isfinite(v.none) && v.all <= limit && half) { // difference() of what is not finite
        v.status = "weak";
    }
    return v;
}

} // namespace archs
