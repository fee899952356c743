#include "common-ridgefill.h"

#include "arg.h"
#include "common.h"
#include "log.h"

#include <charconv>
#include <cstdlib>
#include <stdexcept>

llama_ridgefill_params common_params_ridgefill::defaults() const {
    llama_ridgefill_params res = params;
    if (path.empty()) {
        res.mode = LLAMA_RIDGEFILL_MODE_OFF;
    }
    return res;
}

//
// flags
//

llama_ridgefill_mode common_ridgefill_parse_mode(const std::string & text) {
    llama_ridgefill_mode mode;
    if (!llama_ridgefill_mode_parse(text.c_str(), &mode)) {
        throw std::invalid_argument("found '" + text + "', allowed: off, plumb, speed, quality");
    }
    return mode;
}

int32_t common_ridgefill_parse_int(const std::string & text, int32_t min) {
    int32_t value = 0;
    const char * end = text.data() + text.size();
    const auto res = std::from_chars(text.data(), end, value);
    if (res.ec != std::errc() || res.ptr != end || value < min) {
        throw std::invalid_argument(
            "found '" + text + "', allowed: " + std::to_string(min) + " to " + std::to_string(INT32_MAX)
        );
    }
    return value;
}

float common_ridgefill_parse_share(const std::string & text) {
    char * end = nullptr;
    const float value = std::strtof(text.c_str(), &end);
    if (text.empty() || *end != '\0' || !(value >= 0.0f && value <= 1.0f)) {
        throw std::invalid_argument("found '" + text + "', allowed: 0 to 1");
    }
    return value;
}

void common_ridgefill_add_args(const std::function<void(common_arg)> & add) {
    const llama_ridgefill_params def = llama_ridgefill_default_params();

    // only programs that announce prompts or say why they do not; elsewhere the flags would do nothing
    const auto add_opt = [&](common_arg arg, const char * env) {
        arg.set_examples({
            LLAMA_EXAMPLE_SERVER,
            LLAMA_EXAMPLE_CLI,
            LLAMA_EXAMPLE_COMPLETION,
            LLAMA_EXAMPLE_PERPLEXITY,
        });
        arg.set_env(env);
        add(std::move(arg));
    };

    add_opt(
        common_arg(
            {"--ridgefill"}, "FNAME",
            "RidgeFill side file of the model: late layers of long prompts are predicted instead of computed (default: "
            "none)",
            [](common_params & params, const std::string & value) { params.ridgefill.path = value; }
        ),
        "LLAMA_ARG_RIDGEFILL"
    );
    add_opt(
        common_arg(
            {"--ridgefill-mode"}, "{off,plumb,speed,quality}",
            string_format(
                "what prompts get unless a request says otherwise (default: %s with a side file)\n"
                "- off: every row is exact\n"
                "- plumb: the machinery runs but predicts nothing, for checking it\n"
                "- speed: all rows between head and tail are filled\n"
                "- quality: as speed, then the rows run exactly that the prompt's end attends to",
                llama_ridgefill_mode_name(def.mode)
            ),
            [](common_params & params, const std::string & value) {
                params.ridgefill.params.mode = common_ridgefill_parse_mode(value);
            }
        ),
        "LLAMA_ARG_RIDGEFILL_MODE"
    );
    add_opt(
        common_arg(
            {"--ridgefill-tail"}, "N",
            string_format("rows at the end of a prompt that stay exact (default: %d)", def.n_tail),
            [](common_params & params, const std::string & value) {
                params.ridgefill.params.n_tail = common_ridgefill_parse_int(value, 1);
            }
        ),
        "LLAMA_ARG_RIDGEFILL_TAIL"
    );
    add_opt(
        common_arg(
            {"--ridgefill-head"}, "N",
            string_format("rows at the beginning of a sequence that stay exact (default: %d)", def.n_head),
            [](common_params & params, const std::string & value) {
                params.ridgefill.params.n_head = common_ridgefill_parse_int(value, 0);
            }
        ),
        "LLAMA_ARG_RIDGEFILL_HEAD"
    );
    add_opt(
        common_arg(
            {"--ridgefill-min-bulk"}, "N",
            string_format("prompts with fewer rows to fill than this run exactly (default: %d)", def.n_min_bulk),
            [](common_params & params, const std::string & value) {
                params.ridgefill.params.n_min_bulk = common_ridgefill_parse_int(value, 0);
            }
        ),
        "LLAMA_ARG_RIDGEFILL_MIN_BULK"
    );
    add_opt(
        common_arg(
            {"--ridgefill-share"}, "N",
            string_format(
                "quality mode: share of the rows to fill that run exactly, 0 to 1 (default: %.2f)", def.share
            ),
            [](common_params & params, const std::string & value) {
                params.ridgefill.params.share = common_ridgefill_parse_share(value);
            }
        ),
        "LLAMA_ARG_RIDGEFILL_SHARE"
    );
    add_opt(
        common_arg(
            {"--ridgefill-select"}, "{attention,spans,rows,class,random,all}",
            string_format(
                "quality mode: which of these rows (default: %s)\n"
                "- spans: around what the last queries of the prompt attend to; rows: what its whole tail attends to\n"
                "- attention: both within the share\n"
                "- class: by the side file's score table; random, all: controls",
                llama_ridgefill_select_name(def.select)
            ),
            [](common_params & params, const std::string & value) {
                if (!llama_ridgefill_select_parse(value.c_str(), &params.ridgefill.params.select)) {
                    throw std::invalid_argument(
                        "found '" + value + "', allowed: attention, spans, rows, class, random, all"
                    );
                }
            }
        ),
        "LLAMA_ARG_RIDGEFILL_SELECT"
    );
    add_opt(
        common_arg(
            {"--ridgefill-alpha"}, "N",
            "scale of the side file's correction of recurrent states, 0 to 1; 0 adds nothing (default: 1)",
            [](common_params & params, const std::string & value) {
                params.ridgefill.alpha = common_ridgefill_parse_share(value);
            }
        ),
        "LLAMA_ARG_RIDGEFILL_ALPHA"
    );
    add_opt(
        common_arg(
            {"--ridgefill-placement"}, "{device,host}",
            "where the maps are (default: device)\n"
            "- device: on the device of their layer\n"
            "- host: in host memory, copied to the device for each use, for cards whose memory is full",
            [](common_params & params, const std::string & value) {
                if (!llama_ridgefill_placement_parse(value.c_str(), &params.ridgefill.placement)) {
                    throw std::invalid_argument("found '" + value + "', allowed: device, host");
                }
            }
        ),
        "LLAMA_ARG_RIDGEFILL_PLACEMENT"
    );
    add_opt(
        common_arg(
            {"--ridgefill-strict"}, {"--no-ridgefill-strict"},
            "exit with status 1 when the side file is refused, instead of serving exactly with a warning (default: "
            "disabled)",
            [](common_params & params, bool value) { params.ridgefill.strict = value; }
        ),
        "LLAMA_ARG_RIDGEFILL_STRICT"
    );
}

//
// loading
//

std::vector<size_t> common_ridgefill_fit_target(const common_params & params) {
    std::vector<size_t> target = params.fit_params_target;
    if (!params.ridgefill.path.empty()) {
        const size_t size = llama_ridgefill_file_size(params.ridgefill.path.c_str(), params.ridgefill.placement);
        for (size_t & bytes : target) {
            bytes += size;
        }
    }
    return target;
}

static std::string refusal;

const std::string & common_ridgefill_refusal() {
    return refusal;
}

bool common_ridgefill_init(
    const common_params_ridgefill & params, const llama_model * model, llama_context * ctx, common_ridgefill_ptr & out
) {
    refusal.clear();
    if (params.path.empty()) {
        return true;
    }

    char err[1024] = "";
    out.reset(llama_ridgefill_load(model, params.path.c_str(), params.placement, err, sizeof(err)));

    if (!out || !llama_ridgefill_attach(ctx, out.get(), params.params, err, sizeof(err))) {
        out.reset();
        refusal = err;
        if (params.strict) {
            LOG_ERR("ridgefill: %s\n", err);
        } else {
            LOG_WRN("ridgefill: %s; every prompt runs exactly\n", err);
        }
        return !params.strict;
    }
    llama_ridgefill_set_alpha(ctx, params.alpha);

    const size_t host_size = llama_ridgefill_host_size(out.get());
    const std::string on_host =
        host_size > 0 ? string_format(" (and %.1f MiB in host memory)", host_size / 1024.0 / 1024.0) : "";
    LOG_INF(
        "ridgefill: '%s', split %d, %d maps, %d states, %.1f MiB%s, %s, mode %s, tail %d, head %d, min bulk %d\n",
        llama_ridgefill_name(out.get()), llama_ridgefill_split(out.get()), llama_ridgefill_n_maps(out.get()),
        llama_ridgefill_n_states(out.get()), llama_ridgefill_size(out.get()) / 1024.0 / 1024.0, on_host.c_str(),
        llama_ridgefill_native(out.get()) ? "op" : "portable path", llama_ridgefill_mode_name(params.params.mode),
        params.params.n_tail, params.params.n_head, params.params.n_min_bulk
    );
    return true;
}

//
// tools that decode prompts themselves
//

void common_ridgefill_prompt(
    const common_params & params, llama_context * ctx, llama_seq_id seq_id, llama_pos pos_begin, llama_pos pos_end
) {
    if (!llama_ridgefill_attached(ctx)) {
        return;
    }

    llama_ridgefill_params overrides = params.ridgefill.params;
    const char * why = !params.path_prompt_cache.empty() ? "a session file holds no marks of filled rows"
                       : params.ctx_shift                ? "--context-shift moves filled rows"
                       : params.grp_attn_n != 1          ? "self-extend moves filled rows"
                                                         : nullptr;
    if (why != nullptr && overrides.mode != LLAMA_RIDGEFILL_MODE_OFF) {
        LOG_WRN("ridgefill: the prompt runs exactly: %s\n", why);
        overrides.mode = LLAMA_RIDGEFILL_MODE_OFF;
    }

    const auto plan = llama_ridgefill_prompt(ctx, seq_id, pos_begin, pos_end, &overrides);
    if (plan.reason == LLAMA_RIDGEFILL_REASON_NONE) {
        LOG_INF(
            "ridgefill: %s, prompt rows [%d, %d) of %d\n", llama_ridgefill_mode_name(plan.mode), plan.bulk_begin,
            plan.bulk_end, pos_end
        );
    }
}

void common_ridgefill_warn_exact(const common_params_ridgefill & params, const char * tool) {
    if (!params.path.empty() && params.params.mode != LLAMA_RIDGEFILL_MODE_OFF) {
        LOG_WRN("ridgefill: %s reads the outputs of every row, so all rows run exactly\n", tool);
    }
}
