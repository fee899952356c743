#include "llama-ridgefill-ring.h"

void ridgefill_ring::start(const llama_kv_cells & cells) {
    if (!before) {
        before = std::make_unique<llama_kv_cells>(cells);
    }
}

void ridgefill_ring::note(const llama_kv_cells & cells, const llama_ubatch & ubatch) {
    const auto & places = cells.seq_pos_get(ubatch.seq_id[0][0]);
    begins.insert(ubatch.pos[0]);
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        const auto it = places.lower_bound({ubatch.pos[i], 0});
        GGML_ASSERT(it != places.end() && it->first == ubatch.pos[i]); // it was just computed
        cell[ubatch.pos[i]] = it->second;
    }
}

void ridgefill_ring::cut(llama_pos pos) {
    cell.erase(cell.lower_bound(pos), cell.end());
    begins.erase(begins.lower_bound(pos), begins.end());
}

llama_pos ridgefill_ring::end_of_ubatch(llama_pos pos) const {
    const auto next = begins.upper_bound(pos);
    return next == begins.end() ? INT32_MAX : *next;
}

ridgefill_replay::ridgefill_replay(llama_kv_cache & cache, const ridgefill_ring & ring)
    : cache(cache), after(cache.ridgefill_cells()) {
    cache.ridgefill_cells() = *ring.before;
    cache.ridgefill_replay = &ring.cell;
}

ridgefill_replay::~ridgefill_replay() {
    cache.ridgefill_cells() = std::move(after);
    cache.ridgefill_replay = nullptr;
}
