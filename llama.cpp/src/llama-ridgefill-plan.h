#pragma once

// Which rows are bulk. Integers only: no tensors, no model, no context.

#include "llama-ridgefill.h"

// The plan of rows [pos_begin, pos_end) of a prompt that ends at pos_end.
// Bulk = [max(pos_begin, n_head), pos_end - n_tail); fewer rows than n_min_bulk (plumb too: it must follow the same
// plan to be an oracle for it) -> none, reason SHORT. The end is rounded down to a multiple of tile: recurrent layers
// scan in tiles, and the state is corrected there.
llama_ridgefill_plan
ridgefill_plan_make(llama_pos pos_begin, llama_pos pos_end, const llama_ridgefill_params & params, int32_t tile = 1);

// nullptr when the parameters are allowed, else a sentence in static storage with the allowed values.
const char * ridgefill_params_check(const llama_ridgefill_params & params);

// Walks along a prompt while its rows are decoded. A row that does not follow the last one ends the plan (the caller
// rewound or jumped without a new announcement), and rows after that are exact.
struct ridgefill_cursor {
    llama_ridgefill_plan plan = {};
    llama_pos pos_next = 0; // the next row of the prompt
    llama_pos pos_end = 0;  // end of the prompt
    bool active = false;

    void start(const llama_ridgefill_plan & p, llama_pos begin, llama_pos end);

    // Does the row belong to the announced prompt? Advances; on a mismatch the cursor becomes inactive.
    bool take(llama_pos pos);

    bool is_bulk(llama_pos pos) const;
    bool is_tail(llama_pos pos) const; // of a prompt that has bulk rows
};
