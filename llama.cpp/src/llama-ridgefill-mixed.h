#pragma once

// A late ubatch of which some rows were selected: all rows write their caches and pass the recurrent states in order,
// but only the selected ones run attention, FFN/MoE and what else no cache is made from.
//
//   graph of all rows   as for a filled ubatch, except that a layer's input is its map with the selected rows replaced
//   graph of few rows   upstream's, built for the selected rows alone; where the other one computes the same, it reads
//                       its rows from there (llama-ridgefill-join.h)

#include "llama-ridgefill-rewrite.h"

#include <memory>
#include <string>
#include <vector>

struct llm_graph_params;
class llm_graph_input_i;
class llm_graph_result;

// Redirects of `res` that are maps of the late layers become such inputs. rows: the stream entering layer S, of all
// rows. Returns what sets the few rows' inputs and owns their graph, or nullptr with a reason; changes nothing of
// `res`.
std::unique_ptr<llm_graph_input_i> ridgefill_mix(
    const llm_graph_params & params, llm_graph_result & res, const ggml_tensor * source,
    std::vector<ridgefill_redirect> & maps, std::string & reason
);
