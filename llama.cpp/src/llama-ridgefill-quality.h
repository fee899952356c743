#pragma once

// Quality mode of one announced prompt: what is kept of its bulk while it is filled, and which rows of it run exactly.
//
//   bulk rows       filled; their h_S (stream entering layer S) is kept
//   tail rows       layers 0..S-1 only; their queries score the bulk; their h_S is kept
//   selected rows   layers S.. from their h_S, in order, over the cells they already have
//   tail rows       layers S.. likewise; they give the prompt's outputs
//
// Nothing in the bulk depends on late caches, so the selection may wait for the end of the prompt.

#include "llama-ridgefill-rows.h"
#include "llama-ridgefill-select.h"

#include <memory>
#include <vector>

struct ridgefill_prompt_quality {
    llama_ridgefill_select select = LLAMA_RIDGEFILL_SELECT_ATTENTION;
    float                  share  = 0.0f;

    llama_pos bulk_end = 0;
    llama_pos pos_end  = 0;

    ridgefill_rows   rows;   // kept bulk rows, then tail rows
    ridgefill_scores scores; // of the bulk rows

    // Number of kept rows below bulk_end.
    size_t n_bulk() const;

    // Positions of the rows to run exactly, ascending. table: the side file's scores or nullptr.
    std::vector<llama_pos> choose(const std::vector<float> * table) const;
};
