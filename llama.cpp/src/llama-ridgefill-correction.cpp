#include "llama-ridgefill-correction.h"

#include "llama-ridgefill-decay.h"

#include "ggml-backend.h"

#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"

namespace {

// The row of the r, s and p tensors that the next graph reads the sequence's state from, or -1. A rollback that was
// asked for and not yet taken lies in another plane of rows.
int64_t row_of(const llama_memory_recurrent & memory, llama_seq_id seq) {
    if (seq < 0 || (size_t) seq >= memory.cells.size() || (size_t) seq >= memory.rs_idx.size()) {
        return -1;
    }
    const int32_t tail = memory.cells[seq].tail;
    const int32_t src = tail < 0 ? -1 : memory.cells[tail].src;
    return src < 0 ? -1 : (int64_t) memory.rs_idx[seq] * memory.size + src;
}

void copy_row(ggml_tensor * t, int64_t from, int64_t to, std::vector<uint8_t> & buf) {
    if (t) {
        buf.resize(t->nb[1]);
        ggml_backend_tensor_get(t, buf.data(), from * t->nb[1], buf.size());
        ggml_backend_tensor_set(t, buf.data(), to * t->nb[1], buf.size());
    }
}

// Does any other sequence read its state from this cell?
bool is_shared(const llama_memory_recurrent & memory, llama_seq_id seq) {
    const int32_t tail = memory.cells[seq].tail;
    const int32_t src = memory.cells[tail].src;
    if (memory.cells[tail].seq_id.size() > 1) {
        return true;
    }
    for (size_t i = 0; i < memory.cells.size(); ++i) {
        if ((int32_t) i != tail && !memory.cells[i].is_empty() && memory.cells[i].src == src) {
            return true;
        }
    }
    return false;
}

// What the memory would do at the sequence's next row anyway: gives it a cell of its own, here with its states copied.
// There is one cell per sequence, so one is free when two share theirs.
bool detach(llama_memory_recurrent & memory, llama_seq_id seq) {
    const int32_t tail = memory.cells[seq].tail;
    const int32_t src = memory.cells[tail].src;
    int32_t to = tail;
    if (memory.cells[tail].seq_id.size() > 1) {
        to = -1;
        for (size_t i = 0; i < memory.cells.size() && to < 0; ++i) {
            to = memory.cells[i].is_empty() ? (int32_t) i : -1;
        }
        if (to < 0) {
            return false;
        }
        memory.cells[to].pos = memory.cells[tail].pos;
        memory.cells[to].seq_id.insert(seq);
        memory.cells[tail].seq_id.erase(seq);
        memory.cells[seq].tail = to;
        memory.used++;
    }
    memory.cells[to].src = to;

    std::vector<uint8_t> buf;
    for (uint32_t plane = 0; plane <= memory.n_rs_seq; ++plane) {
        const int64_t base = (int64_t) plane * memory.size;
        for (size_t il = 0; il < memory.s_l.size(); ++il) {
            for (ggml_tensor * t : {memory.r_l[il], memory.s_l[il], memory.p_l[il]}) {
                copy_row(t, base + src, base + to, buf);
            }
        }
    }
    return true;
}

// One share per head, or one for all of them.
std::vector<float> shares_of(const ridgefill_shares * share, int32_t il) {
    if (!share) {
        return {1.0f};
    }
    const auto it = share->heads.find(il);
    return it == share->heads.end() ? std::vector<float>{share->rest} : it->second;
}

} // namespace

void ridgefill_settle(llama_memory_recurrent & memory, const llama_ubatch & ubatch, ggml_backend_sched_t sched) {
    const auto cell_of = [&](uint32_t s) { return memory.cells[ubatch.seq_id[s * ubatch.n_seq_tokens][0]].tail; };
    std::vector<llama_pos> pos;
    for (uint32_t s = 0; s < ubatch.n_seqs; ++s) {
        pos.push_back(cell_of(s) < 0 ? -1 : memory.cells[cell_of(s)].pos);
    }
    if (!memory.find_slot(ubatch)) {
        return; // and so it will be when the ubatch is computed
    }
    for (uint32_t s = 0; s < ubatch.n_seqs; ++s) {
        memory.cells[cell_of(s)].pos = pos[s]; // its rows are still to come
    }
    std::vector<uint32_t> moved;
    for (uint32_t i = memory.head; i < memory.head + memory.n; ++i) {
        if (memory.cells[i].src0 != (int32_t) i || memory.rs_z == (int32_t) i) {
            moved.push_back(i);
        }
    }
    if (moved.empty()) {
        return;
    }
    ggml_backend_sched_synchronize(sched); // earlier rows may still be on their way to the states
    std::vector<uint8_t> buf;
    for (size_t il = 0; il < memory.s_l.size(); ++il) {
        for (ggml_tensor * t : {memory.r_l[il], memory.s_l[il], memory.p_l[il]}) {
            const size_t size = t ? t->nb[1] : 0;
            buf.assign(size * moved.size(), 0);
            for (size_t k = 0; k < moved.size() && t; ++k) { // cells may change places: first all are read
                const int32_t src = memory.cells[moved[k]].src0;
                if (src != memory.rs_z) {
                    ggml_backend_tensor_get(t, buf.data() + k * size, (size_t) src * size, size);
                }
            }
            for (size_t k = 0; k < moved.size() && t; ++k) {
                ggml_backend_tensor_set(t, buf.data() + k * size, moved[k] * size, size);
            }
        }
    }
}

std::vector<uint32_t> ridgefill_tiled_index(uint32_t n_heads, uint32_t n_key_heads) {
    std::vector<uint32_t> index(n_heads);
    const uint32_t r = n_heads / n_key_heads;
    for (uint32_t k = 0; k < n_key_heads; ++k) {
        for (uint32_t i = 0; i < r; ++i) {
            index[i * n_key_heads + k] = k * r + i;
        }
    }
    return index;
}

std::vector<float> ridgefill_tiled(const std::vector<float> & grouped, uint32_t n_heads, uint32_t n_key_heads) {
    std::vector<float> res;
    res.reserve(grouped.size());
    const size_t size = grouped.size() / n_heads;
    for (const uint32_t head : ridgefill_tiled_index(n_heads, n_key_heads)) {
        res.insert(res.end(), grouped.begin() + head * size, grouped.begin() + (head + 1) * size);
    }
    return res;
}

llama_memory_recurrent * ridgefill_recurrent(llama_memory_i * memory) {
    if (auto * m = dynamic_cast<llama_memory_hybrid *>(memory)) {
        return m->get_mem_recr();
    }
    if (auto * m = dynamic_cast<llama_memory_hybrid_iswa *>(memory)) {
        return m->get_mem_recr();
    }
    return dynamic_cast<llama_memory_recurrent *>(memory);
}

bool ridgefill_correction_add(
    llama_memory_recurrent & memory, llama_seq_id seq, const ridgefill_corrections & constants, float scale,
    const ridgefill_shares * share
) {
    if (row_of(memory, seq) < 0 || (is_shared(memory, seq) && !detach(memory, seq))) {
        return false;
    }
    const int64_t row = row_of(memory, seq);
    std::vector<float> state;
    for (const auto & [il, c] : constants) {
        ggml_tensor * s = memory.s_l[il];
        GGML_ASSERT(s && s->type == GGML_TYPE_F32 && (size_t) s->ne[0] == c.size()); // the loader checks
        state.resize(c.size());
        ggml_backend_tensor_get(s, state.data(), row * s->nb[1], s->nb[1]);
        const std::vector<float> heads = shares_of(share, il);
        const size_t size = c.size() / heads.size();
        for (size_t h = 0; h < heads.size(); ++h) {
            const float factor = scale * heads[h];
            for (size_t i = h * size; factor != 0.0f && i < (h + 1) * size; ++i) {
                state[i] += factor * c[i];
            }
        }
        ggml_backend_tensor_set(s, state.data(), row * s->nb[1], s->nb[1]);
    }
    return true;
}

size_t
ridgefill_state_get(const llama_memory_recurrent & memory, llama_seq_id seq, int32_t il, float * dst, size_t n_max) {
    const int64_t row = row_of(memory, seq);
    if (row < 0 || il < 0 || (size_t) il >= memory.s_l.size() || !memory.s_l[il]
        || memory.s_l[il]->type != GGML_TYPE_F32) {
        return 0;
    }
    const ggml_tensor * s = memory.s_l[il];
    const size_t n = (size_t) s->ne[0];
    if (dst && n_max >= n) {
        ggml_backend_tensor_get(s, dst, row * s->nb[1], s->nb[1]);
    }
    return n;
}
