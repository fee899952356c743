#pragma once

// Runs of a model in steps whose ubatches are known, and the oracle: a projector whose maps answer with the true layer
// inputs, captured from an exact run. Its map is 0 * x + b with one row of b per row of the ubatch, so the filled rows
// are bit for bit what the exact run had, and every later logit must be equal too.

#include "llama-cpp.h"
#include "llama-ridgefill.h"

#include "llama-context.h"
#include "llama-model.h"
#include "llama-ridgefill-context.h"
#include "llama-ridgefill-projector.h"

#include "check.h"

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace core {

// ---- runs ----

struct row {
    llama_token token;
    llama_pos pos;
    llama_seq_id seq = 0;
    bool output = false;
    bool bulk = false; // what the plan is expected to make of it
};

using step = std::vector<row>; // one llama_decode, one ubatch unless said otherwise
using steps = std::vector<step>;

inline void init_with_warnings() {
    llama_log_set(
        [](ggml_log_level level, const char * text, void *) {
            if (level >= GGML_LOG_LEVEL_WARN) {
                fputs(text, stderr);
            }
        },
        nullptr
    );
    llama_backend_init();
}

struct setup {
    std::string name;
    llama_flash_attn_type flash = LLAMA_FLASH_ATTN_TYPE_AUTO;
    ggml_type kv = GGML_TYPE_F16;
    uint32_t n_seq = 1;
    bool unified = false;
    uint32_t n_ctx = 256; // per sequence
    uint32_t n_batch = 512;
    uint32_t n_ubatch = 32;
    bool swa_full = true;
    ggml_backend_sched_eval_callback eval = nullptr; // sees every tensor
    void * eval_data = nullptr;
};

inline llama_context_ptr make_context(llama_model * model, const setup & s) {
    llama_context_params p = llama_context_default_params();
    p.n_ctx = s.n_ctx * s.n_seq;
    p.n_batch = s.n_batch;
    p.n_ubatch = s.n_ubatch;
    p.n_seq_max = s.n_seq;
    p.kv_unified = s.unified;
    p.flash_attn_type = s.flash;
    p.type_k = s.kv;
    p.type_v = s.kv;
    p.swa_full = s.swa_full;
    p.cb_eval = s.eval;
    p.cb_eval_user_data = s.eval_data;
    p.n_threads = 1; // steps are short, and a busy machine makes threads wait for each other
    p.n_threads_batch = 1;
    return llama_context_ptr(llama_init_from_model(model, p));
}

inline int decode(llama_context * ctx, const step & rows) {
    llama_batch b = llama_batch_init((int32_t) rows.size(), 0, 1);
    b.n_tokens = (int32_t) rows.size();
    for (size_t i = 0; i < rows.size(); ++i) {
        b.token[i] = rows[i].token;
        b.pos[i] = rows[i].pos;
        b.n_seq_id[i] = 1;
        b.seq_id[i][0] = rows[i].seq;
        b.logits[i] = rows[i].output;
    }
    const int rc = llama_decode(ctx, b);
    llama_batch_free(b);
    return rc;
}

// logits of the step's output rows, in order
inline void append_logits(llama_context * ctx, const step & rows, std::vector<float> & out) {
    const size_t n_vocab = (size_t) llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)));
    for (size_t i = 0; i < rows.size(); ++i) {
        if (rows[i].output) {
            const float * v = llama_get_logits_ith(ctx, (int32_t) i);
            out.insert(out.end(), v, v + n_vocab);
        }
    }
}

using hook = std::function<void(size_t)>; // called with the step's index

inline std::vector<float>
run(llama_context * ctx, const steps & all, const hook & before = {}, const hook & after = {}) {
    std::vector<float> out;
    llama_memory_clear(llama_get_memory(ctx), true);
    for (size_t i = 0; i < all.size(); ++i) {
        if (before) {
            before(i);
        }
        const int rc = decode(ctx, all[i]);
        CHECK(rc == 0, "step %zu: llama_decode returned %d", i, rc);
        append_logits(ctx, all[i], out);
        if (after) {
            after(i);
        }
    }
    return out;
}

// largest difference relative to the largest reference value; infinite for NaN or another size
inline double difference(const std::vector<float> & want, const std::vector<float> & found) {
    if (want.size() != found.size() || want.empty()) {
        return INFINITY;
    }
    double diff = 0.0, top = 0.0;
    for (size_t i = 0; i < want.size(); ++i) {
        if (!(std::fabs((double) want[i] - (double) found[i]) < 1e30)) {
            return INFINITY;
        }
        diff = std::max(diff, std::fabs((double) want[i] - (double) found[i]));
        top = std::max(top, std::fabs((double) want[i]));
    }
    return top > 0.0 ? diff / top : INFINITY;
}

// ---- prompts ----

inline llama_token some_token(const llama_model * model, uint32_t i) {
    const uint32_t n = (uint32_t) llama_vocab_n_tokens(llama_model_get_vocab(model));
    uint32_t x = i * 2654435761u + 12345u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (llama_token) (x % n);
}

struct prompt {
    int n_head = 16;
    int n_bulk = 64;
    int n_tail = 24;
    int n_decode = 2;  // rows one at a time behind the prompt
    int n_ubatch = 32; // of the bulk
    int n_out = 8;     // of the tail's last rows

    int n_prompt() const { return n_head + n_bulk + n_tail; }

    llama_ridgefill_params params(llama_ridgefill_mode mode) const { return {mode, n_tail, n_head, 1}; }

    // head | bulk in ubatches | tail | decode steps
    steps make(const llama_model * model, llama_seq_id seq = 0, uint32_t salt = 0) const {
        steps all;
        const int end = n_prompt();
        for (int pos = 0; pos < end + n_decode;) {
            int n = 1;
            if (pos < n_head) {
                n = n_head;
            } else if (pos < n_head + n_bulk) {
                n = std::min(n_ubatch, n_head + n_bulk - pos);
            } else if (pos < end) {
                n = std::min(n_ubatch, end - pos);
            }
            step s;
            for (int i = 0; i < n; ++i, ++pos) {
                s.push_back(
                    {some_token(model, (uint32_t) pos + salt * 7919u), pos, seq, pos >= end - n_out,
                     pos >= n_head && pos < n_head + n_bulk}
                );
            }
            all.push_back(s);
        }
        return all;
    }
};

inline step joined(const steps & all) {
    step res;
    for (const step & s : all) {
        res.insert(res.end(), s.begin(), s.end());
    }
    return res;
}

// the same step of several sequences as one: all rows of the first, then all of the second
inline steps side_by_side(const std::vector<steps> & seqs) {
    steps res(seqs[0].size());
    for (size_t i = 0; i < res.size(); ++i) {
        for (const steps & s : seqs) {
            res[i].insert(res[i].end(), s[i].begin(), s[i].end());
        }
    }
    return res;
}

// ---- oracle ----

// Rows of the targets (and of the source, first) by step.
struct capture {
    int split;
    llama_ridgefill_target target;
    std::vector<int32_t> layers; // -1, split+1 .. n_layer-1
    std::vector<int32_t> widths;
    std::vector<std::vector<std::vector<float>>> rows; // [step][layer][n_rows * width]
    std::vector<float> logits;

    capture(const llama_model * model, int split, llama_ridgefill_target target) : split(split), target(target) {
        layers.push_back(-1);
        for (int il = split + 1; il < (int) model->hparams.n_layer(); ++il) {
            layers.push_back(il);
        }
        widths.resize(layers.size());
    }

    // empty: done; else why not
    std::string take(llama_context * ctx, const steps & all) {
        char err[256] = "";
        if (!llama_ridgefill_capture(ctx, split, target, layers.data(), layers.size(), err, sizeof(err))) {
            return *err ? err : "no reason given";
        }
        rows.assign(all.size(), {});
        logits = run(ctx, all, {}, [&](size_t i) {
            rows[i].resize(layers.size());
            for (size_t k = 0; k < layers.size(); ++k) {
                int32_t n_rows = 0;
                const float * v = llama_ridgefill_captured(ctx, k, &n_rows, &widths[k]);
                CHECK(
                    v && n_rows == (int32_t) all[i].size() && widths[k] > 0, "step %zu layer %d: %d rows", i, layers[k],
                    n_rows
                );
                if (v) {
                    rows[i][k].assign(v, v + (size_t) n_rows * widths[k]);
                }
            }
        });
        CHECK(llama_ridgefill_capture(ctx, 0, target, nullptr, 0, err, sizeof(err)), "%s", err);
        return "";
    }
};

// A projector made by hand. set() gives the answers of the next ubatch.
struct oracle {
    llama_ridgefill_projector projector;
    std::vector<ggml_tensor *> bias;
    int n_rows_max;

    oracle(const llama_model * model, const capture & c, int n_rows_max) : n_rows_max(n_rows_max) {
        const int64_t n_in = c.widths[0], n_out = c.widths.size() > 1 ? c.widths[1] : c.widths[0];
        projector.model = model;
        projector.name = "oracle";
        projector.split = c.split;
        projector.target = c.target;
        projector.maps.n_in = (int32_t) n_in;
        projector.maps.n_out = (int32_t) n_out;

        projector.ctxs.emplace_back(ggml_init({ggml_tensor_overhead() * (c.layers.size() + 1), nullptr, true}));
        ggml_context * ctx = projector.ctxs.back().get();
        ggml_tensor * zero = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n_in, n_out);
        for (size_t k = 1; k < c.layers.size(); ++k) {
            ridgefill_map map;
            map.il = c.layers[k];
            map.weight = zero;
            map.bias = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n_out, n_rows_max);
            bias.push_back(map.bias);
            projector.maps.maps.push_back(map);
        }
        ggml_backend_buffer_t buf = ggml_backend_alloc_ctx_tensors_from_buft(ctx, ggml_backend_cpu_buffer_type());
        ggml_backend_buffer_set_usage(buf, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        ggml_backend_buffer_clear(buf, 0);
        projector.bufs.emplace_back(buf);
    }

    // the graph of a ubatch reads as many rows of answers as it has
    void resize(int n_rows) {
        for (ggml_tensor * t : bias) {
            t->ne[1] = n_rows;
            t->nb[2] = t->nb[3] = t->nb[1] * (size_t) n_rows;
        }
    }

    void set(const std::vector<std::vector<float>> & by_layer) {
        resize((int) (by_layer[1].size() / (size_t) projector.maps.n_out));
        for (size_t k = 0; k < bias.size(); ++k) {
            GGML_ASSERT(by_layer[k + 1].size() * sizeof(float) == ggml_nbytes(bias[k]));
            ggml_backend_tensor_set(bias[k], by_layer[k + 1].data(), 0, ggml_nbytes(bias[k]));
        }
    }

    void set_zero(int n_rows) {
        resize(n_rows);
        ggml_backend_buffer_clear(projector.bufs.back().get(), 0);
    }
};

inline int n_bulk_rows(const step & s) {
    int n = 0;
    for (const row & r : s) {
        n += r.bulk;
    }
    return n;
}

// What one run with a projector did.
struct filled_run {
    std::vector<float> logits;
    std::map<int32_t, llama_ridgefill_counts> counts; // by sequence
    int n_nodes_before = 0, n_nodes_after = 0;
    bool applied = false;
    std::string why; // not attached
};

// Attaches p, announces a prompt for each sequence and runs the steps; before gives the answers.
inline filled_run run_filled(
    llama_context * ctx, oracle & o, const prompt & p, llama_ridgefill_mode mode, const steps & all, int n_seq,
    const hook & before
) {
    filled_run res;
    char err[256] = "";
    o.resize(o.n_rows_max);
    if (!llama_ridgefill_attach(ctx, &o.projector, p.params(mode), err, sizeof(err))) {
        res.why = *err ? err : "no reason given";
        return res;
    }
    for (int s = 0; s < n_seq; ++s) {
        llama_ridgefill_prompt(ctx, s, 0, p.n_prompt(), nullptr);
    }
    res.logits = run(ctx, all, before);
    for (int s = 0; s < n_seq; ++s) {
        res.counts[s] = llama_ridgefill_get_counts(ctx, s);
    }
    res.applied = ctx->ridgefill->outcome.applied;
    res.n_nodes_before = ctx->ridgefill->outcome.n_nodes_before;
    res.n_nodes_after = ctx->ridgefill->outcome.n_nodes_after;
    return res;
}

} // namespace core
