// Every architecture that upstream's fixture can build: plumb equals exact, the oracle equals exact in logits and in
// every byte of the caches, zeros differ, no node of a late layer's FFN survives; or the pass declines with a reason.
// Each architecture runs in a process of its own, so that one that aborts is a line of the table and not its end.
//
// usage: test-archs [--level N] [--filter TEXT] [--json FILE] [--doc FILE] [--jobs N]
//        test-archs --one NAME [--level N]
//        test-archs --write NAME FILE [--ngram-layer L]    the small random model as a GGUF, for other tests
//
// level 0 (default, what ctest runs): split 2, layer inputs, block inputs where those decline; 1: an early and a late
// split, both targets; 2 (make archs): also without flash attention, with a q8_0 cache, with four sequences, at split 2

#include "core/harness.h"

#include "archs/fixture.h"
#include "archs/quality.h"

#include "llama-ridgefill-sidefile.h"

#include <algorithm>
#include <atomic>
#include <fstream>
#include <sstream>
#include <thread>

#ifdef _WIN32
#define popen _popen
#define pclose _pclose
#endif

using namespace core;

namespace {

constexpr double LIMIT = 1e-5;

// What one target of one architecture came to.
struct verdict {
    std::string status = "none"; // equal, differs, cache (contents differ), weak (the control did not differ), slow
                                 // (late FFN nodes), declined
    std::string reason;
    double plumb = -1, oracle = -1, zeros = -1; // worst over splits and setups; -1: not run
    int n_before = 0, n_after = 0;              // nodes of the graph at the early split
    int n_late_ffn = 0;
    std::string setups;  // of the other setups: "4 of 4", or which one did not run and why
    std::string quality; // quality mode: equal, or why not
};

struct line {
    std::string name, status, reason;
    verdict layer, block;
    std::string chosen; // the target that the row reports
    int n_layer = 0;
};

// ---- one architecture ----

bool is_late_ffn(const ggml_tensor * t, int split) {
    const std::string name = t->name;
    const size_t dash = name.rfind('-');
    if (name.find("ffn_") == std::string::npos || dash == std::string::npos) {
        return false;
    }
    return atoi(name.c_str() + dash + 1) >= split;
}

llama_context_ptr open_context(llama_model * model, const setup & s, llm_arch arch) {
    llama_context_ptr ctx = make_context(model, s);
    if (ctx && archs::encodes_first(arch)) {
        std::vector<llama_token> tokens;
        for (uint32_t i = 0; i < 16; ++i) {
            tokens.push_back(some_token(model, i));
        }
        if (llama_encode(ctx.get(), llama_batch_get_one(tokens.data(), (int32_t) tokens.size())) != 0) {
            return nullptr;
        }
    }
    return ctx;
}

// What the memory holds of each sequence: keys and values, recurrent states, positions.
std::vector<std::vector<uint8_t>> memory_of(llama_context * ctx, uint32_t n_seq) {
    std::vector<std::vector<uint8_t>> res(n_seq);
    for (uint32_t s = 0; s < n_seq; ++s) {
        res[s].resize(llama_state_seq_get_size(ctx, (llama_seq_id) s));
        llama_state_seq_get_data(ctx, res[s].data(), res[s].size(), (llama_seq_id) s);
    }
    return res;
}

prompt fixture_prompt(uint32_t n_seq) {
    prompt p;
    p.n_bulk = 96; // longer than the fixture's sliding windows of 32 rows
    p.n_tail = 32;
    p.n_ubatch = 32 / (int) n_seq;
    return p;
}

void run_quality(llama_model * model, llm_arch arch, llama_ridgefill_target target, verdict & v) {
    if (archs::encodes_first(arch)) {
        v.quality = "not run, the fixture encodes one text in one ubatch";
        return;
    }
    capture c(model, 2, target);
    const ridgefill_base base = ridgefill_base_of(*model);
    std::fill(
        c.widths.begin(), c.widths.end(),
        (int32_t) (target == LLAMA_RIDGEFILL_TARGET_BLOCK_INPUT ? base.block_width : base.source_width)
    );
    c.widths[0] = (int32_t) base.source_width;
    const auto open = [&](const setup & s) { return open_context(model, s, arch); };
    const archs::quality_verdict q = archs::run_quality(model, open, c, fixture_prompt(1), LIMIT);
    v.quality = q.status + (q.reason.empty() ? "" : ", " + q.reason);
    fprintf(
        stderr, "quality %s: all %g none %g mixed %g rounding %g\n", v.quality.c_str(), q.all, q.none, q.mixed,
        q.rounding
    );
}

void run_one(
    llama_model * model, llm_arch arch, const setup & s, int split, llama_ridgefill_target target, verdict & v
) {
    const prompt p = fixture_prompt(s.n_seq);
    std::vector<steps> seqs;
    for (uint32_t i = 0; i < s.n_seq; ++i) {
        seqs.push_back(p.make(model, (llama_seq_id) i, i));
    }
    const steps all = side_by_side(seqs);

    llama_context_ptr ctx = open_context(model, s, arch);
    if (!ctx) {
        v.status = "fixture";
        v.reason = "no context: " + s.name;
        return;
    }
    if (!llama_get_memory(ctx.get())) {
        v.status = "declined";
        v.reason = "keeps no cache";
        return;
    }
    const std::vector<float> exact = run(ctx.get(), all);
    const std::vector<std::vector<uint8_t>> memory = memory_of(ctx.get(), s.n_seq);
    if (difference(exact, exact) != 0.0) {
        v.status = "fixture";
        v.reason = "the random model's logits are not finite";
        return;
    }
    capture c(model, split, target);
    const std::string why = c.take(ctx.get(), all);
    if (!why.empty()) {
        v.status = "declined";
        v.reason = why;
        return;
    }

    // a side file of these widths must be one that the loader takes for this model
    const ridgefill_base base = ridgefill_base_of(*model);
    const bool block = target == LLAMA_RIDGEFILL_TARGET_BLOCK_INPUT;
    if (c.widths[0] != (int32_t) base.source_width
        || c.widths[1] != (int32_t) (block ? base.block_width : base.source_width)) {
        v.status = "width";
        v.reason = "maps of [" + std::to_string(c.widths[0]) + " -> " + std::to_string(c.widths[1])
                   + "], the loader wants [" + std::to_string(base.source_width) + " -> "
                   + std::to_string(block ? base.block_width : base.source_width) + "]";
        return;
    }

    llama_context_ptr fresh = open_context(model, s, arch);
    oracle o(model, c, (int) s.n_ubatch);
    const auto answers = [&](bool zero) {
        return [&, zero](size_t i) {
            if (n_bulk_rows(all[i]) > 0) {
                if (zero) {
                    o.set_zero((int) all[i].size());
                } else {
                    o.set(c.rows[i]);
                }
            }
        };
    };
    const auto worst = [](double & a, double b) { a = std::max(a, b); };
    const filled_run filled =
        run_filled(fresh.get(), o, p, LLAMA_RIDGEFILL_MODE_SPEED, all, (int) s.n_seq, answers(false));
    if (!filled.why.empty()) {
        v.status = "declined";
        v.reason = filled.why;
        return;
    }
    const llama_ridgefill_counts counts = filled.counts.at(0);
    if (counts.n_filled != p.n_bulk) {
        v.status = "declined";
        v.reason = llama_ridgefill_reason_name(counts.reason);
        return;
    }
    const double d_oracle = std::max(difference(exact, filled.logits), difference(exact, c.logits));
    worst(v.oracle, d_oracle);
    const bool same_memory = memory_of(fresh.get(), s.n_seq) == memory;
    if (v.n_before == 0) {
        v.n_before = filled.n_nodes_before;
        v.n_after = filled.n_nodes_after;
    }

    // what is left of the late layers
    {
        fresh->ridgefill->reserving = llama_ridgefill_context::FILL;
        const auto mctx = fresh->get_memory()->init_full();
        ggml_cgraph * gf = fresh->graph_reserve(s.n_ubatch, s.n_seq, s.n_seq, mctx.get(), true);
        fresh->ridgefill->reserving = llama_ridgefill_context::EXACT;
        int n = 0;
        for (int i = 0; gf && i < ggml_graph_n_nodes(gf); ++i) {
            n += is_late_ffn(ggml_graph_node(gf, i), split);
        }
        v.n_late_ffn = std::max(v.n_late_ffn, n);
        fresh->ridgefill_changed();
    }

    const filled_run zero =
        run_filled(fresh.get(), o, p, LLAMA_RIDGEFILL_MODE_SPEED, all, (int) s.n_seq, answers(true));
    const double d_zero = difference(exact, zero.logits);
    v.zeros = v.zeros < 0 ? d_zero : std::min(v.zeros, d_zero);
    const filled_run plumb =
        run_filled(fresh.get(), o, p, LLAMA_RIDGEFILL_MODE_PLUMB, all, (int) s.n_seq, answers(true));
    const double d_plumb = difference(exact, plumb.logits);
    worst(v.plumb, d_plumb);

    const std::string at = s.name + ", split " + std::to_string(split);
    if (d_oracle > LIMIT || d_plumb > LIMIT) {
        v.status = "differs";
        v.reason = at;
    } else if (!same_memory && v.status != "differs") {
        v.status = "cache";
        v.reason = "the caches differ from an exact run's, " + at;
    } else if (v.n_late_ffn > 0 && v.status != "differs" && v.status != "cache") {
        v.status = "slow";
        v.reason = std::to_string(v.n_late_ffn) + " nodes of late FFNs are left, " + at;
    } else if (d_zero <= d_oracle && (v.status == "none" || v.status == "equal")) {
        v.status = "weak";
        v.reason = "zeros in place of the inputs change nothing, " + at;
    } else if (v.status == "none") {
        v.status = "equal";
    }
}

std::vector<setup> setups(int level) {
    std::vector<setup> res(1);
    res[0].name = "default";
    if (level >= 2) {
        setup s = res[0];
        s.name = "flash attention off";
        s.flash = LLAMA_FLASH_ATTN_TYPE_DISABLED;
        res.push_back(s);
        s = res[0];
        s.name = "q8_0 cache";
        s.kv = GGML_TYPE_Q8_0;
        s.flash = LLAMA_FLASH_ATTN_TYPE_ENABLED;
        res.push_back(s);
        s = res[0];
        s.name = "four sequences, unified";
        s.n_seq = 4;
        s.unified = true;
        res.push_back(s);
        s.name = "four sequences, split";
        s.unified = false;
        res.push_back(s);
    }
    return res;
}

// The setups beside the default one, at the early split. What upstream refuses to run exactly is no failure of ours.
void run_others(llama_model * model, llm_arch arch, llama_ridgefill_target target, int level, verdict & v) {
    int n_equal = 0, n = 0;
    std::string other;
    for (const setup & s : setups(level)) {
        if (n++ == 0) {
            continue;
        }
        if (archs::encodes_first(arch) && (s.kv != GGML_TYPE_F16 || s.n_seq > 1)) {
            other += "; " + s.name + (s.n_seq > 1 ? ": the fixture encodes one text" : ": upstream's exact run faults");
            continue;
        }
        verdict w;
        run_one(model, arch, s, 2, target, w);
        v.plumb = std::max(v.plumb, w.plumb);
        v.oracle = std::max(v.oracle, w.oracle);
        if (w.status == "equal") {
            n_equal++;
        } else if (w.status == "fixture" || w.status == "declined" || w.status == "weak") {
            other += "; " + s.name + ": " + w.status + (w.status == "weak" ? "" : ", " + w.reason);
        } else {
            v.status = w.status;
            v.reason = w.reason;
        }
    }
    v.setups = n > 1 ? std::to_string(n_equal) + " of " + std::to_string(n - 1) + other : "";
}

int child(const archs::entry & e, int level) {
    llama_log_set(
        [](ggml_log_level level, const char * text, void *) {
            if (level >= GGML_LOG_LEVEL_ERROR) {
                fputs(text, stderr);
            }
        },
        nullptr
    );
    llama_backend_init();
    const auto print = [](const char * target, const verdict & v) {
        printf(
            "RESULT\t%s\t%s\t%s\t%.9g\t%.9g\t%.9g\t%d\t%d\t%d\t%s.\t%s.\n", target, v.status.c_str(), v.reason.c_str(),
            v.plumb, v.oracle, v.zeros, v.n_before, v.n_after, v.n_late_ffn, v.setups.c_str(), v.quality.c_str()
        );
        fflush(stdout);
    };
    llama_model_ptr model;
    try {
        model = archs::make_model(e.arch, e.moe);
    } catch (const std::exception & err) {
        fprintf(stderr, "%s\n", err.what());
    }
    if (!model) {
        verdict v;
        v.status = "fixture";
        v.reason = "the random model does not load";
        print("layer", v);
        return 0;
    }
    const int n_layer = (int) model->hparams.n_layer();
    printf("LAYERS\t%d\n", n_layer);
    const std::vector<int> splits = level == 0 ? std::vector<int>{2} : std::vector<int>{2, n_layer - 3};
    bool chosen = false; // the other setups run once, with the first target that works
    const auto run_target = [&](llama_ridgefill_target target) {
        verdict v;
        for (const int split : splits) {
            if (v.status != "declined" && v.status != "fixture" && v.status != "width") {
                run_one(model.get(), e.arch, setups(0)[0], split, target, v);
            }
        }
        if (v.status == "equal" && !chosen) {
            chosen = true;
            run_others(model.get(), e.arch, target, level, v);
            run_quality(model.get(), e.arch, target, v);
        }
        print(target == LLAMA_RIDGEFILL_TARGET_LAYER_INPUT ? "layer" : "block", v);
        return v.status == "equal";
    };
    if (!run_target(LLAMA_RIDGEFILL_TARGET_LAYER_INPUT) || level > 0) {
        run_target(LLAMA_RIDGEFILL_TARGET_BLOCK_INPUT);
    }
    return 0;
}

int write_model(const archs::entry & e, const std::string & file, int ngram_layer) {
    llama_backend_init();
    gguf_context_ptr g = archs::make_keys(e.arch, e.moe);
    if (ngram_layer >= 0) {
        const uint32_t layers[] = {(uint32_t) ngram_layer};
        gguf_set_arr_data(
            g.get(), (std::string(llm_arch_name(e.arch)) + ".ple.layers").c_str(), GGUF_TYPE_UINT32, layers, 1
        );
    }
    llama_model_ptr model = archs::make_model(g.get());
    if (!model) {
        return 1;
    }
    llama_model_save_to_file(model.get(), file.c_str());
    return 0;
}

// ---- all of them ----

line run_child(const std::string & self, const archs::entry & e, int level) {
    line res;
    res.name = e.name;
    if (const char * why = archs::skip_reason(e.arch)) {
        res.status = "fixture";
        res.reason = why;
        return res;
    }
    const std::string log = "test-archs-" + e.name + ".log";
    const std::string command = "\"" + self + "\" --one " + e.name + " --level " + std::to_string(level) + " 2>" + log;
    FILE * pipe = popen(command.c_str(), "r");
    char buf[1024];
    while (pipe && fgets(buf, sizeof(buf), pipe)) {
        std::vector<std::string> f;
        std::stringstream text(std::string(buf).substr(0, strcspn(buf, "\n")));
        for (std::string cell; std::getline(text, cell, '\t');) {
            f.push_back(cell);
        }
        if (f.size() == 2 && f[0] == "LAYERS") {
            res.n_layer = atoi(f[1].c_str());
        }
        if (f.size() == 12 && f[0] == "RESULT") {
            verdict & v = f[1] == "layer" ? res.layer : res.block;
            v.status = f[2];
            v.reason = f[3];
            v.plumb = atof(f[4].c_str());
            v.oracle = atof(f[5].c_str());
            v.zeros = atof(f[6].c_str());
            v.n_before = atoi(f[7].c_str());
            v.n_after = atoi(f[8].c_str());
            v.n_late_ffn = atoi(f[9].c_str());
            v.setups = f[10].substr(0, f[10].size() - 1);
            v.quality = f[11].substr(0, f[11].size() - 1);
        }
    }
    const int rc = pipe ? pclose(pipe) : -1;
    if (rc != 0) {
        std::ifstream in(log);
        std::string last;
        for (std::string l; std::getline(in, l);) {
            last = l.find("GGML_ASSERT") != std::string::npos || last.empty() ? l : last;
        }
        res.status = "crashed";
        res.reason = last.substr(last.rfind('/') == std::string::npos ? 0 : last.rfind('/') + 1);
        return res;
    }
    remove(log.c_str());
    // a side file chooses its target; the row shows the one that works, the stream first
    const bool block = res.layer.status != "equal" && res.block.status == "equal";
    const verdict & v = block ? res.block : res.layer;
    res.chosen = block ? "block_input" : "layer_input";
    res.status = v.status;
    res.reason = v.reason;
    return res;
}

std::string number(double v) {
    char buf[32];
    snprintf(buf, sizeof(buf), v < 0 ? "null" : "%.3g", std::min(v, 1e38)); // JSON has no infinity
    return buf;
}

void print(const line & l) {
    const verdict & v = l.chosen == "block_input" ? l.block : l.layer;
    printf(
        "%-22s %-8s plumb %-8s oracle %-8s zeros %-8s %4d -> %4d  block_input %s  quality %s  setups %s%s%s\n",
        l.name.c_str(), l.status.c_str(), number(v.plumb).c_str(), number(v.oracle).c_str(), number(v.zeros).c_str(),
        v.n_before, v.n_after, l.block.status.c_str(), v.quality.c_str(), v.setups.c_str(),
        l.reason.empty() ? "" : ": ", l.reason.c_str()
    );
    fflush(stdout);
}

std::string json_text(const std::string & s) {
    std::string res = "\"";
    for (const char c : s) {
        res += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c >= 32 ? c : ' ');
    }
    return res + "\"";
}

void write_json(const std::string & path, const std::vector<line> & lines) {
    std::ofstream out(path);
    out << "{\n";
    for (size_t i = 0; i < lines.size(); ++i) {
        const line & l = lines[i];
        const verdict & v = l.chosen == "block_input" ? l.block : l.layer;
        out << "  " << json_text(l.name) << ": {\"plumb\": " << number(v.plumb) << ", \"oracle\": " << number(v.oracle)
            << ", \"status\": " << json_text(l.status) << ", \"reason\": " << json_text(l.reason)
            << ", \"target\": " << json_text(l.chosen) << ", \"zeros\": " << number(v.zeros)
            << ", \"layers\": " << l.n_layer << ", \"nodes\": [" << v.n_before << ", " << v.n_after
            << "], \"block_input\": " << json_text(l.block.status) << ", \"quality\": " << json_text(v.quality)
            << ", \"setups\": " << json_text(v.setups) << "}" << (i + 1 < lines.size() ? "," : "") << "\n";
    }
    out << "}\n";
}

void write_doc(const std::string & path, const std::vector<line> & lines) {
    std::map<std::string, int> n;
    for (const line & l : lines) {
        n[l.status]++;
    }
    std::ofstream out(path);
    out << "# Architectures\n\n"
           "Generated by `make archs` from small random models of upstream's fixture (eight layers where the "
           "architecture\n"
           "allows): largest difference of the tail's logits to an exact run, relative to the largest logit, at split "
           "2 and at\n"
           "the third layer from the end.\n\n"
           "- *Plumb* runs the plan and the pass without a change; the *oracle* answers each map with the true input.\n"
           "- *Zeros* is the control: the smallest difference when every map answers zero. Where it is 0 the test has "
           "no power.\n"
           "- *Nodes*: the graph of a bulk ubatch before and after the pass at split 2. No node of a late FFN is "
           "left.\n"
           "- *Target*: what the side file's maps predict; *block_input* tells whether the other target works too.\n"
           "- *Setups*: how many of four more are equal at split 2: flash attention off, a q8_0 cache, four sequences "
           "at once\n"
           "  in a unified and in a split cache. Equal means the logits and every byte of the caches and states.\n"
           "- *Quality*: quality mode at split 2, maps answering zeros. Equal: every row selected gives an exact run's "
           "bits, none\n"
           "  speed mode's, and half of them at random the same whether a ubatch holds one row or 32. Declined rows "
           "run "
           "exactly.\n\n";
    out << n["equal"] << " equal";
    for (const auto & [status, count] : n) {
        if (status != "equal") {
            out << ", " << count << " " << status;
        }
    }
    out << ".\n\n| architecture | status | target | plumb | oracle | zeros | nodes | block_input "
           "| quality | setups |\n|---|---|---|---|---|---|---|---|---|---|\n";
    for (const line & l : lines) {
        const verdict & v = l.chosen == "block_input" ? l.block : l.layer;
        if (l.status != "equal") {
            continue;
        }
        out << "| " << l.name << " | " << l.status << " | " << l.chosen << " | " << number(v.plumb) << " | "
            << number(v.oracle) << " | " << number(v.zeros) << " | " << v.n_before << " -> " << v.n_after << " | "
            << l.block.status << " | " << v.quality << " | " << v.setups << " |\n";
    }
    out << "\nThe others serve exactly. `ffn_...-L is still needed`: layer L's memory is made from its FFN's input too "
           "(token-shift\n"
           "recurrences), or its projections read more than the target, so that filling would save little. `fixture`: "
           "upstream has\n"
           "no small random model to test with.\n\n| architecture | status | reason |\n|---|---|---|\n";
    for (const line & l : lines) {
        if (l.status != "equal") {
            out << "| " << l.name << " | " << l.status << " | " << l.reason << " |\n";
        }
    }
}

} // namespace

int main(int argc, char ** argv) {
    std::string filter, json, doc, one, written, file;
    int ngram_layer = -1;
    int level = 0;
    int n_jobs = 2;
    for (int i = 1; i < argc; ++i) {
        const std::string a = argv[i];
        const auto next = [&] { return i + 1 < argc ? std::string(argv[++i]) : std::string(); };
        if (a == "--filter") {
            filter = next();
        } else if (a == "--json") {
            json = next();
        } else if (a == "--doc") {
            doc = next();
        } else if (a == "--one") {
            one = next();
        } else if (a == "--write") {
            written = next();
            file = next();
        } else if (a == "--ngram-layer") {
            ngram_layer = atoi(next().c_str());
        } else if (a == "--jobs") {
            n_jobs = std::max(1, atoi(next().c_str()));
        } else if (a == "--level") {
            level = atoi(next().c_str());
        } else {
            fprintf(stderr, "test-archs: unknown option %s\n", argv[i]);
            return 2;
        }
    }
    const std::vector<archs::entry> entries = archs::all();
    if (!one.empty()) {
        for (const archs::entry & e : entries) {
            if (e.name == one) {
                return child(e, level);
            }
        }
        return 2;
    }

    if (!written.empty()) {
        for (const archs::entry & e : entries) {
            if (e.name == written) {
                return write_model(e, file, ngram_layer);
            }
        }
        return 2;
    }

    std::vector<archs::entry> chosen;
    for (const archs::entry & e : entries) {
        if (e.name.find(filter) != std::string::npos) {
            chosen.push_back(e);
        }
    }
    std::vector<line> lines(chosen.size());
    std::atomic<size_t> next{0};
    std::vector<std::thread> workers;
    for (int w = 0; w < n_jobs; ++w) {
        workers.emplace_back([&] {
            for (size_t i = next++; i < chosen.size(); i = next++) {
                lines[i] = run_child(argv[0], chosen[i], level);
                print(lines[i]);
            }
        });
    }
    for (std::thread & w : workers) {
        w.join();
    }

    check::begin("architectures");
    std::map<std::string, int> n;
    for (const line & l : lines) {
        n[l.status]++;
        // declining is exact serving; anything else that is not equal is a defect
        CHECK(
            l.status == "equal" || l.status == "declined" || l.status == "fixture", "%s: %s: %s", l.name.c_str(),
            l.status.c_str(), l.reason.c_str()
        );
        CHECK(
            l.block.status != "differs" && l.block.status != "slow" && l.block.status != "cache"
                && l.block.status != "width",
            "%s: block_input %s: %s", l.name.c_str(), l.block.status.c_str(), l.block.reason.c_str()
        );
        const verdict & v = l.chosen == "block_input" ? l.block : l.layer;
        CHECK(v.quality.rfind("differs", 0) != 0, "%s: quality mode %s", l.name.c_str(), v.quality.c_str());
    }
    for (const auto & [status, count] : n) {
        printf("%s %d\n", status.c_str(), count);
    }
    if (filter.empty()) {
        CHECK(n["equal"] >= 116, "%d equal", n["equal"]);
    }
    if (!json.empty()) {
        write_json(json, lines);
    }
    if (!doc.empty()) {
        write_doc(doc, lines);
    }
    return check::finish();
}
