#include "common-ridgefill-bench.h"

#include "common.h"

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

void common_ridgefill_bench_usage() {
    const llama_ridgefill_params def = llama_ridgefill_default_params();
    printf("  --ridgefill <filename>                            RidgeFill side file (default: none)\n");
    printf("  --ridgefill-mode <off|plumb|speed|quality>        (default: speed with a side file)\n");
    printf("  --ridgefill-tail <n>                              (default: %d)\n", def.n_tail);
    printf("  --ridgefill-head <n>                              (default: %d)\n", def.n_head);
    printf("  --ridgefill-min-bulk <n>                          (default: %d)\n", def.n_min_bulk);
    printf("  --ridgefill-share <x>                             (default: %.2f)\n", def.share);
    printf("  --ridgefill-placement <device|host>               (default: device)\n");
}

bool common_ridgefill_bench_arg(common_ridgefill_bench & bench, int argc, char ** argv, int & i) {
    std::string arg = argv[i];
    for (char & c : arg) {
        if (c == '_') {
            c = '-';
        }
    }
    if (arg.compare(0, 11, "--ridgefill") != 0) {
        return false;
    }
    if (i + 1 >= argc) {
        throw std::invalid_argument(arg + ": expected a value");
    }

    const std::string value = argv[i + 1];
    try {
        if (arg == "--ridgefill") {
            bench.path = value;
        } else if (arg == "--ridgefill-mode") {
            for (const auto & text : string_split<std::string>(value, ',')) {
                bench.modes.push_back(common_ridgefill_parse_mode(text));
            }
        } else if (arg == "--ridgefill-tail") {
            bench.params.n_tail = common_ridgefill_parse_int(value, 1);
        } else if (arg == "--ridgefill-head") {
            bench.params.n_head = common_ridgefill_parse_int(value, 0);
        } else if (arg == "--ridgefill-min-bulk") {
            bench.params.n_min_bulk = common_ridgefill_parse_int(value, 0);
        } else if (arg == "--ridgefill-placement") {
            if (!llama_ridgefill_placement_parse(value.c_str(), &bench.placement)) {
                throw std::invalid_argument("found '" + value + "', allowed: device, host");
            }
        } else if (arg == "--ridgefill-share") {
            bench.params.share = common_ridgefill_parse_share(value);
        } else {
            return false;
        }
    } catch (const std::invalid_argument & e) {
        throw std::invalid_argument(arg + ": " + e.what());
    }
    i++;
    return true;
}

std::vector<common_ridgefill_bench_instance> common_ridgefill_bench_instances(const common_ridgefill_bench & bench) {
    std::vector<llama_ridgefill_mode> modes = bench.modes;
    if (bench.path.empty()) {
        if (!modes.empty()) {
            fprintf(stderr, "error: --ridgefill-mode needs --ridgefill\n");
            exit(1);
        }
        modes = {LLAMA_RIDGEFILL_MODE_OFF};
    } else if (modes.empty()) {
        modes = {bench.params.mode};
    }

    std::vector<common_ridgefill_bench_instance> res;
    for (const auto mode : modes) {
        res.push_back({bench.params});
        res.back().params.mode = mode;
    }
    return res;
}

void common_ridgefill_bench_attach(
    const common_ridgefill_bench & bench, const common_ridgefill_bench_instance & instance, llama_context * ctx,
    common_ridgefill_ptr & projector
) {
    if (bench.path.empty()) {
        return;
    }

    char err[1024] = "";
    if (!projector) {
        projector.reset(
            llama_ridgefill_load(llama_get_model(ctx), bench.path.c_str(), bench.placement, err, sizeof(err))
        );
    }
    if (!projector || !llama_ridgefill_attach(ctx, projector.get(), instance.params, err, sizeof(err))) {
        fprintf(stderr, "error: ridgefill: %s\n", err);
        exit(1);
    }
}

void common_ridgefill_bench_prompt(llama_context * ctx, int n_prompt, bool is_depth) {
    if (!llama_ridgefill_attached(ctx)) {
        return;
    }

    llama_ridgefill_params params = llama_ridgefill_get_params(ctx);
    if (is_depth) {
        params.mode = LLAMA_RIDGEFILL_MODE_OFF;
    }
    const llama_pos begin = llama_memory_seq_pos_max(llama_get_memory(ctx), 0) + 1;
    llama_ridgefill_prompt(ctx, 0, begin, begin + n_prompt, &params);
}
