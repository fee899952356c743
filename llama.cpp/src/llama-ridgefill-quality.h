#pragma once

// Quality mode of one announced prompt: what is kept of its bulk while it is filled, and which rows of it run exactly.
//
//   bulk rows       filled; their h_S (stream entering layer S) is kept
//   tail rows       layers 0..S-1 only; their queries score the bulk; their h_S is kept
//   selected rows   layers S.. from their h_S, in order, over the cells they already have
//   tail rows       layers S.. likewise; they give the prompt's outputs
//
// Nothing in the bulk depends on late KV caches, so the selection may wait for the end of the prompt. A recurrent
// layer's state does depend on all rows before it, and a sliding window's cells are taken over, so there the bulk's
// late part waits too: bulk rows run layers 0..S-1 first, and behind the selection all of them pass the late layers in
// order, the selected ones beside the filled ones (llama-ridgefill-mixed.h).

#include "llama-ridgefill-decay.h"
#include "llama-ridgefill-ring.h"
#include "llama-ridgefill-rows.h"
#include "llama-ridgefill-select.h"

#include <algorithm>
#include <vector>

struct ridgefill_prompt_quality {
    llama_ridgefill_select select = LLAMA_RIDGEFILL_SELECT_ATTENTION;
    float share = 0.0f;

    llama_pos bulk_end = 0;
    llama_pos pos_end = 0;

    ridgefill_rows rows;     // kept bulk rows, then tail rows
    ridgefill_scores scores; // of the bulk rows
    ridgefill_decay decay;   // of the recurrent states, over the bulk
    ridgefill_ring ring;     // the rows' cells under sliding windows

    std::vector<llama_pos> chosen; // bulk rows to run exactly, ascending
    bool is_chosen(llama_pos pos) const { return std::binary_search(chosen.begin(), chosen.end(), pos); }

    // How much of the recurrent states' memory stays filled and is left to correct.
    ridgefill_shares filled_shares() const;

    bool has_bulk() const { return rows.size() > 0 && rows.pos_at(0) < bulk_end; }

    // Number of kept rows below bulk_end.
    size_t n_bulk() const;

    // Chooses them. table: the side file's scores or nullptr. block: attention chooses so many neighbours at once.
    void choose(const std::vector<float> * table, llama_pos block);
};
