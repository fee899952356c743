#pragma once

// Which cached rows of one sequence were filled, and what was added to its recurrent state for it. Integers and scales
// only: no tensors, no model, no context.

#include "llama-ridgefill-decay.h"
#include "llama-ridgefill.h"

#include <memory>
#include <vector>

// A run of filled rows. The correction is added once, between its last row and the exact row that follows.
struct ridgefill_part {
    llama_pos begin;
    llama_pos end;
    llama_ridgefill_mode mode; // that filled them
    float applied; // how many times the correction stands in the state since `end`; 0 while the part may still grow
    std::shared_ptr<const ridgefill_shares> share = nullptr; // of it, where that differs by head
};

// A history rather than one number, because the state may go back to an earlier position (a checkpoint): what stood in
// it there is what the parts before that position say.
class ridgefill_marks {
  public:
    // The smallest interval that contains all filled rows.
    llama_ridgefill_interval hull() const;
    const std::vector<ridgefill_part> & all() const { return parts; }

    // The state stands at pos: rows >= pos are gone. A part that ends at pos or was cut there is open again.
    void cut(llama_pos pos);

    // Row pos was filled.
    void add(llama_pos pos, llama_ridgefill_mode mode);

    // What stands in the state now.
    float applied() const { return parts.empty() ? 0.0f : parts.back().applied; }
    std::shared_ptr<const ridgefill_shares> share() const { return parts.empty() ? nullptr : parts.back().share; }

    // The correction was taken off at pos, a new part begins.
    void undone(llama_pos pos);

    // Does an exact row at pos follow a filled one without a correction? Then `apply` records the one that was added.
    bool open_at(llama_pos pos) const;
    void apply(float scale, std::shared_ptr<const ridgefill_shares> share = nullptr);

    // A caller says which rows of a restored or copied state were filled. assumed: the scale that a complete part has
    // here.
    void set(const llama_ridgefill_interval * list, size_t n, float assumed);

    // The constants in the state are no longer known (another side file).
    void forget_applied();

  private:
    std::vector<ridgefill_part> parts; // ascending, disjoint; the last may be empty after undone()
};
