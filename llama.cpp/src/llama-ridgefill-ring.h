#pragma once

// Cells of layers with a sliding window hold the last rows only, so a bulk row has lost its cell there when quality
// mode comes to its late layers. All rows then pass the late layers in order (as on hybrids), and the cells'
// bookkeeping goes through the prompt a second time: back to what it was before the bulk, then row by row over the same
// cells.
//
// That is exact when no other sequence shares the cells and when rows that came in different ubatches come in different
// ones again: a cell is taken over once no row of the ubatch sees what it held.

#include "llama-kv-cache.h"

#include <map>
#include <memory>
#include <set>

class ridgefill_ring {
  public:
    // Before the first row: the cells as they are. Later calls do nothing.
    void start(const llama_kv_cells & cells);

    // Behind a ubatch of rows of one sequence: the cells that they took.
    void note(const llama_kv_cells & cells, const llama_ubatch & ubatch);

    // Forgets rows at and after pos.
    void cut(llama_pos pos);

    // The rows from pos on that came in one ubatch end here.
    llama_pos end_of_ubatch(llama_pos pos) const;

  private:
    friend class ridgefill_replay;

    std::unique_ptr<llama_kv_cells> before;
    std::map<llama_pos, uint32_t> cell;
    std::set<llama_pos> begins; // of the ubatches
};

// While it lives, rows that are placed take the cells of `ring` again, from its beginning; then all is as it was.
class ridgefill_replay {
  public:
    ridgefill_replay(llama_kv_cache & cache, const ridgefill_ring & ring);
    ~ridgefill_replay();

    ridgefill_replay(const ridgefill_replay &) = delete;
    ridgefill_replay & operator=(const ridgefill_replay &) = delete;

  private:
    llama_kv_cache & cache;
    llama_kv_cells after;
};
