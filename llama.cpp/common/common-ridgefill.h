#pragma once

// RidgeFill in the programs that use upstream's common library: parameters, command line flags, loading.
//
// Knows parameters, models and contexts. Knows nothing of requests (llama.cpp/server) and nothing of maps
// (llama.cpp/src).

#include "llama-ridgefill.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

struct common_arg;
struct common_params;

struct common_params_ridgefill {
    std::string path; // side file; empty: no projector
    bool strict = false;
    llama_ridgefill_placement placement = LLAMA_RIDGEFILL_PLACEMENT_DEVICE;
    float alpha = 1.0f; // scale of the side file's correction of recurrent states
    llama_ridgefill_params params = llama_ridgefill_default_params();

    // What a prompt gets when nobody asks for anything else: mode off without a side file.
    llama_ridgefill_params defaults() const;
};

struct common_ridgefill_deleter {
    void operator()(llama_ridgefill_projector * projector) const { llama_ridgefill_free(projector); }
};

// Declare it after the model and before the context: it is freed in the order llama_ridgefill_free asks for.
using common_ridgefill_ptr = std::unique_ptr<llama_ridgefill_projector, common_ridgefill_deleter>;

// Registers --ridgefill and its companions; add() gets one option at a time.
void common_ridgefill_add_args(const std::function<void(common_arg)> & add);

// Loads the side file and attaches it to the context; does nothing without a path. When the file is refused the context
// serves exactly and one warning says why; with strict it is one error instead and the return value is false.
bool common_ridgefill_init(
    const common_params_ridgefill & params, const llama_model * model, llama_context * ctx, common_ridgefill_ptr & out
);

// For upstream's fitting of parameters to device memory: --fit-target with the maps on top. Which layers a device will
// get is decided by the fit itself, so that each device leaves room for all maps; with one it is exact.
std::vector<size_t> common_ridgefill_fit_target(const common_params & params);

// Why the last common_ridgefill_init of this process refused the side file, "<code>: ..."; empty when it did not.
const std::string & common_ridgefill_refusal();

// Announces rows [pos_begin, pos_end) of a prompt that a tool decodes itself. Runs it exactly where the tool moves or
// stores rows on its own (session file, context shift, self-extend): nobody would carry the filled interval with them.
void common_ridgefill_prompt(
    const common_params & params, llama_context * ctx, llama_seq_id seq_id, llama_pos pos_begin, llama_pos pos_end
);

// For tools that read the outputs of every row: says once that their prompts run exactly, if a side file was given.
void common_ridgefill_warn_exact(const common_params_ridgefill & params, const char * tool);

// Parses what follows an option. Throws std::invalid_argument with the value found and the values allowed.
llama_ridgefill_mode common_ridgefill_parse_mode(const std::string & text);
int32_t common_ridgefill_parse_int(const std::string & text, int32_t min);
float common_ridgefill_parse_share(const std::string & text); // 0 .. 1
