#include "llama-ridgefill-mixed.h"

#include "llama-ridgefill-inputs.h"
#include "llama-ridgefill-join.h"
#include "llama-ridgefill-projector.h"
#include "llama-ridgefill-targets.h"

#include "llama-graph.h"
#include "llama-model.h"

#include <algorithm>

namespace {

// Tensors that joining adds, per late layer: the rows taken over from the other graph, the input with rows replaced.
constexpr int64_t JOIN_NODES = 64;

// The graph of the few rows, and its inputs.
class some_rows : public llm_graph_input_i {
  public:
    some_rows(const llm_graph_params & all, int64_t max_nodes)
        : from(all.ridgefill.inputs), params(all), res(max_nodes) {
        const uint32_t n_rows = (uint32_t) all.ridgefill.n_exact;
        params.ubatch.n_tokens = n_rows;
        if (!params.ubatch.equal_seqs()) { // a simple split counts every row as a sequence
            params.ubatch.n_seqs = n_rows;
        }
        params.ubatch.n_seq_tokens = n_rows / params.ubatch.n_seqs;
        params.n_outputs = std::min(params.n_outputs, n_rows);
        params.ridgefill = {};
        params.res = &res;
        res.reset();
        all.ridgefill.model->build_arch_graph(params);

        ids = ggml_new_tensor_1d(res.get_ctx(), GGML_TYPE_I32, n_rows);
        ggml_set_name(ids, "ridgefill-exact-rows");
        ggml_set_input(ids);
        for (const auto & input : res.inputs) {
            if (auto * pos = dynamic_cast<llm_graph_input_pos *>(input.get())) {
                positions.push_back(pos);
            }
        }
    }

    void set_input(const llama_ubatch * ubatch) override;

    bool can_reuse(const llm_graph_params &) override { return true; } // their number is part of the task

    // the stream entering layer S, and what else is set for these rows
    std::vector<ggml_tensor *> own_inputs() const {
        std::vector<ggml_tensor *> own = {rows};
        for (const llm_graph_input_pos * p : positions) {
            own.push_back(p->pos);
        }
        return own;
    }

    const ridgefill_inputs * from;
    llm_graph_params params;
    llm_graph_result res;
    ggml_tensor * ids = nullptr;
    ggml_tensor * rows = nullptr;
    std::vector<llm_graph_input_pos *> positions;
};

void some_rows::set_input(const llama_ubatch * all) {
    const std::vector<int32_t> places = from->exact_rows(*all);
    GGML_ASSERT((int64_t) places.size() == ids->ne[0]);
    ggml_backend_tensor_set(ids, places.data(), 0, ggml_nbytes(ids));

    std::vector<llama_token> token;
    std::vector<llama_pos> pos;
    std::vector<llama_seq_id *> seq_id;
    for (const int32_t i : places) {
        token.push_back(all->token ? all->token[i] : LLAMA_TOKEN_NULL);
        seq_id.push_back(all->seq_id[i]);
    }
    for (uint32_t k = 0; k < all->n_pos; ++k) {
        for (const int32_t i : places) {
            pos.push_back(all->pos[k * all->n_tokens + (uint32_t) i]);
        }
    }
    llama_ubatch some = *all;
    some.n_tokens = some.n_seq_tokens = (uint32_t) places.size();
    some.token = all->token ? token.data() : nullptr;
    some.pos = pos.data();
    some.seq_id = seq_id.data();

    if (rows->buffer) { // a first layer may need no more than what all rows compute
        ridgefill_input(from, rows, ridgefill_input::ROWS).set_input(&some);
    }
    for (llm_graph_input_pos * p : positions) {
        if (p->pos->buffer) { // no late layer attends otherwise
            p->set_input(&some);
        }
    }
}

} // namespace

std::unique_ptr<llm_graph_input_i> ridgefill_mix(
    const llm_graph_params & params, llm_graph_result & res, const ggml_tensor * source,
    std::vector<ridgefill_redirect> & maps, std::string & reason
) {
    const ridgefill_task & task = params.ridgefill;
    const int64_t n_rows = params.ubatch.n_tokens;
    if (params.ubatch.equal_seqs() && task.n_exact % params.ubatch.n_seqs != 0) {
        reason = "sequences of unequal lengths";
        return nullptr;
    }
    const int64_t max_nodes = res.get_max_nodes() + JOIN_NODES * (int64_t) (maps.size() + 1);
    auto some = std::make_unique<some_rows>(params, max_nodes);
    ggml_context * ctx = some->res.get_ctx();
    ggml_cgraph * gf = some->res.get_gf();

    ggml_tensor * some_source = ridgefill_find_source(some->res, task.split);
    std::vector<ggml_tensor *> targets; // by map
    for (const ridgefill_map & map : task.maps->maps) {
        ggml_tensor * t = ridgefill_find_target(some->res, task.target, map.il);
        if (!some_source || !t || !ridgefill_has_rows(t, task.maps->n_out, task.n_exact)) {
            reason = "no rows of layer " + std::to_string(map.il);
            return nullptr;
        }
        targets.push_back(t);
    }
    some->rows = ridgefill_new_input(ctx, some_source, "ridgefill-rows-exact");

    ridgefill_rewrite_stats stats;
    if (!ridgefill_rewrite(
            gf, {{some_source, some->rows}}, targets, stats, reason, nullptr, {ridgefill_section::NONE, nullptr}
        )) {
        return nullptr;
    }

    std::vector<ggml_tensor *> stops;
    for (const ridgefill_redirect & m : maps) {
        stops.push_back(m.target);
    }
    const auto kept = ridgefill_written_from(res.get_gf(), stops, {ridgefill_section::AFTER, source});
    if ((int64_t) kept.size() + ggml_graph_n_nodes(gf) + JOIN_NODES * (int64_t) maps.size()
        >= ggml_graph_size(res.get_gf())) {
        reason = "too many nodes";
        return nullptr;
    }
    ridgefill_join join(ctx, res.get_gf(), n_rows, some->ids, kept, some->own_inputs());

    int next = 0; // node of the few rows' graph
    for (size_t k = 0; k < maps.size(); ++k) {
        if (!join.take(targets[k], maps[k].target)) {
            reason = join.reason();
            return nullptr;
        }
        ggml_tensor * y = maps[k].replacement;
        const int64_t width = task.maps->n_out;
        ggml_tensor * x = ggml_set_rows(
            ctx, ggml_reshape_2d(ctx, y, width, n_rows), ggml_reshape_2d(ctx, targets[k], width, task.n_exact),
            some->ids
        );
        ggml_format_name(x, "ridgefill-mixed-%d", task.maps->maps[k].il);
        maps[k].replacement = ggml_reshape_4d(ctx, x, y->ne[0], y->ne[1], y->ne[2], y->ne[3]);
        for (bool last = false; !last; ++next) {
            ggml_tensor * n = ggml_graph_node(gf, next);
            last = n == targets[k];
            if (join.needed().count(n)) {
                maps[k].steps.push_back(n);
            }
        }
    }
    return some;
}
